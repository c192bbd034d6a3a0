//! Keeps the place of a file in the bucket still while requests depend on it.
//!
//! The rename of a directory gives the objects below it other keys, also the one to which an open file appends. A copy or a condition that
//! names the old key fails then, and the file would be lost. So the last request of a file, and the copies of what it appends to, share a
//! lock that such a rename has alone.

use tokio::sync::{OwnedRwLockWriteGuard, RwLock};

use crate::object::{ObjectId, ObjectMeta};
use crate::sync::Arc;

/// The object from which an upload copies, where it is now.
#[derive(Debug)]
pub(super) struct Base {
    pub(super) id: ObjectId,
    /// The metadata of the object, if the file may end up as it is.
    pub(super) meta: Option<ObjectMeta>,
}

/// The present base of a file; `None`: it has none. Requests that depend on it share the lock.
pub(super) type Ground = Arc<RwLock<Option<Base>>>;

/// A guard: while it lives, no request makes the object of a file, and none copies from the object to which the file appends.
#[derive(Debug)]
pub struct Hold(OwnedRwLockWriteGuard<Option<Base>>);

impl Hold {
    /// Waits for the requests in flight that depend on the place of the file.
    pub(super) async fn of(ground: &Ground) -> Self {
        Self(Arc::clone(ground).write_owned().await)
    }

    /// The version to which the file appends; `None` if it appends to no object.
    pub fn base(&self) -> Option<&ObjectId> {
        self.0.as_ref().map(|base| &base.id)
    }

    /// Notes that the object to which the file appends has another key now, or another version of the same bytes.
    pub fn moved(&mut self, id: ObjectId, meta: ObjectMeta) {
        *self.0 = Some(Base { id, meta: Some(meta) });
    }
}
