//! The tree under its one lock: which inodes live, where they hang, and what an answer of S3 changes.
//!
//! No request is made here and no time is read. Events are numbered: an answer carries the number at which it was asked
//! for, and what was learned later than that stands.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant, SystemTime};

use super::InodeNo;
use super::error::{Error, ErrorKind, Result};
use super::expiry::{MINIMAL_FILE, Missing, Ttl, left};
use super::flight::Flights;
use super::path::Prefix;
use super::remote::{Ask, Remote};
use super::state::{Directory, File, Inode, Node, Phase, Place};
use super::{Found, Kind, ROOT, Stat};
use crate::object::{ObjectKey, ObjectMeta};

#[derive(Debug)]
pub(super) struct Tree {
    inodes: HashMap<InodeNo, Inode>,
    /// The next inode number: never reused, so that no generation is needed.
    next: u64,
    /// Number of the last event.
    events: u64,
    pub(super) ttl: Ttl,
    /// What directories show as their time.
    mounted: SystemTime,
    pub(super) missing: Missing,
    pub(super) flights: Flights,
    /// Directories with a remembered listing, oldest first, and how many entries those hold together.
    listed: VecDeque<InodeNo>,
    listed_entries: usize,
}

/// What memory says to a lookup.
#[derive(Debug)]
pub(super) enum Recall {
    /// It is this inode.
    Found(InodeNo),
    /// There is nothing.
    Missing,
    /// S3 must be asked.
    Ask(Ask),
}

/// What an answer of S3 came to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Settled {
    Found(InodeNo),
    Missing,
}

impl Tree {
    /// Most entries of remembered listings, all directories together (about 100 bytes each); the oldest listing is
    /// forgotten beyond it, and a longer one is not remembered at all.
    pub(super) const LISTED_ENTRIES_MAX: usize = 200_000;

    pub(super) fn new(prefix: &Prefix, ttl: Ttl, now: Instant, mounted: SystemTime) -> Self {
        let root = Inode {
            key: prefix.key().clone(),
            name: "".into(),
            parent: ROOT,
            place: Place::Remote,
            lookups: 1,
            learned: 0,
            node: Node::Directory(Box::new(Directory::new(now))),
        };
        Self {
            inodes: HashMap::from([(ROOT, root)]),
            next: ROOT.0 + 1,
            events: 0,
            ttl,
            mounted,
            missing: Missing::default(),
            flights: Flights::default(),
            listed: VecDeque::new(),
            listed_entries: 0,
        }
    }

    /// How many inodes live.
    pub(super) fn len(&self) -> usize {
        self.inodes.len()
    }

    pub(super) fn event(&mut self) -> u64 {
        self.events += 1;
        self.events
    }

    /// Sets numbers aside for names that may become inodes; the first of them.
    pub(super) fn reserve(&mut self, count: usize) -> InodeNo {
        let first = InodeNo(self.next);
        self.next += count as u64;
        first
    }

    pub(super) fn inode(&self, ino: InodeNo) -> Option<&Inode> {
        self.inodes.get(&ino)
    }

    pub(super) fn inode_mut(&mut self, ino: InodeNo) -> Result<&mut Inode> {
        self.inodes.get_mut(&ino).ok_or_else(|| stale(ino))
    }

    pub(super) fn directory(&self, ino: InodeNo) -> Result<(&ObjectKey, &Directory)> {
        let inode = self.inodes.get(&ino).ok_or_else(|| stale(ino))?;
        match &inode.node {
            Node::Directory(directory) => Ok((&inode.key, directory)),
            Node::File(_) => Err(Error::new(ErrorKind::NotADirectory, inode.key.as_str())),
        }
    }

    pub(super) fn directory_mut(&mut self, ino: InodeNo) -> Option<&mut Directory> {
        match &mut self.inodes.get_mut(&ino)?.node {
            Node::Directory(directory) => Some(directory),
            Node::File(_) => None,
        }
    }

    /// A file and its key.
    pub(super) fn file_mut(&mut self, ino: InodeNo) -> Result<(&ObjectKey, &mut File)> {
        let inode = self.inodes.get_mut(&ino).ok_or_else(|| stale(ino))?;
        match &mut inode.node {
            Node::File(file) => Ok((&inode.key, file)),
            Node::Directory(_) => Err(Error::new(ErrorKind::IsADirectory, inode.key.as_str())),
        }
    }

