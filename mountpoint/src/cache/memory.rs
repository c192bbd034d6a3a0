//! A cache in memory that forgets nothing until told: the twin of the disk's for tests of other rooms.

use std::collections::HashMap;
use std::ops::Range;

use super::{BlockCache, BlockIndex, CACHE_BLOCK};
use crate::buffer::Block;
use crate::object::ObjectId;
use crate::sync::Mutex;

/// Blocks in a map. Puts are there when `put` returns.
#[derive(Debug, Default)]
pub struct MemoryCache {
    blocks: Mutex<HashMap<(ObjectId, BlockIndex), (u64, Block)>>,
}

impl MemoryCache {
    /// Nothing in it.
    pub fn new() -> Self {
        Self::default()
    }

    /// Blocks held.
    pub fn len(&self) -> usize {
        self.blocks.lock().len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Drops a block, as an eviction would; whether it was there.
    pub fn forget(&self, id: &ObjectId, block: BlockIndex) -> bool {
        self.blocks.lock().remove(&(id.clone(), block)).is_some()
    }
}

impl BlockCache for MemoryCache {
    fn contains(&self, id: &ObjectId, block: BlockIndex) -> bool {
        self.blocks.lock().contains_key(&(id.clone(), block))
    }

    fn read(&self, id: &ObjectId, object_size: u64, range: Range<u64>, into: &mut [u8]) -> bool {
        let block = range.start / CACHE_BLOCK;
        let start = (range.start - block * CACHE_BLOCK) as usize;
        let blocks = self.blocks.lock();
        let held = blocks.get(&(id.clone(), block)).filter(|(size, _)| *size == object_size);
        match held.and_then(|(_, bytes)| bytes.get(start..start + into.len())) {
            Some(bytes) => {
                into.copy_from_slice(bytes);
                true
            }
            None => false,
        }
    }

    fn put(&self, id: &ObjectId, object_size: u64, block: BlockIndex, bytes: Block) {
        self.blocks.lock().insert((id.clone(), block), (object_size, bytes));
    }
}
