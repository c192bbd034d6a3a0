//! Facts that the pages of a walk contradict, by the keys of directories. Pure.
//!
//! A page of a walk lists directories that may have no inode, so keys name the directories here, not inode numbers. A fact stays as long
//! as a page may contradict it.

use foldhash::HashMap;

use super::What;
use crate::listing::walk::Walk;

/// Facts that outdate pages of a walk, by directory.
#[derive(Debug, Default)]
pub(in crate::inode) struct Walked {
    directories: HashMap<Box<str>, Names>,
    /// An upper bound of the number of facts.
    kept: usize,
}

/// The facts about one directory.
#[derive(Debug, Default)]
struct Names {
    names: HashMap<Box<str>, Fact>,
    /// Event at which the directory changed or was listed as a whole: older pages do not count for it.
    all: u64,
}

/// The latest answer of S3 about a name.
#[derive(Debug)]
struct Fact {
    at: u64,
    what: What,
    /// Whether S3 called the name absent in between: then an older page means another file or directory of that name.
    was_absent: bool,
}

impl Fact {
    /// Whether the fact outdates a page requested at event `asked`. `has`: whether the page has the name.
    fn outdates(&self, asked: u64, has: bool) -> bool {
        self.at > asked
            && match self.what {
                What::Present => !has || self.was_absent,
                What::Absent => has,
            }
    }
}

impl Walked {
    /// Most facts (about 150 bytes each). Beyond it the walk's pages are dropped, and each directory needs its own listing or a new page.
    const KEPT_MAX: usize = 2000;

    /// Notes whether S3 has a name in a directory, by the answer to a request of an event.
    pub(in crate::inode) fn observe(
        &mut self,
        walk: &mut Walk,
        directory: &str,
        name: &str,
        what: What,
        event: u64,
    ) {
        let known = self.directories.get_mut(directory).and_then(|names| names.names.get_mut(name));
        if let Some(fact) = known {
            if event >= fact.at {
                let was_absent = fact.was_absent || fact.what == What::Absent;
                *fact = Fact { at: event, what, was_absent };
            }
        } else if walk.may_contradict(directory, name, what == What::Present, event)
            && let Some(names) = self.room(walk, directory)
        {
            names.names.insert(name.into(), Fact { at: event, what, was_absent: false });
        }
    }

    /// Notes that a directory changed here, or was listed by itself, at an event.
    pub(in crate::inode) fn observe_all(&mut self, walk: &mut Walk, directory: &str, event: u64) {
        if walk.may_list(directory, event)
            && let Some(names) = self.room(walk, directory)
        {
            names.all = names.all.max(event);
        }
    }

    /// Whether facts outdate the part of a page about one directory. The page was requested at event `asked`. `exists`: whether the page
    /// has the directory; `has`: whether the page has a name in the directory.
    pub(in crate::inode) fn outdate(
        &self,
        directory: &str,
        asked: u64,
        exists: bool,
        has: impl Fn(&str) -> bool,
    ) -> bool {
        let of_its_names = self.directories.get(directory).is_some_and(|names| {
            names.all > asked || names.names.iter().any(|(name, fact)| fact.outdates(asked, has(name)))
        });
        let of_itself = || {
            let path = directory.strip_suffix('/').unwrap_or_default();
            let (above, name) = path.split_at(path.rfind('/').map_or(0, |slash| slash + 1));
            self.directories.get(above)?.names.get(name)
        };
        of_its_names || of_itself().is_some_and(|fact| fact.outdates(asked, exists))
    }

    /// Drops the facts that no page contradicts, neither one that arrived nor one in flight.
    pub(in crate::inode) fn sift(&mut self, walk: &Walk) {
        self.directories.retain(|directory, names| {
            names.names.retain(|name, fact| match fact.was_absent {
                true => walk.may_list(directory, fact.at),
                false => walk.may_contradict(directory, name, fact.what == What::Present, fact.at),
            });
            if !walk.may_list(directory, names.all) {
                names.all = 0;
            }
            names.all > 0 || !names.names.is_empty()
        });
        self.kept = self.directories.values().map(|names| names.names.len() + 1).sum();
    }

    /// Drops everything: no pages are left.
    pub(in crate::inode) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Makes room for a fact about a directory. `None`: the pages were dropped instead.
    fn room(&mut self, walk: &mut Walk, directory: &str) -> Option<&mut Names> {
        if self.kept >= Self::KEPT_MAX {
            self.sift(walk);
        }
        if self.kept >= Self::KEPT_MAX {
            walk.give_up();
            self.clear();
            return None;
        }
        self.kept += 1;
        Some(self.directories.entry(directory.into()).or_default())
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Instant, SystemTime};

    use super::*;
    use crate::listing::walk::{Course, PageRequest};
    use crate::object::{ETag, ObjectKey, ObjectMeta};
    use crate::s3::{ListPage, ListedObject};

    fn opens(walk: &mut Walk, directory: &str, now: Instant) -> Course {
        let key = ObjectKey::new(directory);
        walk.opens(&key, now);
        walk.course(&key, now)
    }

    /// A walk that requested a page at event 1.
    fn walk(now: Instant) -> (Walk, PageRequest) {
        let mut walk = Walk::new();
        assert!(matches!(opens(&mut walk, "d0/", now), Course::Alone));
        assert!(matches!(opens(&mut walk, "d1/", now), Course::Alone));
        let Course::Ask(question) = opens(&mut walk, "d2/", now) else { panic!("a third in a row") };
        walk.asks(&question, 1);
        (walk, question)
    }

