//! Recognises a walk through a tree, and lists it in the order of the walk: by pages without delimiter, each of which has many
//! directories. Pure.
//!
//! A walk lists directories one after another in the order of their keys, as `find`, `du` and `rsync` do: siblings, and what lies below
//! them. From the third directory on, the engine requests a page of a thousand keys at the place of the walk, within the directory that
//! the last two have in common. A page that the walk does not use costs one request; after such a page, twice as many directories in
//! order must come before the next try.

use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};

use foldhash::HashMap;

use super::expiry::PAGE;
use super::recent::Coming;
use crate::object::ObjectKey;
use crate::s3::{ListPage, ListedObject};

/// The state of the walk that goes on in a mount.
pub(super) struct Walk {
    /// The last directory that was listed.
    last: Option<(ObjectKey, Instant)>,
    /// The directory that the last two have in common.
    common: String,
    /// Directories listed in order, one shortly behind another.
    run: u32,
    /// Whether one of them was not below the one before it.
    sideways: bool,
    /// Pages that were asked for in vain.
    failures: u32,
    flat: Option<Flat>,
    flats: u64,
    /// Directories in which something changed here since the pages began, and at which event.
    changed: HashMap<Box<str>, u64>,
}

/// Pages of keys in a row, of a whole subtree.
struct Flat {
    number: u64,
    prefix: String,
    /// The keys behind this one are in the pages; it is none of them itself.
    after: String,
    pages: VecDeque<Keys>,
    next: Next,
}

/// One page.
struct Keys {
    objects: Vec<ListedObject>,
    asked: u64,
    since: Instant,
}

enum Next {
    /// This token asks for it.
    Token(String),
    Coming(Coming),
    End,
}

/// The request for a walk's page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Question {
    /// Of the pages it belongs to.
    flat: u64,
    pub(super) prefix: String,
    pub(super) start_after: Option<String>,
    pub(super) token: Option<String>,
}

/// How a directory is listed.
pub(super) enum Course {
    /// Out of the pages; when they were asked for. And what to ask for meanwhile.
    Take { page: ListPage, asked: u64, since: Instant, ahead: Option<Question> },
    /// A page that may have it is on its way.
    Wait(Coming),
    /// A page is worth asking for.
    Ask(Question),
    /// By itself.
    Alone,
}

impl Walk {
    /// Directories in a row that make a walk. With fewer, a program that looks at two directories would cost a page.
    const RUN: u32 = 3;
    /// A pause that ends a walk.
    const PAUSE: Duration = Duration::from_secs(2);
    /// Pages that one directory may reach over; a longer one is listed by itself, which leaves out what is below it.
    const SPAN_MAX: usize = 2;
    /// Most doublings of the directories that it takes, after pages in vain.
    const FAILURES_MAX: u32 = 8;
    /// Most directories that changed here; beyond it the pages go.
    const CHANGED_MAX: usize = 1000;

    pub(super) fn new() -> Self {
        Self {
            last: None,
            common: String::new(),
            run: 0,
            sideways: false,
            failures: 0,
            flat: None,
            flats: 0,
            changed: HashMap::default(),
        }
    }

    /// A directory begins to be listed.
    pub(super) fn opens(&mut self, key: &ObjectKey, now: Instant) {
        let last = self.last.replace((key.clone(), now));
        let last =
            last.filter(|(_, at)| now.saturating_duration_since(*at) < Self::PAUSE).map(|(key, _)| key);
        match last {
            Some(last) if last == *key => {}
            Some(last) if last.as_str() < key.as_str() => {
                self.run += 1;
                self.sideways |= !key.as_str().starts_with(last.as_str());
                self.common = common(last.as_str(), key.as_str()).to_owned();
            }
            _ => {
                (self.run, self.sideways) = (1, false);
                self.give_up();
            }
        }
    }

