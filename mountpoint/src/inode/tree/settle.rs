//! Answers lookups from memory, and applies S3's answers to the tree.

use std::time::Instant;

use super::{Tree, stale};
use crate::inode::InodeNo;
use crate::inode::compact::{Judgement, Moment, Stored, Teller};
use crate::inode::error::Result;
use crate::inode::facts::What;
use crate::inode::remote::{Ask, Remote};
use crate::inode::state::{Directory, File, Inode, Node, Place};
use crate::listing::batch::Batch;
use crate::listing::expiry::{Said, left};
use crate::object::ObjectMeta;

/// Most entries below a directory that a lookup of it checks for a file of the stage. Beyond it the store is asked, and while it is away
/// the directory is EIO. Doubling it finds files deeper in wide trees, and takes twice the time of lookups of directories without any.
const STAGED_LOOKS_MAX: usize = 64;

/// Memory's answer to a lookup.
#[derive(Debug)]
pub(in crate::inode) enum Recall {
    /// The name has this inode.
    Found(InodeNo),
    /// The name is absent.
    Missing,
    /// S3 must be asked.
    Ask(Ask),
}

/// The result of adopting an entry of a page.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::inode) enum Adopted {
    /// The page describes this inode.
    As(InodeNo),
    /// A newer fact about the name led to this inode.
    Newer(InodeNo),
    /// The name changed here since the page's request, or a local entry hides it.
    Outdated,
}

/// The result of applying an answer of S3.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::inode) enum Settled {
    Found(InodeNo),
    Missing,
}

impl Tree {
    /// Looks a name up in memory.
    pub(in crate::inode) fn recall(&mut self, parent: InodeNo, name: &str, now: Instant) -> Result<Recall> {
        let (_, directory) = self.directory(parent)?;
        let child = self.child(parent, name);
        let local = directory.locals.get(name).copied();
        let is_directory = |ino: &InodeNo| matches!(self.inodes[*ino].node, Node::Directory(_));
        if let Some(ino) = child.filter(is_directory) {
            let recall = self.recall_one(ino, now, Ask::DirectoryFirst);
            let recall = self.or_page(parent, name, now, recall);
            return Ok(self.or_staged(ino, now, recall));
        }
        if let Some(ino) = local {
            // A file that waits for its upload shows, whether the store answers or not.
            if matches!(&self.inodes[ino].node, Node::File(file) if file.is_staged()) {
                return Ok(Recall::Found(ino));
            }
            let recall = self.recall_one(ino, now, Ask::DirectoryOnly);
            return Ok(self.or_staged(ino, now, recall));
        }
        if let Some(ino) = child {
            let recall = self.recall_one(ino, now, Ask::FileFirst);
            return Ok(self.or_page(parent, name, now, recall));
        }
        if let Some(recall) = self.recall_listed(parent, name, now) {
            self.page_answered(parent, name, matches!(recall, Recall::Found(_)), now);
            return Ok(recall);
        }
        if self.facts.is_absent(parent, name, now, self.ttl.missing()) {
            return Ok(Recall::Missing);
        }
        let recall = self.or_page(parent, name, now, Recall::Ask(Ask::Both));
        if matches!(recall, Recall::Ask(_)) && self.absent_since(parent, name, now).is_some() {
            return Ok(Recall::Missing);
        }
        Ok(recall)
    }

    /// The answer of a recent page, where the tree would have to ask S3.
    fn or_page(&mut self, parent: InodeNo, name: &str, now: Instant, recall: Recall) -> Recall {
        if !matches!(recall, Recall::Ask(_)) {
            return recall;
        }
        let Self { inodes, facts, .. } = self;
        let Some(directory) = inodes.get_mut(parent).and_then(Inode::directory_mut) else { return recall };
        let Some(recent) = directory.recent.as_deref_mut() else { return recall };
        let is_absent = |asked: u64| facts.since(parent, name, asked) == Some(What::Absent);
        let Some((batch, index)) = recent.find(name, now, is_absent) else { return recall };
        // Only an answer about the object itself tells whether the object was restored.
        if batch.is_archived(index) {
            return recall;
        }
        if recent.hit(name, now) {
            self.page_paid(parent);
        }
        match self.adopt(parent, &batch, index) {
            Adopted::As(ino) => {
                self.is_seen(parent, name, batch.asked);
                Recall::Found(ino)
            }
            Adopted::Newer(_) | Adopted::Outdated => recall,
        }
    }

