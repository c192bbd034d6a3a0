//! Facts about names, and the event of each: from S3, or by a change here. Pure.
//!
//! Pages of listings are caches. An entry of a page counts only if no fact about its name is newer than the page's request. A fact stays
//! here only while a page may contradict it. The exception is an absent name, which answers lookups for a while by itself.
//!
//! Living inodes and questions in flight know names, too; docs/decisions/0059-facts-filter-pages.md says why.

mod walked;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use foldhash::HashMap;

use super::InodeNo;
use crate::listing::expiry::left;
use crate::sync::Arc;
use walked::Walked;

/// Facts about names, by directory. Directories without a fact are missing.
#[derive(Debug, Default)]
pub(super) struct Facts {
    /// The event of the last change of any name or object by this mount.
    pub(super) changed_at: u64,
    /// Facts that the pages of a walk contradict.
    pub(super) walked: Walked,
    directories: HashMap<InodeNo, Names>,
    /// Absent names by the age of the answer. A name that exists again, or has a newer answer, leaves a stale line, which goes when it
    /// reaches the front.
    order: VecDeque<(InodeNo, Arc<str>, Instant)>,
    /// Number of facts in all directories.
    kept: usize,
}

/// The names of one directory.
#[derive(Debug, Default)]
struct Names {
    facts: HashMap<Arc<str>, Fact>,
    /// Pages requested before this event are outdated: more names changed than the map below can hold.
    all: u64,
}

/// The latest fact about one name.
#[derive(Debug)]
struct Fact {
    at: u64,
    what: What,
    /// When S3 said that the name is absent.
    answered: Option<Instant>,
    /// Whether `order` has the name.
    queued: bool,
    /// Whether a page may contradict the fact.
    needed: bool,
}

/// A fact about a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// The name exists, or changed here. The tree or S3 knows its version.
    Present,
    /// The name is absent.
    Absent,
}

impl Facts {
    /// Most absent names kept, over all directories (about 100 bytes each). Beyond it the oldest leave.
    const ABSENT_MAX: usize = 100_000;
    /// Most names kept for the pages of one directory. Beyond it every older page of the directory counts as outdated.
    const NAMES_MAX: usize = 100_000;
    /// Most facts of all directories (about 100 bytes each) before a directory made here, of which each new name is a fact, gives up its
    /// own. Doubling it doubles the memory of a mount that makes directories, and spares such a directory a page.
    const KEPT_MAX: usize = 300_000;

    /// Notes a fact about a name at an event. A later fact stays. `needed`: a page that was requested earlier may contradict the fact.
    pub(super) fn observe(&mut self, directory: InodeNo, name: &str, what: What, event: u64, needed: bool) {
        let names = match needed {
            true => Some(self.directories.entry(directory).or_default()),
            false => self.directories.get_mut(&directory),
        };
        let Some(names) = names else { return };
        if let Some(fact) = names.facts.get_mut(name) {
            if fact.at > event {
                return;
            }
            (fact.at, fact.what, fact.needed) = (event, what, fact.needed || needed);
            if what == What::Present {
                (fact.answered, fact.queued) = (None, false);
            }
            if !fact.needed && !fact.queued {
                self.remove(directory, name);
            }
        } else if needed {
            self.kept = self.kept + 1 - names.room(event);
            let fact = Fact { at: event, what, answered: None, queued: false, needed };
            names.facts.insert(name.into(), fact);
        }
    }

    /// Notes that a name is absent: S3 said so at `now` to a request of this event, or this mount removed the name. The fact answers
    /// lookups for `keep`.
    pub(super) fn observe_absent(
        &mut self,
        directory: InodeNo,
        name: &str,
        event: u64,
        now: Instant,
        keep: Duration,
        needed: bool,
    ) {
        self.expire(now, keep);
        let names = self.directories.entry(directory).or_default();
        match names.facts.get_mut(name) {
            Some(fact) if fact.at > event => return,
            Some(fact) => {
                (fact.at, fact.what, fact.needed) = (event, What::Absent, fact.needed || needed);
                (fact.answered, fact.queued) = (Some(now), true);
            }
            None => {
                self.kept = self.kept + 1 - names.room(event);
                let fact = Fact { at: event, what: What::Absent, answered: Some(now), queued: true, needed };
                names.facts.insert(name.into(), fact);
            }
        }
        self.order.push_back((directory, name.into(), now));
    }

    /// Notes that an inode has the name now.
    pub(super) fn taken(&mut self, directory: InodeNo, name: &str) {
        let Some(names) = self.directories.get_mut(&directory) else { return };
        let Some(fact) = names.facts.get_mut(name) else { return };
        (fact.what, fact.answered, fact.queued) = (What::Present, None, false);
        if !fact.needed {
            self.remove(directory, name);
        }
    }

    /// The fact that outdates the entry of a name in a page requested at event `asked`.
    pub(super) fn since(&self, directory: InodeNo, name: &str, asked: u64) -> Option<What> {
        let names = self.directories.get(&directory)?;
        let known = names.facts.get(name).filter(|fact| fact.at > asked).map(|fact| fact.what);
        known.or_else(|| (names.all > asked).then_some(What::Present))
    }

