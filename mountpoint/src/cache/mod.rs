//! Blocks kept on the local disk, so that what was read once need not be fetched again.
//!
//! Enters: verified bytes of an object version, block by block; a question for a range. Leaves: the bytes, checked, or
//! "not here". A cache is a rumour: whatever is wrong with it is a miss, never an error, and it never asks S3.

use std::fmt::Debug;
use std::ops::Range;

use crate::buffer::Block;
use crate::object::ObjectId;

/// Bytes of a cache block: what a miss fetches, what is evicted at once, what one checksum covers.
pub const CACHE_BLOCK: u64 = 1 << 20;
const _: () = assert!(CACHE_BLOCK as usize == crate::buffer::BLOCK);

/// Number of a block within its object: block `i` covers bytes `i * CACHE_BLOCK..(i + 1) * CACHE_BLOCK`, the last one less.
pub type BlockIndex = u64;

/// Blocks of object versions, by version and index.
pub trait BlockCache: Debug + Send + Sync + 'static {
    /// Whether the block is thought to be here. From memory, without touching the disk: cheap enough for every read.
    fn contains(&self, id: &ObjectId, block: BlockIndex) -> bool;

    /// Reads `range` of the object (within one block, within the object) into `into`, which has that length.
    ///
    /// `true`: every byte is there and verified. `false`: not here, or not sound (then it is dropped); the
    /// contents of `into` mean nothing. May touch the disk, never the network.
    fn read(&self, id: &ObjectId, object_size: u64, range: Range<u64>, into: &mut [u8]) -> bool;

    /// Keeps a whole block (`CACHE_BLOCK` bytes, the last one of the object less). Returns at once; dropped when the
    /// queue is full.
    fn put(&self, id: &ObjectId, object_size: u64, block: BlockIndex, bytes: Block);
}
