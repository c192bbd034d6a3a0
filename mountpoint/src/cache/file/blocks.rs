//! The blocks of one object version, by number. A single block, as most small files have, is stored inline; the second block creates a
//! tree. Pure.

use std::collections::BTreeMap;

use crate::cache::sector::{SECTORS, Sectors};
use crate::cache::sums::Sums;
use crate::cache::weight::heap;

/// Number of blocks for which the smallest tree has room. Larger trees have room for at most twice as many as they have.
const TREE_MIN: usize = 11;

/// Most memory of one additional block, in bytes.
pub(in crate::cache) fn most_memory() -> u64 {
    tree(2) + heap(4 * SECTORS)
}

/// A block that is cached, being written, or being evicted.
#[derive(Debug)]
pub(in crate::cache) struct Stored {
    /// The block's sectors, with their checksums.
    pub(in crate::cache) sums: Sums,
    /// Sectors that this run wrote, or read and compared with their checksums.
    pub(in crate::cache) sound: Sectors,
    pub(in crate::cache) state: State,
    /// Number of the put that wrote the block. If it has changed, the bytes on disk have changed, too.
    pub(in crate::cache) born: u64,
    /// The time of the last read or write; smaller is colder.
    pub(in crate::cache) used: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::cache) enum State {
    /// The block's first sectors are being written, or it is being punched: absent for every reader.
    Moving,
    /// More sectors are being written; the earlier ones can be read.
    Growing,
    /// The block is on disk.
    Stored,
}

/// The blocks of one object, by number.
#[derive(Debug, Default)]
pub(in crate::cache) struct Blocks {
    held: Held,
    /// Memory of all checksums, in bytes.
    sums: u64,
}

#[derive(Debug, Default)]
enum Held {
    #[default]
    None,
    One(u32, Stored),
    /// Two blocks or more.
    Many(BTreeMap<u32, Stored>),
}

impl Blocks {
    /// The number of blocks.
    pub(in crate::cache) fn len(&self) -> usize {
        match &self.held {
            Held::None => 0,
            Held::One(..) => 1,
            Held::Many(blocks) => blocks.len(),
        }
    }

    /// Whether there is no block.
    pub(in crate::cache) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The block of this number.
    pub(in crate::cache) fn get(&self, block: u32) -> Option<&Stored> {
        match &self.held {
            Held::One(number, stored) if *number == block => Some(stored),
            Held::Many(blocks) => blocks.get(&block),
            Held::None | Held::One(..) => None,
        }
    }

    /// The blocks with their numbers, in order.
    pub(in crate::cache) fn iter(&self) -> impl Iterator<Item = (u32, &Stored)> {
        let (one, many) = match &self.held {
            Held::None => (None, None),
            Held::One(block, stored) => (Some((*block, stored)), None),
            Held::Many(blocks) => (None, Some(blocks)),
        };
        one.into_iter().chain(many.into_iter().flatten().map(|(block, stored)| (*block, stored)))
    }

    /// Changes the block of this number, if the cache has one.
    pub(in crate::cache) fn change<R>(
        &mut self,
        block: u32,
        change: impl FnOnce(&mut Stored) -> R,
    ) -> Option<R> {
        let stored = match &mut self.held {
            Held::One(number, stored) if *number == block => stored,
            Held::Many(blocks) => blocks.get_mut(&block)?,
            Held::None | Held::One(..) => return None,
        };
        let before = stored.sums.memory();
        let changed = change(stored);
        self.sums = self.sums - before + stored.sums.memory();
        Some(changed)
    }

    /// Adds a block, or replaces the one of the same number.
    pub(in crate::cache) fn insert(&mut self, block: u32, stored: Stored) {
        self.remove(block);
        self.sums += stored.sums.memory();
        self.held = match std::mem::take(&mut self.held) {
            Held::None => Held::One(block, stored),
            Held::One(other, first) => Held::Many(BTreeMap::from([(other, first), (block, stored)])),
            Held::Many(mut blocks) => {
                blocks.insert(block, stored);
                Held::Many(blocks)
            }
        };
    }

