//! One object version in the cache: which blocks it has, how far each is trusted, who is at work on it.
//!
//! Pure state under one short lock; the disk is touched by `store.rs`, which asks here what it may do. A block is
//! written only when it was absent and punched only when it was stored, and never both at once, so a reader that
//! finds the same `born` before and after its pread has read the block's bytes.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use super::format::{Header, Identity, Name, block_len};
use super::index::Owner;
use crate::sync::{Arc, Mutex};

/// Bytes that a file system hands out at once.
const PAGE: u64 = 4096;

/// What a version's two files take on disk before they hold a block, in bytes (inodes aside): the first page of the sidecar.
pub(super) const FILE_CHARGE: u64 = PAGE;

/// What a block of `len` bytes takes on disk: its pages, and at most one page of the sidecar for its slot.
pub(super) fn block_charge(len: usize) -> u64 {
    (len as u64).next_multiple_of(PAGE) + PAGE
}

/// One object version.
#[derive(Debug)]
pub(super) struct Entry {
    /// Whose bytes they are.
    pub(super) owner: Owner,
    /// What its files are called.
    pub(super) name: Name,
    /// Bytes of the whole object.
    pub(super) object_size: u64,
    /// Where the sidecar's slots begin.
    pub(super) slots_at: u64,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    blocks: BTreeMap<u32, Stored>,
    file: Option<Arc<OwnedFd>>,
    file_used: bool,
    /// Writes and punches under way: the files stay while there are any.
    busy: u32,
    leaving: bool,
}

#[derive(Debug)]
struct Stored {
    crc: u32,
    state: State,
    /// Which put it came from: another number, other bytes on disk.
    born: u64,
    /// When it was last read or written; smaller is colder.
    used: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Being written, or being punched: not here for anybody.
    Moving,
    /// On disk, not yet compared with its CRC since this start.
    Unverified,
    /// On disk and compared.
    Verified,
}

/// A block that a read found.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) crc: u32,
    pub(super) born: u64,
    pub(super) verified: bool,
    /// The open data file, if it is.
    pub(super) file: Option<Arc<OwnedFd>>,
}

/// What is to be done so that blocks leave.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Leave {
    /// They were all there was: remove the files, this many bytes.
    Whole(u64),
    /// Punch these, this many bytes, then say [`Entry::punched`].
    Blocks(Vec<u32>, u64),
    /// They are gone, or somebody is at work on them.
    Nothing,
}

impl Entry {
    /// Of a decoded (or just encoded) header, with the blocks its slots name: (index, CRC32C).
    pub(super) fn new(
        owner: Owner,
        name: Name,
        header: &Header<'_>,
        blocks: impl IntoIterator<Item = (u32, u32)>,
        used: u64,
    ) -> Self {
        debug_assert_eq!(owner.identity(), header.identity);
        let blocks = blocks
            .into_iter()
            .map(|(block, crc)| (block, Stored { crc, state: State::Unverified, born: 0, used }))
            .collect();
        Self {
            owner,
            name,
            object_size: header.object_size,
            slots_at: header.slots_at,
            inner: Mutex::new(Inner { blocks, ..Inner::default() }),
        }
    }

