//! A part that takes bytes: its blocks or its spill file, and the checksum of its bytes.

use std::path::Path;

use super::Error;
use super::memory::{Counted, Memory};
use super::size::{charges, first_block};
use super::spill::SpillFile;
use crate::buffer::{BLOCK, Block, BlockMut, Reservation, charge};
use crate::checksum::{Checksum, ChecksumAlgorithm, Hasher};
use crate::sync::Arc;

/// Most bytes that are hashed and copied at a time, so the copy finds them in the processor's cache.
const PIECE: usize = 128 << 10;

#[derive(Debug)]
pub(super) struct Part {
    number: u32,
    size_max: u64,
    filled: u64,
    hasher: Hasher,
    store: Store,
}

#[derive(Debug)]
enum Store {
    Memory { full: Vec<Block>, open: Option<BlockMut>, rest: Rest },
    Spilled(SpillFile),
}

/// The memory that the part can still take.
#[derive(Debug)]
enum Rest {
    /// The part has no memory, or one first block under this permit.
    First { _permit: Option<Counted> },
    /// The rest of the part's memory is reserved, up to its full size.
    Whole(Reservation),
}

/// A request for memory that the pool does not have now.
#[derive(Debug)]
pub(super) struct Want {
    /// The amount in bytes, as the pool counts it.
    pub(super) bytes: u64,
    /// The length and permit of the first block, if the memory is for it alone.
    first: Option<(usize, Counted)>,
}

/// A part that accepts no more bytes.
#[derive(Debug)]
pub(super) struct Sealed {
    pub(super) number: u32,
    pub(super) len: u64,
    pub(super) checksum: Checksum,
    pub(super) body: SealedBody,
}

#[derive(Debug)]
pub(super) enum SealedBody {
    Memory(Vec<Block>),
    Spilled(SpillFile),
}

impl Part {
    /// An empty part that has no memory yet.
    pub(super) fn new(number: u32, size_max: u64, algorithm: ChecksumAlgorithm) -> Self {
        let store = Store::Memory { full: Vec::new(), open: None, rest: Rest::First { _permit: None } };
        Self { number, size_max, filled: 0, hasher: Hasher::new(algorithm), store }
    }

    pub(super) fn number(&self) -> u32 {
        self.number
    }

    pub(super) fn is_full(&self) -> bool {
        self.filled == self.size_max
    }

    pub(super) fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// Whether the part has memory that spilling would free.
    pub(super) fn in_memory(&self) -> bool {
        match &self.store {
            Store::Memory { open, rest, .. } => open.is_some() || matches!(rest, Rest::Whole(_)),
            Store::Spilled(_) => false,
        }
    }

    /// Puts as many bytes of `data` as fit into the part's memory or file, and returns their number.
    ///
    /// # Errors
    /// `Spill` if the part is on disk and the disk fails; `NoMemory` if the kernel has none.
    pub(super) fn put(&mut self, data: &[u8]) -> Result<usize, Error> {
        let fits = data.len().min((self.size_max - self.filled) as usize);
        let mut taken = 0;
        while taken < fits {
            let piece = &data[taken..fits.min(taken + PIECE)];
            let n = match &mut self.store {
                Store::Spilled(file) => {
                    self.hasher.update(piece);
                    file.append(piece)?;
                    piece.len()
                }
                Store::Memory { full, open, rest } => {
                    let Some(block) = room(full, open, rest, self.size_max - self.filled)? else { break };
                    let piece = &piece[..piece.len().min(block.spare().len())];
                    self.hasher.update(piece);
                    block.put(piece)
                }
            };
            self.filled += n as u64;
            taken += n;
        }
        Ok(taken)
    }

