//! The object version to which a file of the cache belongs: its identity, with its own texts.
//!
//! Enters: an object's id and its bucket, or the content of a sidecar. Leaves: the [`Identity`], which is the same from both sources.

use crate::cache::format::Identity;
use crate::cache::weight::heap;
use crate::object::{ETag, ObjectId, ObjectKey, Second};
use crate::sync::Arc;

/// An identity that owns its texts.
#[derive(Clone, Debug)]
pub(in crate::cache) struct Owner {
    scope: Arc<str>,
    key: ObjectKey,
    etag: ETag,
    modified: i64,
}

impl Owner {
    /// The owner of an object of the bucket that `scope` names. Shares the id's texts.
    pub(in crate::cache) fn new(scope: &Arc<str>, id: &ObjectId) -> Self {
        let modified = id.modified.map_or(0, Second::get);
        Self { scope: Arc::clone(scope), key: id.key.clone(), etag: id.etag.clone(), modified }
    }

    /// The owner named by a sidecar. Shares `scope` if the text is the same.
    pub(in crate::cache) fn read(scope: &Arc<str>, identity: &Identity<'_>) -> Self {
        let same = **scope == *identity.scope;
        Self {
            scope: if same { Arc::clone(scope) } else { Arc::from(identity.scope) },
            key: ObjectKey::new(identity.key),
            etag: ETag::new(identity.etag),
            modified: identity.modified,
        }
    }

    /// The object version.
    pub(in crate::cache) fn id(&self) -> ObjectId {
        let modified = Second::from_epoch(self.modified);
        ObjectId { key: self.key.clone(), etag: self.etag.clone(), modified }
    }

    /// Estimated memory of the owner's texts, in bytes.
    pub(in crate::cache) fn memory(&self) -> u64 {
        memory(&self.key, &self.etag)
    }

    /// The identity as a sidecar stores it.
    pub(in crate::cache) fn identity(&self) -> Identity<'_> {
        identity(&self.scope, &self.key, &self.etag, self.modified)
    }
}

/// Estimated memory of an id's texts, in bytes. Each text is an allocation with two counters.
pub(in crate::cache) fn memory(key: &ObjectKey, etag: &ETag) -> u64 {
    let counters = 2 * size_of::<usize>();
    heap(counters + key.as_str().len()) + heap(counters + etag.as_str().len())
}

/// The identity of an object of the bucket that `scope` names.
pub(in crate::cache) fn identity<'a>(
    scope: &'a str,
    key: &'a ObjectKey,
    etag: &'a ETag,
    modified: i64,
) -> Identity<'a> {
    Identity { scope, key: key.as_str(), etag: etag.as_str().trim_matches('"'), modified }
}
