//! A block cache in memory that evicts only on a call: a test double of the disk cache, for tests of other rooms.

use std::collections::HashMap;
use std::ops::Range;

use super::sector::bytes_of;
use super::{BlockCache, BlockIndex, CACHE_BLOCK, Given, Later, Now, Sectors};
use crate::buffer::{Block, BlockMut};
use crate::object::ObjectId;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Blocks in a map. Puts are there when `put` returns.
#[derive(Debug, Default)]
pub struct MemoryCache {
    blocks: Mutex<HashMap<(ObjectId, BlockIndex), Held>>,
    full: AtomicBool,
}

#[derive(Debug)]
struct Held {
    object_size: u64,
    present: Sectors,
    bytes: Vec<u8>,
}

impl MemoryCache {
    /// An empty cache.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of blocks.
    pub fn len(&self) -> usize {
        self.blocks.lock().len()
    }

    /// Whether the cache has no block.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes the cache refuse new blocks from now on, like one with a full disk.
    pub fn fill_up(&self) {
        self.full.store(true, Relaxed);
    }

    /// Drops a block, as an eviction would. Returns whether the cache had the block.
    pub fn forget(&self, id: &ObjectId, block: BlockIndex) -> bool {
        self.blocks.lock().remove(&(id.clone(), block)).is_some()
    }
}

impl BlockCache for MemoryCache {
    fn present(&self, id: &ObjectId, block: BlockIndex) -> Sectors {
        self.blocks.lock().get(&(id.clone(), block)).map_or(Sectors::NONE, |held| held.present)
    }

    fn keeps(&self) -> bool {
        !self.full.load(Relaxed)
    }

    fn read(&self, id: &ObjectId, object_size: u64, range: Range<u64>, into: &mut [u8]) -> bool {
        let block = range.start / CACHE_BLOCK;
        let range = range.start - block * CACHE_BLOCK..range.end - block * CACHE_BLOCK;
        let blocks = self.blocks.lock();
        let held = blocks.get(&(id.clone(), block)).filter(|held| held.object_size == object_size);
        let here = held.filter(|held| held.present.contains(Sectors::touching(&range)));
        match here.and_then(|held| held.bytes.get(range.start as usize..range.end as usize)) {
            Some(bytes) => {
                into.copy_from_slice(bytes);
                true
            }
            None => false,
        }
    }

    fn read_now(&self, id: &ObjectId, object_size: u64, range: Range<u64>, into: &mut [u8]) -> Now {
        if self.read(id, object_size, range, into) { Now::Here } else { Now::Absent }
    }

    fn read_later(
        &self,
        id: &ObjectId,
        object_size: u64,
        range: Range<u64>,
        mut into: BlockMut,
        done: Later,
    ) {
        let is_here = self.read(id, object_size, range, into.spare());
        done(if is_here { Given::Here(into) } else { Given::Absent(into) });
    }

    fn drop_version(&self, id: &ObjectId) {
        self.blocks.lock().retain(|(of, _), _| of != id);
    }

    fn put(&self, id: &ObjectId, object_size: u64, offset: u64, bytes: Block) {
        if !self.keeps() {
            return;
        }
        let block = offset / CACHE_BLOCK;
        let len = object_size.saturating_sub(block * CACHE_BLOCK).min(CACHE_BLOCK);
        let start = offset - block * CACHE_BLOCK;
        let sectors = Sectors::within(&(start..start + bytes.len() as u64), len);
        if sectors.is_empty() {
            return;
        }
        let mut blocks = self.blocks.lock();
        let held = blocks.entry((id.clone(), block)).or_insert_with(|| Held {
            object_size,
            present: Sectors::NONE,
            bytes: vec![0; len as usize],
        });
        for sector in sectors.numbers().map(|n| bytes_of(n, len)) {
            let from = (sector.start - start) as usize..(sector.end - start) as usize;
            held.bytes[sector.start as usize..sector.end as usize].copy_from_slice(&bytes[from]);
        }
        held.present = held.present.and(sectors);
    }
}
