//! The tree and the journal: the tree records directories that the kernel references, and the next engine restores them.

use std::time::Instant;

use super::Tree;
use crate::inode::compact::{Moment, Stored, Teller};
use crate::inode::state::{Directory, File, Inode, Node, Phase, Place, UNKNOWN};
use crate::inode::{InodeNo, ROOT};
use crate::object::{ETag, ObjectId, ObjectMeta};
use crate::outlive::{self, Journal, Mark, Record, Standing};
use crate::sync::Arc;

impl Tree {
    /// Records directories in this journal from now on, and gives out only numbers that no earlier engine used.
    pub(in crate::inode) fn outlive(&mut self, journal: Arc<Journal>) {
        self.next = self.next.max(journal.marks().inodes);
        self.mounted = journal.identity().mounted();
        self.limit = self.next;
        self.journal = Some(journal);
    }

    /// The end of the reserved numbers.
    #[cfg(test)]
    pub(in crate::inode) fn numbers_end(&self) -> u64 {
        self.next
    }

    /// Reserves more numbers.
    pub(super) fn raise_limit(&mut self) {
        if let Some(journal) = &self.journal {
            self.limit = journal.raise(Mark::Inodes, self.next);
        }
    }

    /// Records the present state of a directory that is local, referenced by the kernel, or in the journal already.
    pub(in crate::inode) fn record(&self, ino: InodeNo) {
        let Some(journal) = &self.journal else { return };
        let Some(Inode { name, parent, place, lookups, node: Node::Directory(_), .. }) = self.inode(ino)
        else {
            return;
        };
        let held = *lookups > 0;
        if ino == ROOT || !(held || *place == Place::Local || journal.has_directory(ino.0)) {
            return;
        }
        let standing = match place {
            Place::Remote => Standing::Remote,
            Place::Local => Standing::Local,
            Place::Nowhere => Standing::Nowhere,
        };
        let name = name.clone();
        let (number, parent) = (ino.0, parent.0);
        journal.record(&Record::Directory(outlive::Directory { number, parent, name, standing, held }));
    }

    /// Removes a directory from the journal.
    pub(super) fn unrecord(&self, ino: InodeNo) {
        if let Some(journal) = &self.journal
            && self.directory(ino).is_ok()
        {
            journal.forget_directory(ino.0);
        }
    }

    /// Restores a directory from the record of an earlier engine. The next lookup of its name asks S3. An open file of its name, or a
    /// directory with a later number, keeps the name, in whatever order they are restored. False if the directory can't be restored: its
    /// key would be too long, or its number is in use.
    pub(in crate::inode) fn restore_directory(&mut self, it: &outlive::Directory, now: Instant) -> bool {
        let ino = InodeNo(it.number);
        let node = Node::Directory(Box::new(Directory { checked: None, ..Directory::new(now) }));
        if self.make(ino, InodeNo(it.parent), &it.name, 0, node).is_none() {
            return false;
        }
        if it.held
            && let Ok(inode) = self.inode_mut(ino)
        {
            inode.lookups = UNKNOWN;
        }
        let parent = InodeNo(it.parent);
        let (place, has_name) = match it.standing {
            Standing::Remote => (Place::Remote, self.child(parent, &it.name)),
            Standing::Local => (Place::Local, self.local(parent, &it.name)),
            Standing::Nowhere => return true,
        };
        if has_name.is_none_or(|other| other < ino && self.directory(other).is_ok()) {
            self.place(ino, place);
        }
        true
    }

    /// Restores a file that was open for reading, with one reader more. Returns the version that the file reads. The next open drops the
    /// kernel's pages, which may contain a refused change.
    pub(in crate::inode) fn restore_file(&mut self, it: &outlive::File, now: Instant) -> Option<ObjectId> {
        let ino = InodeNo(it.ino);
        let etag = ETag::new(&*it.etag);
        if self.inode(ino).is_none() {
            let meta =
                ObjectMeta { size: it.size, etag: etag.clone(), last_modified: it.modified, readable: true };
            let file = File {
                stored: Some(Stored::new(&meta, Teller::Object, None)),
                checked: Moment::of(now.checked_sub(self.ttl.directory()).unwrap_or(now)),
                phase: Phase::Stored,
                readers: 0,
                pages_stale: true,
                size_stale: false,
                was_larger: true,
                end_is_old: false,
            };
            self.make(ino, InodeNo(it.parent), &it.name, 0, Node::File(file))?;
            self.inode_mut(ino).ok()?.lookups = UNKNOWN;
            self.place(ino, Place::Remote);
        }
        self.file_mut(ino).ok()?.readers += 1;
        Some(ObjectId::by_etag(self.key(ino)?, etag))
    }
}
