//! One object version in the cache: which sectors of which blocks it has, their checksums, and the operations under way on it.
//!
//! State under one short lock, without disk access: `store.rs` does the I/O that this file permits. A sector is written only when it was
//! absent, a block is punched only while no thread writes to it, and readers compare what they read with its checksum: bytes that differ
//! are rot if the block's `born` is still the same, and an eviction if it is not.
//!
//! A version that was lent to the kernel once is never changed again: a program's mapping of its file outlives the program's descriptor,
//! and the kernel does not report the mapping's end. Such a version is evicted as a whole, by unlinking its files; the bytes stay on the
//! disk until the last mapping is gone.

mod blocks;
pub(super) mod index;
pub(super) mod open_files;
pub(super) mod owner;

use std::os::fd::OwnedFd;
use std::time::Instant;

use super::CACHE_BLOCK;
use super::format::{Header, Identity, Name, block_len};
use super::sector::Sectors;
use super::sums::Sums;
use super::weight::{Share, heap};
use crate::object::ObjectId;
use crate::sync::atomic::AtomicU64;
use crate::sync::{Arc, Mutex};
use blocks::{Blocks, State, Stored};
use owner::Owner;

/// Unit in which a file system allocates space, in bytes.
const PAGE: u64 = 4096;

/// The disk space of a version's two files before they hold a block, in bytes (inodes aside): the first page of the sidecar.
pub(super) const FILE_CHARGE: u64 = PAGE;

/// The disk space of a block of `len` bytes: its pages, and at most one page of the sidecar for its slot.
pub(super) fn block_charge(len: usize) -> u64 {
    (len as u64).next_multiple_of(PAGE) + PAGE
}

/// Estimated memory of a version without blocks and texts, in bytes: the entry with the two counters of its `Arc`, and its slot in the map,
/// which has room for twice as many entries as it has.
fn empty_memory() -> u64 {
    let place = size_of::<(u64, Arc<Entry>)>() + 1;
    heap(2 * size_of::<usize>() + size_of::<Entry>()) + 2 * place as u64
}

/// Upper bound on the memory that a put of a block of this object takes, in bytes.
pub(super) fn most_memory(id: &ObjectId) -> u64 {
    empty_memory() + owner::memory(&id.key, &id.etag) + blocks::most_memory()
}

/// One object version.
#[derive(Debug)]
pub(super) struct Entry {
    /// The object version of the bytes.
    pub(super) owner: Owner,
    /// The name of the entry's files in the cache's folder.
    pub(super) name: Name,
    /// Size of the whole object, in bytes.
    pub(super) object_size: u64,
    /// The offset at which the sidecar's slots begin.
    pub(super) slots_at: u64,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    blocks: Blocks,
    file: Option<Arc<OwnedFd>>,
    file_used: bool,
    /// Number of writes and punches in progress. The files are not removed while there are any.
    busy: u32,
    /// Number of readers of the data file past the cache. Nothing is evicted while there are any.
    holds: u32,
    /// Time when a reader past the cache last began or ended, on the same clock as `used` of blocks.
    held: u64,
    /// Whether the file was ever lent, in this run or an earlier one.
    lent: bool,
    /// Whether the file may be lent: this run found that it ends where the object does, and marked it on the disk.
    lends: bool,
    /// The seal of the file in this run.
    seal: Seal,
    /// Whether this run found all sectors sound, and has evicted none since.
    whole: bool,
    /// Time of the oldest comparison (or write) of a sector in this run.
    sound_since: Option<Instant>,
    /// Whether later runs may serve the version.
    proven: bool,
    /// Whether the version is wrong. Its files are removed once no operation uses them.
    condemned: bool,
    removed: bool,
    /// The memory of the entry.
    memory: Share,
}

/// A block found for a read.
#[derive(Debug)]
pub(super) struct Seen {
    /// Checksums of the wanted sectors.
    pub(super) crcs: Box<[u32]>,
    pub(super) born: u64,
    /// Whether this run already found the sectors sound.
    pub(super) known: bool,
    /// The data file, while it is open.
    pub(super) file: Option<Arc<OwnedFd>>,
}

