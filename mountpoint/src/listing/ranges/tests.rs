//! Listings by ranges, for names of many shapes: each name once and in order, in few rounds, with few keys in vain.

use std::collections::BTreeSet;
use std::time::SystemTime;

use proptest::prelude::*;

use super::*;
use crate::object::{ETag, ObjectKey, ObjectMeta};
use crate::s3::{Error, ErrorKind, ListedObject};

/// A directory of a store, listed in rounds: the store answers all requests of a round at its end.
struct Bench {
    keys: Vec<String>,
    page: u16,
    /// Number of requests, rounds and received keys so far.
    requests: usize,
    rounds: usize,
    received: usize,
    at_once: usize,
    /// Fails each request with a number that this divides, once.
    fails: usize,
    failures: usize,
}

const DIRECTORY: &str = "some/where/";

impl Bench {
    fn new(names: impl IntoIterator<Item = String>, page: u16) -> Self {
        let names: BTreeSet<String> = names.into_iter().map(|name| format!("{DIRECTORY}{name}")).collect();
        let keys = names.into_iter().collect();
        Self { keys, page, requests: 0, rounds: 0, received: 0, at_once: 0, fails: 0, failures: 0 }
    }

    fn answer(&mut self, after: Option<&str>, max: u16) -> ListPage {
        self.requests += 1;
        let begin = after.map_or(0, |after| self.keys.partition_point(|key| key.as_str() <= after));
        let end = (begin + usize::from(max)).min(self.keys.len());
        let meta = ObjectMeta {
            size: 1,
            etag: ETag::new("e"),
            last_modified: SystemTime::UNIX_EPOCH,
            readable: true,
        };
        let objects: Vec<_> = self.keys[begin..end]
            .iter()
            .map(|key| ListedObject { key: ObjectKey::new(key), meta: meta.clone(), storage_class: None })
            .collect();
        self.received += objects.len();
        let next_token = (end < self.keys.len()).then(|| self.keys[end - 1].clone());
        ListPage { objects, next_token, ..ListPage::default() }
    }

    /// The names of the first two pages, the token for the next, and ranges if the names taught anything.
    fn begin(&mut self) -> (Vec<String>, Option<String>, Option<Ranges>) {
        let mut given = Vec::new();
        let mut letters = Letters::new();
        let mut token: Option<String> = None;
        for _ in 0..2 {
            let page = self.answer(token.as_deref(), self.page);
            self.rounds += 1;
            for object in &page.objects {
                letters.learn(&object.key.as_str()[DIRECTORY.len()..]);
                given.push(object.key.as_str().to_owned());
            }
            token = page.next_token;
            if token.is_none() {
                return (given, None, None);
            }
        }
        let last = given.last().unwrap()[DIRECTORY.len()..].to_owned();
        let ranges = Ranges::new(DIRECTORY, letters, &last, token.clone().unwrap(), self.page);
        (given, token, ranges)
    }

    /// Answers requests until only those are left that `is_held` holds back.
    fn answer_all(
        &mut self,
        ranges: &mut Ranges,
        is_held: impl Fn(&RangeRequest) -> bool,
    ) -> Vec<RangeRequest> {
        let (mut held, now) = (Vec::new(), Instant::now());
        loop {
            let (hold, ask): (Vec<_>, Vec<_>) = ranges.questions().into_iter().partition(&is_held);
            held.extend(hold);
            if ask.is_empty() {
                return held;
            }
            for question in ask {
                let after = question.token.as_ref().or(question.start_after.as_ref());
                let page = self.answer(after.map(String::as_str), question.max_keys);
                ranges.arrives(&question, Ok(page), 1, [now; 2]).unwrap();
            }
        }
    }