    fn page(keys: &[&str]) -> ListPage {
        let (etag, last_modified) = (ETag::new("e"), SystemTime::UNIX_EPOCH);
        let meta = ObjectMeta { size: 1, etag, last_modified, readable: true };
        let object =
            |key: &&str| ListedObject { key: ObjectKey::new(*key), meta: meta.clone(), storage_class: None };
        ListPage { objects: keys.iter().map(object).collect(), ..ListPage::default() }
    }

    fn arrives(walk: &mut Walk, question: &PageRequest, keys: &[&str], now: Instant) {
        walk.arrives(question, Some(page(keys)), 1, now);
    }

    fn arrives_before_others(
        walk: &mut Walk,
        question: &PageRequest,
        keys: [&str; 2],
        asked: u64,
        now: Instant,
    ) {
        let next_token = Some("more".to_owned());
        walk.arrives(question, Some(ListPage { next_token, ..page(&keys) }), asked, now);
    }

    const KEYS: [&str; 3] = ["d2/f", "d3/f", "d3/sub/f"];

    /// A walk that has the page of [`KEYS`], and no facts yet.
    fn begun() -> (Walk, Walked) {
        let now = Instant::now();
        let (mut walk, question) = walk(now);
        arrives(&mut walk, &question, &KEYS, now);
        (walk, Walked::default())
    }

    /// Whether `directory` is outdated in the page of [`KEYS`], which was requested at event 1.
    fn is_outdated(walked: &Walked, directory: &str) -> bool {
        let has = |path: &str| KEYS.iter().any(|key| key.starts_with(path));
        walked.outdate(directory, 1, has(directory), |name| has(&format!("{directory}{name}")))
    }

    #[test]
    fn facts_that_a_page_contradicts_outdate_the_directory_and_the_name() {
        for (name, what, event, directory, itself) in [
            ("f", What::Present, 2, false, false),
            ("f", What::Absent, 2, true, false),
            ("f", What::Absent, 1, false, false),
            ("new", What::Present, 2, true, true),
            ("new", What::Present, 1, false, false),
            ("new", What::Absent, 2, false, false),
            ("sub", What::Absent, 2, true, true),
        ] {
            for is_here_before in [true, false] {
                let now = Instant::now();
                let (mut walk, question) = walk(now);
                let mut walked = Walked::default();
                if is_here_before {
                    arrives(&mut walk, &question, &KEYS, now);
                }
                walked.observe(&mut walk, "d3/", name, what, event);
                if !is_here_before {
                    arrives(&mut walk, &question, &KEYS, now);
                }
                walked.sift(&walk);
                let case = format!("{name} {what:?} {event} {is_here_before}");
                assert_eq!(is_outdated(&walked, "d3/"), directory, "{case}");
                assert_eq!(is_outdated(&walked, &format!("d3/{name}/")), itself, "{case}");
                assert_eq!(walked.directories.is_empty(), !directory, "{case}");
            }
        }
    }

    #[test]
    fn a_name_that_was_gone_in_between_outdates_a_page_that_has_it() {
        for is_here_before in [true, false] {
            let now = Instant::now();
            let (mut walk, question) = walk(now);
            let mut walked = Walked::default();
            if is_here_before {
                arrives(&mut walk, &question, &KEYS, now);
            }
            walked.observe(&mut walk, "d3/", "sub", What::Absent, 2);
            walked.observe(&mut walk, "d3/", "sub", What::Present, 3);
            walked.observe(&mut walk, "d3/", "sub", What::Absent, 1);
            if !is_here_before {
                arrives(&mut walk, &question, &KEYS, now);
            }
            walked.sift(&walk);
            assert!(is_outdated(&walked, "d3/") && is_outdated(&walked, "d3/sub/"));
        }
    }

    #[test]
    fn a_change_outdates_the_directory_alone() {
        let (mut walk, mut walked) = begun();
        walked.observe_all(&mut walk, "d3/", 2);
        walked.observe_all(&mut walk, "d2/", 1);
        assert!(is_outdated(&walked, "d3/") && !is_outdated(&walked, "d3/sub/"));
        assert!(!is_outdated(&walked, "d2/"));
    }

    #[test]
    fn more_facts_than_are_kept_end_the_pages() {
        let (mut walk, mut walked) = begun();
        for i in 0..Walked::KEPT_MAX {
            walked.observe_all(&mut walk, &format!("d3/{i}/"), 2);
        }
        assert!(walk.has_pages() && is_outdated(&walked, "d3/7/"));
        walked.observe_all(&mut walk, "d3/", 2);
        assert!(!walk.has_pages() && walked.directories.is_empty());
    }

    #[test]
    fn changes_in_directories_that_a_walk_has_behind_it_end_no_pages() {
        let now = Instant::now();
        let (mut walk, question) = walk(now);
        arrives_before_others(&mut walk, &question, ["d2/f", "e0000/a"], 1, now);
        let (mut walked, mut event) = (Walked::default(), 1);
        for d in 0..Walked::KEPT_MAX {
            let directory = format!("e{d:04}/");
            let Course::Ask(question) = opens(&mut walk, &directory, now) else { panic!("the rest of it") };
            event += 2;
            let keys = [&*format!("{directory}f"), &*format!("e{:04}/a", d + 1)];
            walk.asks(&question, event);
            arrives_before_others(&mut walk, &question, keys, event, now);
            assert!(matches!(opens(&mut walk, &directory, now), Course::Take { .. }));
            for behind in 0..3 {
                walked.observe_all(&mut walk, &format!("{directory}{behind}/"), event + 1);
            }
            assert!(walk.has_pages() && walked.kept <= Walked::KEPT_MAX);
        }
    }
}
