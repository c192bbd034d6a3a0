//! Restores the table of an engine that follows another one on the same mount, and gives out what the next engine must know about an open
//! file.

use super::readdir::Listing;
use super::state::Node;
#[cfg(test)]
use super::state::Place;
use super::{InodeNo, InodeTable, Result};
use crate::object::{ObjectId, ObjectMeta};
use crate::outlive::{self, Journal, Restored};
use crate::sync::Arc;

impl InodeTable {
    /// Takes in the records of an earlier engine, and records directories from now on. Returns the versions that recorded files read; a
    /// file that can't be read on has none. Call this before the kernel's first request.
    pub fn outlive(&self, journal: &Arc<Journal>, restored: &Restored) -> Vec<Option<ObjectId>> {
        let now = self.0.clock.now();
        let mut tree = self.0.tree.lock();
        let mut lost = Vec::new();
        for directory in &restored.directories {
            if !tree.restore_directory(directory, now) {
                lost.push(directory.number);
            }
        }
        let files = restored.files.iter().map(|file| tree.restore_file(file, now)).collect();
        tree.outlive(Arc::clone(journal));
        drop(tree);
        lost.into_iter().for_each(|number| journal.forget_directory(number));
        files
    }

    /// Opens a listing that an earlier engine had open, to go on from one of these places.
    ///
    /// # Errors `NotADirectory`, `Stale`.
    pub fn reopen(
        &self,
        ino: InodeNo,
        places: [outlive::Place; 2],
        runtime: tokio::runtime::Handle,
    ) -> Result<Listing> {
        Ok(self.open_listing(ino, runtime)?.going_on(places))
    }

    /// The directory, name and version of an open file; `None` if the file is gone or has a writer.
    pub fn whereabouts(&self, ino: InodeNo) -> Option<(InodeNo, Box<str>, ObjectMeta)> {
        let tree = self.0.tree.lock();
        let inode = tree.inode(ino)?;
        match &inode.node {
            Node::File(file) if !file.is_local() => {
                Some((inode.parent, inode.name.clone(), file.stored.as_ref()?.meta()))
            }
            _ => None,
        }
    }

    /// Every living directory but the root: number, parent, name, whether it is local, and whether its name is gone.
    #[cfg(test)]
    pub(super) fn directories(&self) -> Vec<(u64, u64, String, bool, bool)> {
        let tree = self.0.tree.lock();
        let numbers = 2..tree.numbers_end();
        let shown = |number| {
            let inode = tree.inode(InodeNo(number))?;
            let is_held = inode.lookups > 0 || inode.place == Place::Local;
            (inode.directory().is_some() && is_held).then(|| {
                let (local, gone) = (inode.place == Place::Local, inode.place == Place::Nowhere);
                (number, inode.parent.0, inode.name.to_string(), local, gone)
            })
        };
        numbers.filter_map(shown).collect()
    }
}
