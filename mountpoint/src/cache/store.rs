//! The disk side of the cache: reads, writes and evicts blocks as `file.rs` allows, keeps the accounts.
//!
//! Nothing here returns an error: what goes wrong is a miss, and `health.rs` hears of it.

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;

use super::eviction::{Coldest, allowed, to_free};
use super::file::{Entry, FILE_CHARGE, Leave, block_charge};
use super::format::{
    Header, Identity, Name, OBJECT_MAX, block_len, crc32c, encode_header, encode_slot, slot_at,
};
use super::health::{Doing, Health};
use super::index::{Index, Owner, identity};
use super::io::{BlockIo, How, Kind};
use super::open_files::OpenFiles;
use super::{CACHE_BLOCK, Config};
use crate::checksum::{ChecksumAlgorithm, Hasher};
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::object::ObjectId;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use crate::sync::{Arc, Mutex};

/// Locks under which a version's files are made, loaded and removed; by the first byte of the name.
const NAME_LOCKS: usize = 64;

/// Uses of this run count from here; versions loaded from disk count by the second they were written, and are colder.
const FIRST_USE: u64 = 1 << 40;

/// How much is read at once to verify a block of which only a part was asked, in bytes.
const VERIFY_CHUNK: usize = 128 << 10;

/// Puts between two looks at the free space of the file system.
const SPACE_EVERY: u64 = 64;

/// Rounds of eviction for one put, after which it is dropped: others are at work on all that could go.
const ROUNDS_MAX: u32 = 4;

/// First bytes of a folder's name, all of them: how many there are to load.
pub(super) const PREFIXES: u32 = 256;