    /// Takes in a page's entry for a name.
    pub(in crate::inode) fn adopt(&mut self, parent: InodeNo, batch: &Batch, index: usize) -> Adopted {
        let name = batch.name(index);
        let Ok((_, directory)) = self.directory(parent) else { return Adopted::Outdated };
        let local = directory.locals.get(name).copied();
        let outdated = self.facts.since(parent, name, batch.asked).is_some();
        self.seen_below(parent, batch.asked);
        let child = self.child(parent, name);
        if let Some(ino) = child {
            let newer = self.inode(ino).is_some_and(|inode| inode.learned > batch.asked);
            // A newer fact may agree with the page about a file. About a directory, it may be that the last key was removed.
            if (!newer || !outdated && batch.is_file(index)) && self.is_as_listed(ino, batch, index) {
                return Adopted::As(ino);
            }
            if newer {
                return Adopted::Newer(ino);
            }
        }
        if outdated || local.is_some() && batch.is_file(index) {
            return Adopted::Outdated;
        }
        if let Some(ino) = child {
            self.detach(ino);
        }
        if let Some(ino) = local.filter(|&ino| self.directory(ino).is_ok()) {
            self.place(ino, Place::Remote);
            self.is_as_listed(ino, batch, index);
            return Adopted::As(ino);
        }
        let ino = batch.ino(index).into();
        self.hang(ino, parent, name, batch.asked, self.node_of(batch, index));
        Adopted::As(ino)
    }

    /// The node for an entry of a page.
    pub(in crate::inode) fn node_of(&self, batch: &Batch, index: usize) -> Node {
        let said = batch.said(self.ttl);
        match batch.meta(index) {
            Some(meta) => Node::File(File::stored(&meta, Teller::Listing, said.until, said.at)),
            None => Node::Directory(Box::new(Directory::new(said.at))),
        }
    }

    /// Whether a living inode is the version that a page lists. Takes the page's facts in if so.
    fn is_as_listed(&mut self, ino: InodeNo, batch: &Batch, index: usize) -> bool {
        match batch.meta(index) {
            Some(meta) => self.confirm(ino, &meta, Teller::Listing, true, batch.said(self.ttl)),
            None => match self.directory_mut(ino) {
                Some(directory) => {
                    directory.checked = directory.checked.max(Some(batch.arrived));
                    self.learned(ino, batch.asked);
                    true
                }
                None => false,
            },
        }
    }

    pub(super) fn recall_one(&self, ino: InodeNo, now: Instant, ask: Ask) -> Recall {
        let within = |ttl, since| !left(ttl, since, now).is_zero();
        let (checked, sure) = match &self.inodes[ino].node {
            Node::Directory(directory) => {
                (directory.checked.is_some_and(|since| within(self.ttl.directory(), since)), true)
            }
            Node::File(file) => {
                let sure = file.is_local() || file.stored.as_ref().is_some_and(|stored| stored.holds(now));
                (within(self.ttl.directory(), file.checked.instant()), sure)
            }
        };
        match (checked, sure) {
            (true, true) => Recall::Found(ino),
            (true, false) => Recall::Ask(ask),
            // The fact that no directory has the file's name expires like a directory's entry.
            (false, _) if ask == Ask::FileFirst => Recall::Ask(Ask::Both),
            (false, _) => Recall::Ask(ask),
        }
    }

    /// Notes that a listing answered a lookup: it may be the page that lookups asked for.
    fn page_answered(&mut self, parent: InodeNo, name: &str, is_found: bool, now: Instant) {
        let Some(recent) = self.recent_mut(parent).filter(|recent| recent.has_young(now)) else { return };
        let paid = if is_found { recent.hit(name, now) } else { recent.hit_absent(name, now) };
        if paid {
            self.page_paid(parent);
        }
    }

