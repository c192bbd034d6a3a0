//! How long an answer of S3 holds, and which names are known to be absent.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use foldhash::HashMap;

use super::InodeNo;
use crate::sync::Arc;

/// How long what S3 said of a name holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ttl {
    /// AWS's default freshness: files 100 ms, directories 1 s, no absent names; every open asks S3.
    Minimal,
    /// The user's choice; opens trust it too. Doubling `found` halves the lookups of a steady reader and doubles
    /// how long a change made elsewhere may go unseen; `missing` is the same for names that were not there.
    For {
        /// Of names that exist, and of whole listings.
        found: Duration,
        /// Of names that do not.
        missing: Duration,
    },
    /// The bucket does not change while it is mounted.
    Indefinite,
}

/// When S3 said something of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Said {
    /// The event of the question.
    pub(super) asked: u64,
    /// The moment of the answer.
    pub(super) at: Instant,
    /// Until when a stat may repeat it.
    pub(super) until: Instant,
}

/// `Minimal`, for files.
const MINIMAL_FILE: Duration = Duration::from_millis(100);
/// `Minimal`, for directories.
pub(super) const MINIMAL_DIRECTORY: Duration = Duration::from_secs(1);
/// How long a page answers lookups and stats, from when it was asked for. Doubling it halves the listings of a program that looks through a
/// directory, and doubles how long a change made elsewhere goes unseen by stat.
pub(super) const PAGE: Duration = Duration::from_secs(1);
/// "For ever": a century, which every clock and the kernel can still add.
const INDEFINITE: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

impl Ttl {
    /// Of a file's attributes and entry.
    pub(super) fn file(self) -> Duration {
        match self {
            Self::Minimal => MINIMAL_FILE,
            Self::For { found, .. } => found,
            Self::Indefinite => INDEFINITE,
        }
    }

    /// Of a directory, and of the knowledge that a file's name is not one.
    pub(super) fn directory(self) -> Duration {
        match self {
            Self::Minimal => MINIMAL_DIRECTORY,
            Self::For { found, .. } => found,
            Self::Indefinite => INDEFINITE,
        }
    }

    /// Of a name that is not there; zero when that is not remembered.
    pub(super) fn missing(self) -> Duration {
        match self {
            Self::Minimal => Duration::ZERO,
            Self::For { missing, .. } => missing,
            Self::Indefinite => INDEFINITE,
        }
    }

    /// How long an open may rely on what was known before it.
    pub(super) fn open(self) -> Duration {
        match self {
            Self::Minimal => Duration::ZERO,
            other => other.file(),
        }
    }

    /// Until when a stat may say what a page says of a file: for a second from its question on, or a file's time from its answer on.
    pub(super) fn of_page(self, since: Instant, arrived: Instant) -> Instant {
        (since + self.directory().min(PAGE)).max(arrived + self.file())
    }

    /// The validity of S3's answer about one file, to the request of event `asked`.
    pub(super) fn said(self, asked: u64, at: Instant) -> Said {
        Said { asked, at, until: at + self.file() }
    }

    /// How long a whole listing answers lookups and listings.
    pub(super) fn listing(self) -> Duration {
        self.open()
    }
}

/// The rest of `ttl` for an answer of `since`; zero when it is over.
pub(super) fn left(ttl: Duration, since: Instant, now: Instant) -> Duration {
    ttl.saturating_sub(now.saturating_duration_since(since))
}

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

    #[test]
    fn what_is_left_of_a_ttl_shrinks_with_age_and_never_below_nothing() {
        let now = Instant::now();
        assert_eq!(left(Duration::from_secs(3), now, now + Duration::from_secs(1)), Duration::from_secs(2));
        assert_eq!(left(Duration::from_secs(3), now, now + Duration::from_secs(9)), Duration::ZERO);
        assert_eq!(left(Duration::from_secs(3), now + Duration::from_secs(9), now), Duration::from_secs(3));
    }

    #[test]
    fn the_oldest_absent_names_are_forgotten_beyond_the_limit() {
        let (mut missing, now) = (Missing::default(), Instant::now());
        for i in 0..Missing::ENTRIES_MAX + 10 {
            missing.insert(DIR, &i.to_string(), now, INDEFINITE);
        }
        assert!(!missing.contains(DIR, "9", now, INDEFINITE));
        assert!(missing.contains(DIR, "10", now, INDEFINITE));
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
