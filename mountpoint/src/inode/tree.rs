//! The tree under its one lock: the living inodes, their places, and the changes that S3's answers make.
//!
//! This file makes no request and reads no clock. Events are numbered: an answer carries the number of its request, and facts that are
//! newer than the request win over the answer.

mod emptied;
mod known;
mod moved;
mod outliving;
mod settle;
mod sisters;
mod unasked;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::BuildHasher as _;
use std::time::{Duration, Instant, SystemTime};

use foldhash::HashMap;
use foldhash::fast::RandomState;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use super::InodeNo;
use super::board::Board;
use super::compact::Agreement;
use super::error::{Error, ErrorKind, Result};
use super::facts::{Facts, What};
use super::firsts::Firsts;
use super::fresh::Fresh;
use super::inodes::{Inodes, is_sparse};
use super::state::{Directory, File, Inode, Node, Phase, Place, Times};
use super::{Found, Kind, ROOT, Stat, Unasked};
use crate::listing::expiry::{Ttl, left};
use crate::listing::listed::Listed;
use crate::listing::path::{self, Prefix};
use crate::listing::price::Prices;
use crate::listing::recent::{Page, Recent};
use crate::listing::walk::Walk;
use crate::object::ObjectKey;
use crate::outlive::Journal;
use crate::sync::Arc;
pub use moved::{Below, Follower};
pub(super) use settle::{Adopted, Recall, Settled};

/// The living inodes. This file finds and changes inodes. The files of the other methods:
///
/// | file | methods |
/// |---|---|
/// | `tree/settle.rs` | answers to lookups, from memory and from S3 |
/// | `tree/known.rs` | facts that were learned after a listing was asked for |
/// | `tree/sisters.rs` | pages for the first lookup in a directory |
/// | `tree/emptied.rs` | directories that lost their last key |
/// | `tree/moved.rs` | an inode with another name |
/// | `tree/unasked.rs` | names that are absent without a question |
/// | `tree/outliving.rs` | directories of a mount that outlives its engine |
/// | `rename.rs` | what a rename may replace |
/// | `staged.rs` | files in the stage (`--mode full`) |
#[derive(Debug)]
pub(super) struct Tree {
    inodes: Inodes,
    /// Names that S3 has, by directory, as long as their inodes live. The inodes own the names.
    children: HashMap<InodeNo, HashTable<InodeNo>>,
    hasher: RandomState,
    /// The next inode number. Numbers are never reused, so inodes need no generation.
    next: u64,
    /// The end of the numbers that the journal reserves for this engine.
    limit: u64,
    /// The journal of directories that the kernel references, if the mount may outlive this engine.
    journal: Option<Arc<Journal>>,
    /// Number of the last event.
    events: u64,
    pub(super) ttl: Ttl,
    pub(super) unasked: Unasked,
    /// Whether empty objects beside directories mark them.
    pub(super) folder_marks: bool,
    /// The modification time of directories.
    mounted: SystemTime,
    /// Facts about names that pages may lack.
    pub(super) facts: Facts,
    pub(super) board: Board,
    /// First bytes that the latest lookups brought, for their opens.
    pub(super) firsts: Firsts,
    /// Files whose lookup S3 answered a moment ago, not used yet by an open, a stat or a second lookup.
    pub(super) fresh: Fresh,
    /// Directories with a remembered listing, oldest first, and the number of entries of all these listings.
    listed: VecDeque<InodeNo>,
    listed_entries: usize,
    /// Directories of the recent pages, oldest first: one line for each page.
    recent: VecDeque<InodeNo>,
    /// Directories made here that lack names without a question, the oldest first.
    bare: VecDeque<(Instant, InodeNo)>,
    /// Directories of S3 that became local, since their last key may be gone. The lowest number is the oldest.
    emptied: BTreeSet<InodeNo>,
    /// The cost of pages and lookups.
    pub(super) prices: Prices,
    /// Whether a page may begin in the middle of a listing: false if the store lists keys out of order.
    pub(super) pages_begin_anywhere: bool,
    /// The walk in progress.
    pub(super) walk: Walk,
    /// Whether reads may use the marks of a listing.
    pub(super) agreement: Agreement,
}

impl Tree {
    /// Most entries of all remembered listings together (about 100 bytes each). Beyond it the oldest listing is forgotten; a listing with
    /// more entries is never remembered.
    pub(super) const LISTED_ENTRIES_MAX: usize = 200_000;

    /// Most recent pages, all directories together (about 100 KB each). Beyond it the oldest is dropped, and lookups ask for its names.
    const PAGES_MAX: usize = Prices::PAGES_KEPT;

