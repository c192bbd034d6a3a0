//! Which object version a file of the cache belongs to: its identity, with texts of its own.
//!
//! Enters: an object's id and its bucket, or what a sidecar says. Leaves: the [`Identity`] that both of them spell alike.

use super::format::Identity;
use super::weight::heap;
use crate::object::{ETag, ObjectId, ObjectKey};
use crate::sync::Arc;

/// An identity that owns its texts.
#[derive(Clone, Debug)]
pub(super) struct Owner {
    scope: Arc<str>,
    key: ObjectKey,
    etag: ETag,
}

impl Owner {
    /// Of an object of the bucket that `scope` names. Shares the id's texts.
    pub(super) fn new(scope: &Arc<str>, id: &ObjectId) -> Self {
        Self { scope: Arc::clone(scope), key: id.key.clone(), etag: id.etag.clone() }
    }

    /// Of what a sidecar says; shares `scope` when it is the same.
    pub(super) fn read(scope: &Arc<str>, identity: &Identity<'_>) -> Self {
        let same = **scope == *identity.scope;
        Self {
            scope: if same { Arc::clone(scope) } else { Arc::from(identity.scope) },
            key: ObjectKey::new(identity.key),
            etag: ETag::new(identity.etag),
        }
    }

    /// The object version.
    pub(super) fn id(&self) -> ObjectId {
        ObjectId { key: self.key.clone(), etag: self.etag.clone() }
    }

    /// The memory of its texts, in bytes, about.
    pub(super) fn memory(&self) -> u64 {
        memory(&self.key, &self.etag)
    }

    /// What it says.
    pub(super) fn identity(&self) -> Identity<'_> {
        identity(&self.scope, &self.key, &self.etag)
    }
}

/// The memory of the texts of an id, in bytes, about: each lies behind two counters.
pub(super) fn memory(key: &ObjectKey, etag: &ETag) -> u64 {
    let counters = 2 * size_of::<usize>();
    heap(counters + key.as_str().len()) + heap(counters + etag.as_str().len())
}

/// The identity of an object of the bucket that `scope` names.
pub(super) fn identity<'a>(scope: &'a str, key: &'a ObjectKey, etag: &'a ETag) -> Identity<'a> {
    Identity { scope, key: key.as_str(), etag: etag.as_str().trim_matches('"') }
}