    /// Whether a fact outdates a whole listing requested at event `asked`. `has`: whether the listing has a name.
    pub(super) fn outdate(&self, directory: InodeNo, asked: u64, has: impl Fn(&str) -> bool) -> bool {
        let Some(names) = self.directories.get(&directory) else { return false };
        let otherwise =
            |(name, fact): (&Arc<str>, &Fact)| fact.at > asked && (fact.what == What::Present || has(name));
        names.all > asked || names.facts.iter().any(otherwise)
    }

    /// Whether the name was absent less than `within` ago.
    pub(super) fn is_absent(&self, directory: InodeNo, name: &str, now: Instant, within: Duration) -> bool {
        self.absent_at(directory, name).is_some_and(|answered| !left(within, answered, now).is_zero())
    }

    /// When S3 said that a name is absent, or this mount removed it, if nothing newer is known.
    pub(super) fn absent_at(&self, directory: InodeNo, name: &str) -> Option<Instant> {
        let fact = self.directories.get(&directory).and_then(|names| names.facts.get(name));
        fact.filter(|fact| fact.what == What::Absent).and_then(|fact| fact.answered)
    }

    /// The names that S3 called absent at this instant or later.
    pub(super) fn absent_since(&self, directory: InodeNo, since: Instant) -> impl Iterator<Item = &str> {
        let names = self.directories.get(&directory).into_iter().flat_map(|names| &names.facts);
        names
            .filter(move |(_, fact)| fact.what == What::Absent && fact.answered.is_some_and(|at| at >= since))
            .map(|(name, _)| &**name)
    }

    /// Drops the facts that only pages of a directory needed: none of these pages can be used or arrive any more.
    pub(super) fn release(&mut self, directory: InodeNo) {
        let Some(names) = self.directories.get_mut(&directory) else { return };
        names.all = 0;
        let before = names.facts.len();
        names.facts.retain(|_, fact| {
            fact.needed = false;
            fact.queued
        });
        self.kept -= before - names.facts.len();
        if names.facts.is_empty() {
            self.directories.remove(&directory);
        }
    }

    /// Notes that a directory has another key: all pages requested before this event are outdated. `needed`: such a page may still be
    /// used or arrive.
    pub(super) fn moved(&mut self, directory: InodeNo, event: u64, needed: bool) {
        self.forget(directory);
        if needed {
            self.directories.insert(directory, Names { all: event, ..Names::default() });
        }
    }

    /// Drops all facts about a directory that is gone.
    pub(super) fn forget(&mut self, directory: InodeNo) {
        let gone = self.directories.remove(&directory);
        self.kept -= gone.map_or(0, |names| names.facts.len());
    }

    /// Whether there are too many facts.
    pub(super) fn are_many(&self) -> bool {
        self.kept > Self::KEPT_MAX
    }

    /// Drops absent names that are too old to answer, and the oldest beyond the limit.
    fn expire(&mut self, now: Instant, keep: Duration) {
        while let Some((_, _, answered)) = self.order.front() {
            if self.order.len() < Self::ABSENT_MAX && !left(keep, *answered, now).is_zero() {
                return;
            }
            let (directory, name, answered) = self.order.pop_front().expect("front was there");
            let names = self.directories.get_mut(&directory);
            let fact = names.and_then(|names| names.facts.get_mut(&name));
            let Some(fact) = fact.filter(|fact| fact.queued && fact.answered == Some(answered)) else {
                continue;
            };
            fact.queued = false;
            if !fact.needed {
                self.remove(directory, &name);
            }
        }
    }

    fn remove(&mut self, directory: InodeNo, name: &str) {
        let Some(names) = self.directories.get_mut(&directory) else { return };
        self.kept -= usize::from(names.facts.remove(name).is_some());
        if names.facts.is_empty() && names.all == 0 {
            self.directories.remove(&directory);
        }
    }
}

impl Names {
    /// Makes room for one more name. Returns the number of facts that go.
    fn room(&mut self, event: u64) -> usize {
        if self.facts.len() < Facts::NAMES_MAX {
            return 0;
        }
        self.all = self.all.max(event);
        std::mem::take(&mut self.facts).len()
    }
}