    /// Lists everything. Returns the names in the order of the pages.
    fn list(&mut self) -> Vec<String> {
        let (mut given, mut token, ranges) = self.begin();
        let Some(mut ranges) = ranges else {
            // The names teach nothing: the listing requests one page after another.
            while let Some(after) = token {
                let page = self.answer(Some(&after), self.page);
                given.extend(page.objects.iter().map(|object| object.key.as_str().to_owned()));
                token = page.next_token;
            }
            return given;
        };
        let now = Instant::now();
        loop {
            let questions = ranges.questions();
            self.rounds += 1;
            self.at_once = self.at_once.max(questions.len());
            assert!(self.rounds < 10 * self.keys.len() + 100, "it never ends");
            for question in questions {
                let failed =
                    self.fails > 0 && self.requests.is_multiple_of(self.fails) && self.failures < 100;
                let answer = if failed {
                    self.failures += 1;
                    self.requests += 1;
                    Err(Error::new(ErrorKind::Throttled, "ListObjectsV2"))
                } else {
                    let after = question.token.as_ref().or(question.start_after.as_ref());
                    Ok(self.answer(after.map(String::as_str), question.max_keys))
                };
                ranges.arrives(&question, answer, 1, [now; 2]).unwrap();
            }
            loop {
                match ranges.turn() {
                    Turn::Page(page) => {
                        given.extend(page.page.objects.iter().map(|o| o.key.as_str().to_owned()))
                    }
                    Turn::Wait => break,
                    Turn::Failed(_) => {}
                    Turn::End => {
                        assert!(ranges.is_over());
                        return given;
                    }
                }
            }
        }
    }

    /// Asserts that the listing has all names, each once, in order.
    fn assert_whole(&mut self) {
        let given = self.list();
        assert!(given == self.keys, "{} names given of {}", given.len(), self.keys.len());
    }

    fn waste(&self) -> f64 {
        self.received as f64 / self.keys.len() as f64 - 1.0
    }
}

