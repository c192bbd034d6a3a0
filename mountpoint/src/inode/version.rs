//! Versions of the objects behind names: for entries of a listing, and after a change of metadata alone.

use std::time::Duration;

use super::compact::{Stored, Teller};
use super::dir_entry::DirEntry;
use super::state::{Phase, Place};
use super::{InodeNo, InodeTable};
use crate::listing::path;
use crate::object::{ObjectId, ObjectMeta};

impl InodeTable {
    /// The version of a listing's entry; `None` for a directory, or a file with a writer.
    pub fn version_of(&self, parent: InodeNo, entry: &DirEntry) -> Option<ObjectId> {
        if let Some(id) = self.stored(entry.ino) {
            return Some(id);
        }
        let meta = entry.listed()?;
        let tree = self.0.tree.lock();
        let key = path::file_key(tree.directory(parent).ok()?.0, entry.name())?;
        Some(ObjectId::of(key, &meta))
    }

    /// Notes that the marker of a local directory is stored: S3 has the directory, and those above it.
    pub fn stored_directory(&self, ino: InodeNo) {
        let now = self.0.clock.now();
        self.0.tree.lock().stored_above(ino, now);
        self.owes_marker(ino, false);
    }

    /// How long facts about directories are valid.
    pub fn directory_ttl(&self) -> Duration {
        self.0.config.ttl.directory()
    }

    /// Whether an inode is a file.
    pub fn is_file(&self, ino: InodeNo) -> bool {
        self.0.tree.lock().file_mut(ino).is_ok()
    }

    /// Notes that this mount gave the object of a stored file other metadata: the same bytes have a new version. Readers go on.
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
