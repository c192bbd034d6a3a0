//! What was learned of names after a listing was asked for, against what that listing says: it must not hide it.

use std::time::Instant;

use super::Tree;
use crate::inode::state::{Inode, Place};
use crate::inode::{InodeNo, ROOT};
use crate::listing::listed::Listed;
use crate::s3::ListPage;

impl Tree {
    /// Whether something was learned of a directory, after a page of it was asked for, that the page does not have. `exists`: the page has
    /// the directory itself.
    pub(in crate::inode) fn knows_more(
        &self,
        ino: InodeNo,
        page: &ListPage,
        exists: bool,
        asked: u64,
    ) -> bool {
        let (Some(inode), Ok((key, _))) = (self.inode(ino), self.directory(ino)) else { return false };
        if !exists && ino != ROOT && inode.place == Place::Remote && inode.learned > asked {
            return true;
        }
        let mut children = self.children(ino).filter_map(|child| self.inode(child));
        children.any(|child| child.learned > asked && !has(page, key.as_str(), &child.name))
    }

    /// S3 had a name when asked at this event, or this mount stored it then.
    pub(in crate::inode) fn is_seen(&mut self, parent: InodeNo, name: &str, at: u64) {
        self.outdates(parent, name, true, at);
        self.seen_below(parent, at);
    }

    /// S3 did not have a name when asked at this event.
    pub(in crate::inode) fn is_missing(&mut self, parent: InodeNo, name: &str, at: u64) {
        self.outdates(parent, name, false, at);
        let Self { inodes, walk, .. } = self;
        if let Some(directory) = inodes.get(parent).and_then(Inode::directory) {
            walk.learned(directory.key.as_str(), name, false, at);
        }
    }

    /// S3 had something below a directory: so it had those above.
    pub(in crate::inode) fn seen_below(&mut self, mut ino: InodeNo, at: u64) {
        while ino != ROOT
            && let Some(inode) = self.inode(ino).filter(|inode| inode.learned < at)
        {
            let parent = inode.parent;
            if inode.place == Place::Remote {
                let name = inode.name.clone();
                self.learned(ino, at);
                self.outdates(parent, &name, true, at);
            }
            ino = parent;
        }
    }

    /// What is known of an inode was so at this event.
    pub(in crate::inode) fn learned(&mut self, ino: InodeNo, at: u64) {
        if let Ok(inode) = self.inode_mut(ino) {
            inode.learned = inode.learned.max(at);
        }
    }

    /// Remembers a whole listing, less what it says otherwise than was learned while it came.
    pub(in crate::inode) fn remember_listing(&mut self, ino: InodeNo, listed: Listed) {
        let (begun, since) = (listed.asked, listed.since);
        let mut events: Vec<_> = listed.batches.iter().map(|batch| batch.asked).collect();
        events.sort_unstable();
        let by_itself = |at: u64| events.binary_search(&at).is_ok();
        let newer = self.children(ino).filter_map(|child| self.inode(child));
        let newer = newer.filter(|child| child.learned > begun && !by_itself(child.learned));
        let newer: Vec<_> = newer.map(|child| (child.name.clone(), child.learned)).collect();
        let missing = self.missing_of(ino, &listed, since);
        self.remember_listed(ino, listed);
        for (name, at) in newer {
            self.outdates(ino, &name, true, at);
        }
        for name in missing {
            // Whether that answer or the listing is the newer one, S3 is asked again.
            let at = self.event();
            // What was removed here stays so.
            if let Some(directory) =
                self.directory_mut(ino).filter(|of| of.changes.since(&name, begun).is_none())
            {
                directory.changes.note(&name, at, false);
            }
        }
    }

    /// Names of a listing that S3 said are absent since it began.
    fn missing_of(&self, ino: InodeNo, listed: &Listed, since: Instant) -> Vec<Box<str>> {
        let missing = self.missing.since(ino, since);
        missing.filter(|name| listed.find(name).is_some()).map(Into::into).collect()
    }

    /// A remembered listing that says otherwise of a name no longer counts for it.
    fn outdates(&mut self, parent: InodeNo, name: &str, is_there: bool, at: u64) {
        let Some(directory) = self.directory_mut(parent) else { return };
        let otherwise = |listed: &Listed| listed.asked < at && listed.find(name).is_some() != is_there;
        if directory.listed.as_ref().is_some_and(otherwise) && directory.changes.since(name, at).is_none() {
            directory.changes.note(name, at, !is_there);
        }
    }
}

/// Whether a page of a directory has a name.
fn has(page: &ListPage, key: &str, name: &str) -> bool {
    let path = format!("{key}{name}");
    page.objects.binary_search_by(|object| object.key.as_str().cmp(&path)).is_ok()
        || page.common_prefixes.binary_search(&format!("{path}/")).is_ok()
}
