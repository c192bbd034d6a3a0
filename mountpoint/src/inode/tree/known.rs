//! Facts about names that were learned after a listing was asked for: the listing must not hide them.

use std::time::Instant;

use super::Tree;
use crate::first::Known;
use crate::inode::compact::Teller;
use crate::inode::facts::What;
use crate::inode::state::{Directory, Inode, Node, Place};
use crate::inode::{FRESH, InodeNo, ROOT};
use crate::listing::listed::Listed;
use crate::listing::walk::{PageRequest, Walk};
use crate::object::ObjectId;
use crate::s3::ListPage;

impl Tree {
    /// The stored version that a file's inode means, if the object can be read: what a request for its bytes may rely on.
    pub(in crate::inode) fn known(&self, ino: InodeNo) -> Option<Known> {
        let Node::File(file) = &self.inode(ino)?.node else { return None };
        let stored = file.stored.as_ref().filter(|stored| stored.is_readable())?;
        let id = ObjectId { key: self.key(ino)?, etag: stored.meta().etag, modified: stored.second() };
        Some(Known { id, size: stored.size(), is_pinned: stored.teller() == Teller::Object })
    }

    /// Whether facts outdate a page's listing of a directory, because they are newer than the page's request. `exists`: whether the page
    /// has the directory itself.
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
        let has = |name: &str| has(page, key.as_str(), name);
        let mut children = self.children(ino).filter_map(|child| self.inode(child));
        self.facts.walked.outdate(key.as_str(), asked, exists, has)
            || children.any(|child| child.learned > asked && !has(&child.name))
    }

    /// Notes that S3 had a name at the request of this event, or that this mount stored it then.
    pub(in crate::inode) fn is_seen(&mut self, parent: InodeNo, name: &str, at: u64) {
        self.outdates(parent, name, at);
        self.seen_below(parent, at);
    }

    /// Notes a fact about a name at an event, because it changed here, or because a listing may contradict the fact.
    pub(in crate::inode) fn observe(&mut self, parent: InodeNo, name: &str, what: What, at: u64) {
        let has_pages = self.directory(parent).is_ok_and(|(_, directory)| directory.has_pages());
        self.facts.observe(parent, name, what, at, has_pages);
    }

    /// Notes that a name is absent: S3 said so at `now` to a request of an event, or this mount removed the name.
    pub(in crate::inode) fn observe_absent(&mut self, parent: InodeNo, name: &str, at: u64, now: Instant) {
        let may_have = |directory: &Directory| {
            let recent = directory.recent.as_ref().is_some_and(|recent| recent.may_have(name, at));
            let listed = directory.listed.as_ref();
            let listed = listed.is_some_and(|listed| listed.asked < at && listed.find(name).is_some());
            directory.listings > 0 || recent || listed
        };
        let needed = self.directory(parent).is_ok_and(|(_, directory)| may_have(directory));
        let keep = self.ttl.missing().max(self.unasked.by_name).max(FRESH);
        self.facts.observe_absent(parent, name, at, now, keep, needed);
        let Self { inodes, facts, walk, .. } = self;
        if let Some(directory) = inodes.get(parent).and_then(Inode::directory) {
            facts.walked.observe(walk, directory.key.as_str(), name, What::Absent, at);
        }
    }

    /// Notes that a directory changed here, or was listed by itself, at an event: older pages of a walk do not count for it.
    pub(in crate::inode) fn observe_all(&mut self, ino: InodeNo, at: u64) {
        let Self { inodes, facts, walk, .. } = self;
        if let Some(directory) = inodes.get(ino).and_then(Inode::directory) {
            facts.walked.observe_all(walk, directory.key.as_str(), at);
        }
    }

    /// Applies `act` to the walk, and drops the facts that only discarded pages needed.
    pub(in crate::inode) fn walking<T>(&mut self, act: impl FnOnce(&mut Walk) -> T) -> T {
        let result = act(&mut self.walk);
        if !self.walk.has_pages() {
            self.facts.walked.clear();
        }
        result
    }

    /// Takes in the page of a walk; `None`: the request failed.
    pub(in crate::inode) fn walk_arrives(
        &mut self,
        question: &PageRequest,
        page: Option<ListPage>,
        asked: u64,
        since: Instant,
    ) {
        self.walking(|walk| walk.arrives(question, page, asked, since));
        self.facts.walked.sift(&self.walk);
    }

    /// Drops the facts about names of a directory that only its pages needed, after its last page.
    pub(in crate::inode) fn release(&mut self, ino: InodeNo) {
        if self.directory(ino).is_ok_and(|(_, directory)| !directory.has_pages()) {
            self.facts.release(ino);
        }
    }

    /// Notes that S3 had a key below a directory, and so the directories above.
    pub(in crate::inode) fn seen_below(&mut self, mut ino: InodeNo, at: u64) {
        while ino != ROOT
            && let Some(inode) = self.inode(ino).filter(|inode| inode.learned < at)
        {
            let parent = inode.parent;
            if inode.place == Place::Remote {
                let name = inode.name.clone();
                self.learned(ino, at);
                self.outdates(parent, &name, at);
            }
            ino = parent;
        }
    }

    /// Notes that the facts about an inode held at this event.
    pub(in crate::inode) fn learned(&mut self, ino: InodeNo, at: u64) {
        if let Ok(inode) = self.inode_mut(ino) {
            inode.learned = inode.learned.max(at);
        }
    }

    /// Remembers a complete listing, without the entries that newer facts contradict.
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
            self.outdates(ino, &name, at);
        }
        for name in missing {
            // Either the answer or the listing may be newer, so the next lookup asks S3 again.
            let at = self.event();
            // A name that this mount removed stays removed.
            if self.facts.since(ino, &name, begun).is_none() {
                self.observe(ino, &name, What::Present, at);
            }
        }
    }

    /// Names of a listing that S3 called absent after the listing began.
    fn missing_of(&self, ino: InodeNo, listed: &Listed, since: Instant) -> Vec<Box<str>> {
        let missing = self.facts.absent_since(ino, since);
        missing.filter(|name| listed.find(name).is_some()).map(Into::into).collect()
    }

    /// Outdates a remembered listing for a name that it lacks, because the name existed at an event.
    fn outdates(&mut self, parent: InodeNo, name: &str, at: u64) {
        let Ok((_, directory)) = self.directory(parent) else { return };
        let lacks = |listed: &Listed| listed.asked < at && listed.find(name).is_none();
        if directory.listed.as_ref().is_some_and(lacks) && self.facts.since(parent, name, at).is_none() {
            self.observe(parent, name, What::Present, at);
        }
    }
}

/// Whether a page of a directory has a name.
fn has(page: &ListPage, key: &str, name: &str) -> bool {
    let path = format!("{key}{name}");
    page.objects.binary_search_by(|object| object.key.as_str().cmp(&path)).is_ok()
        || page.common_prefixes.binary_search(&format!("{path}/")).is_ok()
}