    /// How the directory that was opened last is to be listed.
    pub(super) fn course(&mut self, key: &ObjectKey, now: Instant) -> Course {
        let key = key.as_str();
        if let Some(flat) = &mut self.flat {
            flat.pass(key);
            match flat.reach(key, now) {
                Reach::Whole => {
                    let (page, asked, since) = flat.take(key, now);
                    if self.changed.get(key).is_some_and(|&at| at > asked) {
                        return Course::Alone;
                    }
                    self.failures = 0;
                    return Course::Take { page, asked, since, ahead: flat.ahead(key) };
                }
                Reach::Perhaps(question) => {
                    return match &flat.next {
                        Next::Coming(coming) => Course::Wait(coming.clone()),
                        _ => Course::Ask(question),
                    };
                }
                Reach::TooLong => {
                    self.failed();
                    return Course::Alone;
                }
                Reach::No => self.give_up(),
            }
        }
        // A way down is no walk: what lies beside it was not looked at.
        if self.run < Self::RUN << self.failures || !self.sideways || !key.starts_with(&self.common) {
            return Course::Alone;
        }
        self.flats += 1;
        let question = Question {
            flat: self.flats,
            prefix: self.common.clone(),
            start_after: (!key.is_empty()).then(|| key.to_owned()),
            token: None,
        };
        self.flat = Some(Flat {
            number: self.flats,
            prefix: self.common.clone(),
            after: key.to_owned(),
            pages: VecDeque::new(),
            next: Next::End,
        });
        Course::Ask(question)
    }

    /// The page that a course requested is in flight.
    pub(super) fn asks(&mut self, question: &Question, coming: Coming) {
        if let Some(flat) = self.flat.as_mut().filter(|flat| flat.number == question.flat) {
            flat.next = Next::Coming(coming);
        }
    }

    /// A page is here, or will not come.
    pub(super) fn arrives(
        &mut self,
        question: &Question,
        page: Option<ListPage>,
        asked: u64,
        since: Instant,
    ) {
        let Some(flat) = self.flat.as_mut().filter(|flat| flat.number == question.flat) else { return };
        let last = flat.last_key().to_owned();
        match page {
            Some(page) if is_in_order(&flat.prefix, &last, &page) => {
                flat.next = page.next_token.map_or(Next::End, Next::Token);
                flat.pages.push_back(Keys { objects: page.objects, asked, since });
            }
            _ => self.failed(),
        }
    }

    /// Something changed here in a directory.
    pub(super) fn changed(&mut self, directory: &str, at: u64) {
        if self.flat.is_none() {
            return;
        }
        if self.changed.len() >= Self::CHANGED_MAX {
            return self.give_up();
        }
        self.changed.insert(directory.into(), at);
    }

    /// Whether changes here matter to pages.
    pub(super) fn has_pages(&self) -> bool {
        self.flat.is_some()
    }

    /// Lets pages go that no longer answer.
    pub(super) fn expire(&mut self, now: Instant) {
        let is_old = |keys: &Keys| now.saturating_duration_since(keys.since) >= PAGE;
        if self
            .flat
            .as_ref()
            .is_some_and(|flat| !matches!(flat.next, Next::Coming(_)) && flat.pages.iter().all(is_old))
        {
            self.give_up();
        }
    }

    fn failed(&mut self) {
        self.failures = (self.failures + 1).min(Self::FAILURES_MAX);
        self.run = 0;
        self.give_up();
    }

    fn give_up(&mut self) {
        self.flat = None;
        self.changed = HashMap::default();
    }
}

enum Reach {
    Whole,
    /// The next page may have it, or the rest of it.
    Perhaps(Question),
    TooLong,
    No,
}

impl Flat {
    fn last_key(&self) -> &str {
        self.pages
            .back()
            .and_then(|keys| keys.objects.last())
            .map_or(&self.after, |object| object.key.as_str())
    }

