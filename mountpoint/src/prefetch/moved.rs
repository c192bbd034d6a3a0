//! Versions that got another key while handles have them open. Pure.

use std::collections::HashMap;

use crate::object::{ObjectId, ObjectKey};

/// The new keys of versions.
#[derive(Debug, Default)]
pub(super) struct Moved {
    /// Versions that are open, and the versions that have their bytes now.
    open: HashMap<ObjectId, ObjectId>,
    /// Renames under way by their old keys: what was copied, and the copy. A name leads to the old key until the rename ends, and the
    /// object there is being deleted.
    under_way: HashMap<ObjectKey, (ObjectId, ObjectId)>,
}

impl Moved {
    /// Notes that the bytes of `from` are at `to`. `open`: all open versions.
    pub(super) fn note<'a>(
        &mut self,
        from: &ObjectId,
        to: &ObjectId,
        open: impl Iterator<Item = &'a ObjectId>,
    ) {
        for target in self.open.values_mut().filter(|target| is_one(from, target)) {
            target.clone_from(to);
        }
        for id in open.filter(|id| is_one(from, id)) {
            self.open.insert(id.clone(), to.clone());
        }
    }

    /// Notes a rename under way, see [`Moved::ended`].
    pub(super) fn began(&mut self, from: &ObjectId, to: &ObjectId) {
        self.under_way.insert(from.key.clone(), (from.clone(), to.clone()));
    }

    /// Notes the end of the rename of this key: its name leads elsewhere.
    pub(super) fn ended(&mut self, key: &ObjectKey) {
        self.under_way.remove(key);
    }

    /// Notes that a version was opened.
    pub(super) fn opened(&mut self, id: &ObjectId) {
        if let Some((_, to)) = self.under_way.get(&id.key).filter(|(from, _)| is_one(from, id)) {
            self.open.insert(id.clone(), to.clone());
        }
    }

    /// Notes that no handle has this version open any more.
    pub(super) fn closed(&mut self, id: &ObjectId) {
        self.open.remove(id);
    }

    /// The version that has the bytes of `id` now.
    pub(super) fn where_is(&self, id: &ObjectId) -> ObjectId {
        self.open.get(id).unwrap_or(id).clone()
    }

    /// Whether nothing is noted.
    #[cfg(all(test, feature = "shuttle"))]
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty() && self.under_way.is_empty()
    }
}

/// Whether both are one version. The answer to a copy, a listing and a HEAD may each give another second, or none.
fn is_one(from: &ObjectId, id: &ObjectId) -> bool {
    id.key == from.key && from.may_be(id.etag.as_str(), id.modified)
}
