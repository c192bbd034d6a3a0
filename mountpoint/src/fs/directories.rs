//! The attributes of directories, as their markers kept them when they were asked last. Never here: a request.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::inode::InodeNo;
use crate::kept::Kept;
use crate::sync::{Arc, Mutex};

/// The attributes that markers kept when they were asked last, by their directories.
#[derive(Debug, Default)]
pub(super) struct Directories(Mutex<HashMap<InodeNo, Told>>);

#[derive(Debug)]
struct Told {
    kept: Arc<Kept>,
    /// When it was asked, or changed.
    at: Instant,
}

impl Directories {
    /// The attributes that are known, however old.
    pub(super) fn get(&self, ino: InodeNo) -> Option<Arc<Kept>> {
        self.0.lock().get(&ino).map(|told| Arc::clone(&told.kept))
    }

    /// Takes in what was so at this moment, unless something later is known.
    pub(super) fn set(&self, ino: InodeNo, kept: Kept, at: Instant) {
        let mut known = self.0.lock();
        if known.get(&ino).is_none_or(|known| known.at <= at) {
            known.insert(ino, Told { kept: Arc::new(kept), at });
        }
    }

    /// The directory is gone.
    pub(super) fn forget(&self, ino: InodeNo) {
        self.0.lock().remove(&ino);
    }

    /// How long what is known still holds.
    pub(super) fn left(&self, ino: InodeNo, ttl: Duration, now: Instant) -> Duration {
        let age = self.0.lock().get(&ino).map(|told| now.saturating_duration_since(told.at));
        age.map_or(Duration::ZERO, |age| ttl.saturating_sub(age))
    }
}