/// The files of one cache directory, seen by one bucket's mount.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) io: Box<dyn BlockIo>,
    pub(super) index: Index,
    pub(super) metrics: Arc<Metrics>,
    pub(super) health: Health,
    scope: Arc<str>,
    files: OpenFiles,
    names: Box<[Mutex<()>]>,
    /// Counts puts: the time by which blocks are warm or cold.
    uses: AtomicU64,
    used_bytes: AtomicU64,
    allowed_bytes: AtomicU64,
    /// Keep so many percent of the file system free; `None` under a fixed limit.
    free_min_percent: Option<u8>,
    evicting: Mutex<()>,
    /// Names that begin with a smaller byte are in the index.
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
        let store = Self {
            io,
            index: Index::new(),
            metrics,
            health: Health::new(&config.dir, clock),
            scope: Arc::from(format!("{}\n{}", config.endpoint, config.bucket).as_str()),
            files: OpenFiles::new(files_max),
            names: (0..NAME_LOCKS).map(|_| Mutex::new(())).collect(),
            uses: AtomicU64::new(FIRST_USE),
            used_bytes: AtomicU64::new(0),
            allowed_bytes: AtomicU64::new(config.size_max.unwrap_or(0)),
            free_min_percent: config.size_max.is_none().then_some(config.free_min_percent),
            evicting: Mutex::new(()),
            loaded: AtomicU32::new(0),
        };
        store.look_at_space();
        store
    }

    fn identity<'a>(&'a self, id: &'a ObjectId) -> Identity<'a> {
        identity(&self.scope, &id.key, &id.etag)
    }

    /// Bytes the cache takes on disk, as far as it is loaded.
    pub(super) fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Relaxed)
    }

    /// Whether the block is thought to be here; a version whose folder is not loaded yet might be.
    pub(super) fn contains(&self, id: &ObjectId, block: u64) -> bool {
        let Ok(block) = u32::try_from(block) else { return false };
        if self.health.is_off() {
            return false;
        }
        let identity = self.identity(id);
        match self.index.get(&identity) {
            Some(entry) => entry.contains(block),
            None => !self.is_loaded(|| identity.name()),
        }
    }

    /// Reads `range`, which lies in one block, into `into`; see [`super::BlockCache::read`].
    pub(super) fn read(&self, id: &ObjectId, object_size: u64, range: &Range<u64>, into: &mut [u8]) -> bool {
        if self.health.is_off() {
            return false;
        }
        let Some(entry) = self.find(&self.identity(id)) else { return false };
        if entry.object_size != object_size {
            self.metrics.cache_corrupt.inc();
            self.remove(&entry);
            return false;
        }
        let block = (range.start / CACHE_BLOCK) as u32; // versions in the index are below OBJECT_MAX
        let Some(seen) = entry.look(block, self.uses.load(Relaxed)) else { return false };
        let file = match seen.file.map_or_else(|| self.open(&entry), Ok) {
            Ok(file) => file,
            Err(e) => {
                self.unsound(&entry, None, Some(&e));
                return false;
            }
        };
        if seen.verified {
            return match read_full(&*self.io, &file, into, range.start) {
                Ok(()) => entry.still(block, seen.born),
                Err(e) => self.doubt(&entry, block, seen.born, Some(&e)),
            };
        }
        match self.read_verifying(&file, block_len(object_size, block.into()), range, into) {
            Ok(crc) if crc == seen.crc => {
                self.health.success();
                entry.verified(block, seen.born)
            }
            Ok(_) => self.doubt(&entry, block, seen.born, None),
            Err(e) => self.doubt(&entry, block, seen.born, Some(&e)),
        }
    }

    /// Reads the whole block of `len` bytes, gives its CRC32C, and what of it is in `range` to `into`.
    fn read_verifying(
        &self,
        file: &OwnedFd,
        len: usize,
        range: &Range<u64>,
        into: &mut [u8],
    ) -> io::Result<u32> {
        let start = range.start / CACHE_BLOCK * CACHE_BLOCK;
        if into.len() == len {
            read_full(&*self.io, file, into, start)?;
            return Ok(crc32c(into));
        }
        let wanted = (range.start - start) as usize..(range.end - start) as usize;
        let mut hasher = Hasher::new(ChecksumAlgorithm::Crc32c);
        let mut chunk = vec![0; VERIFY_CHUNK.min(len)];
        for at in (0..len).step_by(VERIFY_CHUNK) {
            let chunk = &mut chunk[..VERIFY_CHUNK.min(len - at)];
            read_full(&*self.io, file, chunk, start + at as u64)?;
            hasher.update(chunk);
            let (from, to) = (wanted.start.max(at), wanted.end.min(at + chunk.len()));
            if from < to {
                // copy: a part of a block, once per block and start
                into[from - wanted.start..to - wanted.start].copy_from_slice(&chunk[from - at..to - at]);
            }
        }
        Ok(hasher.finish().value as u32)
    }

    /// A read did not give the block's bytes: unless it left meanwhile, it goes now.
    fn doubt(&self, entry: &Arc<Entry>, block: u32, born: u64, error: Option<&io::Error>) -> bool {
        if entry.still(block, born) {
            self.unsound(entry, Some(block), error);
        }
        false
    }

    /// A block (or the version) is not what the index says.
    fn unsound(&self, entry: &Arc<Entry>, block: Option<u32>, error: Option<&io::Error>) {
        if let Some(error) = error.filter(|e| e.kind() != io::ErrorKind::UnexpectedEof) {
            if !self.health.failure(Doing::Reading, error) {
                return;
            }
        }
        self.metrics.cache_corrupt.inc();
        match block {
            Some(block) => {
                self.evict_blocks(entry, &[block]);
            }
            None => self.remove(entry),
        }
    }

    /// Writes a block; false when it was not: it is here already, there is no room, the disk failed.
    pub(super) fn write(&self, id: &ObjectId, object_size: u64, block: u64, bytes: &[u8]) -> bool {
        let identity = self.identity(id);
        let fits =
            object_size <= OBJECT_MAX && !bytes.is_empty() && block_len(object_size, block) == bytes.len();
        let Ok(block) = u32::try_from(block) else { return false };
        if !fits || !identity.fits() || self.health.is_off() || self.health.is_full() {
            return false;
        }
        let now = self.uses.fetch_add(1, Relaxed) + 1;
        if now.is_multiple_of(SPACE_EVERY) {
            self.look_at_space();
        }
        let charge = block_charge(bytes.len());
        if !self.make_room(charge + FILE_CHARGE) {
            return false;
        }
        let done = self.write_charged(id, object_size, block, bytes, now);
        let kept = match &done {
            Ok(Wrote { new_file, kept }) => u64::from(*new_file) * FILE_CHARGE + u64::from(*kept) * charge,
            Err(_) => 0,
        };
        self.used_bytes.fetch_sub(charge + FILE_CHARGE - kept, Relaxed);
        match done {
            Ok(wrote) => wrote.kept,
            Err(e) => {
                self.health.failure(Doing::Writing, &e);
                self.look_at_space();
                false
            }
        }
    }

    fn write_charged(
        &self,
        id: &ObjectId,
        object_size: u64,
        block: u32,
        bytes: &[u8],
        now: u64,
    ) -> io::Result<Wrote> {
        let (entry, new_file) = self.find_or_create(id, object_size, now)?;
        let Some(entry) = entry else { return Ok(Wrote { new_file, kept: false }) };
        if entry.object_size != object_size {
            self.metrics.cache_corrupt.inc();
            self.remove(&entry);
            return Ok(Wrote { new_file, kept: false });
        }
        let crc = crc32c(bytes);
        if !entry.claim(block, crc, now) {
            return Ok(Wrote { new_file, kept: false });
        }
        let result = self.write_claimed(&entry, block, crc, bytes);
        entry.wrote(block, result.is_ok());
        match result {
            Ok(()) => {
                self.health.success();
                Ok(Wrote { new_file, kept: true })
            }
            Err(e) => {
                if !self.health.failure(Doing::Writing, &e) {
                    tracing::debug!("cache: a block was not written: {e}");
                }
                self.unlink_if(&entry, Entry::leave_empty);
                Ok(Wrote { new_file, kept: false })
            }
        }
    }

    /// Data first, then its slot: a crash between the two leaves a block that is not here.
    fn write_claimed(&self, entry: &Arc<Entry>, block: u32, crc: u32, bytes: &[u8]) -> io::Result<()> {
        let at = u64::from(block) * CACHE_BLOCK;
        let data = self.io.open(&entry.name, Kind::Data, How::Write)?;
        let written = write_full(&*self.io, &data, bytes, at).and_then(|()| {
            let meta = self.io.open(&entry.name, Kind::Meta, How::Write)?;
            let slot = encode_slot(&entry.name, block, crc, bytes.len());
            write_full(&*self.io, &meta, &slot, slot_at(entry.slots_at, block))
        });
        if written.is_err() {
            // What was written is in nobody's account. If this fails too, it is found by its CRC and taken again.
            let _ = self.io.punch(&data, at, bytes.len() as u64);
        }
        written
    }

    /// The version in the index, or on disk while the index is being loaded.
    fn find(&self, identity: &Identity<'_>) -> Option<Arc<Entry>> {
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

    /// The version, its files made if need be (`true` then); `None` when its place in the index is taken.
    fn find_or_create(
        &self,
        id: &ObjectId,
        object_size: u64,
        now: u64,
    ) -> io::Result<(Option<Arc<Entry>>, bool)> {
        let identity = self.identity(id);
        if let Some(entry) = self.find(&identity) {
            return Ok((Some(entry), false));
        }
        let name = identity.name();
        let _making = self.name_lock(&name);
        if let Some(entry) = self.index.get(&identity) {
            return Ok((Some(entry), false));
        }
        let bytes = encode_header(&identity, object_size);
        let header = Header { identity, object_size, slots_at: bytes.len() as u64 };
        let owner = Owner::new(&self.scope, id);
        let entry = Arc::new(Entry::new(owner, name, &header, [], now));
        // The data is emptied before there is a sidecar that could speak of it.
        let made = self.io.open(&name, Kind::Data, How::Create).and_then(|_| {
            let meta = self.io.open(&name, Kind::Meta, How::Create)?;
            write_full(&*self.io, &meta, &bytes, 0)
        });
        if let Err(e) = made {
            self.unlink(&name);
            return Err(e);
        }
        if !self.index.insert(&entry) {
            self.unlink(&name);
            return Ok((None, false));
        }
        Ok((Some(entry), true))
    }

    fn open(&self, entry: &Arc<Entry>) -> io::Result<Arc<OwnedFd>> {
        if let Some(file) = entry.file() {
            return Ok(file);
        }
        let file = Arc::new(self.io.open(&entry.name, Kind::Data, How::Read)?);
        self.files.keep(entry, &file);
        Ok(file)
    }

    /// Takes `charge` bytes of the limit, evicting what is coldest if need be; false when that does not help.
    fn make_room(&self, charge: u64) -> bool {
        self.used_bytes.fetch_add(charge, Relaxed);
        let fits = self.used_bytes() <= self.allowed_bytes.load(Relaxed) || self.shrink();
        if !fits {
            self.used_bytes.fetch_sub(charge, Relaxed);
        }
        fits
    }

    /// Evicts until the cache is within its limit; false when it is not in the end.
    pub(super) fn shrink(&self) -> bool {
        let _one = self.evicting.lock();
        for _ in 0..ROUNDS_MAX {
            let need = to_free(self.used_bytes(), self.allowed_bytes.load(Relaxed));
            if need == 0 {
                return true;
            }
            if self.evict(need) == 0 {
                break;
            }
        }
        self.used_bytes() <= self.allowed_bytes.load(Relaxed)
    }

    /// One round: the coldest blocks of about `need` bytes go. The bytes that went.
    fn evict(&self, need: u64) -> u64 {
        let mut coldest = Coldest::new(need);
        self.index.for_each(|entry| {
            entry.for_each_evictable(|block, used| {
                if coldest.wants(used) {
                    coldest.offer(used, entry.charge(block), (Arc::clone(entry), block));
                }
            });
        });
        let mut chosen: Vec<_> = coldest.into_chosen().collect();
        chosen.sort_by_key(|(entry, block)| (Arc::as_ptr(entry), *block));
        let mut freed = 0;
        for of_one in chosen.chunk_by(|a, b| Arc::ptr_eq(&a.0, &b.0)) {
            let blocks: Vec<u32> = of_one.iter().map(|(_, block)| *block).collect();
            let bytes = self.evict_blocks(&of_one[0].0, &blocks);
            if bytes > 0 {
                self.metrics.cache_evictions.add(blocks.len() as u64);
            }
            freed += bytes;
        }
        freed
    }

    /// Frees the disk space of blocks; the bytes freed.
    fn evict_blocks(&self, entry: &Arc<Entry>, blocks: &[u32]) -> u64 {
        let (blocks, bytes) = match entry.leave(blocks) {
            Leave::Nothing => return 0,
            Leave::Whole(bytes) => {
                self.unlink_left(entry, bytes);
                return bytes;
            }
            Leave::Blocks(blocks, bytes) => (blocks, bytes),
        };
        let punched = self.punch(entry, &blocks);
        entry.punched(&blocks);
        self.used_bytes.fetch_sub(bytes, Relaxed);
        match punched {
            Ok(()) => bytes,
            // A file system without holes, or a file that is gone: then the version leaves as a whole.
            Err(_) => bytes + self.remove_counted(entry),
        }
    }

    fn punch(&self, entry: &Entry, blocks: &[u32]) -> io::Result<()> {
        let meta = self.io.open(&entry.name, Kind::Meta, How::Write)?;
        let data = self.io.open(&entry.name, Kind::Data, How::Write)?;
        for &block in blocks {
            write_full(&*self.io, &meta, &[0; super::format::SLOT], slot_at(entry.slots_at, block))?;
            self.io.punch(&data, u64::from(block) * CACHE_BLOCK, CACHE_BLOCK)?;
        }
        Ok(())
    }

    fn remove(&self, entry: &Arc<Entry>) {
        self.remove_counted(entry);
    }

    fn remove_counted(&self, entry: &Arc<Entry>) -> u64 {
        self.unlink_if(entry, Entry::leave_whole)
    }

    fn unlink_if(&self, entry: &Arc<Entry>, leave: fn(&Entry) -> Option<u64>) -> u64 {
        leave(entry).map_or(0, |bytes| {
            self.unlink_left(entry, bytes);
            bytes
        })
    }

    /// Removes the files of a version that left, and then its place in the index, so that it can come anew.
    fn unlink_left(&self, entry: &Arc<Entry>, bytes: u64) {
        let _making = self.name_lock(&entry.name);
        self.unlink(&entry.name);
        self.index.remove(entry);
        self.used_bytes.fetch_sub(bytes, Relaxed);
    }

    /// The sidecar first: data without one is nobody's, a sidecar without data would be believed until its CRC is asked.
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

    /// Puts a version that was found on disk into the index and its bytes into the account.
    pub(super) fn adopt(&self, entry: Entry) -> bool {
        let bytes = entry.charge_all();
        let adopted = self.index.insert(&Arc::new(entry));
        if adopted {
            self.used_bytes.fetch_add(bytes, Relaxed);
            if self.free_min_percent.is_some() {
                // What was free already had these bytes taken off.
                self.allowed_bytes.fetch_add(bytes, Relaxed);
            }
        }
        adopted
    }

    pub(super) fn scope(&self) -> &Arc<str> {
        &self.scope
    }

    pub(super) fn set_loaded(&self, prefixes: u32) {
        self.loaded.store(prefixes, Relaxed);
    }

    fn is_loaded(&self, name: impl FnOnce() -> Name) -> bool {
        let loaded = self.loaded.load(Relaxed);
        loaded == PREFIXES || u32::from(name()[0]) < loaded
    }

    /// Without a fixed limit: computes anew what the cache may hold.
    pub(super) fn look_at_space(&self) {
        if let (Some(percent), Ok((free, total))) = (self.free_min_percent, self.io.space()) {
            self.allowed_bytes.store(allowed(self.used_bytes(), free, total, percent), Relaxed);
        }
    }
}

/// What became of a put.
struct Wrote {
    new_file: bool,
    kept: bool,
}

/// Reads until `into` is full.
///
/// # Errors
/// The system's; `UnexpectedEof` when the file ends before.
pub(super) fn read_full(io: &dyn BlockIo, file: &OwnedFd, into: &mut [u8], at: u64) -> io::Result<()> {
    let mut done = 0;
    while done < into.len() {
        match io.read_at(file, &mut into[done..], at + done as u64)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => done += n,
        }
    }
    Ok(())
}

fn write_full(io: &dyn BlockIo, file: &OwnedFd, bytes: &[u8], at: u64) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match io.write_at(file, &bytes[done..], at + done as u64)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            n => done += n,
        }
    }
    Ok(())
}
