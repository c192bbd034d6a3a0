//! A listing that continues behind a name. Pure.
//!
//! A listing here returns entries in the order of name + `/`, while S3 sends files in the order of their plain names: S3 sends `a` before
//! `a-b`, and the listing returns `a` after `a-b`. So the request begins early enough to include files whose names are prefixes of the
//! given name, and the listing drops entries that were returned before.

use std::cmp::Ordering;

use super::merge::order;
use crate::object::ObjectKey;

/// The name behind which a listing continues.
#[derive(Debug)]
pub(crate) struct Behind(Box<str>);

impl Behind {
    pub(crate) fn new(name: &str) -> Self {
        Self(name.into())
    }

    /// Whether an entry of this name comes behind the given name.
    pub(crate) fn has(&self, name: &str) -> bool {
        order(name, &self.0) == Ordering::Greater
    }

    /// The key after which the request begins, so that no entry behind the given name is missing.
    pub(crate) fn start_after(&self, directory: &ObjectKey) -> Option<String> {
        let name = &*self.0;
        // The shortest file that comes behind the given name is the prefix before the name's first character below the slash.
        let waits = name.char_indices().skip(1).find(|(_, c)| *c < '/').map(|(at, _)| &name[..at]);
        let from = match waits {
            Some(prefix) => prefix.char_indices().next_back().map_or("", |(at, _)| &prefix[..at]),
            None => name,
        };
        let key = format!("{}{from}", directory.as_str());
        (!key.is_empty()).then_some(key)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_file_that_a_longer_name_left_before_is_listed_again() {
        let behind = Behind::new("a-b");
        assert!(behind.has("a") && behind.has("b") && !behind.has("a-b") && !behind.has("a-a"));
        let after = |name, directory| Behind::new(name).start_after(&ObjectKey::new(directory));
        assert_eq!(after("a-b", "d/").as_deref(), Some("d/"));
        assert_eq!(after("a-b", ""), None);
        assert_eq!(after("ab", "d/").as_deref(), Some("d/ab"));
        assert_eq!(after("été.x", "").as_deref(), Some("ét"));
    }

    proptest! {
        /// Random names: every file and directory behind the given name has a key that S3 sends after the requested key.
        #[test]
        fn what_leaves_behind_a_name_is_listed_after_the_key(name in "[-./0ab]{1,6}", other in "[-.0ab]{1,6}") {
            let name = name.replace('/', "0");
            let behind = Behind::new(&name);
            let after = behind.start_after(&ObjectKey::new("")).unwrap_or_default();
            if behind.has(&other) {
                prop_assert!(other.as_str() > after.as_str(), "the file {other:?} after {after:?}");
                prop_assert!(format!("{other}/x").as_str() > after.as_str(), "the directory {other:?}");
            }
        }
    }
}