    /// The answer of the directory's remembered listing.
    fn recall_listed(&mut self, parent: InodeNo, name: &str, now: Instant) -> Option<Recall> {
        let (_, directory) = self.directory(parent).ok()?;
        let listed = directory.listed.as_ref()?;
        if left(self.ttl.listing(), listed.since, now).is_zero() {
            self.forget_listed(parent);
            return None;
        }
        if self.facts.since(parent, name, listed.asked).is_some() {
            return None;
        }
        match listed.find(name) {
            // Only an answer about the object itself tells whether the object was restored.
            Some((batch, index)) if listed.for_lookups && batch.is_archived(index) => None,
            Some((batch, index)) => {
                let (ino, asked, since) = (batch.ino(index).into(), batch.asked, batch.arrived);
                let until = batch.said(self.ttl).until;
                match batch.meta(index) {
                    Some(meta) => {
                        if until <= now {
                            return None;
                        }
                        let file = File::stored(&meta, Teller::Listing, until, since);
                        self.hang(ino, parent, name, asked, Node::File(file))?;
                    }
                    None => {
                        let directory = Box::new(Directory::new(since));
                        self.hang(ino, parent, name, asked, Node::Directory(directory))?;
                    }
                }
                Some(Recall::Found(ino))
            }
            None if listed.for_lookups || left(self.ttl.missing(), listed.since, now).is_zero() => None,
            None => Some(Recall::Missing),
        }
    }

    /// Takes in S3's answer about a name, requested at event `asked` and received at `now`.
    pub(in crate::inode) fn settle(
        &mut self,
        parent: InodeNo,
        name: &str,
        remote: Remote,
        asked: u64,
        now: Instant,
    ) -> Result<Settled> {
        let (_, directory) = self.directory(parent)?;
        let child = self.child(parent, name);
        let local = directory.locals.get(name).copied();
        // The inode has a later answer, which stays.
        if let Some(ino) = child.filter(|ino| self.inodes[*ino].learned > asked) {
            let local = local.filter(|_| matches!(self.inodes[ino].node, Node::File(_)));
            return Ok(Settled::Found(local.unwrap_or(ino)));
        }
        if let Some(ino) = local {
            self.checked(ino, now);
        }
        if matches!(remote, Remote::Missing | Remote::File { alone: true, .. })
            && let Some(ino) = local.filter(|&ino| self.directory(ino).is_ok())
        {
            self.has_nothing_below(ino, asked);
        }
        match remote {
            Remote::Directory => {
                let ino = self.settle_directory(parent, name, child, local, asked, now)?;
                self.is_seen(parent, name, asked);
                Ok(Settled::Found(ino))
            }
            Remote::File { meta, alone } => {
                let child = self.without_directory(parent, name, child, asked);
                if let Some(ino) = self.local(parent, name) {
                    return Ok(Settled::Found(ino));
                }
                let ino = self.settle_file(parent, name, child, meta, alone, asked, now)?;
                self.is_seen(parent, name, asked);
                Ok(Settled::Found(ino))
            }
            Remote::Missing => {
                let child = self.without_directory(parent, name, child, asked);
                if let Some(ino) = child {
                    self.detach(ino);
                }
                match self.local(parent, name) {
                    Some(ino) => Ok(Settled::Found(ino)),
                    None => {
                        self.observe_absent(parent, name, asked, now);
                        Ok(Settled::Missing)
                    }
                }
            }
        }
    }

    pub(in crate::inode) fn local(&self, parent: InodeNo, name: &str) -> Option<InodeNo> {
        self.directory(parent).ok()?.1.locals.get(name).copied()
    }

    fn settle_directory(
        &mut self,
        parent: InodeNo,
        name: &str,
        child: Option<InodeNo>,
        local: Option<InodeNo>,
        asked: u64,
        now: Instant,
    ) -> Result<InodeNo> {
        if let Some(ino) = child {
            if let Some(directory) = self.directory_mut(ino) {
                directory.checked = Some(now);
                self.inodes.get_mut(ino).expect("a child lives").learned = asked;
                return Ok(ino);
            }
            self.detach(ino);
        }
        if let Some(ino) = local.filter(|&ino| self.directory(ino).is_ok()) {
            self.place(ino, Place::Remote);
            self.learned(ino, asked);
            return Ok(ino);
        }
        let ino = self.reserve(1);
        let node = Node::Directory(Box::new(Directory::new(now)));
        self.hang(ino, parent, name, asked, node).ok_or_else(|| stale(parent))?;
        Ok(ino)
    }

    #[expect(clippy::too_many_arguments, reason = "one answer, spelled out")]
    fn settle_file(
        &mut self,
        parent: InodeNo,
        name: &str,
        child: Option<InodeNo>,
        meta: ObjectMeta,
        alone: bool,
        asked: u64,
        now: Instant,
    ) -> Result<InodeNo> {
        if let Some(ino) = child {
            if self.confirm(ino, &meta, Teller::Object, alone, self.ttl.said(asked, now)) {
                return Ok(ino);
            }
            self.detach(ino);
        }
        let ino = self.reserve(1);
        self.hang(
            ino,
            parent,
            name,
            asked,
            Node::File(File::stored(&meta, Teller::Object, now + self.ttl.file(), now)),
        )
        .ok_or_else(|| stale(parent))?;
        Ok(ino)
    }