    pub(super) fn new(prefix: &Prefix, ttl: Ttl, now: Instant, mounted: SystemTime) -> Self {
        let directory = Directory { key: prefix.key().clone(), ..Directory::new(now) };
        let root = Inode {
            name: "".into(),
            parent: ROOT,
            place: Place::Remote,
            lookups: 1,
            learned: 0,
            node: Node::Directory(Box::new(directory)),
        };
        let mut inodes = Inodes::default();
        inodes.insert(ROOT, root);
        Self {
            inodes,
            children: HashMap::default(),
            hasher: RandomState::default(),
            next: ROOT.0 + 1,
            limit: u64::MAX,
            journal: None,
            events: 0,
            ttl,
            unasked: Unasked::default(),
            folder_marks: false,
            mounted,
            facts: Facts::default(),
            board: Board::default(),
            firsts: Firsts::default(),
            fresh: Fresh::default(),
            listed: VecDeque::new(),
            listed_entries: 0,
            recent: VecDeque::new(),
            bare: VecDeque::new(),
            emptied: BTreeSet::new(),
            prices: Prices::default(),
            agreement: Agreement::default(),
            pages_begin_anywhere: true,
            walk: Walk::new(),
        }
    }

    /// Number of living inodes.
    pub(super) fn len(&self) -> usize {
        self.inodes.len()
    }

    pub(super) fn event(&mut self) -> u64 {
        self.events += 1;
        self.events
    }

    /// The number of the last event: whatever is requested later has a greater one.
    pub(super) fn last_event(&self) -> u64 {
        self.events
    }

    /// Reserves numbers for names that may become inodes. Returns the first number.
    pub(super) fn reserve(&mut self, count: usize) -> InodeNo {
        let first = InodeNo(self.next);
        self.next += count as u64;
        if self.next > self.limit {
            self.raise_limit();
        }
        first
    }

    pub(super) fn inode(&self, ino: InodeNo) -> Option<&Inode> {
        self.inodes.get(ino)
    }

    pub(super) fn inode_mut(&mut self, ino: InodeNo) -> Result<&mut Inode> {
        self.inodes.get_mut(ino).ok_or_else(|| stale(ino))
    }

    pub(super) fn directory(&self, ino: InodeNo) -> Result<(&ObjectKey, &Directory)> {
        let inode = self.inodes.get(ino).ok_or_else(|| stale(ino))?;
        match &inode.node {
            Node::Directory(directory) => Ok((&directory.key, directory)),
            Node::File(_) => Err(Error::new(ErrorKind::NotADirectory, self.name_for_errors(ino))),
        }
    }

    pub(super) fn directory_mut(&mut self, ino: InodeNo) -> Option<&mut Directory> {
        self.inodes.get_mut(ino)?.directory_mut()
    }

    /// The file of an inode, to change.
    pub(super) fn file_mut(&mut self, ino: InodeNo) -> Result<&mut File> {
        if self.inode(ino).is_some_and(|inode| matches!(inode.node, Node::Directory(_))) {
            return Err(Error::new(ErrorKind::IsADirectory, self.name_for_errors(ino)));
        }
        match self.inodes.get_mut(ino).map(|inode| &mut inode.node) {
            Some(Node::File(file)) => Ok(file),
            _ => Err(stale(ino)),
        }
    }

    /// The key of an inode; a directory's key ends in `/`. `None` if the inode is gone, or has no place and its directory is gone.
    pub(super) fn key(&self, ino: InodeNo) -> Option<ObjectKey> {
        let inode = self.inode(ino)?;
        match &inode.node {
            Node::Directory(directory) => Some(directory.key.clone()),
            Node::File(_) => path::file_key(self.directory(inode.parent).ok()?.0, &inode.name),
        }
    }

    /// The key of an inode, or as much of it as is known.
    pub(super) fn name_for_errors(&self, ino: InodeNo) -> String {
        let name = || self.inode(ino).map_or_else(String::new, |inode| inode.name.to_string());
        self.key(ino).map_or_else(name, |key| key.as_str().to_owned())
    }

    /// The living inode for a name that S3 has.
    pub(super) fn child(&self, parent: InodeNo, name: &str) -> Option<InodeNo> {
        let is_it = |ino: &InodeNo| self.inodes.get(*ino).is_some_and(|inode| *inode.name == *name);
        self.children.get(&parent)?.find(self.hasher.hash_one(name), is_it).copied()
    }

    /// All living inodes for names that S3 has in a directory, as [`Tree::child`] finds them.
    pub(super) fn children(&self, parent: InodeNo) -> impl Iterator<Item = InodeNo> {
        self.children.get(&parent).into_iter().flat_map(|table| table.iter().copied())
    }