/// A number that looks random.
fn mixed(i: u64) -> u64 {
    let mixed = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// The name with a given number.
type Shape = Box<dyn Fn(u64) -> String>;

#[test]
fn usual_names_take_few_rounds_and_little_is_received_in_vain() {
    let day = |i: u64| {
        format!(
            "2024-{:02}-{:02}T{:02}:{:02}.log",
            i / 8640 % 12 + 1,
            i / 288 % 30 + 1,
            i / 12 % 24,
            i % 12 * 5
        )
    };
    let shapes: [(&str, Shape); 6] = [
        ("counter", Box::new(|i| format!("{i:08}"))),
        ("named counter", Box::new(|i| format!("img-{i:06}.jpg"))),
        ("hex", Box::new(|i| format!("{:016x}", mixed(i)))),
        (
            "letters and digits",
            Box::new(|i| {
                let digit = |n: u64| {
                    char::from(
                        b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"[n as usize % 62],
                    )
                };
                let mut n = mixed(i);
                (0..8)
                    .map(|_| {
                        let c = digit(n);
                        n /= 62;
                        c
                    })
                    .collect()
            }),
        ),
        ("unpadded", Box::new(|i| format!("{i}"))),
        ("dates", Box::new(move |i| format!("{}-{i}", day(i)))),
    ];
    for (shape, name) in shapes {
        let mut bench = Bench::new((0..100_000).map(name), 1000);
        bench.assert_whole();
        eprintln!(
            "{shape}: {} requests, {} rounds, {:.1} % in vain, {} at once",
            bench.requests,
            bench.rounds,
            100.0 * bench.waste(),
            bench.at_once
        );
        assert!(bench.rounds <= 45, "{shape}: {} rounds", bench.rounds);
        assert!(bench.waste() <= 0.10, "{shape}: {:.3}", bench.waste());
        assert!(bench.requests <= 150, "{shape}: {} requests", bench.requests);
        assert!(bench.at_once <= Ranges::WIDTH);
    }
}

#[test]
fn a_million_names_take_fewer_rounds_than_a_fourth_of_their_pages() {
    let mut bench = Bench::new((0..1_000_000).map(|i| format!("{i:07}")), 1000);
    bench.assert_whole();
    eprintln!("{} requests, {} rounds, {:.1} % in vain", bench.requests, bench.rounds, 100.0 * bench.waste());
    assert!(bench.rounds <= 250 && bench.waste() <= 0.10, "{} rounds, {:.3}", bench.rounds, bench.waste());
}

#[test]
fn a_short_directory_costs_a_request_or_two_more() {
    for names in [2001usize, 2500, 3000, 5000] {
        let mut bench = Bench::new((0..names).map(|i| format!("{i:08}")), 1000);
        bench.assert_whole();
        assert!(bench.requests <= names.div_ceil(1000) + 3, "{names}: {} requests", bench.requests);
    }
}

#[test]
fn hostile_shapes_are_listed_whole_at_about_the_cost_of_a_plain_listing() {
    let long = "x".repeat(1000);
    let shapes: [(&str, Vec<String>); 5] = [
        (
            "one long among short",
            (0..20_000).map(|i| format!("{i:05}")).chain([format!("0{long}")]).collect(),
        ),
        ("all long", (0..20_000).map(|i| format!("{}{i:05}", "y".repeat(200))).collect()),
        (
            "most of it in one place",
            (0..20_000).map(|i| format!("m{i:05}")).chain("abcnopz".chars().map(String::from)).collect(),
        ),
        (
            "ends of the range",
            ["\u{1}", "!", "~", "~~", "\u{10ffff}"]
                .into_iter()
                .flat_map(|c| (0..3000).map(move |i| format!("{c}{i:04}")))
                .collect(),
        ),
        (
            "not ascii",
            (0..20_000).map(|i| format!("\u{fc}\u{4e00}{}", char::from_u32(0x4e00 + i).unwrap())).collect(),
        ),
    ];
    for (shape, names) in shapes {
        let mut bench = Bench::new(names, 500);
        let pages = bench.keys.len().div_ceil(500);
        bench.assert_whole();
        assert!(
            bench.requests <= pages * 3 / 2 + 8,
            "{shape}: {} requests for {pages} pages",
            bench.requests
        );
    }
}

#[test]
fn requests_that_fail_are_made_again_and_no_name_is_lost() {
    for fails in [2, 3, 7] {
        let mut bench = Bench { fails, ..Bench::new((0..30_000).map(|i| format!("{i:06}")), 500) };
        bench.assert_whole();
        assert!(bench.failures > 0);
    }
}

/// One range of keys stalls and fails at last, while the others fill the read-ahead.
#[test]
fn the_range_to_be_read_next_is_asked_again_whatever_lies_ready_behind_it() {
    let mut bench = Bench::new((0..100_000).map(|i| format!("{i:06}")), 1000);
    let (_, _, Some(mut ranges)) = bench.begin() else { panic!("names with digits") };
    let held = bench.answer_all(&mut ranges, |question| question.range == 1);
    let [front] = &held[..] else { panic!("one of the range that is read next: {held:?}") };
    assert!(matches!(ranges.turn(), Turn::Wait));
    let error = Error::new(ErrorKind::Timeout, "ListObjectsV2");
    ranges.arrives(front, Err(error), 1, [Instant::now(); 2]).unwrap();
    bench.answer_all(&mut ranges, |_| false);
    assert!(matches!(ranges.turn(), Turn::Failed(_)), "a program hears of it");
    assert!(matches!(ranges.turn(), Turn::Wait));
    bench.answer_all(&mut ranges, |_| false);
    assert!(matches!(ranges.turn(), Turn::Page(_)));
}

#[test]
fn names_out_of_order_or_before_their_beginning_are_disorder() {
    let mut bench = Bench::new((0..5000).map(|i| format!("{i:06}")), 500);
    let letters = {
        let mut letters = Letters::new();
        letters.learn("000000");
        letters.learn("000999");
        letters
    };
    let mut ranges = Ranges::new(DIRECTORY, letters, "000999", bench.keys[999].clone(), 500).unwrap();
    let now = Instant::now();
    let question = ranges.questions().remove(0);
    let mut page = bench.answer(question.token.as_deref(), 500);
    page.objects.swap(3, 4);
    assert_eq!(ranges.arrives(&question, Ok(page), 1, [now; 2]), Err(Disorder));
    let early = bench.answer(None, 500);
    assert_eq!(ranges.arrives(&question, Ok(early), 1, [now; 2]), Err(Disorder));
}

/// Lists in simulated time. `service` returns the duration of a request, by its start and the number of requests in flight. Returns the
/// number of requests in flight at each answer, and the names.
fn simulate(bench: &mut Bench, service: impl Fn(Duration, usize) -> Duration) -> Vec<(Duration, usize)> {
    let (mut letters, mut given, mut token) = (Letters::new(), Vec::new(), None);
    for _ in 0..2 {
        let page = bench.answer(token.as_deref(), bench.page);
        for object in &page.objects {
            letters.learn(&object.key.as_str()[DIRECTORY.len()..]);
            given.push(object.key.as_str().to_owned());
        }
        token = page.next_token;
    }
    let last = given.last().unwrap()[DIRECTORY.len()..].to_owned();
    let mut ranges = Ranges::new(DIRECTORY, letters, &last, token.unwrap(), bench.page).unwrap();
    let (begin, mut now) = (Instant::now(), Duration::ZERO);
    let (mut out, mut at_once): (Vec<(Duration, Duration, RangeRequest)>, Vec<_>) = (Vec::new(), Vec::new());
    loop {
        for question in ranges.questions() {
            out.push((now + service(now, out.len()), now, question));
        }
        at_once.push((now, out.len()));
        let Some(next) = (0..out.len()).min_by_key(|&i| out[i].0) else { panic!("nothing is on its way") };
        let (arrived, since, question) = out.swap_remove(next);
        now = arrived;
        let after = question.token.as_ref().or(question.start_after.as_ref());
        let answer = bench.answer(after.map(String::as_str), question.max_keys);
        ranges.arrives(&question, Ok(answer), 1, [begin + since, begin + arrived]).unwrap();
        loop {
            match ranges.turn() {
                Turn::Page(page) => given.extend(page.page.objects.iter().map(|o| o.key.as_str().to_owned())),
                Turn::Wait => break,
                Turn::Failed(error) => panic!("{error}"),
                Turn::End => {
                    assert!(given == bench.keys, "{} names given of {}", given.len(), bench.keys.len());
                    return at_once;
                }
            }
        }
    }
}

const MS: Duration = Duration::from_millis(1);

#[test]
fn a_slow_or_throttling_store_gets_one_request_at_a_time_until_it_is_fast() {
    let mut bench = Bench::new((0..300_000).map(|i| format!("{i:06}")), 1000);
    // The store becomes slow for a while after too many requests at once. A throttled request shows as a slow one, because it is sent
    // again.
    let (since, spell) = (std::cell::Cell::new(None), 3000 * MS);
    let at_once = simulate(&mut bench, |now, out| {
        if since.get().is_none() && out >= 12 {
            since.set(Some(now));
        }
        let slow = since.get().is_some_and(|since| now < since + spell);
        if slow { 1000 * MS } else { 20 * MS }
    });
    let since = since.get().expect("it is asked much at once");
    let most = |from: Duration, to: Duration| {
        at_once.iter().filter(|(at, _)| (from..to).contains(at)).map(|(_, n)| *n).max()
    };
    // The requests from before the slow phase have returned.
    assert_eq!(most(since + 1050 * MS, since + spell), Some(1));
    assert_eq!(most(since + spell, Duration::MAX), Some(Ranges::WIDTH));
}

#[test]
fn a_store_that_serves_one_request_after_another_is_asked_fewer_at_once() {
    let crowded = |service: fn(usize) -> Duration| {
        let mut bench = Bench::new((0..300_000).map(|i| format!("{i:06}")), 1000);
        let at_once = simulate(&mut bench, |_, out| service(out));
        at_once.iter().filter(|(_, n)| *n > 10).count() as f64 / at_once.len() as f64
    };
    let (all_at_once, in_line) = (crowded(|_| 20 * MS), crowded(|out| 20 * MS * (out as u32 + 1)));
    assert!(in_line < all_at_once * 2.0 / 3.0, "{in_line} and {all_at_once} of the time above ten");
}

#[test]
fn a_million_names_of_any_first_letter_are_listed_by_many_at_once() {
    for name in [|i| format!("{i:07}"), |i| format!("img-{i:06}.jpg"), |i| format!("{:016x}", mixed(i))] {
        let mut bench = Bench::new((0..1_000_000).map(name), 1000);
        let at_once = simulate(&mut bench, |_, _| 20 * MS);
        let took = at_once.last().unwrap().0;
        eprintln!("{}: {took:?}, {:.1} % in vain", bench.keys[0], 100.0 * bench.waste());
        assert!(took <= 3000 * MS, "{}: {took:?}", bench.keys[0]);
        assert!(bench.waste() <= 0.10, "{}: {:.3}", bench.keys[0], bench.waste());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn whatever_the_names_each_is_given_out_once_and_in_order(
        names in prop::collection::btree_set(prop_oneof!["[a-c0-3]{1,6}", "[ -~]{1,4}".prop_map(|n| n.replace('/', "_")), "\\PC{1,3}".prop_map(|n| n.replace('/', "_"))], 5..300),
        page in 1u16..20,
        fails in prop_oneof![3 => Just(0usize), 1 => 2usize..9],
    ) {
        let letters = { let mut letters = Letters::new(); names.iter().take(2 * usize::from(page)).for_each(|name| letters.learn(name)); letters };
        prop_assume!(letters.first_varying().is_some());
        let mut bench = Bench { fails, ..Bench::new(names, page) };
        let given = bench.list();
        prop_assert_eq!(given, bench.keys.clone());
    }
}