    // -- what is shown -------------------------------------------------------------------------------------------

    /// What stat shows of an inode.
    pub(super) fn stat(&self, inode: &Inode, now: Instant) -> Stat {
        match &inode.node {
            Node::Directory(_) => self.directory_stat(),
            Node::File(file) => match (&file.phase, &file.stored) {
                (Phase::Writing { size, modified, .. }, _) => {
                    file_stat(*size, *modified, true, self.ttl.file().min(MINIMAL_FILE))
                }
                (_, Some((meta, confirmed))) => {
                    let valid = match (inode.place, confirmed) {
                        (Place::Nowhere, _) | (_, None) => Duration::ZERO,
                        (_, Some(since)) => left(self.ttl.file(), *since, now),
                    };
                    self.stored_stat(meta, valid)
                }
                (Phase::New { modified }, None) => {
                    file_stat(0, *modified, true, self.ttl.file().min(MINIMAL_FILE))
                }
                (Phase::Stored, None) => file_stat(0, self.mounted, true, Duration::ZERO),
            },
        }
    }

    /// What stat shows of every directory: its attributes never change, so they hold for a whole TTL.
    pub(super) fn directory_stat(&self) -> Stat {
        Stat {
            kind: Kind::Directory,
            size: 0,
            modified: self.mounted,
            readable: true,
            valid_for: self.ttl.directory(),
        }
    }

    pub(super) fn stored_stat(&self, meta: &ObjectMeta, valid_for: Duration) -> Stat {
        file_stat(meta.size, meta.last_modified, meta.readable, valid_for)
    }

    /// What a lookup answers for an inode; `None` when it is gone.
    pub(super) fn found(&self, ino: InodeNo, now: Instant) -> Option<Found> {
        let inode = self.inodes.get(&ino)?;
        let stat = self.stat(inode, now);
        let entry_valid_for = match &inode.node {
            _ if inode.place == Place::Nowhere => Duration::ZERO,
            Node::Directory(directory) => left(self.ttl.directory(), directory.checked, now),
            // The next path that leads here asks again, so that an open can tell whose lookup it follows.
            Node::File(file) if file.fresh.is_some() => Duration::ZERO,
            Node::File(file) => stat.valid_for.min(left(self.ttl.directory(), file.checked, now)),
        };
        Some(Found { ino, stat, entry_valid_for })
    }

    // -- lookups -------------------------------------------------------------------------------------------------

    /// What is known of a name without asking.
    pub(super) fn recall(&mut self, parent: InodeNo, name: &str, now: Instant) -> Result<Recall> {
        let (_, directory) = self.directory(parent)?;
        let child = directory.children.get(name).copied();
        let local = directory.locals.get(name).copied();
        let is_directory = |ino: &InodeNo| matches!(self.inodes[ino].node, Node::Directory(_));
        if let Some(ino) = child.filter(is_directory) {
            return Ok(self.recall_one(ino, now, Ask::DirectoryFirst));
        }
        if let Some(ino) = local {
            return Ok(self.recall_one(ino, now, Ask::DirectoryOnly));
        }
        if let Some(ino) = child {
            return Ok(self.recall_one(ino, now, Ask::FileFirst));
        }
        if let Some(recall) = self.recall_listed(parent, name, now) {
            return Ok(recall);
        }
        if self.missing.contains(parent, name, now, self.ttl.missing()) {
            return Ok(Recall::Missing);
        }
        Ok(Recall::Ask(Ask::Both))
    }

    fn recall_one(&self, ino: InodeNo, now: Instant, ask: Ask) -> Recall {
        let within = |ttl, since| !left(ttl, since, now).is_zero();
        let (checked, sure) = match &self.inodes[&ino].node {
            Node::Directory(directory) => (within(self.ttl.directory(), directory.checked), true),
            Node::File(file) => {
                let confirmed = file.stored.as_ref().and_then(|(_, confirmed)| *confirmed);
                let sure = file.is_local() || confirmed.is_some_and(|since| within(self.ttl.file(), since));
                (within(self.ttl.directory(), file.checked), sure)
            }
        };
        match (checked, sure) {
            (true, true) => Recall::Found(ino),
            (true, false) => Recall::Ask(ask),
            // That a file's name is no directory's is only known as long as a directory would be.
            (false, _) if ask == Ask::FileFirst => Recall::Ask(Ask::Both),
            (false, _) => Recall::Ask(ask),
        }
    }

