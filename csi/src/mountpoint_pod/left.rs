//! Processes that mounters of an engines pod left when they ended: engines, and helpers of engines. Enters: the sources whose mounter has ended,
//! and the other children of the first process, except mounters. Leaves: the processes to kill, and the sources that have none any more.
//!
//! A process in uninterruptible sleep does not end when it is killed, maybe for days. Only its own source waits for it.
//!
//! Never here: a signal, a look into `/proc`.

use std::collections::{BTreeMap, BTreeSet};

/// The PIDs of the processes that are left, by source.
#[derive(Debug, Default)]
pub(super) struct Left(BTreeMap<String, BTreeSet<i32>>);

/// The result of [`Left::update`].
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Update {
    /// Processes that were not known before.
    pub(super) fresh: BTreeSet<i32>,
    /// Sources whose mounter has ended, and that have no process any more.
    pub(super) settled: Vec<String>,
}

impl Left {
    /// Whether no process is left.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a source has a process of an earlier mounter.
    pub(super) fn has(&self, source: &str) -> bool {
        self.0.contains_key(source)
    }

    /// Takes note of the sources whose mounter has `ended` since the last call, and of all `orphans` that there are now. A process becomes an
    /// orphan before the end of its parent is reported. So a new one belongs to a mounter that has ended, or to an engine that has.
    pub(super) fn update(&mut self, ended: &BTreeSet<String>, orphans: &BTreeSet<i32>) -> Update {
        let known: BTreeSet<_> = self.0.values().flatten().copied().collect();
        let fresh: BTreeSet<_> = orphans.difference(&known).copied().collect();
        for source in ended {
            self.0.entry(source.clone()).or_default();
        }
        for (source, pids) in &mut self.0 {
            let before = pids.len();
            pids.retain(|pid| orphans.contains(pid));
            if pids.len() < before || ended.contains(source) {
                pids.extend(&fresh);
            }
        }
        let settled = self.0.extract_if(.., |_, pids| pids.is_empty()).map(|(source, _)| source).collect();
        Update { fresh, settled }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn pids(numbers: &[i32]) -> BTreeSet<i32> {
        numbers.iter().copied().collect()
    }

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    /// A source whose engine does not end.
    pub(in super::super) fn stuck(source: &str) -> Left {
        let mut left = Left::default();
        left.update(&names(&[source]), &pids(&[i32::MAX]));
        left
    }

    #[test]
    fn a_process_that_does_not_end_holds_up_its_own_source_alone() {
        let mut left = Left::default();
        assert_eq!(left.update(&names(&["a"]), &pids(&[7])), Update { fresh: pids(&[7]), settled: vec![] });
        let next = left.update(&names(&["b"]), &pids(&[7, 8]));
        assert_eq!(next, Update { fresh: pids(&[8]), settled: vec![] });
        assert!(left.has("a") && left.has("b"));
        let next = left.update(&names(&["c"]), &pids(&[7]));
        assert_eq!(next, Update { fresh: pids(&[]), settled: vec!["b".into(), "c".into()] });
        assert!(left.has("a") && !left.has("b") && !left.has("c"));
        assert_eq!(left.update(&names(&[]), &pids(&[])).settled, ["a"]);
        assert!(left.is_empty());
    }

    #[test]
    fn a_helper_that_a_dead_engine_leaves_belongs_to_the_engines_source() {
        let mut left = Left::default();
        left.update(&names(&["a"]), &pids(&[7]));
        left.update(&names(&["b"]), &pids(&[7, 8]));
        // The engine of "a" has ended, and the first process inherits its helper.
        let next = left.update(&names(&[]), &pids(&[8, 9]));
        assert_eq!(next, Update { fresh: pids(&[9]), settled: vec![] });
        let next = left.update(&names(&[]), &pids(&[9]));
        assert_eq!(next.settled, ["b"]);
        assert_eq!(left.update(&names(&[]), &pids(&[])).settled, ["a"]);
    }
}
