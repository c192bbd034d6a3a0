//! Names that are known to be absent.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use foldhash::HashMap;

use super::InodeNo;
use crate::listing::expiry::left;
use crate::sync::Arc;

/// Names that S3 said are absent, and since when. Bounded; the oldest go first.
#[derive(Debug, Default)]
pub(super) struct Missing {
    names: HashMap<InodeNo, HashMap<Arc<str>, Instant>>,
    /// By age. Holds a stale line for a name that was removed or renewed; they leave as they reach the front.
    order: VecDeque<(InodeNo, Arc<str>, Instant)>,
}

impl Missing {
    /// Most names remembered as absent, as in AWS's mount-s3; the oldest is forgotten beyond it.
    pub(super) const ENTRIES_MAX: usize = 100_000;

    /// Remembers that `name` was absent at `now`; forgets what is older than `keep`.
    pub(super) fn insert(&mut self, parent: InodeNo, name: &str, now: Instant, keep: Duration) {
        while let Some((_, _, since)) = self.order.front() {
            if self.order.len() < Self::ENTRIES_MAX && !left(keep, *since, now).is_zero() {
                break;
            }
            let (parent, name, since) = self.order.pop_front().expect("front was there");
            self.take(parent, &name, Some(since));
        }
        let name: Arc<str> = Arc::from(name);
        self.names.entry(parent).or_default().insert(name.clone(), now);
        self.order.push_back((parent, name, now));
    }

    /// Whether `name` was absent less than `within` ago.
    pub(super) fn contains(&self, parent: InodeNo, name: &str, now: Instant, within: Duration) -> bool {
        let since = self.names.get(&parent).and_then(|names| names.get(name));
        since.is_some_and(|since| !left(within, *since, now).is_zero())
    }

    /// The names that were absent at this instant or later.
    pub(super) fn since(&self, parent: InodeNo, since: Instant) -> impl Iterator<Item = &str> {
        let names = self.names.get(&parent).into_iter().flatten();
        names.filter(move |(_, at)| **at >= since).map(|(name, _)| &**name)
    }

    /// Forgets a name: it is there now.
    pub(super) fn remove(&mut self, parent: InodeNo, name: &str) {
        self.take(parent, name, None);
    }

    /// Forgets a directory's names: the directory is gone.
    pub(super) fn remove_directory(&mut self, parent: InodeNo) {
        self.names.remove(&parent);
    }

    fn take(&mut self, parent: InodeNo, name: &str, only_of: Option<Instant>) {
        let Some(names) = self.names.get_mut(&parent) else { return };
        if only_of.is_none_or(|since| names.get(name) == Some(&since)) {
            names.remove(name);
            if names.is_empty() {
                self.names.remove(&parent);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DIR: InodeNo = InodeNo(1);
    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn the_oldest_absent_names_are_forgotten_beyond_the_limit() {
        let (mut missing, now) = (Missing::default(), Instant::now());
        for i in 0..Missing::ENTRIES_MAX + 10 {
            missing.insert(DIR, &i.to_string(), now, LONG);
        }
        assert!(!missing.contains(DIR, "9", now, LONG));
        assert!(missing.contains(DIR, "10", now, LONG));
        assert_eq!(missing.order.len(), Missing::ENTRIES_MAX);
        assert_eq!(missing.names[&DIR].len(), Missing::ENTRIES_MAX);
    }

    proptest! {
        /// Against a plain list of (name, since): the answers are the same, whatever the order of events.
        #[test]
        fn absent_names_are_exactly_those_noted_and_not_taken_back(
            steps in prop::collection::vec((0u8..4, 0u64..5, 0u64..3), 1..60)
        ) {
            let (mut missing, start) = (Missing::default(), Instant::now());
            let ttl = Duration::from_secs(10);
            let mut model: HashMap<String, Instant> = HashMap::default();
            let mut now = start;
            for (step, name, turn) in steps {
                let name = name.to_string();
                match step {
                    0 | 1 => {
                        missing.insert(DIR, &name, now, ttl);
                        model.insert(name, now);
                    }
                    2 => {
                        missing.remove(DIR, &name);
                        model.remove(&name);
                    }
                    _ => now += Duration::from_secs(turn * 4),
                }
                for i in 0..5 {
                    let name = i.to_string();
                    let expected = model.get(&name).is_some_and(|since| now < *since + ttl);
                    prop_assert_eq!(missing.contains(DIR, &name, now, ttl), expected);
                }
            }
        }
    }
}
