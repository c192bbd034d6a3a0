//! A block of memory: one owner fills it, then many share it for reads. Its memory returns to the budget when the last owner drops it.

use std::fmt;
use std::ops::{Deref, Range};

use bytes::Bytes;

use super::BLOCK;
use super::budget::Use;
use super::ledger::Ledger;
use super::page::{PageBlock, Pages};
use super::short::{Short, Shorts};
use crate::sync::{Arc, Mutex};

/// Largest request in bytes that gets a piece of its length; a larger one takes a whole block.
const SHORT_MAX: usize = BLOCK / 2;

/// The unit in which small requests are charged, in bytes.
const PAGE: usize = 4096;

/// The bytes that the budget charges for a request of `len` bytes.
pub fn charge(len: usize) -> u64 {
    if len > SHORT_MAX { BLOCK as u64 } else { len.next_multiple_of(PAGE) as u64 }
}

#[derive(Debug)]
enum Storage {
    Page(PageBlock),
    Short(Short),
}

#[derive(Debug)]
struct Charge {
    ledger: Arc<Ledger>,
    purpose: Mutex<Use>,
    bytes: u64,
    is_short: bool,
}

impl Drop for Charge {
    fn drop(&mut self) {
        if self.is_short {
            self.ledger.sub_short(self.bytes);
        }
        let purpose = *self.purpose.lock();
        self.ledger.give_back(purpose, self.bytes);
    }
}

/// A block being filled, which only its owner sees.
// Fields are dropped in order. The storage comes first, so its memory is in the free list before the budget grants it to the next request.
#[derive(Debug)]
pub struct BlockMut {
    storage: Storage,
    filled: usize,
    limit: usize,
    charge: Charge,
}

impl BlockMut {
    /// Creates a block for `len` bytes (at most [`BLOCK`]), for which [`charge`] bytes were taken; `None` if the kernel has no memory.
    pub(super) fn new(
        ledger: &Arc<Ledger>,
        pages: &Arc<Pages>,
        shorts: &Arc<Shorts>,
        purpose: Use,
        len: usize,
    ) -> Option<Self> {
        let bytes = charge(len);
        let is_short = len <= SHORT_MAX;
        let storage = if is_short {
            // The budget counts only memory in use. Idle pages make room for short blocks, or both would stay resident.
            pages.shrink((ledger.add_short(bytes) as usize).saturating_sub(shorts.idle_max()));
            Storage::Short(shorts.take(len))
        } else {
            Storage::Page(pages.take().ok()?)
        };
        let charge = Charge { ledger: Arc::clone(ledger), purpose: Mutex::new(purpose), bytes, is_short };
        Some(Self { storage, filled: 0, limit: len, charge })
    }

    /// The most bytes that the block can have.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Lowers the block's limit to `len` bytes, but not below its filled bytes.
    pub fn shorten(&mut self, len: usize) {
        self.limit = self.limit.min(len).max(self.filled);
    }

    /// The number of filled bytes.
    pub fn filled(&self) -> usize {
        self.filled
    }

    /// The filled bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.storage.as_slice()[..self.filled]
    }

    /// The memory for the next bytes.
    pub fn spare(&mut self) -> &mut [u8] {
        let (filled, limit) = (self.filled, self.limit);
        match &mut self.storage {
            Storage::Page(page) => &mut page.as_mut_slice()[filled..limit],
            Storage::Short(short) => &mut short[filled..limit],
        }
    }

    /// Notes that the first `n` bytes of [`BlockMut::spare`] were written.
    pub fn advance(&mut self, n: usize) {
        assert!(n <= self.limit - self.filled, "more bytes than the block has room for");
        self.filled += n;
    }

    /// Copies as many of `bytes` into the block as fit; returns their number.
    pub fn put(&mut self, bytes: &[u8]) -> usize {
        let spare = self.spare();
        let n = spare.len().min(bytes.len());
        spare[..n].copy_from_slice(&bytes[..n]); // copy: into the block, the one copy of a written byte
        self.advance(n);
        n
    }

    /// Ends the filling: from here on the block is shared and read.
    pub fn freeze(self) -> Block {
        Block(Arc::new(self))
    }
}

impl Storage {
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Page(page) => page.as_slice(),
            Self::Short(short) => short,
        }
    }
}

/// A filled block (full, or as full as it will be). Clones share the memory; dropping the last one frees it.
#[derive(Clone)]
pub struct Block(Arc<BlockMut>);

impl Block {
    /// A part of the block as `Bytes`, for libraries that need those. Shares the memory.
    pub fn slice(&self, range: Range<usize>) -> Bytes {
        Bytes::from_owner(self.clone()).slice(range)
    }

    /// Charges the block to another use, if that use could take its memory now. Otherwise returns false and changes nothing.
    pub fn try_convert(&self, to: Use) -> bool {
        let charge = &self.0.charge;
        let mut purpose = charge.purpose.lock();
        if *purpose == to {
            return true;
        }
        let converted = charge.ledger.try_convert(*purpose, to, charge.bytes);
        if converted {
            *purpose = to;
        }
        converted
    }
}

impl Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl AsRef<[u8]> for Block {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block({} bytes)", self.len())
    }
}
