//! The disk side of the cache: finds and evicts blocks as `file.rs` allows, and keeps the accounts. `read.rs` and `write.rs` read and
//! write blocks.
//!
//! No function here returns an error: a failure is a miss, and `health.rs` records it.

use std::io;
use std::time::Instant;

use super::eviction::{Coldest, allowed, to_free};
use super::file::index::Index;
use super::file::open_files::OpenFiles;
use super::file::owner::identity;
use super::file::{Charge, Entry, Eviction, FILE_CHARGE, block_charge};
use super::format::{Identity, Name, SLOT, needs_proof, slot_at};
use super::health::{Doing, Health};
use super::io::{BlockIo, How, Kind, write_full};
use super::proofs::Proofs;
use super::rest::Rest;
use super::sector::Sectors;
use super::waits::Waits;
use super::weight::Share;
use super::{CACHE_BLOCK, Config};
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::object::{ObjectId, Second};
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use crate::sync::{Arc, Mutex};

/// Number of locks under which versions' files are made, loaded and removed. The first byte of a name chooses its lock.
const NAME_LOCKS: usize = 64;

/// First value of this run's clock of uses. Versions loaded from disk have the second of their last write, which is smaller: they are
/// colder.
const FIRST_USE: u64 = 1 << 40;

/// Most rounds of eviction for one put. After the last one the put is dropped: other operations work on all blocks that could be evicted.
const ROUNDS_MAX: u32 = 4;

/// The number of folders to load: one for each first byte of a name.
pub(super) const PREFIXES: u32 = 256;

/// A limit that evictions enforce.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Limit {
    /// The limit on bytes on the disk.
    Disk,
    /// The limit on the index, in memory.
    Index,
}

impl Limit {
    /// The part of a block's charge that counts against this limit.
    fn of(self, charge: Charge) -> u64 {
        match self {
            Self::Disk => charge.disk,
            Self::Index => charge.memory,
        }
    }
}

/// The files of one cache directory, seen by one bucket's mount.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) io: Box<dyn BlockIo>,
    pub(super) index: Index,
    pub(super) metrics: Arc<Metrics>,
    pub(super) clock: Clock,
    pub(super) health: Health,
    /// Operations that wait for the disk.
    pub(super) waits: Arc<Waits>,
    pub(super) scope: Arc<str>,
    /// Whether later runs may serve only versions that this run compared with the store's checksum.
    pub(super) needs_proof: bool,
    pub(super) proofs: Proofs,
    pub(super) files: OpenFiles,
    /// Whether the file system may have fs-verity.
    pub(super) seals: AtomicBool,
    /// The turn of the thread that seals a file.
    pub(super) sealing: Mutex<()>,
    names: Box<[Mutex<()>]>,
    /// Locks that let one put of a block run at a time: two parts of a block may arrive at once, and the cache keeps both. A put also waits
    /// until a rotten block is dropped, so the newly fetched bytes are kept.
    writing: Box<[Mutex<()>]>,
    /// Number of puts: the clock of uses, by which blocks are warm or cold.
    pub(super) uses: Arc<AtomicU64>,
    pub(super) used_bytes: AtomicU64,
    allowed_bytes: AtomicU64,
    /// Memory of the versions in the index, plus the upper bound for puts in progress, in bytes.
    pub(super) index_bytes: Arc<AtomicU64>,
    pub(super) index_max: u64,
    /// The percentage of the file system that stays free; `None` under a fixed limit.
    free_min_percent: Option<u8>,
    evicting: Mutex<()>,
    /// Number of loaded folders: the names with a smaller first byte are in the index.
    loaded: AtomicU32,
}