    /// Takes in S3's answer about a stored file. False if the answer means another version, and so another inode.
    pub(in crate::inode) fn confirm(
        &mut self,
        ino: InodeNo,
        meta: &ObjectMeta,
        teller: Teller,
        alone: bool,
        said: Said,
    ) -> bool {
        let Some(inode) = self.inodes.get_mut(ino) else { return false };
        let Node::File(file) = &mut inode.node else { return false };
        let Some(stored) = &mut file.stored else { return false };
        match stored.judge(meta.size, meta.etag.as_str(), meta.last_modified, teller) {
            Judgement::Same => {
                if stored.teller() != teller && stored.agrees(meta) {
                    self.agreement.shown();
                }
                stored.confirm(meta, teller, said.until);
            }
            // No program got a byte of the listed version yet (`proof.rs`).
            Judgement::Better => {
                self.agreement.broken(said.at);
                file.size_stale |= stored.size() != meta.size;
                file.was_larger |= stored.size() > meta.size;
                file.end_is_old |= stored.size() > meta.size;
                *stored = Stored::new(meta, teller, Some(said.until));
            }
            Judgement::Doubtful => {
                self.agreement.broken(said.at);
                stored.doubt();
                return true;
            }
            Judgement::Other => return false,
        }
        if alone {
            file.checked = Moment::of(said.at.max(file.checked.instant()));
        }
        inode.learned = inode.learned.max(said.asked);
        true
    }

    /// Takes in that S3 has no directory of this name (any more): the remote directory goes, or becomes local if it has local entries
    /// below. Returns the file of that name, if there is one.
    pub(super) fn without_directory(
        &mut self,
        parent: InodeNo,
        name: &str,
        child: Option<InodeNo>,
        asked: u64,
    ) -> Option<InodeNo> {
        let ino = child?;
        if self.directory(ino).is_err() {
            return child;
        }
        if self.local(parent, name).is_none() && self.holds_locals(ino) {
            self.stays(ino);
            self.has_nothing_below(ino, asked);
        } else {
            self.detach(ino);
        }
        None
    }

    /// Whether anything below a directory is local, or one of the directories owes its marker.
    fn holds_locals(&self, top: InodeNo) -> bool {
        let mut below = vec![top];
        while let Some(ino) = below.pop() {
            let Ok((_, directory)) = self.directory(ino) else { continue };
            if !directory.locals.is_empty() || directory.owes_marker {
                return true;
            }
            below.extend(self.children(ino));
        }
        false
    }

    /// The directory itself, where the tree would have to ask S3 about it and a file of the stage is below it, or its marker waits in the
    /// stage: it shows, whether the store answers or not.
    fn or_staged(&mut self, ino: InodeNo, now: Instant, recall: Recall) -> Recall {
        if !matches!(recall, Recall::Ask(_)) || !self.holds_staged(ino) {
            return recall;
        }
        // The removal of a name below it makes the next lookup ask.
        self.checked(ino, now);
        Recall::Found(ino)
    }

    /// Whether a directory owes its marker, or a file or directory of the stage is below, as far as a short look finds one.
    fn holds_staged(&self, top: InodeNo) -> bool {
        let (mut below, mut looks) = (vec![top], 0);
        while let Some(ino) = below.pop() {
            let Ok((_, directory)) = self.directory(ino) else { continue };
            if directory.owes_marker {
                return true;
            }
            for ino in directory.locals.values().copied().chain(self.children(ino)) {
                looks += 1;
                if looks > STAGED_LOOKS_MAX {
                    return false;
                }
                match &self.inodes[ino].node {
                    Node::File(file) if file.is_staged() => return true,
                    Node::File(_) => {}
                    Node::Directory(_) => below.push(ino),
                }
            }
        }
        false
    }

    pub(super) fn checked(&mut self, ino: InodeNo, now: Instant) {
        match self.inodes.get_mut(ino).map(|inode| &mut inode.node) {
            Some(Node::Directory(directory)) => directory.checked = Some(now),
            Some(Node::File(file)) => file.checked = Moment::of(now),
            None => {}
        }
    }
}
