//! Restores the table of an engine that follows another one on the same mount, and gives out what the next engine must know about an open
//! file. What open files need comes first, so that their reads are answered while the other directories are restored.

use std::time::Instant;

use foldhash::HashSet;

use super::readdir::Listing;
use super::state::Node;
#[cfg(test)]
use super::state::Place;
use super::tree::Tree;
use super::{InodeNo, InodeTable, Result};
use crate::object::{ObjectId, ObjectMeta};
use crate::outlive::{self, Journal, Standing};
use crate::sync::Arc;

/// Restores directories, and returns the numbers of those that can't be.
fn restore(tree: &mut Tree, directories: &[outlive::Directory], now: Instant) -> Vec<u64> {
    let lost = directories.iter().filter(|directory| !tree.restore_directory(directory, now));
    lost.map(|directory| directory.number).collect()
}

/// The directories with these numbers and all above them, and the others. Each comes after its parent, before and afterwards.
fn with_parents(
    directories: Vec<outlive::Directory>,
    mut numbers: HashSet<u64>,
) -> (Vec<outlive::Directory>, Vec<outlive::Directory>) {
    for directory in directories.iter().rev() {
        if numbers.contains(&directory.number) {
            numbers.insert(directory.parent);
        }
    }
    directories.into_iter().partition(|directory| numbers.contains(&directory.number))
}

/// Directories of an earlier engine that no open file or listing needs, each after its parent.
#[must_use = "the kernel holds the numbers of these directories"]
#[derive(Debug)]
pub struct Rest {
    directories: Vec<outlive::Directory>,
    lost: Vec<u64>,
    journal: Arc<Journal>,
}

impl InodeTable {
    /// Takes in the files that an earlier engine had open, the directories above its files and listings, and those that were made here. Returns the
    /// versions that these files read; a file that can't be read on has none. The [rest](Self::take_in) follows, before any request for a name.
    pub fn outlive(
        &self,
        journal: &Arc<Journal>,
        directories: Vec<outlive::Directory>,
        (files, listings): (&[outlive::File], &[outlive::Listing]),
    ) -> (Vec<Option<ObjectId>>, Rest) {
        let parents = files.iter().map(|file| file.parent);
        // A listing that goes on has the names of its directory that were made here.
        let made_here = directories.iter().filter(|it| it.standing == Standing::Local).map(|it| it.number);
        let needed = parents.chain(listings.iter().map(|listing| listing.ino)).chain(made_here).collect();
        let (first, rest) = with_parents(directories, needed);
        let now = self.0.clock.now();
        let mut tree = self.0.tree.lock();
        let lost = restore(&mut tree, &first, now);
        let versions = files.iter().map(|file| tree.restore_file(file, now)).collect();
        (versions, Rest { directories: rest, lost, journal: Arc::clone(journal) })
    }

    /// Takes in the other directories, and records directories from now on. Requests for names wait meanwhile; reads of open files don't. `holds` is
    /// called once names can't be asked for any more: the kernel's first request must come after that.
    pub fn take_in(&self, rest: Rest, holds: impl FnOnce()) {
        let Rest { directories, mut lost, journal } = rest;
        let now = self.0.clock.now();
        let mut tree = self.0.tree.lock();
        holds();
        lost.extend(restore(&mut tree, &directories, now));
        tree.outlive(Arc::clone(&journal));
        drop(tree);
        lost.into_iter().for_each(|number| journal.forget_directory(number));
    }

    /// Opens a listing that an earlier engine had open, to go on from one of these places.
    ///
    /// # Errors
    /// `NotADirectory`, `Stale`.
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
