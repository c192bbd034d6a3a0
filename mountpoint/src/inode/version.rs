//! The version of the object behind a name: of an entry of a listing, and one that has the bytes of the version before.

use std::time::Duration;

use super::compact::{Stored, Teller};
use super::dir_entry::DirEntry;
use super::state::{Phase, Place};
use super::{InodeNo, InodeTable};
use crate::listing::path;
use crate::object::{ObjectId, ObjectMeta};

impl InodeTable {
    /// The version that an entry of this directory shows; `None` of a directory, and of a file that is being written.
    pub fn version_of(&self, parent: InodeNo, entry: &DirEntry) -> Option<ObjectId> {
        if let Some(id) = self.stored(entry.ino) {
            return Some(id);
        }
        let meta = entry.listed()?;
        let tree = self.0.tree.lock();
        let key = path::file_key(tree.directory(parent).ok()?.0, entry.name())?;
        Some(ObjectId::of(key, &meta))
    }

    /// The marker of a directory that was made here is stored: S3 has the directory, and those above it.
    pub fn stored_directory(&self, ino: InodeNo) {
        let now = self.0.clock.now();
        self.0.tree.lock().stored_above(ino, now);
    }

    /// How long the facts about a directory hold.
    pub fn directory_ttl(&self) -> Duration {
        self.0.config.ttl.directory()
    }

    /// Whether the inode is a file.
    pub fn is_file(&self, ino: InodeNo) -> bool {
        self.0.tree.lock().file_mut(ino).is_ok()
    }

    /// This mount gave the object of a stored file other metadata: the same bytes are another version. Readers go on.
    pub fn restated(&self, ino: InodeNo, meta: &ObjectMeta) {
        let now = self.0.clock.now();
        let mut tree = self.0.tree.lock();
        let until = now + tree.ttl.file();
        let is_there = tree.inode(ino).is_some_and(|inode| inode.place == Place::Remote);
        if let Ok(file) = tree.file_mut(ino)
            && is_there
            && file.phase == Phase::Stored
        {
            file.stored = Some(Stored::new(meta, Teller::Object, Some(until)));
            tree.touched(ino, false);
        }
    }
}