/// Permission to write sectors of a block.
#[derive(Debug)]
pub(super) struct Claim {
    /// The sectors to write: those that the cache lacks.
    pub(super) new: Sectors,
    /// The sectors that the cache has, with their checksums.
    pub(super) before: Sums,
    /// The additional disk space of the new sectors, in bytes.
    pub(super) charge: u64,
}

/// The disk space and memory that a block takes, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Charge {
    /// Bytes on the disk.
    pub(super) disk: u64,
    /// Bytes in the index: the block's part of the version's memory.
    pub(super) memory: u64,
}

/// The seal of a version's file in this run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Seal {
    /// This run has not sealed the file.
    None,
    /// This run seals the file, or has, and has not found it sound since.
    Unsure,
    /// The file is sealed and was sound behind the seal, or can't be sealed.
    Settled,
}

/// The steps that an eviction leaves to its caller.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Eviction {
    /// The version is evicted as a whole, because it has no other blocks or was lent: remove its files. The fields count its blocks and
    /// bytes.
    Whole(usize, u64),
    /// Punch these blocks, which have this many bytes, then call [`Entry::punched`].
    Blocks(Vec<u32>, u64),
    /// Nothing to do: the blocks are gone, or a reader or another operation uses them.
    Nothing,
}

impl Entry {
    /// Creates the entry of a decoded (or just encoded) header and the blocks in its slots. `account` counts the entry's memory while it
    /// lives.
    pub(super) fn new(
        owner: Owner,
        name: Name,
        header: &Header<'_>,
        blocks: impl IntoIterator<Item = (u32, Sums)>,
        used: u64,
        account: &Arc<AtomicU64>,
    ) -> Self {
        debug_assert_eq!(owner.identity(), header.identity);
        let blocks: Blocks = blocks
            .into_iter()
            .map(|(block, sums)| {
                (block, Stored { sums, sound: Sectors::NONE, state: State::Stored, born: 0, used })
            })
            .collect();
        let memory = Share::new(account, empty_memory() + owner.memory() + blocks.memory());
        let inner = Inner {
            blocks,
            file: None,
            file_used: false,
            busy: 0,
            holds: 0,
            held: 0,
            lent: false,
            lends: false,
            seal: Seal::None,
            whole: false,
            sound_since: None,
            proven: header.is_proven,
            condemned: false,
            removed: false,
            memory,
        };
        Self {
            owner,
            name,
            object_size: header.object_size,
            slots_at: header.slots_at,
            inner: Mutex::new(inner),
        }
    }

    /// Updates the account after a change of the blocks.
    fn weigh(&self, inner: &mut Inner) {
        inner.memory.set(empty_memory() + self.owner.memory() + inner.blocks.memory());
    }

