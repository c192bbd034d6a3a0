//! The attributes of directories, from the last HEADs of their markers. Nothing here makes a request.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::inode::InodeNo;
use crate::kept::Kept;
use crate::sync::{Arc, Mutex};

/// The attributes from the last HEAD of each marker, by directory.
#[derive(Debug, Default)]
pub(super) struct Directories(Mutex<HashMap<InodeNo, Told>>);

#[derive(Debug)]
struct Told {
    kept: Arc<Kept>,
    /// Time of the HEAD or of the change.
    at: Instant,
}

impl Directories {
    /// The last known attributes, however old.
    pub(super) fn get(&self, ino: InodeNo) -> Option<Arc<Kept>> {
        self.0.lock().get(&ino).map(|told| Arc::clone(&told.kept))
    }

    /// Stores attributes that were valid at the moment `at`, unless later ones are known.
    pub(super) fn set(&self, ino: InodeNo, kept: Kept, at: Instant) {
        let mut known = self.0.lock();
        if known.get(&ino).is_none_or(|known| known.at <= at) {
            known.insert(ino, Told { kept: Arc::new(kept), at });
        }
    }

    /// Drops the attributes of a directory that is gone.
    pub(super) fn forget(&self, ino: InodeNo) {
        self.0.lock().remove(&ino);
    }

    /// Time for which the known attributes of a directory stay valid; zero if none are known.
    pub(super) fn left(&self, ino: InodeNo, ttl: Duration, now: Instant) -> Duration {
        let age = self.0.lock().get(&ino).map(|told| now.saturating_duration_since(told.at));
        age.map_or(Duration::ZERO, |age| ttl.saturating_sub(age))
    }
}
