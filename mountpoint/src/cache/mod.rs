//! Blocks on the local disk, which the engine need not fetch again.
//!
//! Enters: verified bytes of an object version, block by block; a request for a range. Leaves: checked bytes, or "not here".
//! The engine does not trust the cache: any fault in it is a miss, never an error. This room never asks S3.
//!
//! ```text
//! disk.rs   the interface to the engine; the writers' queue
//! read.rs, write.rs  read sectors, write sectors ... prove.rs, proofs.rs  compare whole versions with the store's checksum
//! store.rs  the accounts, eviction ....... load.rs  loads the files of an earlier run
//! seal.rs, verity.rs  seal whole files, so that the file system verifies what the kernel reads of them
//!   file.rs, file/, sums.rs   which blocks are here, and which operations may touch them (memory only)
//!   weight.rs   what that takes in memory
//!   format.rs, sector.rs, eviction.rs, health.rs   the decisions: which bytes are valid, what to evict, when to stop
//!   io.rs   the system calls ..... waits.rs, rest.rs   what waits for the disk, and when the cache rests
//!   crew.rs, later.rs, ring.rs, bell.rs   the threads that wait for the disk, and io_uring
//! ```
//! One sparse file per object version holds the object's bytes at their offsets. A block is the unit of eviction, a sector the unit
//! of one checksum. The checksum is compared each time the sector is read from the disk, however often it was right before.

mod bell;
mod crew;
mod disk;
mod error;
mod eviction;
mod file;
mod format;
#[cfg(feature = "testing")]
pub mod fuzzing;
mod health;
mod io;
mod later;
mod load;
mod lock;
#[cfg(any(test, feature = "testing"))]
mod memory;
mod proofs;
mod prove;
mod read;
mod rest;
mod ring;
mod seal;
mod sector;
mod store;
mod sums;
#[cfg(test)]
mod tests;
mod verity;
mod waits;
mod weight;
mod write;

use std::fmt::Debug;
use std::ops::Range;
use std::path::PathBuf;

pub use disk::DiskCache;
pub use error::Error;
#[cfg(any(test, feature = "testing"))]
pub use memory::MemoryCache;
pub use read::{Hold, Whole};
pub use sector::{SECTOR, Sectors};

use crate::buffer::{Block, BlockMut};
use crate::checksum::Checksum;
use crate::object::ObjectId;

/// Bytes of a cache block: the unit of eviction, and of fetches by a sequential reader.
pub const CACHE_BLOCK: u64 = 1 << 20;
const _: () = assert!(CACHE_BLOCK as usize == crate::buffer::BLOCK);

/// Number of a block within its object: block `i` covers bytes `i * CACHE_BLOCK..(i + 1) * CACHE_BLOCK`, the last one less.
pub type BlockIndex = u64;

/// The location and the limits of a cache.
#[derive(Clone, Debug)]
pub struct Config {
    /// An existing directory, used by one process at a time. Successive mounts may be of different buckets.
    pub dir: PathBuf,
    /// The store's address. Together with `bucket` it keeps two buckets' objects apart.
    pub endpoint: String,
    /// The bucket's name.
    pub bucket: String,
    /// Most disk space, in bytes; at the limit the coldest blocks are evicted. `None`: as much as leaves [`Config::free_min_percent`] free.
    pub size_max: Option<u64>,
    /// Share of the file system kept free for others when there is no `size_max`, in percent.
    pub free_min_percent: u8,
    /// Most memory for the index, in bytes: beyond it the coldest blocks are evicted, as beyond `size_max`. Doubling it keeps twice as many
    /// small files (half a KiB each), or twice as much of large ones (0.4 KiB for each MiB) on a disk that has room. [`Config::INDEX_MIN`]
    /// is the least useful value.
    pub index_max: u64,
    /// Longest queue of blocks to write; further ones are dropped. Doubling it holds that many MiB more of memory, and keeps more of what a
    /// fast network brings to a slow disk.
    pub queue_max: usize,
    /// Number of writer threads (1 to 16). Doubling it helps a disk that is faster with several writes at once.
    pub writers: usize,
    /// Whether reads that wait for the disk use io_uring, if the system allows it.
    pub ring: bool,
}

impl Config {
    /// The least memory for an index that is of use: 35,000 small files, or 38 GiB in whole blocks. An eighth of the least memory target.
    pub const INDEX_MIN: u64 = 16 << 20;

