//! Walks over keys in memory.

use std::time::SystemTime;

use super::*;
use crate::object::{ETag, ObjectMeta};

/// A walk over these keys, with pages of four.
struct Bench {
    walk: Walk,
    keys: Vec<String>,
    now: Instant,
    event: u64,
    /// Number of pages, and of directories listed by themselves.
    pages: usize,
    alone: Vec<String>,
}

impl Bench {
    fn new(keys: &[&str]) -> Self {
        let mut keys: Vec<_> = keys.iter().map(|&key| key.to_owned()).collect();
        keys.sort();
        Self { walk: Walk::new(), keys, now: Instant::now(), event: 0, pages: 0, alone: Vec::new() }
    }

    fn answer(&self, question: &PageRequest) -> ListPage {
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
            storage_class: None,
        };
        let objects = keys.iter().take(4).map(object).collect();
        let next_token = keys.get(4).map(|_| keys[3].clone());
        ListPage { objects, next_token, ..ListPage::default() }
    }

    fn fetch(&mut self, question: &PageRequest) {
        self.event += 1;
        self.pages += 1;
        self.walk.asks(question, self.event);
        self.walk.arrives(question, Some(self.answer(question)), self.event, self.now);
    }

    /// The objects and prefixes that a listing of a directory shows, in order.
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

    /// Lists everything below a directory, in order.
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
    // 78 keys in pages of four.
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
fn pages_contradict_later_answers_that_say_otherwise() {
    for (name, is_there, at, contradicts) in [
        ("f0", true, 2, false),
        ("f0", false, 2, true),
        ("f0", false, 1, false),
        ("new", true, 2, true),
        ("new", true, 1, false),
        ("new", false, 2, false),
    ] {
        let mut bench = bench_of(&folders(8, 1));
        (0..3).for_each(|d| drop(bench.list(&format!("d{d:03}/"))));
        assert_eq!(bench.event, 1);
        let says = bench.walk.may_contradict("d004/", name, is_there, at);
        assert_eq!(says, contradicts, "{name} {is_there} {at}");
        assert!(!bench.walk.may_contradict("d000/", name, is_there, at), "the walk has it behind it");
    }
}

#[test]
fn a_page_in_flight_may_contradict_what_was_learned_since() {
    for (name, is_there, contradicts) in
        [("f0", true, false), ("f0", false, true), ("new", true, true), ("new", false, false)]
    {
        let mut bench = bench_of(&folders(4, 1));
        (0..2).for_each(|d| drop(bench.list(&format!("d{d:03}/"))));
        let key = ObjectKey::new("d002/");
        bench.walk.opens(&key, bench.now);
        let Course::Ask(question) = bench.walk.course(&key, bench.now) else { panic!("a third in a row") };
        bench.walk.asks(&question, 1);
        let may = |bench: &Bench, at| bench.walk.may_contradict("d003/", name, is_there, at);
        assert!(may(&bench, 2) && !may(&bench, 1), "{name} {is_there}");
        bench.walk.arrives(&question, Some(bench.answer(&question)), 1, bench.now);
        assert_eq!(may(&bench, 2), contradicts, "{name} {is_there}");
    }
}

/// A page ends between the name of a directory and its keys.
#[test]
fn a_page_in_flight_may_bring_a_directory_back_that_is_gone() {
    let keys =
        ["d000/f", "d001/f", "d002/f0", "d002/f1", "d003/a", "d003/b.tar", "d003/b/1", "d003/c", "d004/f"];
    let mut bench = Bench::new(&keys);
    (0..3).for_each(|d| drop(bench.list(&format!("d{d:03}/"))));
    assert_eq!((bench.event, bench.pages), (1, 1));
    let key = ObjectKey::new("d003/");
    bench.walk.opens(&key, bench.now);
    let Course::Ask(question) = bench.walk.course(&key, bench.now) else { panic!("the rest of it") };
    bench.walk.asks(&question, 2);
    assert!(bench.walk.may_contradict("d003/", "b", false, 3));
    bench.walk.arrives(&question, Some(bench.answer(&question)), 2, bench.now);
    assert!(bench.walk.may_contradict("d003/", "b", false, 3));
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