    /// Lets go of the pages that lie before a directory.
    fn pass(&mut self, key: &str) {
        while let Some(last) = self.pages.front().and_then(|keys| keys.objects.last())
            && (self.pages.len() > 1 || !matches!(self.next, Next::End))
            && last.key.as_str() < key
        {
            self.after = last.key.as_str().to_owned();
            self.pages.pop_front();
        }
    }

    fn reach(&self, key: &str, now: Instant) -> Reach {
        let is_old = |keys: &Keys| now.saturating_duration_since(keys.since) >= PAGE;
        if self.after.as_str() > key || !key.starts_with(&self.prefix) || self.pages.iter().any(is_old) {
            return Reach::No;
        }
        let last = self.last_key();
        let is_passed = last > key && !last.starts_with(key);
        let next = |token: Option<&str>| {
            let token = token.map(str::to_owned);
            Question { flat: self.number, prefix: self.prefix.clone(), start_after: None, token }
        };
        match &self.next {
            _ if is_passed => Reach::Whole,
            Next::End => Reach::Whole,
            // More than the directory's beginning is needed: two pages of it are enough.
            _ if last > key && self.pages.len() >= Walk::SPAN_MAX => Reach::TooLong,
            Next::Coming(_) => Reach::Perhaps(next(None)),
            Next::Token(token) if last > key => Reach::Perhaps(next(Some(token.as_str()))),
            // The walk has left out what lies between: it is better to go on from where it is.
            Next::Token(_) => Reach::No,
        }
    }

    /// The objects below a directory, without its own marker.
    fn below<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a ListedObject> {
        self.pages.iter().flat_map(move |keys| {
            let begin = keys.objects.partition_point(|object| object.key.as_str() <= key);
            keys.objects[begin..].iter().take_while(move |object| object.key.as_str().starts_with(key))
        })
    }

    /// A directory as a listing with delimiter has it.
    fn take(&self, key: &str, now: Instant) -> (ListPage, u64, Instant) {
        let mut page = ListPage::default();
        for object in self.below(key) {
            let name = object.key.as_str();
            match name[key.len()..].find('/') {
                Some(at) => {
                    let prefix = &name[..key.len() + at + 1];
                    if page.common_prefixes.last().is_none_or(|last| last != prefix) {
                        page.common_prefixes.push(prefix.to_owned());
                    }
                }
                None => page.objects.push(object.clone()),
            }
        }
        let asked = self.pages.iter().map(|keys| keys.asked).min().unwrap_or_default();
        let since = self.pages.iter().map(|keys| keys.since).min();
        (page, asked, since.unwrap_or(now))
    }

    /// The next page, when a directory reaches into the second half of the last one.
    fn ahead(&self, key: &str) -> Option<Question> {
        let Next::Token(token) = &self.next else { return None };
        let last = &self.pages.back()?.objects;
        let middle = last.get(last.len() / 2)?;
        let question = || Question {
            flat: self.number,
            prefix: self.prefix.clone(),
            start_after: None,
            token: Some(token.clone()),
        };
        (middle.key.as_str() < key || middle.key.as_str().starts_with(key)).then(question)
    }
}

/// Whether a page has keys of the subtree only, behind the last one, and in order.
fn is_in_order(prefix: &str, last: &str, page: &ListPage) -> bool {
    page.common_prefixes.is_empty()
        && page
            .objects
            .iter()
            .all(|object| object.key.as_str().starts_with(prefix) && object.key.as_str() > last)
        && page.objects.is_sorted_by(|a, b| a.key.as_str() < b.key.as_str())
}

/// The directory that two directories have in common, by their keys.
fn common<'a>(a: &'a str, b: &str) -> &'a str {
    let same = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    let end = a.as_bytes()[..same].iter().rposition(|&byte| byte == b'/');
    &a[..end.map_or(0, |at| at + 1)]
}

