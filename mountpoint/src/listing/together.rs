//! Lookups of several names of one directory at once: chooses the beginning of a page that answers all of them but the first. Pure.
//!
//! A lookup of a new name costs a HEAD and a LIST, 13 units in the price list of S3, and takes one round trip. A page costs 12 units,
//! takes one round trip, too, and answers the other lookups as well. So the second of two lookups in flight in a directory requests a
//! page, and later lookups wait for the page. After a page that answers no lookup, this stops until a page that many lookups bought
//! answers one: see [`super::recent`].

/// The name behind which a page begins; `None` for the first page.
pub(crate) type After = Option<Box<str>>;

/// Another lookup in flight in the directory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beside<'a> {
    /// The first of the other names, in order.
    pub(crate) name: &'a str,
    /// Whether the directory is known to have more names than a page.
    pub(crate) is_long: bool,
}

/// The name behind which the page for `name` and its companions begins. A short directory fits one page. In a long directory, and if no
/// earlier page has these names, the page begins shortly before the first of them.
pub(crate) fn begin(name: &str, beside: Beside<'_>, has_pages: bool) -> After {
    if beside.is_long || has_pages { before(name.min(beside.name)) } else { None }
}

/// A name shortly before this one, so that a page from there contains this name. `~` is the last printable character of ASCII, and needs
/// no encoding that a store could get wrong.
pub(super) fn before(name: &str) -> After {
    let mut chars = name.chars();
    let last = chars.next_back()?;
    let earlier = char::from_u32(u32::from(last) - 1).filter(char::is_ascii_graphic);
    let mut before = chars.as_str().to_owned();
    if let Some(earlier) = earlier.filter(|_| name.len() < 254) {
        // The beginning must not lie inside a directory.
        before.push(if earlier == '/' { '.' } else { earlier });
        before.push('~');
    }
    (!before.is_empty()).then(|| before.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_a_long_directory_begins_before_the_first_of_the_names() {
        let beside = |name| Beside { name, is_long: true };
        for (name, other) in [("n5", "n7"), ("n7", "n5")] {
            let begin = begin(name, beside(other), false).unwrap();
            assert!(*begin < *"n5" && *begin > *"n3", "{begin}");
        }
        // A name between `a` and `a/`.
        let begin = begin("a-b", beside("a"), false);
        assert!(begin.as_deref().is_none_or(|begin| begin < "a"), "{begin:?}");
    }

    #[test]
    fn the_page_of_a_directory_that_may_be_short_is_its_first() {
        let beside = Beside { name: "n7", is_long: false };
        assert_eq!(begin("n5", beside, false), None);
        assert_eq!(begin("n5", beside, true), before("n5"));
    }

    #[test]
    fn a_page_begins_before_the_name_it_is_asked_for() {
        for name in ["b", "file-0001", "\u{fc}", "a b", "a\u{1}", "zz~", "!", "x0"] {
            if let Some(before) = before(name) {
                assert!(*before < *name && !before.contains('/'), "{before:?} {name:?}");
            }
        }
        assert_eq!(before("f0010").as_deref(), Some("f001.~"));
    }
}