    /// The object version of the bytes.
    pub(super) fn identity(&self) -> Identity<'_> {
        self.owner.identity()
    }

    /// The disk space of sectors of a block.
    fn charge(&self, block: u32, present: Sectors) -> u64 {
        block_charge(present.len(block_len(self.object_size, block.into()) as u64) as usize)
    }

    /// The disk space of the whole version.
    pub(super) fn charge_all(&self) -> u64 {
        FILE_CHARGE + self.charge_blocks(&self.inner.lock())
    }

    fn charge_blocks(&self, inner: &Inner) -> u64 {
        inner.blocks.iter().map(|(b, s)| self.charge(b, s.sums.present())).sum()
    }

    /// The readable sectors of the block.
    pub(super) fn present(&self, block: u32) -> Sectors {
        let inner = self.inner.lock();
        inner
            .blocks
            .get(block)
            .filter(|b| b.state != State::Moving && !inner.condemned)
            .map_or(Sectors::NONE, |b| b.sums.present())
    }

    /// Begins a read of sectors of the block: returns their checksums, and the data file if it is open. `None` if the cache lacks one of
    /// them.
    pub(super) fn look(&self, block: u32, wanted: Sectors, now: u64) -> Option<Seen> {
        let mut inner = self.inner.lock();
        if inner.condemned {
            return None;
        }
        inner.file_used = true;
        let file = inner.file.clone();
        let look = |stored: &mut Stored| {
            if stored.state == State::Moving {
                return None;
            }
            stored.used = now;
            let known = stored.sound.contains(wanted);
            stored.sums.of(wanted).map(|crcs| Seen { crcs: crcs.into(), born: stored.born, known, file })
        };
        inner.blocks.change(block, look).flatten()
    }

    /// Notes that a read found sectors of the block equal to their checksums. The note has no effect on a block that was replaced
    /// meanwhile.
    pub(super) fn found_sound(&self, block: u32, born: u64, sectors: Sectors, now: Instant) {
        let mut inner = self.inner.lock();
        inner.sound_since.get_or_insert(now);
        inner.blocks.change(block, |stored| {
            if stored.born == born {
                stored.sound = stored.sound.and(sectors);
            }
        });
    }

    /// Whether all comparisons of sectors in this run took place at `then` or later, and there was one. Always true without `then`.
    pub(super) fn is_sound_since(&self, then: Option<Instant>) -> bool {
        let since = self.inner.lock().sound_since;
        then.is_none_or(|then| since.is_some_and(|since| since >= then))
    }

    /// Notes a comparison of all sectors that began at `now`.
    pub(super) fn compared(&self, now: Instant) {
        self.inner.lock().sound_since = Some(now);
    }

    /// Marks the entry as lent by an earlier run. `None` if a part is missing: it can't be added, since programs may still read the file.
    pub(super) fn was_lent(self) -> Option<Self> {
        let mut inner = self.inner.lock();
        let is_whole = self.is_whole(&inner, |stored| stored.sums.present());
        inner.lent = is_whole;
        drop(inner);
        is_whole.then_some(self)
    }

    /// Whether all blocks are on disk, each with all its sectors in `sectors`.
    fn is_whole(&self, inner: &Inner, sectors: impl Fn(&Stored) -> Sectors) -> bool {
        inner.blocks.len() as u64 == self.object_size.div_ceil(CACHE_BLOCK)
            && inner.blocks.iter().all(|(block, stored)| {
                let len = block_len(self.object_size, block.into()) as u64;
                stored.state == State::Stored && sectors(stored).contains(Sectors::touching(&(0..len)))
            })
    }

    /// Protects the version from eviction and marks it as lent, if the cache has all its bytes and found them sound. Returns whether it
    /// does. [`Entry::let_go`] ends the hold.
    pub(super) fn hold(&self, now: u64) -> bool {
        let mut inner = self.inner.lock();
        if inner.removed || inner.condemned {
            return false;
        }
        inner.whole = inner.whole || self.is_whole(&inner, |stored| stored.sound);
        if inner.whole {
            inner.holds += 1;
            inner.held = now;
            inner.lent = true;
        }
        inner.whole
    }

    /// Protects the version from eviction during a comparison with the store's checksum, if it is complete and not proven yet. Returns
    /// whether it does. [`Entry::let_go`] ends the hold.
    pub(super) fn hold_unproven(&self) -> bool {
        let mut inner = self.inner.lock();
        let is_due = !inner.removed
            && !inner.proven
            && !inner.condemned
            && inner.busy == 0
            && self.is_whole(&inner, |stored| stored.sums.present());
        inner.holds += u32::from(is_due);
        is_due
    }

    /// Whether the version is complete, but not proven yet, so later runs may not serve it.
    pub(super) fn awaits_proof(&self) -> bool {
        let inner = self.inner.lock();
        !inner.removed
            && !inner.proven
            && !inner.condemned
            && self.is_whole(&inner, |stored| stored.sums.present())
    }

    /// Sets whether later runs may serve the version, and returns the earlier value.
    pub(super) fn set_proven(&self, proven: bool) -> bool {
        std::mem::replace(&mut self.inner.lock().proven, proven)
    }

    /// Condemns a version whose bytes are wrong: from now on reads miss it. Returns the bytes that the version took, if its files can be
    /// removed at once; otherwise the operation in progress removes them.
    pub(super) fn condemn(&self) -> Option<u64> {
        let mut inner = self.inner.lock();
        inner.condemned = true;
        (!inner.removed && inner.busy == 0).then(|| self.clear(&mut inner))
    }

    /// Whether the version was condemned and its files still exist.
    pub(super) fn is_condemned(&self) -> bool {
        let inner = self.inner.lock();
        inner.condemned && !inner.removed
    }

    /// Ends a hold.
    pub(super) fn let_go(&self, now: u64) {
        let mut inner = self.inner.lock();
        inner.holds -= 1;
        inner.held = now;
    }

    /// Whether the data file was ever lent: programs may still read it past the cache.
    pub(super) fn is_lent(&self) -> bool {
        self.inner.lock().lent
    }

    /// The seal of the data file in this run.
    pub(super) fn seal(&self) -> Seal {
        self.inner.lock().seal
    }

    /// Notes the seal of the data file.
    pub(super) fn set_seal(&self, seal: Seal) {
        self.inner.lock().seal = seal;
    }

    /// Allows lending of the data file, unless the version is removed.
    pub(super) fn lends(&self) {
        let mut inner = self.inner.lock();
        inner.lends = !inner.removed;
    }

    /// The open file, if it may be lent.
    pub(super) fn lent_file(&self) -> Option<Arc<OwnedFd>> {
        let mut inner = self.inner.lock();
        inner.file_used = true;
        inner.file.clone().filter(|_| inner.lends)
    }

    /// Whether the version's files are removed, or about to be.
    pub(super) fn is_removed(&self) -> bool {
        self.inner.lock().removed
    }

    /// Whether the block is still the one that a read saw. If so, bytes that do not match their checksum are rot.
    pub(super) fn still(&self, block: u32, born: u64) -> bool {
        let inner = self.inner.lock();
        inner.blocks.get(block).is_some_and(|b| b.state != State::Moving && b.born == born)
    }

    /// Begins a write of the sectors that the block lacks. `None` if there are none, another operation works on the block, or the version
    /// is removed. [`Entry::wrote`] ends the write.
    pub(super) fn claim(&self, block: u32, sectors: Sectors, born: u64) -> Option<Claim> {
        let mut inner = self.inner.lock();
        if inner.removed || inner.condemned {
            return None;
        }
        let before = match inner.blocks.get(block) {
            None => {
                let (sums, sound) = (Sums::default(), Sectors::NONE);
                inner.blocks.insert(block, Stored { sums, sound, state: State::Moving, born, used: born });
                self.weigh(&mut inner);
                Sums::default()
            }
            Some(stored) if stored.state == State::Stored && !stored.sums.present().contains(sectors) => {
                let sums = stored.sums.clone();
                inner.blocks.change(block, |stored| (stored.state, stored.used) = (State::Growing, born));
                sums
            }
            Some(_) => return None,
        };
        inner.busy += 1;
        let present = before.present();
        let (new, all) = (sectors.without(present), sectors.and(present));
        let charged = if present.is_empty() { 0 } else { self.charge(block, present) };
        Some(Claim { new, before, charge: self.charge(block, all) - charged })
    }

    /// Ends a write. `Some` has all sectors of the block, after data and slot were written; `None` means that the write failed.
    pub(super) fn wrote(&self, block: u32, whole: Option<Sums>, now: Instant) {
        let mut inner = self.inner.lock();
        inner.busy -= 1;
        inner.sound_since.get_or_insert(now);
        let is_empty = inner.blocks.change(block, |stored| {
            stored.state = State::Stored;
            if let Some(sums) = whole {
                stored.sound = stored.sound.and(sums.present().without(stored.sums.present()));
                stored.sums = sums;
            }
            stored.sums.present().is_empty()
        });
        if is_empty == Some(true) {
            inner.blocks.remove(block);
        }
        self.weigh(&mut inner);
    }

    /// Begins the eviction of these blocks.
    pub(super) fn evict(&self, blocks: &[u32]) -> Eviction {
        let mut inner = self.inner.lock();
        let here = |inner: &Inner, b: &u32| inner.blocks.get(*b).is_some_and(|s| s.state == State::Stored);
        let going: Vec<u32> = blocks.iter().copied().filter(|b| here(&inner, b)).collect();
        if inner.removed || inner.holds > 0 || going.is_empty() {
            return Eviction::Nothing;
        }
        if inner.busy == 0 && (inner.lent || going.len() == inner.blocks.len()) {
            let blocks = inner.blocks.len();
            return Eviction::Whole(blocks, self.clear(&mut inner));
        }
        if inner.lent {
            return Eviction::Nothing;
        }
        inner.whole = false;
        inner.busy += 1;
        let mut bytes = 0;
        for &block in &going {
            inner.blocks.change(block, |stored| {
                stored.state = State::Moving;
                bytes += self.charge(block, stored.sums.present());
            });
        }
        Eviction::Blocks(going, bytes)
    }

    /// Notes that the blocks named by [`Entry::evict`] were punched.
    pub(super) fn punched(&self, blocks: &[u32]) {
        let mut inner = self.inner.lock();
        inner.busy -= 1;
        for &block in blocks {
            inner.blocks.remove(block);
        }
        self.weigh(&mut inner);
    }

    /// Removes the whole version. Returns the bytes that it took, or `None` if another operation uses the version or removes it already.
    pub(super) fn remove_whole(&self) -> Option<u64> {
        let mut inner = self.inner.lock();
        (!inner.removed && inner.busy == 0).then(|| self.clear(&mut inner))
    }

    /// Removes the entry as [`Entry::remove_whole`] does, but only if it has no block.
    pub(super) fn remove_empty(&self) -> Option<u64> {
        let mut inner = self.inner.lock();
        (!inner.removed && inner.busy == 0 && inner.blocks.is_empty()).then(|| self.clear(&mut inner))
    }

    fn clear(&self, inner: &mut Inner) -> u64 {
        (inner.removed, inner.whole, inner.lends) = (true, false, false);
        inner.file = None;
        let bytes = self.charge_blocks(inner);
        inner.blocks = Blocks::default();
        self.weigh(inner);
        FILE_CHARGE + bytes
    }

    /// Visits each block that could be evicted, with the time of its last use and its charge. A lent version is evicted as a whole: it gets
    /// one visit, with its latest use and the charge of the whole version. A held version gets none.
    pub(super) fn for_each_evictable(&self, mut visit: impl FnMut(u32, u64, Charge)) {
        let inner = self.inner.lock();
        if inner.holds > 0 {
            return;
        }
        let memory = inner.memory.bytes();
        if inner.lent {
            let used = inner.blocks.iter().map(|(_, stored)| stored.used).fold(inner.held, u64::max);
            if let Some((block, _)) = inner.blocks.iter().next() {
                visit(block, used, Charge { disk: FILE_CHARGE + self.charge_blocks(&inner), memory });
            }
            return;
        }
        let memory = memory / inner.blocks.len().max(1) as u64;
        for (block, stored) in inner.blocks.iter().filter(|(_, s)| s.state == State::Stored) {
            visit(block, stored.used, Charge { disk: self.charge(block, stored.sums.present()), memory });
        }
    }

    /// The estimated memory of the version, in bytes.
    #[cfg(test)]
    pub(super) fn memory(&self) -> u64 {
        self.inner.lock().memory.bytes()
    }

    /// The data file, if it is open.
    pub(super) fn file(&self) -> Option<Arc<OwnedFd>> {
        let mut inner = self.inner.lock();
        inner.file_used = true;
        inner.file.clone()
    }

    /// Keeps the data file open for the next read. False (and the file is not kept) if a file is open already, or the version is removed.
    pub(super) fn keep(&self, file: &Arc<OwnedFd>) -> bool {
        let mut inner = self.inner.lock();
        if inner.removed || inner.file.is_some() {
            return false;
        }
        inner.file = Some(Arc::clone(file));
        true
    }

    /// Releases the open file if no read used it since the last call. The caller drops the file without a lock: the drop closes it, unless
    /// a read still uses it.
    ///
    /// # Errors
    /// A read used the file.
    pub(super) fn close_if_idle(&self) -> Result<Option<Arc<OwnedFd>>, ()> {
        let mut inner = self.inner.lock();
        if inner.file.is_some() && std::mem::take(&mut inner.file_used) {
            return Err(());
        }
        Ok(inner.file.take())
    }
}