impl fmt::Debug for Walk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Walk").field("last", &self.last).field("run", &self.run).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use futures_util::FutureExt;

    use super::*;
    use crate::object::{ETag, ObjectMeta};
    use crate::s3::BoxFuture;

    /// A walk over these keys, with pages of four.
    struct Bench {
        walk: Walk,
        keys: Vec<String>,
        now: Instant,
        event: u64,
        /// Pages, and directories listed by themselves.
        pages: usize,
        alone: Vec<String>,
    }

    impl Bench {
        fn new(keys: &[&str]) -> Self {
            let mut keys: Vec<_> = keys.iter().map(|&key| key.to_owned()).collect();
            keys.sort();
            Self { walk: Walk::new(), keys, now: Instant::now(), event: 0, pages: 0, alone: Vec::new() }
        }

        fn answer(&self, question: &Question) -> ListPage {
            let after = question.token.as_ref().or(question.start_after.as_ref());
            let mut keys = self.keys.iter().filter(|key| key.starts_with(&question.prefix));
            let keys: Vec<_> = keys.by_ref().filter(|key| after.is_none_or(|after| *key > after)).collect();
            let object = |key: &&String| ListedObject {
                key: ObjectKey::new(key.as_str()),
                meta: ObjectMeta {
                    size: 1,
                    etag: ETag::new("e"),
                    last_modified: SystemTime::UNIX_EPOCH,
                    readable: true,
                },
            };
            let objects = keys.iter().take(4).map(object).collect();
            let next_token = keys.get(4).map(|_| keys[3].clone());
            ListPage { objects, common_prefixes: Vec::new(), next_token }
        }

        fn fetch(&mut self, question: &Question) {
            self.event += 1;
            self.pages += 1;
            let never: BoxFuture<'static, ()> = Box::pin(async {});
            self.walk.asks(question, never.shared());
            self.walk.arrives(question, Some(self.answer(question)), self.event, self.now);
        }

        /// What a listing of a directory shows: objects and prefixes, in order.
        fn list(&mut self, key: &str) -> Vec<String> {
            let key = ObjectKey::new(key);
            self.walk.opens(&key, self.now);
            for _ in 0..5 {
                match self.walk.course(&key, self.now) {
                    Course::Take { page, ahead, .. } => {
                        if let Some(question) = ahead {
                            self.fetch(&question);
                        }
                        let mut names: Vec<_> =
                            page.objects.iter().map(|object| object.key.as_str().to_owned()).collect();
                        names.extend(page.common_prefixes);
                        names.sort();
                        return names;
                    }
                    Course::Ask(question) => self.fetch(&question),
                    Course::Wait(_) => panic!("everything has come"),
                    Course::Alone => break,
                }
            }
            self.alone.push(key.as_str().to_owned());
            self.expected(key.as_str())
        }

        fn expected(&self, key: &str) -> Vec<String> {
            let below = self.keys.iter().filter(|other| other.starts_with(key) && *other != key);
            let mut names: Vec<String> = below
                .map(|other| match other[key.len()..].find('/') {
                    Some(at) => other[..key.len() + at + 1].to_owned(),
                    None => other.clone(),
                })
                .collect();
            names.dedup();
            names
        }

        /// Lists everything below, in order.
        fn walk(&mut self, key: &str) {
            let names = self.list(key);
            assert_eq!(names, self.expected(key), "{key:?}");
            for name in names.iter().filter(|name| name.ends_with('/')) {
                self.walk(name);
            }
        }
    }

    fn folders(count: usize, files: usize) -> Vec<String> {
        (0..count).flat_map(|d| (0..files).map(move |f| format!("d{d:03}/f{f}"))).collect()
    }

    fn bench_of(keys: &[String]) -> Bench {
        Bench::new(&keys.iter().map(String::as_str).collect::<Vec<_>>())
    }

    #[test]
    fn a_walk_costs_its_pages_and_shows_what_listings_show() {
        let mut bench = bench_of(&folders(40, 2));
        bench.walk("");
        assert_eq!(bench.alone, ["", "d000/"]);
        // 78 keys by four.
        assert!(bench.pages <= 21, "{}", bench.pages);
    }

    #[test]
    fn a_tree_of_any_shape_is_shown_as_it_is() {
        let keys = [
            "a/",
            "a/b/c/1",
            "a/b/c/2",
            "a/b-",
            "a-/x",
            "a-/y/z",
            "b",
            "b/1",
            "b/2",
            "b/3",
            "b/4",
            "b/5",
            "b/6",
            "b/7",
            "b/8",
            "b/9",
            "c/d/e/f/1",
            "c/d/e/g/2",
            "c/d/h",
            "d/1",
            "e/",
            "f/1/2/3/4",
        ];
        bench(&keys).walk("");
        fn bench(keys: &[&str]) -> Bench {
            Bench::new(keys)
        }
    }

    #[test]
    fn directories_that_are_not_listed_in_order_cost_no_page() {
        let mut bench = bench_of(&folders(40, 2));
        for d in (0..40).rev() {
            bench.list(&format!("d{d:03}/"));
        }
        for d in 0..40 {
            bench.now += Walk::PAUSE;
            bench.list(&format!("d{d:03}/"));
        }
        assert_eq!(bench.pages, 0);
    }

    #[test]
    fn a_way_down_through_folders_of_one_entry_costs_no_page() {
        let mut bench = bench_of(&["a/b/c/d/e/f/1".to_owned()]);
        bench.walk("");
        assert_eq!((bench.pages, bench.alone.len()), (0, 7));
    }

    #[test]
    fn long_directories_one_after_another_cost_fewer_and_fewer_pages_in_vain() {
        let mut bench = bench_of(&folders(100, 12));
        for d in 0..100 {
            bench.list(&format!("d{d:03}/"));
        }
        assert_eq!(bench.alone.len(), 100);
        assert!(bench.pages <= 10, "{}", bench.pages);
    }

    #[test]
    fn a_page_answers_for_a_second() {
        let mut bench = bench_of(&folders(8, 1));
        (0..3).for_each(|d| drop(bench.list(&format!("d{d:03}/"))));
        assert_eq!((bench.pages, bench.alone.len()), (1, 2));
        bench.keys.push("d003/new".to_owned());
        bench.keys.sort();
        bench.now += PAGE;
        assert_eq!(bench.list("d003/"), ["d003/f0", "d003/new"]);
        assert_eq!(bench.pages, 2);
    }

    #[test]
    fn a_directory_that_changed_here_since_is_listed_by_itself() {
        let mut bench = bench_of(&folders(8, 1));
        (0..3).for_each(|d| drop(bench.list(&format!("d{d:03}/"))));
        bench.walk.changed("d004/", bench.event + 1);
        (3..5).for_each(|d| drop(bench.list(&format!("d{d:03}/"))));
        assert_eq!(bench.alone, ["d000/", "d001/", "d004/"]);
    }

    #[test]
    fn pages_out_of_order_are_no_pages() {
        let mut bench = bench_of(&folders(8, 1));
        (0..2).for_each(|d| drop(bench.list(&format!("d{d:03}/"))));
        let key = ObjectKey::new("d002/");
        bench.walk.opens(&key, bench.now);
        let Course::Ask(question) = bench.walk.course(&key, bench.now) else { panic!("a third in a row") };
        let mut page = bench.answer(&question);
        page.objects.reverse();
        bench.walk.arrives(&question, Some(page), 1, bench.now);
        assert!(matches!(bench.walk.course(&key, bench.now), Course::Alone));
        assert!(!bench.walk.has_pages());
    }

    #[test]
    fn what_directories_have_in_common_is_a_directory() {
        for (a, b, expected) in [
            ("a/b/", "a/c/", "a/"),
            ("a/b/", "a/b/c/", "a/b/"),
            ("a/", "b/", ""),
            ("", "a/", ""),
            ("ab/", "ac/", ""),
        ] {
            assert_eq!(common(a, b), expected);
        }
    }
}
