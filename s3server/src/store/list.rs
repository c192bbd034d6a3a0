//! One page of a listing, computed from the sorted index alone.

use std::collections::BTreeMap;
use std::ops::Bound;

/// An index by key in S3's order: that of the UTF-8 bytes.
pub(crate) type Sorted<T> = BTreeMap<Box<[u8]>, T>;

/// The arguments of a listing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query {
    pub(crate) prefix: String,
    /// The delimiter; empty for none.
    pub(crate) delimiter: String,
    pub(crate) from: From,
    /// Most keys and common prefixes together.
    pub(crate) max: usize,
}

/// The beginning of a page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum From {
    #[default]
    Start,
    /// The listing begins after this key.
    After(String),
    /// The listing begins after every key with this prefix.
    Behind(String),
}

/// One entry of a page: a key or a common prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Item<T> {
    Key(String, T),
    Prefix(String),
}

/// A page, and the beginning of the next one; `None` on the last page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Page<T> {
    pub(crate) items: Vec<Item<T>>,
    pub(crate) next: Option<From>,
}

/// Lists a page. A key costs one step of the tree, a common prefix one descent, for any number of keys below it.
pub(crate) fn page<T: Clone>(index: &Sorted<T>, query: &Query) -> Page<T> {
    let prefix = query.prefix.as_bytes();
    let mut items = Vec::new();
    if query.max == 0 {
        return Page { items, next: None };
    }
    let mut lower: Bound<Vec<u8>> = match &query.from {
        From::Start => Bound::Unbounded,
        From::After(key) => Bound::Excluded(key.clone().into_bytes()),
        From::Behind(prefix) => Bound::Included(successor(prefix.as_bytes())),
    };
    let starts_before_prefix = match &lower {
        Bound::Unbounded => true,
        Bound::Included(at) | Bound::Excluded(at) => at.as_slice() < prefix,
    };
    if starts_before_prefix {
        lower = Bound::Included(prefix.to_vec());
    }

    let mut next = From::Start;
    loop {
        let range = (lower.as_ref().map(Vec::as_slice), Bound::Unbounded);
        let mut jump = None;
        for (key, value) in index.range::<[u8], _>(range) {
            if !key.starts_with(prefix) {
                return Page { items, next: None };
            }
            if items.len() == query.max {
                return Page { items, next: Some(next) };
            }
            let text = String::from_utf8_lossy(key);
            let rest = &text[query.prefix.len()..];
            let rolled = (!query.delimiter.is_empty()).then(|| rest.find(&query.delimiter)).flatten();
            let Some(at) = rolled else {
                next = From::After(text.clone().into_owned());
                items.push(Item::Key(text.into_owned(), value.clone()));
                continue;
            };
            let common = &text[..query.prefix.len() + at + query.delimiter.len()];
            items.push(Item::Prefix(common.to_owned()));
            next = From::Behind(common.to_owned());
            jump = Some(successor(common.as_bytes()));
            break;
        }
        match jump {
            Some(at) => lower = Bound::Included(at),
            None => return Page { items, next: None },
        }
    }
}

/// The first string of bytes after all that begin with `prefix`. The last byte of UTF-8 is never 0xFF.
fn successor(prefix: &[u8]) -> Vec<u8> {
    let mut at = prefix.to_vec();
    if let Some(last) = at.last_mut() {
        *last = last.saturating_add(1);
    }
    at
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn index(keys: &[&str]) -> Sorted<()> {
        keys.iter().map(|k| (k.as_bytes().into(), ())).collect()
    }

    fn all(index: &Sorted<()>, mut query: Query) -> Vec<Item<()>> {
        let mut found = Vec::new();
        loop {
            let page = page(index, &query);
            assert!(page.items.len() <= query.max);
            found.extend(page.items);
            match page.next {
                Some(from) => query.from = from,
                None => return found,
            }
        }
    }

    fn key(name: &str) -> Item<()> {
        Item::Key(name.into(), ())
    }

    fn prefix(name: &str) -> Item<()> {
        Item::Prefix(name.into())
    }

    #[test]
    fn keys_behind_a_delimiter_are_rolled_up_once_whatever_the_page_size() {
        let index = index(&["a", "a/b", "a/c", "a0", "b/x/y", "é/1", "é/2"]);
        let expected = vec![key("a"), prefix("a/"), key("a0"), prefix("b/"), prefix("é/")];
        for max in 1..8 {
            let query = Query { delimiter: "/".into(), max, ..Query::default() };
            assert_eq!(all(&index, query), expected, "pages of {max}");
        }
    }

    #[test]
    fn starting_after_a_key_inside_a_prefix_still_shows_the_prefix() {
        let index = index(&["a/b", "a/c", "b"]);
        let query =
            Query { delimiter: "/".into(), from: From::After("a/b".into()), max: 10, ..Query::default() };
        assert_eq!(page(&index, &query).items, [prefix("a/"), key("b")]);
        let query = Query { from: From::Behind("a/".into()), ..query };
        assert_eq!(page(&index, &query).items, [key("b")]);
    }

    #[test]
    fn a_page_of_no_keys_is_not_truncated() {
        let page = page(&index(&["a"]), &Query::default());
        assert_eq!(page, Page { items: vec![], next: None });
    }

    #[test]
    fn an_exactly_full_last_page_is_not_truncated() {
        assert_eq!(page(&index(&["a", "b"]), &Query { max: 2, ..Query::default() }).next, None);
    }

    proptest! {
        #[test]
        fn pages_agree_with_the_plain_definition(
            keys in prop::collection::btree_set("[ab/é]{1,5}", 0..40),
            prefix in "[ab/]{0,2}",
            delimiter in prop_oneof![Just(""), Just("/"), Just("ab"), Just("é")],
            after in "[ab/]{0,3}",
            max in 1usize..6,
        ) {
            let index: Sorted<()> = keys.iter().map(|k| (k.as_bytes().into(), ())).collect();
            let mut expected = Vec::new();
            let mut seen = BTreeSet::new();
            for name in keys.iter().filter(|k| k.starts_with(&prefix) && k.as_str() > after.as_str()) {
                let rest = &name[prefix.len()..];
                match (!delimiter.is_empty()).then(|| rest.find(delimiter)).flatten() {
                    None => expected.push(key(name)),
                    Some(at) => {
                        let common = &name[..prefix.len() + at + delimiter.len()];
                        if seen.insert(common.to_owned()) {
                            expected.push(Item::Prefix(common.to_owned()));
                        }
                    }
                }
            }
            let query = Query { prefix, delimiter: delimiter.into(), from: From::After(after), max };
            prop_assert_eq!(all(&index, query), expected);
        }
    }
}