    /// Adds an inode to its directory's children. Returns the inode that had the name.
    fn hang_child(&mut self, parent: InodeNo, ino: InodeNo) -> Option<InodeNo> {
        let Self { inodes, children, hasher, .. } = self;
        let name = &*inodes.get(ino)?.name;
        let is_it = |other: &InodeNo| inodes.get(*other).is_some_and(|inode| *inode.name == *name);
        let hash_of = |other: &InodeNo| inodes.get(*other).map_or(0, |inode| hasher.hash_one(&*inode.name));
        match children.entry(parent).or_default().entry(hasher.hash_one(name), is_it, hash_of) {
            Entry::Occupied(mut there) => return Some(std::mem::replace(there.get_mut(), ino)),
            Entry::Vacant(room) => drop(room.insert(ino)),
        }
        if let Some(directory) = self.directory_mut(parent) {
            directory.children += 1;
        }
        None
    }

    fn unhang_child(&mut self, parent: InodeNo, ino: InodeNo) {
        let Self { inodes, children, hasher, .. } = self;
        let hash_of = |other: &InodeNo| inodes.get(*other).map_or(0, |inode| hasher.hash_one(&*inode.name));
        let Some(table) = children.get_mut(&parent) else { return };
        let Ok(entry) = table.find_entry(hash_of(&ino), |other| *other == ino) else { return };
        entry.remove();
        if table.is_empty() {
            children.remove(&parent);
        } else if is_sparse(table.len(), table.capacity()) {
            table.shrink_to(2 * table.len(), hash_of);
        }
        if let Some(directory) = self.directory_mut(parent) {
            directory.children -= 1;
        }
    }

    // -- what is shown -------------------------------------------------------------------------------------------

    /// The attributes of an inode.
    pub(super) fn stat(&self, inode: &Inode, now: Instant) -> Stat {
        match &inode.node {
            Node::Directory(_) => self.directory_stat(),
            Node::File(file) => match (&file.phase, &file.stored) {
                // All changes of a file in the stage come by this kernel. It asks before each write unless its attributes hold.
                (Phase::Writing(writing), _) if writing.is_staged => {
                    Stat { valid_for: self.ttl.file(), ..local_stat(writing.size, &writing.times) }
                }
                // The kernel must cache nothing: if the upload fails, the name disappears at once.
                (Phase::Writing(writing), _) => local_stat(writing.size, &writing.times),
                (_, Some(stored)) => {
                    let valid = match (inode.place, stored.until()) {
                        (Place::Nowhere, _) | (_, None) => Duration::ZERO,
                        (_, Some(until)) => until.saturating_duration_since(now),
                    };
                    file_stat(stored.size(), stored.modified(), stored.is_readable(), valid)
                }
                (Phase::New { times, .. }, None) => local_stat(0, times),
                (Phase::Stored, None) => file_stat(0, self.mounted, true, Duration::ZERO),
            },
        }
    }

    /// The attributes of every directory. They never change, so they are valid for a whole TTL.
    pub(super) fn directory_stat(&self) -> Stat {
        Stat {
            kind: Kind::Directory,
            size: 0,
            accessed: self.mounted,
            modified: self.mounted,
            readable: true,
            valid_for: self.ttl.directory(),
        }
    }

    /// A lookup's answer for an inode; `None` if the inode is gone.
    pub(super) fn found(&self, ino: InodeNo, now: Instant) -> Option<Found> {
        let inode = self.inodes.get(ino)?;
        let stat = self.stat(inode, now);
        let entry_valid_for = match &inode.node {
            _ if inode.place == Place::Nowhere => Duration::ZERO,
            Node::Directory(directory) => {
                directory.checked.map_or(Duration::ZERO, |since| left(self.ttl.directory(), since, now))
            }
            // The next path to this file must look up again, so that an open can tell whose lookup it follows.
            Node::File(_) if self.fresh.contains(ino) => Duration::ZERO,
            // If the file is not stored, its name disappears at once.
            Node::File(file) if file.is_local() => Duration::ZERO,
            Node::File(file) => stat.valid_for.min(left(self.ttl.directory(), file.checked.instant(), now)),
        };
        Some(Found { ino, stat, entry_valid_for })
    }

    // -- where inodes hang ---------------------------------------------------------------------------------------