    /// Whose bytes they are.
    pub(super) fn identity(&self) -> Identity<'_> {
        self.owner.identity()
    }

    /// What the block takes on disk.
    pub(super) fn charge(&self, block: u32) -> u64 {
        block_charge(block_len(self.object_size, u64::from(block)))
    }

    /// What all of it takes on disk.
    pub(super) fn charge_all(&self) -> u64 {
        let inner = self.inner.lock();
        FILE_CHARGE + inner.blocks.keys().map(|&b| self.charge(b)).sum::<u64>()
    }

    /// Whether the block can be read.
    pub(super) fn contains(&self, block: u32) -> bool {
        self.inner.lock().blocks.get(&block).is_some_and(|b| b.state != State::Moving)
    }

    /// A read of the block begins: what to read it from, and what to compare afterwards.
    pub(super) fn look(&self, block: u32, now: u64) -> Option<Seen> {
        let mut inner = self.inner.lock();
        inner.file_used = true;
        let file = inner.file.clone();
        let stored = inner.blocks.get_mut(&block).filter(|b| b.state != State::Moving)?;
        stored.used = now;
        Some(Seen { crc: stored.crc, born: stored.born, verified: stored.state == State::Verified, file })
    }

    /// Whether the block a read looked at is there still: what was read between is its bytes.
    pub(super) fn still(&self, block: u32, born: u64) -> bool {
        let inner = self.inner.lock();
        inner.blocks.get(&block).is_some_and(|b| b.state != State::Moving && b.born == born)
    }

    /// The block's bytes were compared with its CRC and match. False when it left meanwhile.
    pub(super) fn verified(&self, block: u32, born: u64) -> bool {
        let mut inner = self.inner.lock();
        match inner.blocks.get_mut(&block) {
            Some(b) if b.state != State::Moving && b.born == born => {
                b.state = State::Verified;
                true
            }
            _ => false,
        }
    }

    /// A write of the block begins, unless it is here or somebody is at work on it. Ends with [`Entry::wrote`].
    pub(super) fn claim(&self, block: u32, crc: u32, born: u64) -> bool {
        let mut inner = self.inner.lock();
        if inner.leaving || inner.blocks.contains_key(&block) {
            return false;
        }
        inner.busy += 1;
        inner.blocks.insert(block, Stored { crc, state: State::Moving, born, used: born });
        true
    }

    /// A write ended; `whole`: data and slot are on their way to the disk.
    pub(super) fn wrote(&self, block: u32, whole: bool) {
        let mut inner = self.inner.lock();
        inner.busy -= 1;
        if whole {
            if let Some(stored) = inner.blocks.get_mut(&block) {
                stored.state = State::Unverified;
            }
        } else {
            inner.blocks.remove(&block);
        }
    }

    /// These blocks are to go.
    pub(super) fn leave(&self, blocks: &[u32]) -> Leave {
        let mut inner = self.inner.lock();
        let here = |inner: &Inner, b: &u32| inner.blocks.get(b).is_some_and(|s| s.state != State::Moving);
        let going: Vec<u32> = blocks.iter().copied().filter(|b| here(&inner, b)).collect();
        if inner.leaving || going.is_empty() {
            return Leave::Nothing;
        }
        if inner.busy == 0 && going.len() == inner.blocks.len() {
            return Leave::Whole(self.clear(&mut inner));
        }
        inner.busy += 1;
        for block in &going {
            if let Some(stored) = inner.blocks.get_mut(block) {
                stored.state = State::Moving;
            }
        }
        let bytes = going.iter().map(|&b| self.charge(b)).sum();
        Leave::Blocks(going, bytes)
    }

    /// The blocks that [`Entry::leave`] named are punched.
    pub(super) fn punched(&self, blocks: &[u32]) {
        let mut inner = self.inner.lock();
        inner.busy -= 1;
        for block in blocks {
            inner.blocks.remove(block);
        }
    }

    /// All of it is to go: the bytes it took, or `None` when somebody is at work on it, or it is going already.
    pub(super) fn leave_whole(&self) -> Option<u64> {
        let mut inner = self.inner.lock();
        (!inner.leaving && inner.busy == 0).then(|| self.clear(&mut inner))
    }

    /// As [`Entry::leave_whole`], if it holds nothing.
    pub(super) fn leave_empty(&self) -> Option<u64> {
        let mut inner = self.inner.lock();
        (!inner.leaving && inner.busy == 0 && inner.blocks.is_empty()).then(|| self.clear(&mut inner))
    }

    fn clear(&self, inner: &mut Inner) -> u64 {
        inner.leaving = true;
        inner.file = None;
        let bytes = inner.blocks.keys().map(|&b| self.charge(b)).sum::<u64>();
        inner.blocks.clear();
        FILE_CHARGE + bytes
    }

    /// Each block that could be evicted, and when it was last used.
    pub(super) fn for_each_evictable(&self, mut visit: impl FnMut(u32, u64)) {
        let inner = self.inner.lock();
        for (&block, stored) in inner.blocks.iter().filter(|(_, s)| s.state != State::Moving) {
            visit(block, stored.used);
        }
    }

    /// The open data file, if it is.
    pub(super) fn file(&self) -> Option<Arc<OwnedFd>> {
        let mut inner = self.inner.lock();
        inner.file_used = true;
        inner.file.clone()
    }

    /// Keeps the data file open for the next read. False (and the file is not kept) when one is open already, or the
    /// version is leaving.
    pub(super) fn keep(&self, file: &Arc<OwnedFd>) -> bool {
        let mut inner = self.inner.lock();
        if inner.leaving || inner.file.is_some() {
            return false;
        }
        inner.file = Some(Arc::clone(file));
        true
    }

    /// Lets the open file go if nobody used it since the last call; the file itself closes with its last read.
    /// True when none is open afterwards.
    pub(super) fn close_if_idle(&self) -> bool {
        let mut inner = self.inner.lock();
        if !std::mem::take(&mut inner.file_used) {
            inner.file = None;
        }
        inner.file.is_none()
    }
}