    /// Removes the block of this number, if the cache has one.
    pub(in crate::cache) fn remove(&mut self, block: u32) {
        let gone = match &mut self.held {
            Held::One(number, _) if *number == block => match std::mem::take(&mut self.held) {
                Held::One(_, stored) => Some(stored),
                Held::None | Held::Many(_) => None,
            },
            Held::Many(blocks) => {
                let gone = blocks.remove(&block);
                if blocks.len() == 1
                    && let Some((last, stored)) = blocks.pop_first()
                {
                    self.held = Held::One(last, stored);
                }
                gone
            }
            Held::None | Held::One(..) => None,
        };
        self.sums -= gone.map_or(0, |stored| stored.sums.memory());
    }

    /// Estimated memory of the blocks outside this struct, in bytes.
    pub(in crate::cache) fn memory(&self) -> u64 {
        tree(self.len()) + self.sums
    }
}

impl FromIterator<(u32, Stored)> for Blocks {
    fn from_iter<I: IntoIterator<Item = (u32, Stored)>>(blocks: I) -> Self {
        let mut many: BTreeMap<u32, Stored> = blocks.into_iter().collect();
        let sums = many.values().map(|stored| stored.sums.memory()).sum();
        let held = match many.len() {
            0 | 1 => many.pop_first().map_or(Held::None, |(block, stored)| Held::One(block, stored)),
            _ => Held::Many(many),
        };
        Self { held, sums }
    }
}

/// Estimated memory of a tree with this number of blocks, without their checksums, in bytes.
fn tree(blocks: usize) -> u64 {
    let room = if blocks < 2 { 0 } else { (2 * blocks).max(TREE_MIN) };
    heap(room * size_of::<(u32, Stored)>())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stored(bits: u64, used: u64) -> Stored {
        let sums = Sums::new(Sectors::from_bits(bits), |n| n as u32);
        Stored { sums, sound: Sectors::NONE, state: State::Stored, born: 0, used }
    }

    proptest! {
        /// Compares blocks with a plain map: both have the same content after any steps, and the memory equals that of the same blocks
        /// put there at once.
        #[test]
        fn blocks_are_a_map_and_their_memory_depends_on_what_is_there_alone(
            acts in proptest::collection::vec((0..3u8, 0..6u32, 1u64..), 0..40),
        ) {
            let (mut blocks, mut map) = (Blocks::default(), BTreeMap::new());
            for (used, (act, block, bits)) in (0u64..).zip(acts) {
                match act {
                    0 => {
                        blocks.insert(block, stored(bits, used));
                        map.insert(block, (bits, used));
                    }
                    1 => {
                        let changed = blocks.change(block, |there| *there = stored(bits, used));
                        prop_assert_eq!(changed, map.get_mut(&block).map(|there| *there = (bits, used)));
                    }
                    _ => {
                        blocks.remove(block);
                        map.remove(&block);
                    }
                }
                let there = blocks.iter().map(|(block, s)| (block, (s.sums.present().bits(), s.used)));
                prop_assert!(there.eq(map.clone()));
                prop_assert_eq!((blocks.len(), blocks.is_empty()), (map.len(), map.is_empty()));
                prop_assert_eq!(blocks.get(block).map(|s| s.used), map.get(&block).map(|there| there.1));
                let anew: Blocks = map.iter().map(|(block, there)| (*block, stored(there.0, there.1))).collect();
                prop_assert_eq!(blocks.memory(), anew.memory());
            }
        }
    }

    #[test]
    fn one_block_more_takes_no_more_than_the_most() {
        for count in 0..40 {
            let blocks: Blocks = (0..count).map(|block| (block, stored(u64::MAX, 0))).collect();
            let more: Blocks = (0..=count).map(|block| (block, stored(u64::MAX, 0))).collect();
            assert!(more.memory() <= blocks.memory() + most_memory(), "{count}");
        }
    }
}
