//! Versions whose tail was read a moment ago. The kernel probably has those pages, so the next open need not bring them. Pure.

use std::collections::VecDeque;

use crate::object::{ObjectId, ObjectKey};

/// A version, and how its tail was read.
#[derive(Debug)]
struct Version {
    id: ObjectId,
    size: u64,
    /// Whether the tail was read more than once: the kernel dropped the pages, or never had them.
    again: bool,
}

impl Version {
    fn is(&self, id: &ObjectId, size: u64) -> bool {
        self.size == size && self.id.key == id.key && self.id.may_be(id.etag.as_str(), id.modified)
    }
}

/// Versions whose tail was read, the newest at the back.
#[derive(Debug, Default)]
pub(super) struct Recent(VecDeque<Version>);

impl Recent {
    /// Most versions kept. Beyond it the oldest is dropped. Doubling it saves the tails of more tables that a program opens twice.
    const MOST: usize = 256;

    /// Whether the kernel probably has the tail of this version.
    pub(super) fn has(&self, id: &ObjectId, size: u64) -> bool {
        self.0.iter().any(|known| known.is(id, size) && !known.again)
    }

    /// Whether the kernel probably has the tail of the version that this key had at its last read.
    pub(super) fn has_key(&self, key: &ObjectKey) -> bool {
        self.0.iter().any(|known| known.id.key == *key && !known.again)
    }

    /// Notes that a read of this version's tail reached the mount.
    pub(super) fn was_read(&mut self, id: &ObjectId, size: u64) {
        if let Some(known) = self.0.iter_mut().find(|known| known.is(id, size)) {
            known.again = true;
            return;
        }
        // The key has another version now.
        self.0.retain(|known| known.id.key != id.key);
        if self.0.len() >= Self::MOST {
            self.0.pop_front();
        }
        self.0.push_back(Version { id: id.clone(), size, again: false });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::ETag;

    fn version(key: &str, etag: &str) -> ObjectId {
        ObjectId::by_etag(ObjectKey::new(key), ETag::new(etag))
    }

    #[test]
    fn a_tail_is_with_the_kernel_once_it_was_read_until_it_is_read_again() {
        let (one, two) = (version("a", "\"1\""), version("a", "\"2\""));
        let mut recent = Recent::default();
        assert!(!recent.has(&one, 5));
        recent.was_read(&one, 5);
        assert!(recent.has(&one, 5) && !recent.has(&two, 5) && !recent.has(&one, 6));
        assert!(recent.has_key(&one.key) && !recent.has_key(&ObjectKey::new("b")));
        recent.was_read(&one, 5);
        assert!(!recent.has(&one, 5) && !recent.has_key(&one.key));
        recent.was_read(&two, 5);
        assert!(recent.has(&two, 5) && !recent.has(&one, 5), "of each key one version");
    }

    #[test]
    fn no_more_than_256_versions_are_remembered() {
        let mut recent = Recent::default();
        (0..1000).for_each(|n| recent.was_read(&version(&format!("{n}"), "\"1\""), 5));
        assert_eq!(recent.0.len(), Recent::MOST);
        assert!(recent.has(&version("999", "\"1\""), 5) && !recent.has(&version("700", "\"1\""), 5));
    }
}