#[cfg(test)]
impl Facts {
    /// Number of facts in all directories.
    pub(super) fn kept(&self) -> usize {
        self.kept
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DIR: InodeNo = InodeNo(1);
    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn more_names_than_are_kept_outdate_every_older_page() {
        let mut facts = Facts::default();
        for i in 0..=Facts::NAMES_MAX {
            facts.observe(DIR, &i.to_string(), What::Absent, i as u64 + 10, true);
        }
        let last = Facts::NAMES_MAX as u64 + 10;
        assert_eq!(facts.since(DIR, "never changed", last - 1), Some(What::Present));
        assert_eq!(facts.since(DIR, "never changed", last), None);
        assert!(facts.outdate(DIR, 9, |_| false) && !facts.outdate(DIR, last, |_| true));
        facts.release(DIR);
        assert_eq!((facts.since(DIR, "never changed", 0), facts.kept), (None, 0));
    }

    #[test]
    fn the_oldest_absent_names_are_forgotten_beyond_the_limit() {
        let (mut facts, now) = (Facts::default(), Instant::now());
        for i in 0..Facts::ABSENT_MAX + 10 {
            facts.observe_absent(InodeNo(i as u64 % 2), &i.to_string(), i as u64, now, LONG, false);
        }
        assert!(!facts.is_absent(InodeNo(1), "9", now, LONG));
        assert!(facts.is_absent(InodeNo(0), "10", now, LONG));
        assert_eq!(facts.order.len(), Facts::ABSENT_MAX);
        let kept: usize = facts.directories.values().map(|names| names.facts.len()).sum();
        assert_eq!((kept, facts.kept), (Facts::ABSENT_MAX, kept));
    }

    #[test]
    fn a_fact_that_a_page_may_contradict_outlives_its_ttl_until_the_page_goes() {
        let (mut facts, now) = (Facts::default(), Instant::now());
        let keep = Duration::from_millis(20);
        facts.observe_absent(DIR, "needed", 5, now, keep, true);
        facts.observe_absent(DIR, "not", 6, now, keep, false);
        facts.observe_absent(DIR, "later", 7, now + keep, keep, false);
        assert!(!facts.is_absent(DIR, "needed", now + keep, keep));
        assert_eq!(facts.since(DIR, "needed", 4), Some(What::Absent));
        assert_eq!(facts.since(DIR, "not", 4), None);
        facts.release(DIR);
        assert_eq!(facts.since(DIR, "needed", 4), None);
        assert!(facts.is_absent(DIR, "later", now + keep, keep));
    }

    #[test]
    fn what_was_known_of_a_directory_goes_when_it_moves() {
        let (mut facts, now) = (Facts::default(), Instant::now());
        facts.observe_absent(DIR, "a", 5, now, LONG, false);
        facts.moved(DIR, 7, true);
        assert!(!facts.is_absent(DIR, "a", now, LONG));
        assert_eq!((facts.since(DIR, "any", 6), facts.since(DIR, "any", 7)), (Some(What::Present), None));
        facts.moved(DIR, 9, false);
        assert!(facts.directories.is_empty() && facts.kept == 0);
    }

    #[test]
    fn an_absent_name_outdates_only_a_listing_that_has_it() {
        let mut facts = Facts::default();
        facts.observe(DIR, "a", What::Absent, 5, true);
        assert!(facts.outdate(DIR, 4, |name| name == "a"));
        assert!(!facts.outdate(DIR, 4, |_| false) && !facts.outdate(DIR, 5, |_| true));
        facts.taken(DIR, "a");
        assert!(facts.outdate(DIR, 4, |_| false), "it has another version, or was not there");
        assert_eq!(facts.since(DIR, "a", 4), Some(What::Present));
    }

    /// A model that keeps every observation, in order.
    #[derive(Debug, Default)]
    struct Model(HashMap<String, (u64, What, Option<Instant>)>);

    impl Model {
        fn learn(&mut self, name: &str, what: What, event: u64, answered: Option<Instant>) {
            let before = self.0.get(name).copied();
            if before.is_some_and(|(at, ..)| at > event) {
                return;
            }
            let kept = before.filter(|_| what == What::Absent).and_then(|(.., answered)| answered);
            self.0.insert(name.to_owned(), (event, what, answered.or(kept)));
        }
    }

    proptest! {
        /// Compares the facts with a plain map of the latest observation of each name, while pages need all of them.
        #[test]
        fn the_latest_observation_answers_whatever_their_order(
            steps in prop::collection::vec((0u8..4, 0u64..5, 1u64..20, 0u64..3), 1..60)
        ) {
            let (mut facts, mut model) = (Facts::default(), Model::default());
            let ttl = Duration::from_secs(10);
            let mut now = Instant::now();
            for (step, name, event, turn) in steps {
                let name = name.to_string();
                match step {
                    0 => {
                        facts.observe(DIR, &name, What::Present, event, true);
                        model.learn(&name, What::Present, event, None);
                    }
                    1 => {
                        facts.observe(DIR, &name, What::Absent, event, true);
                        model.learn(&name, What::Absent, event, None);
                    }
                    2 => {
                        facts.observe_absent(DIR, &name, event, now, ttl, true);
                        model.learn(&name, What::Absent, event, Some(now));
                    }
                    _ => now += Duration::from_secs(turn * 4),
                }
                for name in (0..5).map(|i| i.to_string()) {
                    let known = model.0.get(&name).copied();
                    for asked in 0..20 {
                        let expected = known.filter(|(at, ..)| *at > asked).map(|(_, what, _)| what);
                        prop_assert_eq!(facts.since(DIR, &name, asked), expected);
                    }
                    let absent = known.is_some_and(|(_, what, answered)| {
                        what == What::Absent && answered.is_some_and(|answered| now < answered + ttl)
                    });
                    prop_assert_eq!(facts.is_absent(DIR, &name, now, ttl), absent);
                }
                prop_assert_eq!(facts.kept, facts.directories.values().map(|names| names.facts.len()).sum::<usize>());
            }
        }
    }
}