impl Store {
    /// An empty index over the files that `io` reaches.
    pub(super) fn new(
        io: Box<dyn BlockIo>,
        config: &Config,
        files_max: usize,
        clock: Clock,
        metrics: Arc<Metrics>,
    ) -> Self {
        let scope = format!("{}\n{}", config.endpoint, config.bucket);
        let waits = Waits::new(Rest::new(&config.dir), clock.clone(), Arc::clone(&metrics));
        let store = Self {
            waits: Arc::new(waits),
            needs_proof: needs_proof(&scope),
            proofs: Proofs::default(),
            io,
            index: Index::new(),
            metrics,
            health: Health::new(&config.dir, clock.clone()),
            clock,
            scope: Arc::from(scope.as_str()),
            files: OpenFiles::new(files_max),
            seals: AtomicBool::new(true),
            sealing: Mutex::new(()),
            names: (0..NAME_LOCKS).map(|_| Mutex::new(())).collect(),
            writing: (0..NAME_LOCKS).map(|_| Mutex::new(())).collect(),
            uses: Arc::new(AtomicU64::new(FIRST_USE)),
            used_bytes: AtomicU64::new(0),
            allowed_bytes: AtomicU64::new(config.size_max.unwrap_or(0)),
            index_bytes: Arc::default(),
            index_max: config.index_max,
            free_min_percent: config.size_max.is_none().then_some(config.free_min_percent),
            evicting: Mutex::new(()),
            loaded: AtomicU32::new(0),
        };
        store.look_at_space();
        store
    }

    /// Whether operations may not use the disk: the cache is off, or it rests.
    pub(super) fn is_away(&self) -> bool {
        self.health.is_off() || self.waits.rest.is_resting()
    }

    pub(super) fn identity<'a>(&'a self, id: &'a ObjectId) -> Identity<'a> {
        identity(&self.scope, &id.key, &id.etag, id.modified.map_or(0, Second::get))
    }

