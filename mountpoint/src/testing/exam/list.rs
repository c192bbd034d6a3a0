//! Listings: each entry once, in order, on as many pages as needed.

use std::collections::BTreeSet;

use super::Exam;
use crate::object::ObjectKey;
use crate::s3::{ListObjects, ListPage};

/// Stores small objects with these names.
async fn fill(exam: &Exam, names: &[&str]) {
    for (i, name) in names.iter().enumerate() {
        exam.put(&exam.key(name), &exam.bytes(i as u64, i + 1)).await;
    }
}

fn request(exam: &Exam) -> ListObjects {
    ListObjects { prefix: exam.folder.clone(), max_keys: 1000, ..ListObjects::default() }
}

/// Objects and prefixes without the exam's folder, in the order of the pages.
fn names(exam: &Exam, pages: &[ListPage]) -> (Vec<String>, Vec<String>) {
    let short = |s: &str| s.strip_prefix(&exam.folder).expect("only what was asked for").to_owned();
    let objects = pages.iter().flat_map(|p| &p.objects).map(|o| short(o.key.as_str())).collect();
    let prefixes = pages.iter().flat_map(|p| &p.common_prefixes).map(|p| short(p)).collect();
    (objects, prefixes)
}

pub(super) async fn pages_join_to_all_keys_in_order(exam: &Exam) {
    let all: Vec<String> = (0..25).map(|i| format!("k{i:02}")).collect();
    fill(exam, &all.iter().map(String::as_str).collect::<Vec<_>>()).await;
    for max_keys in [7, 25, 1000] {
        let pages = exam.pages(ListObjects { max_keys, ..request(exam) }).await;
        assert_eq!(names(exam, &pages), (all.clone(), vec![]), "max_keys {max_keys}");
        assert_eq!(pages.iter().filter(|p| p.next_token.is_none()).count(), 1);
    }
}

pub(super) async fn a_listing_agrees_with_head(exam: &Exam) {
    fill(exam, &["a", "b/c"]).await;
    for listed in exam.pages(request(exam)).await.into_iter().flat_map(|p| p.objects) {
        let meta = exam.head(&listed.key).await;
        assert_eq!(listed.meta.size, meta.size);
        assert!(listed.meta.etag.matches(meta.etag.as_str()), "{:?} {:?}", listed.meta.etag, meta.etag);
        assert!(listed.meta.readable);
        let apart = match listed.meta.last_modified.duration_since(meta.last_modified) {
            Ok(later) => later,
            Err(earlier) => earlier.duration(),
        };
        assert!(
            apart.as_secs() == 0,
            "Last-Modified has seconds, a listing may have parts of one: {apart:?}"
        );
    }
}

pub(super) async fn a_delimiter_rolls_up(exam: &Exam) {
    fill(exam, &["a", "b/1", "b/2/x", "b/2/y", "b/3", "c", "d/e/f"]).await;
    let delimited = ListObjects { delimited: true, ..request(exam) };
    let (objects, prefixes) = names(exam, &exam.pages(delimited.clone()).await);
    assert_eq!(objects, ["a", "c"]);
    assert_eq!(prefixes, ["b/", "d/"]);
    let below = ListObjects { prefix: format!("{}b/", exam.folder), ..delimited.clone() };
    let (objects, prefixes) = names(exam, &exam.pages(below).await);
    assert_eq!(objects, ["b/1", "b/3"]);
    assert_eq!(prefixes, ["b/2/"]);
    // A prefix need not end at a slash.
    let half = ListObjects { prefix: format!("{}b", exam.folder), ..delimited };
    let (objects, prefixes) = names(exam, &exam.pages(half).await);
    assert!(objects.is_empty());
    assert_eq!(prefixes, ["b/"]);
}

pub(super) async fn one_entry_a_page_gives_each_once(exam: &Exam) {
    fill(exam, &["a", "b/1", "b/2", "c", "d/1", "d/2/3", "e"]).await;
    let one = ListObjects { max_keys: 1, ..request(exam) };
    let (objects, prefixes) = names(exam, &exam.pages(one.clone()).await);
    assert_eq!(objects, ["a", "b/1", "b/2", "c", "d/1", "d/2/3", "e"]);
    assert!(prefixes.is_empty());
    let (objects, prefixes) = names(exam, &exam.pages(ListObjects { delimited: true, ..one }).await);
    assert_eq!(objects, ["a", "c", "e"]);
    assert_eq!(prefixes, ["b/", "d/"]);
}

pub(super) async fn start_after_begins_behind_the_key(exam: &Exam) {
    fill(exam, &["a", "b", "c/d", "e", "f"]).await;
    for (after, rest) in [
        ("b", &["c/d", "e", "f"][..]),
        ("bb", &["c/d", "e", "f"]),
        ("f", &[]),
        ("", &["a", "b", "c/d", "e", "f"]),
    ] {
        for max_keys in [1, 1000] {
            let start_after = Some(format!("{}{after}", exam.folder));
            let pages = exam.pages(ListObjects { start_after, max_keys, ..request(exam) }).await;
            assert_eq!(names(exam, &pages).0, rest, "after {after:?}, max_keys {max_keys}");
        }
    }
    let start_after = Some(format!("{}b", exam.folder));
    let pages = exam.pages(ListObjects { start_after, delimited: true, ..request(exam) }).await;
    assert_eq!(names(exam, &pages), (vec!["e".into(), "f".into()], vec!["c/".into()]));
}

pub(super) async fn an_empty_prefix_is_an_empty_page(exam: &Exam) {
    for delimited in [false, true] {
        let prefix = format!("{}nobody", exam.folder);
        let page = exam.pages(ListObjects { prefix, delimited, ..request(exam) }).await;
        assert_eq!(page, [ListPage::default()]);
    }
}

pub(super) async fn keys_are_in_the_order_of_their_bytes(exam: &Exam) {
    // `-` sorts before `/` before `0`; U+FF5E before U+1F600 in UTF-8, after it in UTF-16.
    let names = ["a-", "a-b", "a/b", "a/b-", "a/c/d", "a0", "ab", "B", "é", "\u{ff5e}", "\u{1f600}"];
    fill(exam, &names).await;
    let sorted: BTreeSet<ObjectKey> = names.iter().map(|name| exam.key(name)).collect();
    assert_eq!(exam.keys_under(&exam.folder).await, sorted.into_iter().collect::<Vec<_>>());
}