    /// What the directory's remembered listing says.
    fn recall_listed(&mut self, parent: InodeNo, name: &str, now: Instant) -> Option<Recall> {
        let (_, directory) = self.directory(parent).ok()?;
        let listed = directory.listed.as_ref()?;
        if left(self.ttl.listing(), listed.since, now).is_zero() {
            self.forget_listed(parent);
            return None;
        }
        if directory.changes.since(name, listed.asked).is_some() {
            return None;
        }
        match listed.find(name) {
            Some((batch, index)) => {
                let (ino, asked, since) = (batch.ino(index), batch.asked, batch.arrived);
                match batch.meta(index) {
                    Some(meta) => {
                        if left(self.ttl.file(), since, now).is_zero() {
                            return None;
                        }
                        let file = File::stored(meta, since, since);
                        self.hang(ino, parent, name, asked, Node::File(file))?;
                    }
                    None => {
                        let directory = Box::new(Directory::new(since));
                        self.hang(ino, parent, name, asked, Node::Directory(directory))?;
                    }
                }
                Some(Recall::Found(ino))
            }
            None if left(self.ttl.missing(), listed.since, now).is_zero() => None,
            None => Some(Recall::Missing),
        }
    }

    /// Takes in what S3 said of a name when asked at event `asked`; the answer came at `now`.
    pub(super) fn settle(
        &mut self,
        parent: InodeNo,
        name: &str,
        remote: Remote,
        asked: u64,
        now: Instant,
    ) -> Result<Settled> {
        let (_, directory) = self.directory(parent)?;
        let child = directory.children.get(name).copied();
        let local = directory.locals.get(name).copied();
        // Somebody learned more since: that stands.
        if let Some(ino) = child.filter(|ino| self.inodes[ino].learned > asked) {
            let local = local.filter(|_| matches!(self.inodes[&ino].node, Node::File(_)));
            return Ok(Settled::Found(local.unwrap_or(ino)));
        }
        if let Some(ino) = local {
            self.checked(ino, now);
        }
        match remote {
            Remote::Directory => {
                Ok(Settled::Found(self.settle_directory(parent, name, child, local, asked, now)?))
            }
            Remote::File { meta, alone } => {
                let child = self.without_directory(parent, name, child);
                if let Some(ino) = self.local(parent, name) {
                    return Ok(Settled::Found(ino));
                }
                self.settle_file(parent, name, child, meta, alone, asked, now).map(Settled::Found)
            }
            Remote::Missing => {
                let child = self.without_directory(parent, name, child);
                if let Some(ino) = child {
                    self.detach(ino);
                }
                match self.local(parent, name) {
                    Some(ino) => Ok(Settled::Found(ino)),
                    None => {
                        let keep = self.ttl.missing().max(super::FRESH);
                        self.missing.insert(parent, name, now, keep);
                        Ok(Settled::Missing)
                    }
                }
            }
        }
    }