    /// Makes room for `incoming` more bytes (0: for any number). `None`: the part has room. Otherwise the caller waits for the memory, and
    /// passes it to [`Part::grant`].
    ///
    /// The first part of an object has one small block that grows up to 1 MiB. A writer that needs more reserves the whole part at once, so
    /// writers can't starve each other block by block.
    ///
    /// # Errors
    /// `NoMemory` if the kernel has none.
    pub(super) fn want(&mut self, incoming: usize, memory: &Arc<Memory>) -> Result<Option<Want>, Error> {
        let Store::Memory { open, rest: rest @ Rest::First { .. }, .. } = &mut self.store else {
            return Ok(None);
        };
        if open.as_mut().is_some_and(|b| !b.spare().is_empty()) {
            return Ok(None);
        }
        let small = first_block(self.filled, incoming, self.size_max).filter(|_| self.number == 1);
        if let Some(len) = small
            && let Some(permit) = memory.first(charge(len))
        {
            let bytes = charge(len);
            if let Some(reservation) = memory.try_reserve(bytes) {
                grow(open, rest, reservation, len, permit)?;
                return Ok(None);
            }
            if self.filled == 0 {
                return Ok(Some(Want { bytes, first: Some((len, permit)) }));
            }
        }
        let has = open.as_ref().map_or(0, BlockMut::limit) as u64;
        let bytes = charges(self.size_max - has);
        match memory.try_reserve(bytes) {
            Some(reservation) => *rest = Rest::Whole(reservation),
            None => return Ok(Some(Want { bytes, first: None })),
        }
        Ok(None)
    }

    /// Adds the memory that [`Part::want`] requested.
    ///
    /// # Errors
    /// `NoMemory` if the kernel has none.
    pub(super) fn grant(&mut self, want: Want, reservation: Reservation) -> Result<(), Error> {
        if let Store::Memory { open, rest, .. } = &mut self.store {
            match want.first {
                Some((len, permit)) => grow(open, rest, reservation, len, permit)?,
                None => *rest = Rest::Whole(reservation),
            }
        }
        Ok(())
    }

    /// Moves the part to a spill file in `dir`, which also takes its later bytes, and frees its memory. After an error the part is
    /// unchanged.
    pub(super) fn spill(&mut self, dir: &Path, memory: &Arc<Memory>) -> std::io::Result<()> {
        if let Store::Memory { full, open, .. } = &self.store {
            let mut file = SpillFile::create(dir, memory)?;
            for block in full {
                file.append(block)?;
            }
            if let Some(block) = open {
                file.append(block.bytes())?;
            }
            self.store = Store::Spilled(file);
        }
        Ok(())
    }

    /// Ends the part: no more bytes follow. Frees reserved memory that was not used.
    pub(super) fn seal(self) -> Sealed {
        let body = match self.store {
            Store::Memory { mut full, open, .. } => {
                full.extend(open.map(BlockMut::freeze));
                SealedBody::Memory(full)
            }
            Store::Spilled(file) => SealedBody::Spilled(file),
        };
        Sealed { number: self.number, len: self.filled, checksum: self.hasher.finish(), body }
    }
}

/// The block for the next byte, if the part has memory for one.
fn room<'a>(
    full: &mut Vec<Block>,
    open: &'a mut Option<BlockMut>,
    rest: &mut Rest,
    remaining: u64,
) -> Result<Option<&'a mut BlockMut>, Error> {
    if open.as_mut().is_none_or(|b| b.spare().is_empty()) {
        let Rest::Whole(reservation) = rest else { return Ok(None) };
        full.extend(open.take().map(BlockMut::freeze));
        let len = remaining.min(BLOCK as u64) as usize;
        *open = Some(reservation.block(len).ok_or(Error::NoMemory)?);
    }
    Ok(open.as_mut())
}

/// Replaces the first block with a larger one, and copies the bytes.
fn grow(
    open: &mut Option<BlockMut>,
    rest: &mut Rest,
    mut reservation: Reservation,
    len: usize,
    permit: Counted,
) -> Result<(), Error> {
    let mut larger = reservation.block(len).ok_or(Error::NoMemory)?;
    if let Some(smaller) = open.take() {
        larger.put(smaller.bytes()); // copy: a small file that outgrew its block, at most 1/3 of 1 MiB in all
    }
    *open = Some(larger);
    *rest = Rest::First { _permit: Some(permit) };
    Ok(())
}
