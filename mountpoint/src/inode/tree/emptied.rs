//! Directories that lost their last key. A directory that this mount emptied stays, as a local one, until a program removes it.
//!
//! S3 has no empty directories: a directory would end with its last file, and a program that removes a tree (`rm -r`, `find -delete`)
//! would hear that the directory it is about to remove does not exist. This rule costs no request: the next lookup asks S3 what lies
//! below.

use std::time::Instant;

use super::{Recall, Tree};
use crate::inode::remote::Ask;
use crate::inode::state::{Node, Place};
use crate::inode::{InodeNo, ROOT};

impl Tree {
    /// Most local directories that S3 may have lost (about 500 bytes each). Beyond it, the oldest one without local entries shows what S3
    /// has again.
    pub(in crate::inode) const EMPTIED_MAX: usize = 10_000;

    /// Siblings of a removed file that the tree examines for one that S3 surely has. If none qualifies, the next lookup asks S3.
    const SIBLINGS_MAX: usize = 8;

    /// Notes that a name was removed for good: directories above that may be empty now become local, and the next lookup asks S3 about
    /// them.
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
            // If S3 has no keys below any more, the local entry of that name shows.
            if place == Place::Remote && self.local(parent, &name).is_none() {
                self.stays(ino);
            }
            ino = parent;
        }
    }

    /// Makes a directory of S3 local, until S3 answers that keys lie below.
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

    /// Lets S3 decide again whether a directory exists.
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

    /// Takes in S3's answer, asked at this event, that no keys lie below a local directory: the older entries go.
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
