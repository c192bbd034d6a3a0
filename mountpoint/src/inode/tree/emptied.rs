//! Directories that lost their last key: one that this mount emptied stays, as a directory of this mount alone, until it is removed.
//!
//! S3 has no empty directories: a directory would end with its last file, and a program that removes a tree (`rm -r`, `find -delete`) would
//! hear that the directory it is about to remove does not exist. Nothing is asked for this: what S3 has below, the next lookup asks.

use std::time::Instant;

use super::{Recall, Tree};
use crate::inode::remote::Ask;
use crate::inode::state::{Node, Place};
use crate::inode::{InodeNo, ROOT};

impl Tree {
    /// Most directories that stay though S3 may have no key below them (about 500 bytes each). Beyond it the one that is known longest
    /// and has nothing local below is again what S3 has of it.
    pub(in crate::inode) const EMPTIED_MAX: usize = 10_000;

    /// Siblings of a removed file that are looked at for one that S3 surely has; if none of them is, S3 is asked.
    const SIBLINGS_MAX: usize = 8;

    /// Something below was removed for good: directories above that may have held nothing else stay here, and S3 is asked for them again.
    pub(in crate::inode) fn removed_below(&mut self, mut ino: InodeNo, now: Instant) {
        while let Some(inode) = self.inodes.get(ino) {
            let Node::Directory(_) = &inode.node else { return };
            let known = |other| matches!(self.recall_one(other, now, Ask::Both), Recall::Found(_));
            let holds_more = self.children(ino).take(Self::SIBLINGS_MAX).any(known);
            if ino == ROOT || inode.place == Place::Nowhere || holds_more {
                return;
            }
            let (parent, name, place) = (inode.parent, inode.name.clone(), inode.place);
            let at = self.changed(parent, &name, false);
            if let Ok(inode) = self.inode_mut(ino) {
                inode.learned = at;
            }
            if let Some(directory) = self.directory_mut(ino) {
                directory.checked = None;
            }
            // A local entry of the name is what shows if S3 has nothing below any more.
            if place == Place::Remote && self.local(parent, &name).is_none() {
                self.stays(ino);
            }
            ino = parent;
        }
    }

    /// A directory of S3's is one of this mount from now on, unless S3 says that it has keys below it.
    pub(super) fn stays(&mut self, ino: InodeNo) {
        self.place(ino, Place::Local);
        self.emptied.insert(ino);
        if self.emptied.len() > Self::EMPTIED_MAX {
            let is_bare =
                |ino: &InodeNo| self.directory(*ino).is_ok_and(|(_, directory)| directory.locals.is_empty());
            let longest_known = self.emptied.iter().copied().find(is_bare);
            longest_known.into_iter().for_each(|ino| self.give_back(ino));
        }
    }

    /// S3 decides again whether a directory is there.
    fn give_back(&mut self, ino: InodeNo) {
        let Some(inode) = self.inodes.get(ino) else { return };
        let (parent, name) = (inode.parent, inode.name.clone());
        self.place(ino, Place::Remote);
        self.changed(parent, &name, false);
        if let Some(directory) = self.directory_mut(ino) {
            directory.checked = None;
        }
        self.drop_if_idle(ino);
    }

    /// S3 said, asked at this event, that it has nothing below a directory that stays: what was known to be there before goes.
    pub(super) fn has_nothing_below(&mut self, ino: InodeNo, asked: u64) {
        let known_before = |child: &InodeNo| self.inodes[*child].learned <= asked;
        let gone: Vec<_> = self.children(ino).filter(known_before).collect();
        for child in gone {
            let Some(name) = self.inodes.get(child).map(|inode| inode.name.clone()) else { continue };
            if let Some(file) = self.without_directory(ino, &name, Some(child), asked) {
                self.detach(file);
            }
        }
    }
}