    fn local(&self, parent: InodeNo, name: &str) -> Option<InodeNo> {
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
                directory.checked = now;
                self.inodes.get_mut(&ino).expect("a child lives").learned = asked;
                return Ok(ino);
            }
            self.detach(ino);
        }
        if let Some(ino) = local.filter(|&ino| self.directory(ino).is_ok()) {
            self.place(ino, Place::Remote);
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
            if self.confirm(ino, &meta, alone, asked, now) {
                return Ok(ino);
            }
            self.detach(ino);
        }
        let ino = self.reserve(1);
        self.hang(ino, parent, name, asked, Node::File(File::stored(meta, now, now)))
            .ok_or_else(|| stale(parent))?;
        Ok(ino)
    }

    /// S3 said this of a stored file; false when it means another version, and so another inode.
    pub(super) fn confirm(
        &mut self,
        ino: InodeNo,
        meta: &ObjectMeta,
        alone: bool,
        asked: u64,
        now: Instant,
    ) -> bool {
        let Some(inode) = self.inodes.get_mut(&ino) else { return false };
        let Node::File(file) = &mut inode.node else { return false };
        let Some((known, confirmed)) = &mut file.stored else { return false };
        if !known.etag.matches(meta.etag.as_str()) || known.size != meta.size {
            return false;
        }
        // A listing spells some ETags without quotes: the first spelling stays, reads are pinned to it.
        known.last_modified = meta.last_modified;
        known.readable = meta.readable;
        *confirmed = Some(now);
        if alone {
            file.checked = now;
        }
        inode.learned = inode.learned.max(asked);
        true
    }

    /// S3 has no directory of that name (any more): what hangs there as one goes, or stays as a local one when
    /// something local is below. The child that is left, a file.
    fn without_directory(&mut self, parent: InodeNo, name: &str, child: Option<InodeNo>) -> Option<InodeNo> {
        let ino = child?;
        if self.directory(ino).is_err() {
            return child;
        }
        if self.local(parent, name).is_none() && self.holds_locals(ino) {
            self.place(ino, Place::Local);
        } else {
            self.detach(ino);
        }
        None
    }

    /// Whether anything below a directory exists only here.
    fn holds_locals(&self, top: InodeNo) -> bool {
        let mut below = vec![top];
        while let Some(ino) = below.pop() {
            let Ok((_, directory)) = self.directory(ino) else { continue };
            if !directory.locals.is_empty() {
                return true;
            }
            below.extend(directory.children.values());
        }
        false
    }

    fn checked(&mut self, ino: InodeNo, now: Instant) {
        match self.inodes.get_mut(&ino).map(|inode| &mut inode.node) {
            Some(Node::Directory(directory)) => directory.checked = now,
            Some(Node::File(file)) => file.checked = now,
            None => {}
        }
    }

    // -- where inodes hang ---------------------------------------------------------------------------------------

    /// Makes an inode for something S3 has. `None` when the parent is gone, or the number lives already.
    pub(super) fn hang(
        &mut self,
        ino: InodeNo,
        parent: InodeNo,
        name: &str,
        learned: u64,
        node: Node,
    ) -> Option<()> {
        self.make(ino, parent, name, learned, node)?;
        self.place(ino, Place::Remote);
        if let Some(directory) = self.directory_mut(parent) {
            directory.changes.revive(name);
        }
        Some(())
    }

    /// Makes an inode that hangs nowhere yet.
    pub(super) fn make(
        &mut self,
        ino: InodeNo,
        parent: InodeNo,
        name: &str,
        learned: u64,
        node: Node,
    ) -> Option<()> {
        let (key, _) = self.directory(parent).ok()?;
        let key = match &node {
            Node::Directory(_) => super::path::directory_key(key, name)?,
            Node::File(_) => super::path::file_key(key, name)?,
        };
        if self.inodes.contains_key(&ino) {
            return None;
        }
        let inode =
            Inode { key, name: name.into(), parent, place: Place::Nowhere, lookups: 0, learned, node };
        self.inodes.insert(ino, inode);
        Some(())
    }

    /// Moves an inode to one of its directory's maps. What stood there goes nowhere.
    pub(super) fn place(&mut self, ino: InodeNo, place: Place) {
        let Some(inode) = self.inodes.get(&ino) else { return };
        let (parent, name, before) = (inode.parent, inode.name.clone(), inode.place);
        if before == place {
            return;
        }
        let Some(directory) = self.directory_mut(parent) else { return };
        match before {
            Place::Remote => drop(directory.children.remove(&name)),
            Place::Local => drop(directory.locals.remove(&name)),
            Place::Nowhere => {}
        }
        let displaced = match place {
            Place::Remote => directory.children.insert(name.clone(), ino),
            Place::Local => directory.locals.insert(name.clone(), ino),
            Place::Nowhere => None,
        };
        if place != Place::Nowhere {
            self.missing.remove(parent, &name);
        }
        if let Some(inode) = self.inodes.get_mut(&ino) {
            inode.place = place;
        }
        if let Some(other) = displaced {
            if let Some(other) = self.inodes.get_mut(&other) {
                other.place = Place::Nowhere;
            }
            self.drop_if_idle(other);
        }
    }

    /// The name means something else, or nothing, from now on: lookups in flight and older listings are outdated.
    pub(super) fn detach(&mut self, ino: InodeNo) {
        let Some(inode) = self.inodes.get(&ino) else { return };
        let (parent, name) = (inode.parent, inode.name.clone());
        if inode.place == Place::Nowhere {
            return;
        }
        self.place(ino, Place::Nowhere);
        self.changed(parent, &name, true);
        self.drop_if_idle(ino);
    }

    /// Something happened to a name: answers that were asked for before do not count for it. The event's number.
    pub(super) fn changed(&mut self, parent: InodeNo, name: &str, removed: bool) -> u64 {
        let at = self.event();
        self.flights.overtake(parent, name);
        if !removed {
            self.missing.remove(parent, name);
        }
        if let Some(directory) = self.directory_mut(parent)
            && (directory.listings > 0 || directory.listed.is_some())
        {
            directory.changes.note(name, at, removed);
        }
        at
    }

    /// Ends an inode that nobody holds: no reference, no handle, nothing local, nothing below; then its parent.
    pub(super) fn drop_if_idle(&mut self, ino: InodeNo) {
        let mut next = Some(ino);
        while let Some(ino) = next.take() {
            let Some(inode) = self.inodes.get(&ino) else { return };
            let used = match &inode.node {
                Node::Directory(d) => d.listings > 0 || !d.children.is_empty() || !d.locals.is_empty(),
                Node::File(file) => file.readers > 0 || matches!(file.phase, Phase::Writing { .. }),
            };
            if ino == ROOT || inode.lookups > 0 || inode.place == Place::Local || used {
                return;
            }
            let parent = inode.parent;
            self.place(ino, Place::Nowhere);
            self.forget_listed(ino);
            self.missing.remove_directory(ino);
            self.inodes.remove(&ino);
            next = Some(parent);
        }
    }

    /// Directories above something that was stored are stored with it.
    pub(super) fn stored_above(&mut self, mut ino: InodeNo, now: Instant) {
        while let Some(inode) = self.inodes.get(&ino) {
            let (parent, name, place) = (inode.parent, inode.name.clone(), inode.place);
            if ino == ROOT {
                return;
            }
            self.checked(ino, now);
            if place == Place::Local {
                let at = self.changed(parent, &name, false);
                self.inodes.get_mut(&ino).expect("looked at above").learned = at;
                self.place(ino, Place::Remote);
            }
            ino = parent;
        }
    }

    // -- remembered listings -------------------------------------------------------------------------------------

    /// Remembers a whole listing, as far as there is room.
    pub(super) fn remember_listed(&mut self, ino: InodeNo, listed: super::readdir::Listed) {
        self.forget_listed(ino);
        let entries = listed.entries();
        if entries > Self::LISTED_ENTRIES_MAX {
            return;
        }
        while self.listed_entries + entries > Self::LISTED_ENTRIES_MAX
            && let Some(oldest) = self.listed.front().copied()
        {
            self.forget_listed(oldest);
        }
        let Some(directory) = self.directory_mut(ino) else { return };
        directory.listed = Some(listed);
        self.listed.push_back(ino);
        self.listed_entries += entries;
    }

    pub(super) fn forget_listed(&mut self, ino: InodeNo) {
        let Some(directory) = self.directory_mut(ino) else { return };
        let Some(listed) = directory.listed.take() else { return };
        if directory.listings == 0 {
            directory.changes.clear();
        }
        self.listed_entries -= listed.entries();
        self.listed.retain(|&other| other != ino);
    }

    /// A snapshot of what exists only here in a directory.
    pub(super) fn locals(&self, ino: InodeNo) -> BTreeMap<Box<str>, InodeNo> {
        self.directory(ino).map(|(_, directory)| directory.locals.clone()).unwrap_or_default()
    }
}

fn file_stat(size: u64, modified: SystemTime, readable: bool, valid_for: Duration) -> Stat {
    Stat { kind: Kind::File, size, modified, readable, valid_for }
}

pub(super) fn stale(ino: InodeNo) -> Error {
    Error::new(ErrorKind::Stale, format!("inode {}", ino.0))
}