    /// Disk space of the loaded versions, in bytes.
    pub(super) fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Relaxed)
    }

    /// The sectors of the block that the cache probably has: all of them, if the version's folder is not loaded yet.
    pub(super) fn present(&self, id: &ObjectId, block: u64) -> Sectors {
        let Ok(block) = u32::try_from(block) else { return Sectors::NONE };
        if self.is_away() {
            return Sectors::NONE;
        }
        let identity = self.identity(id);
        match self.index.get(&identity) {
            Some(entry) => entry.present(block),
            None if self.is_loaded(|| identity.name()) => Sectors::NONE,
            None => Sectors::ALL,
        }
    }

    /// Whether a block put now would be kept: the cache is on, its disk is not full, and its limit has room for one.
    pub(super) fn keeps(&self) -> bool {
        let least = block_charge(CACHE_BLOCK as usize) + FILE_CHARGE;
        !self.is_away() && !self.health.is_full() && self.allowed_bytes.load(Relaxed) >= least
    }

    /// Counts a completed read, and its duration.
    pub(super) fn count_get(&self, started: Instant, hit: bool) {
        self.metrics.cache_get.of("disk").took(self.clock.now().saturating_duration_since(started));
        // The prefetcher counts a miss, after the fetch.
        self.metrics.cache_hits.add(hit.into());
    }

    /// The version in the index. While the index is being loaded, looks on the disk, too.
    pub(super) fn find(&self, identity: &Identity<'_>) -> Option<Arc<Entry>> {
        let known = self.index.get(identity);
        if known.is_some() || self.loaded.load(Relaxed) == PREFIXES {
            return known;
        }
        let name = identity.name();
        if self.is_loaded(|| name) {
            return self.index.get(identity);
        }
        let _making = self.name_lock(&name);
        self.index.get(identity).or_else(|| {
            self.load(&name);
            self.index.get(identity)
        })
    }

    /// Reserves `charge` bytes of the disk and `memory` bytes of the index, and evicts the coldest blocks if need be; `None` if that does
    /// not help. Dropping the returned share releases the reserved memory: the version's real memory is counted as it grows.
    pub(super) fn make_room(&self, charge: u64, memory: u64) -> Option<Share> {
        self.used_bytes.fetch_add(charge, Relaxed);
        let room = Share::new(&self.index_bytes, memory);
        if self.fits(Limit::Disk) && self.fits(Limit::Index) || self.shrink() {
            return Some(room);
        }
        self.used_bytes.fetch_sub(charge, Relaxed);
        if self.allowed_bytes.load(Relaxed) < charge {
            self.health.no_room(self.free_min_percent);
        }
        None
    }

    /// Evicts until the cache is within its limits; false if that fails.
    pub(super) fn shrink(&self) -> bool {
        let _one = self.evicting.lock();
        let fits_disk = self.shrink_below(Limit::Disk);
        self.shrink_below(Limit::Index) && fits_disk
    }

    /// Evicts until the index is within its limit.
    pub(super) fn shrink_index(&self) {
        if !self.fits(Limit::Index) {
            let _one = self.evicting.lock();
            self.shrink_below(Limit::Index);
        }
    }

    /// The bytes in use and the bytes allowed under a limit.
    fn account(&self, limit: Limit) -> (u64, u64) {
        match limit {
            Limit::Disk => (self.used_bytes(), self.allowed_bytes.load(Relaxed)),
            Limit::Index => (self.index_bytes.load(Relaxed), self.index_max),
        }
    }

    fn fits(&self, limit: Limit) -> bool {
        let (used, most) = self.account(limit);
        used <= most
    }

    fn shrink_below(&self, limit: Limit) -> bool {
        for _ in 0..ROUNDS_MAX {
            let (used, most) = self.account(limit);
            let need = to_free(used, most);
            if need == 0 {
                return true;
            }
            if limit == Limit::Index {
                self.health.index_is_full(most);
            }
            if self.evict(need, limit) == 0 {
                break;
            }
        }
        self.fits(limit)
    }

    /// Evicts the coldest blocks because another user of the disk found it full and needs `bytes`. Returns the bytes freed. The cache then
    /// writes nothing for a while, as after a failed write of its own: it does not take the room itself.
    pub(super) fn give_room(&self, bytes: u64) -> u64 {
        if self.is_away() {
            return 0;
        }
        self.health.failure(Doing::Writing, &rustix::io::Errno::NOSPC.into());
        let freed = {
            let _one = self.evicting.lock();
            self.evict(bytes.min(self.used_bytes()), Limit::Disk)
        };
        self.look_at_space();
        freed
    }

    /// Evicts the coldest blocks of about `need` bytes in one round; returns the freed bytes of the disk.
    fn evict(&self, need: u64, limit: Limit) -> u64 {
        let started = self.clock.now();
        let mut coldest = Coldest::new(need);
        self.index.for_each(|entry| {
            entry.for_each_evictable(|block, used, charge| {
                if coldest.wants(used) {
                    coldest.offer(used, limit.of(charge), (Arc::clone(entry), block));
                }
            });
        });
        let mut chosen: Vec<_> = coldest.into_chosen().collect();
        chosen.sort_by_key(|(entry, block)| (Arc::as_ptr(entry), *block));
        let mut freed = 0;
        for of_one in chosen.chunk_by(|a, b| Arc::ptr_eq(&a.0, &b.0)) {
            let blocks: Vec<u32> = of_one.iter().map(|(_, block)| *block).collect();
            let (gone, bytes) = self.evict_blocks(&of_one[0].0, &blocks);
            self.metrics.cache_evictions.add(gone as u64);
            freed += bytes;
        }
        self.metrics.cache_evict.of("disk").took(self.clock.now().saturating_duration_since(started));
        freed
    }

    /// Frees the disk space of blocks. Returns their number and bytes. The space of a version that programs have mapped is free once the
    /// last mapping is gone.
    pub(super) fn evict_blocks(&self, entry: &Arc<Entry>, blocks: &[u32]) -> (usize, u64) {
        let (blocks, bytes) = match entry.evict(blocks) {
            Eviction::Nothing => return (0, 0),
            Eviction::Whole(blocks, bytes) => {
                self.unlink_removed(entry, bytes);
                return (blocks, bytes);
            }
            Eviction::Blocks(blocks, bytes) => (blocks, bytes),
        };
        let punched = self.punch(entry, &blocks);
        entry.punched(&blocks);
        if entry.is_condemned() {
            self.remove(entry);
        }
        self.used_bytes.fetch_sub(bytes, Relaxed);
        let more = match punched {
            Ok(()) => 0,
            // The file system has no holes, or the file is gone: the whole version is removed.
            Err(_) => self.remove_counted(entry),
        };
        (blocks.len(), bytes + more)
    }

    fn punch(&self, entry: &Entry, blocks: &[u32]) -> io::Result<()> {
        let meta = self.io.open(&entry.name, Kind::Meta, How::Write)?;
        let data = self.io.open(&entry.name, Kind::Data, How::Write)?;
        for &block in blocks {
            write_full(&*self.io, &meta, &[0; SLOT], slot_at(entry.slots_at, block))?;
            self.io.punch(&data, u64::from(block) * CACHE_BLOCK, CACHE_BLOCK)?;
        }
        Ok(())
    }

    pub(super) fn remove(&self, entry: &Arc<Entry>) {
        self.remove_counted(entry);
    }

    fn remove_counted(&self, entry: &Arc<Entry>) -> u64 {
        self.unlink_if(entry, Entry::remove_whole)
    }

    pub(super) fn unlink_if(&self, entry: &Arc<Entry>, remove: fn(&Entry) -> Option<u64>) -> u64 {
        remove(entry).map_or(0, |bytes| {
            self.unlink_removed(entry, bytes);
            bytes
        })
    }

    /// Condemns a version whose bytes are wrong: reads miss it from now on, and its queued blocks are dropped. Returns the entry to unlink
    /// and its bytes, if its files can be removed at once.
    pub(super) fn condemn(&self, id: &ObjectId) -> Option<(Arc<Entry>, u64)> {
        // Later puts get a later time.
        self.proofs.condemn(id, self.uses.fetch_add(1, Relaxed));
        let entry = self.index.get(&self.identity(id))?;
        let bytes = entry.condemn()?;
        Some((entry, bytes))
    }

    /// Removes the files of a removed version, and then its place in the index. The version can then be cached anew.
    pub(super) fn unlink_removed(&self, entry: &Arc<Entry>, bytes: u64) {
        let _making = self.name_lock(&entry.name);
        self.unlink(&entry.name);
        self.index.remove(entry);
        self.used_bytes.fetch_sub(bytes, Relaxed);
    }

    /// Removes a version's files, the sidecar first: data without a sidecar is ignored, but a sidecar without data would be trusted until a
    /// read compares the CRC.
    pub(super) fn unlink(&self, name: &Name) {
        for kind in [Kind::Meta, Kind::Data] {
            if let Err(e) = self.io.unlink(name, kind) {
                self.health.failure(Doing::Writing, &e);
            }
        }
    }

    pub(super) fn name_lock(&self, name: &Name) -> crate::sync::MutexGuard<'_, ()> {
        self.names[usize::from(name[0]) % NAME_LOCKS].lock()
    }

    /// The lock of a block's puts. Take it before the lock of the name.
    pub(super) fn block_lock(&self, name: &Name, block: u32) -> crate::sync::MutexGuard<'_, ()> {
        self.writing[(usize::from(name[1]) + block as usize) % NAME_LOCKS].lock()
    }

    /// Adds a version that was found on disk to the index, and its bytes to the account. False if its place is taken.
    pub(super) fn adopt(&self, entry: &Arc<Entry>) -> bool {
        let bytes = entry.charge_all();
        let adopted = self.index.insert(entry);
        if adopted {
            self.used_bytes.fetch_add(bytes, Relaxed);
            if self.free_min_percent.is_some() {
                // The measured free space excludes these bytes already.
                self.allowed_bytes.fetch_add(bytes, Relaxed);
            }
        }
        adopted
    }

    pub(super) fn set_loaded(&self, prefixes: u32) {
        self.loaded.store(prefixes, Relaxed);
    }

    pub(super) fn is_loaded(&self, name: impl FnOnce() -> Name) -> bool {
        let loaded = self.loaded.load(Relaxed);
        loaded == PREFIXES || u32::from(name()[0]) < loaded
    }

    /// Computes the limit on disk space from the free space, unless it is fixed.
    pub(super) fn look_at_space(&self) {
        if let (Some(percent), Ok((free, total))) = (self.free_min_percent, self.io.space()) {
            self.allowed_bytes.store(allowed(self.used_bytes(), free, total, percent), Relaxed);
        }
    }
}
