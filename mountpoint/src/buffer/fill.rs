//! Receives a body into blocks: the receiver writes into free memory, and each full block goes to a handler.

use std::collections::VecDeque;
use std::fmt;

use super::{Block, BlockMut};

/// Empty blocks to fill in order, and the handler of each full block.
///
/// The receiver (the S3 client) sees one run of bytes: it writes to [`Fill::spare`], and reports the number of bytes by [`Fill::advance`].
/// After a failure it may resume at [`Fill::filled`]; bytes once taken are never taken again.
pub struct Fill {
    blocks: VecDeque<BlockMut>,
    filled: u64,
    len: u64,
    on_block: Box<dyn FnMut(Block) + Send>,
}

impl Fill {
    /// A run of `blocks`, filled in order, each up to its `limit`; `on_block` gets each full block.
    pub fn new(
        blocks: impl IntoIterator<Item = BlockMut>,
        on_block: impl FnMut(Block) + Send + 'static,
    ) -> Self {
        let blocks: VecDeque<_> = blocks.into_iter().filter(|b| b.limit() > 0).collect();
        let len = blocks.iter().map(|b| b.limit() as u64).sum();
        Self { blocks, filled: 0, len, on_block: Box::new(on_block) }
    }

    /// Number of bytes taken so far.
    pub fn filled(&self) -> u64 {
        self.filled
    }

    /// Number of bytes that still fit.
    pub fn remaining(&self) -> u64 {
        self.len - self.filled
    }

    /// Memory for the next bytes: empty only when nothing remains.
    pub fn spare(&mut self) -> &mut [u8] {
        self.blocks.front_mut().map_or(&mut [], BlockMut::spare)
    }

    /// Notes that the first `n` bytes of [`Fill::spare`] are now the next bytes of the body.
    pub fn advance(&mut self, n: usize) {
        let Some(block) = self.blocks.front_mut() else {
            debug_assert_eq!(n, 0);
            return;
        };
        block.advance(n);
        self.filled += n as u64;
        if block.spare().is_empty()
            && let Some(full) = self.blocks.pop_front()
        {
            (self.on_block)(full.freeze());
        }
    }

    /// Copies bytes that were received elsewhere; returns the number that fitted.
    pub fn put(&mut self, mut bytes: &[u8]) -> usize {
        let mut taken = 0;
        while !bytes.is_empty() && self.remaining() > 0 {
            let spare = self.spare();
            let n = spare.len().min(bytes.len());
            spare[..n].copy_from_slice(&bytes[..n]); // copy: from the HTTP library's buffer into the block
            self.advance(n);
            bytes = &bytes[n..];
            taken += n;
        }
        taken
    }
}

impl fmt::Debug for Fill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fill").field("filled", &self.filled).field("len", &self.len).finish_non_exhaustive()
    }
}
