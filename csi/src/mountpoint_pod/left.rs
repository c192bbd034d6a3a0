//! Processes that mounters of an engines pod left when they ended: engines, and helpers of engines. Enters: the sources whose mounter has ended,
//! and the other children of the first process, except mounters. Leaves: the processes to kill, and the sources that have none any more.
//!
//! A process in uninterruptible sleep does not end when it is killed, maybe for days. Only its own source waits for it.
//!
//! Never here: a signal, a look into `/proc`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// The time after the first sight of a process in which the end of its mounter is reported. A source that gets a process of another one only
/// waits longer, so the time is long enough for a machine short of memory.
const REPORTED_WITHIN: Duration = Duration::from_secs(5);

/// The processes that are left.
#[derive(Debug, Default)]
pub(super) struct Left {
    /// PIDs by source.
    of: BTreeMap<String, BTreeSet<i32>>,
    /// The time of the first sight of each.
    seen: BTreeMap<i32, Instant>,
}

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
        self.of.is_empty()
    }

    /// Whether a source has a process of an earlier mounter.
    pub(super) fn has(&self, source: &str) -> bool {
        self.of.contains_key(source)
    }

    /// Takes note of the sources whose mounter has `ended` since the last call, and of all `orphans` that there are `now`. A process becomes an
    /// orphan before the end of its parent is reported. So a new one belongs to a mounter that has ended, or to an engine that has, or to
    /// one whose end is reported only before a later call: that source gets it then, too.
    pub(super) fn update(
        &mut self,
        ended: &BTreeSet<String>,
        orphans: &BTreeSet<i32>,
        now: Instant,
    ) -> Update {
        let known: BTreeSet<_> = self.of.values().flatten().copied().collect();
        let fresh: BTreeSet<_> = orphans.difference(&known).copied().collect();
        self.seen.retain(|pid, _| orphans.contains(pid));
        for &pid in orphans {
            self.seen.entry(pid).or_insert(now);
        }
        let recent = self.seen.iter().filter(|(_, first)| now.duration_since(**first) <= REPORTED_WITHIN);
        let maybe_its: BTreeSet<_> = recent.map(|(pid, _)| *pid).chain(fresh.iter().copied()).collect();
        for source in ended {
            self.of.entry(source.clone()).or_default();
        }
        for (source, pids) in &mut self.of {
            let before = pids.len();
            pids.retain(|pid| orphans.contains(pid));
            if pids.len() < before || ended.contains(source) {
                pids.extend(&maybe_its);
            }
        }
        let settled = self.of.extract_if(.., |_, pids| pids.is_empty()).map(|(source, _)| source).collect();
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
        left.update(&names(&[source]), &pids(&[i32::MAX]), Instant::now());
        left
    }

    /// Calls `update` so long after the call before that nothing is reported late.
    fn later(left: &mut Left, ended: &[&str], orphans: &[i32]) -> Update {
        let last = left.seen.values().max().copied().unwrap_or_else(Instant::now);
        left.update(&names(ended), &pids(orphans), last + 2 * REPORTED_WITHIN)
    }

    #[test]
    fn a_process_that_does_not_end_holds_up_its_own_source_alone() {
        let mut left = Left::default();
        let first = later(&mut left, &["a"], &[7]);
        assert_eq!(first, Update { fresh: pids(&[7]), settled: vec![] });
        let next = later(&mut left, &["b"], &[7, 8]);
        assert_eq!(next, Update { fresh: pids(&[8]), settled: vec![] });
        assert!(left.has("a") && left.has("b"));
        let next = later(&mut left, &["c"], &[7]);
        assert_eq!(next, Update { fresh: pids(&[]), settled: vec!["b".into(), "c".into()] });
        assert!(left.has("a") && !left.has("b") && !left.has("c"));
        assert_eq!(later(&mut left, &[], &[]).settled, ["a"]);
        assert!(left.is_empty());
    }

    #[test]
    fn a_helper_that_a_dead_engine_leaves_belongs_to_the_engines_source() {
        let mut left = Left::default();
        later(&mut left, &["a"], &[7]);
        later(&mut left, &["b"], &[7, 8]);
        // The engine of "a" has ended, and the first process inherits its helper.
        let next = later(&mut left, &[], &[8, 9]);
        assert_eq!(next, Update { fresh: pids(&[9]), settled: vec![] });
        assert_eq!(later(&mut left, &[], &[9]).settled, ["b"]);
        assert_eq!(later(&mut left, &[], &[]).settled, ["a"]);
    }

    #[test]
    fn an_engine_seen_before_the_end_of_its_mounter_holds_up_its_source() {
        let (mut left, now) = (Left::default(), Instant::now());
        left.update(&names(&["b"]), &pids(&[9]), now);
        // The mounter of "a" ended while the orphans were looked up: 9 is its engine.
        assert_eq!(left.update(&names(&["a"]), &pids(&[9]), now + REPORTED_WITHIN), Update::default());
        assert!(left.has("a"));
        assert_eq!(later(&mut left, &[], &[]).settled, ["a", "b"]);
    }
}
