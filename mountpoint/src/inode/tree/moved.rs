//! An inode gets another name: what was asked for before neither brings the old name back nor hides the new one.

use std::time::Instant;

use super::Tree;
use crate::inode::InodeNo;
use crate::inode::state::Place;

impl Tree {
    /// Hangs an inode elsewhere, in the same of its directory's maps. What stood there goes nowhere. The caller has checked that the new name
    /// has a key.
    pub(in crate::inode) fn moves(
        &mut self,
        ino: InodeNo,
        new_parent: InodeNo,
        new_name: &str,
        now: Instant,
    ) {
        let Some(inode) = self.inodes.get(ino) else { return };
        let (parent, name, place) = (inode.parent, inode.name.clone(), inode.place);
        let there = [self.child(new_parent, new_name), self.local(new_parent, new_name)];
        for other in there.into_iter().flatten().filter(|&other| other != ino) {
            self.detach(other);
        }
        self.place(ino, Place::Nowhere);
        self.changed(parent, &name, true);
        let at = self.changed(new_parent, new_name, false);
        if let Some(inode) = self.inodes.get_mut(ino) {
            (inode.parent, inode.name, inode.learned) = (new_parent, new_name.into(), at);
        }
        self.fresh.forget(ino);
        self.firsts.forget(ino);
        self.place(ino, place);
        self.is_gone_now(parent, &name, now);
    }

    /// A name is gone by an operation of this mount: for every earlier request, and for a moment, or a TTL, without asking.
    pub(in crate::inode) fn is_gone_now(&mut self, parent: InodeNo, name: &str, now: Instant) {
        self.removed_below(parent, now);
        let taken = self.child(parent, name).is_some() || self.local(parent, name).is_some();
        if !taken && self.directory(parent).is_ok() {
            self.observe_absent(parent, name, self.events, now);
        }
    }
}