    /// A configuration with the defaults: 5 % free, 16 MiB for the index, 32 blocks waiting, 2 writers.
    pub fn new(dir: impl Into<PathBuf>, endpoint: impl Into<String>, bucket: impl Into<String>) -> Self {
        Self {
            dir: dir.into(),
            endpoint: endpoint.into(),
            bucket: bucket.into(),
            size_max: None,
            free_min_percent: 5,
            index_max: Self::INDEX_MIN,
            queue_max: 32,
            writers: 2,
            ring: true,
        }
    }
}

/// The answer to a read that may wait for the disk.
#[derive(Debug)]
pub enum Given {
    /// The block's free memory now contains the bytes. The block is not advanced.
    Here(BlockMut),
    /// The cache lacks the bytes, or they are not sound.
    Absent(BlockMut),
    /// The disk has not answered in time. The cache keeps the block, because the disk may still write to it.
    Late,
}

/// The callback of [`BlockCache::read_later`], called once.
pub type Later = Box<dyn FnOnce(Given) + Send>;

/// The callback of [`BlockCache::whole`], called once, with the file if there is one.
pub type Lent = Box<dyn FnOnce(Option<Whole>) + Send>;

/// The answer, from memory, to an open that would let the kernel read the file itself.
#[derive(Debug)]
pub enum Lend {
    /// The kernel may read this file.
    Now(Whole),
    /// There may be such a file; [`BlockCache::whole`] asks the disk.
    Later,
    /// There is no such file.
    No,
}

/// The result of a read that does not wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Now {
    /// All bytes were read, as by [`BlockCache::read`].
    Here,
    /// The cache lacks the bytes, or they are not sound.
    Absent,
    /// The bytes may be on the disk, but not in the page cache. If possible, the cache has requested them from the disk;
    /// [`BlockCache::read`] waits for the disk.
    OnDisk,
}

/// A cache of blocks of object versions.
pub trait BlockCache: Debug + Send + Sync + 'static {
    /// The sectors of the block that the cache probably has. The answer comes from memory, without touching the disk: cheap enough for
    /// every read. Just after a start, a version counts as present until the earlier run's files are indexed.
    fn present(&self, id: &ObjectId, block: BlockIndex) -> Sectors;

    /// Whether the cache would keep a block that is put now. If not, a reader need not fetch more than its program requested.
    fn keeps(&self) -> bool;

    /// Reads `range` of the object (within one block, within the object) into `into`, which has that length.
    ///
    /// `true`: all bytes were read and match their checksums. `false`: the cache lacks bytes, or they are unsound (then it drops them); the
    /// contents of `into` mean nothing. May touch the disk, never the network.
    fn read(&self, id: &ObjectId, object_size: u64, range: Range<u64>, into: &mut [u8]) -> bool;

    /// Reads as [`BlockCache::read`] does, but never waits for the disk.
    fn read_now(&self, id: &ObjectId, object_size: u64, range: Range<u64>, into: &mut [u8]) -> Now;

    /// Reads as [`BlockCache::read`] does, into all of `into`, but returns at once: a thread of the cache waits for the disk and calls
    /// `done`, within seconds, whatever the disk does.
    fn read_later(&self, id: &ObjectId, object_size: u64, range: Range<u64>, into: BlockMut, done: Later);

    /// Looks in memory for a file with the whole object that the kernel may read itself: each byte was compared with its checksum since the
    /// start. [`Lend::No`] if the cache has no such files, or if its disk failed to read one.
    fn lends(&self, _id: &ObjectId, _object_size: u64) -> Lend {
        Lend::No
    }

    /// Finds the file of [`BlockCache::lends`] by asking the disk. Returns at once; `done` is called within seconds, whatever the disk
    /// does.
    fn whole(&self, _id: &ObjectId, _object_size: u64, done: Lent) {
        done(None);
    }

    /// Gives the cache the store's checksum of a whole version. A cache that keeps only compared versions for later mounts reads the
    /// version back once it has all bytes.
    fn expect(&self, _id: &ObjectId, _object_size: u64, _sum: Checksum) {}

    /// Drops a version whose bytes are wrong, and its blocks in the queue of writes. Never waits for the disk.
    fn drop_version(&self, id: &ObjectId);

    /// Keeps the whole sectors among `bytes`, which begin at `offset` of the object and lie within one block (the object's last sector may
    /// be short). Returns at once; the bytes are dropped if the queue is full.
    fn put(&self, id: &ObjectId, object_size: u64, offset: u64, bytes: Block);
}