    /// Makes an inode for a name that S3 has. `None` if the parent is gone, or the number is in use.
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
        Some(())
    }

    /// Makes an inode without a place.
    pub(super) fn make(
        &mut self,
        ino: InodeNo,
        parent: InodeNo,
        name: &str,
        learned: u64,
        node: Node,
    ) -> Option<()> {
        let (key, _) = self.directory(parent).ok()?;
        let mut node = node;
        match &mut node {
            Node::Directory(directory) => directory.key = path::directory_key(key, name)?,
            Node::File(_) => drop(path::file_key_fits(key, name).then_some(())?),
        }
        if self.inodes.get(ino).is_some() {
            return None;
        }
        let inode = Inode { name: name.into(), parent, place: Place::Nowhere, lookups: 0, learned, node };
        self.inodes.insert(ino, inode);
        Some(())
    }

    /// Moves an inode to one of its directory's maps. The inode that had the name there loses its place.
    pub(super) fn place(&mut self, ino: InodeNo, place: Place) {
        let Some(inode) = self.inodes.get(ino) else { return };
        let (parent, before) = (inode.parent, inode.place);
        if before == place || self.directory(parent).is_err() {
            return;
        }
        match before {
            Place::Local => {
                self.unhang_local(parent, ino);
                self.emptied.remove(&ino);
            }
            Place::Remote => self.unhang_child(parent, ino),
            Place::Nowhere => {}
        }
        let displaced = match place {
            Place::Local => self.hang_local(parent, ino),
            Place::Remote => self.hang_child(parent, ino),
            Place::Nowhere => None,
        };
        let Some(inode) = self.inodes.get_mut(ino) else { return };
        inode.place = place;
        if place != Place::Nowhere {
            self.facts.taken(parent, &inode.name);
        }
        self.record(ino);
        if let Some(other) = displaced {
            if let Some(other) = self.inodes.get_mut(other) {
                other.place = Place::Nowhere;
            }
            self.record(other);
            self.emptied.remove(&other);
            self.drop_if_idle(other);
        }
    }

    /// Adds an inode to its directory's local entries. Returns the inode that had the name.
    fn hang_local(&mut self, parent: InodeNo, ino: InodeNo) -> Option<InodeNo> {
        let name = self.inodes.get(ino)?.name.clone();
        self.directory_mut(parent)?.locals.insert(name, ino)
    }

    fn unhang_local(&mut self, parent: InodeNo, ino: InodeNo) -> Option<InodeNo> {
        let name = self.inodes.get(ino)?.name.clone();
        self.directory_mut(parent)?.locals.remove(&name)
    }

    /// Detaches an inode from its name: lookups in flight and older listings are outdated.
    pub(super) fn detach(&mut self, ino: InodeNo) {
        let Some(inode) = self.inodes.get(ino) else { return };
        let (parent, name) = (inode.parent, inode.name.clone());
        if inode.place == Place::Nowhere {
            return;
        }
        self.place(ino, Place::Nowhere);
        self.changed(parent, &name, true);
        self.drop_if_idle(ino);
    }

    /// Notes that a name changed: answers to earlier requests do not count for it. Returns the event's number.
    pub(super) fn changed(&mut self, parent: InodeNo, name: &str, removed: bool) -> u64 {
        let at = self.event();
        self.facts.changed_at = at;
        self.board.overtake(parent, name);
        self.observe_all(parent, at);
        let what = if removed { What::Absent } else { What::Present };
        self.observe(parent, name, what, at);
        at
    }

    /// Notes that this mount changed the object of an inode: answers to earlier requests do not count for the inode.
    pub(super) fn touched(&mut self, ino: InodeNo, removed: bool) {
        let Some(inode) = self.inode(ino) else { return };
        let (parent, name) = (inode.parent, inode.name.clone());
        let at = self.changed(parent, &name, removed);
        if let Ok(inode) = self.inode_mut(ino) {
            inode.learned = at;
        }
    }

    /// Counts one reference. `fresh`: when S3 answered this very lookup, and no other, so that the next open may rely on the answer (see
    /// [`super::FRESH`]).
    pub(super) fn take(&mut self, ino: InodeNo, fresh: Option<Instant>) -> Result<()> {
        let strict = self.ttl == Ttl::Minimal || self.ttl.open().is_zero();
        let inode = self.inode_mut(ino)?;
        inode.lookups += 1;
        let is_first = inode.lookups == 1;
        let known = match &inode.node {
            Node::File(file) => {
                !file.is_local() && file.stored.as_ref().is_some_and(|stored| stored.until().is_some())
            }
            Node::Directory(_) => false,
        };
        self.firsts.forget(ino);
        match fresh.filter(|_| known && strict) {
            Some(since) => self.fresh.put(ino, since),
            None => self.fresh.forget(ino),
        }
        if is_first {
            self.record(ino);
        }
        Ok(())
    }

    /// Drops an inode that has no references, handles, local state or entries; then its parent in the same way.
    pub(super) fn drop_if_idle(&mut self, ino: InodeNo) {
        let mut next = Some(ino);
        while let Some(ino) = next.take() {
            let Some(inode) = self.inodes.get(ino) else { return };
            let used = match &inode.node {
                Node::Directory(directory) => directory.is_in_use(),
                Node::File(file) => file.readers > 0 || matches!(file.phase, Phase::Writing { .. }),
            };
            if ino == ROOT || inode.lookups > 0 || inode.place == Place::Local || used {
                return;
            }
            let parent = inode.parent;
            if inode.place == Place::Remote {
                let Self { inodes, facts, walk, .. } = self;
                if let Some(above) = inodes.get(parent).and_then(Inode::directory) {
                    let Inode { name, learned, .. } = &inodes[ino];
                    facts.walked.observe(walk, above.key.as_str(), name, What::Present, *learned);
                }
            }
            self.place(ino, Place::Nowhere);
            self.forget_listed(ino);
            self.facts.forget(ino);
            self.unrecord(ino);
            self.inodes.remove(ino);
            next = Some(parent);
        }
    }

    /// Notes that S3 has the directories above a stored object.
    pub(super) fn stored_above(&mut self, mut ino: InodeNo, now: Instant) {
        self.seen_below(ino, self.events);
        while let Some(inode) = self.inodes.get(ino) {
            let (parent, name, place) = (inode.parent, inode.name.clone(), inode.place);
            if ino == ROOT {
                return;
            }
            self.checked(ino, now);
            if place == Place::Local {
                let at = self.changed(parent, &name, false);
                self.inodes.get_mut(ino).expect("looked at above").learned = at;
                self.place(ino, Place::Remote);
            }
            ino = parent;
        }
    }

    // -- remembered listings -------------------------------------------------------------------------------------

    /// Remembers a complete listing, as far as there is room.
    pub(super) fn remember_listed(&mut self, ino: InodeNo, listed: Listed) {
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
        self.listed_entries -= listed.entries();
        self.listed.retain(|&other| other != ino);
        self.release(ino);
    }

    // -- recent pages --------------------------------------------------------------------------------------------

    pub(super) fn recent_mut(&mut self, ino: InodeNo) -> Option<&mut Recent> {
        self.directory_mut(ino)?.recent.as_deref_mut()
    }

    /// Takes in the page requested at the event `asked` for lookups in a directory; `None`: the request failed.
    pub(super) fn arrives(&mut self, ino: InodeNo, asked: u64, page: Option<Page>) {
        let comes = page.is_some();
        let Some(recent) = self.recent_mut(ino).filter(|recent| recent.awaits(asked)) else { return };
        recent.arrives(asked, page);
        if comes {
            self.recent.push_back(ino);
        }
        if self.recent.len() > Self::PAGES_MAX
            && let Some(oldest) = self.recent.pop_front()
            && let Some(recent) = self.recent_mut(oldest)
        {
            recent.drop_oldest();
        }
        self.release(ino);
    }

    #[cfg(test)]
    pub(super) fn recent_pages(&self) -> usize {
        self.recent.len()
    }

    /// Drops the pages of a directory that are too old to answer.
    pub(super) fn expire_pages(&mut self, ino: InodeNo, now: Instant) {
        let mut gone = match self.recent_mut(ino) {
            Some(recent) => recent.expire(now),
            None => usize::MAX,
        };
        self.recent.retain(|&other| {
            let goes = other == ino && gone > 0;
            gone -= usize::from(goes);
            !goes
        });
        self.release(ino);
    }

    /// A copy of the local entries of a directory.
    pub(super) fn locals(&self, ino: InodeNo) -> BTreeMap<Box<str>, InodeNo> {
        self.directory(ino).map(|(_, directory)| directory.locals.clone()).unwrap_or_default()
    }
}

fn file_stat(size: u64, modified: SystemTime, readable: bool, valid_for: Duration) -> Stat {
    Stat { kind: Kind::File, size, accessed: modified, modified, readable, valid_for }
}

/// The attributes of a file that is not stored yet. The kernel must not cache them.
fn local_stat(size: u64, times: &Times) -> Stat {
    Stat { accessed: times.accessed, ..file_stat(size, times.modified, true, Duration::ZERO) }
}

pub(super) fn stale(ino: InodeNo) -> Error {
    Error::new(ErrorKind::Stale, format!("inode {}", ino.0))
}
