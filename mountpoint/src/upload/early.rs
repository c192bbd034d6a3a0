//! Bytes that a program writes beyond the end of a file. The upload keeps them until the bytes between come, or until the file is closed,
//! when missing bytes become zeros. Programs write this way if their threads write pieces of one file side by side (DuckDB's COPY), or if
//! they leave holes.

use std::collections::BTreeMap;

use super::memory::Counted;

/// Distance from the end of a file to that of its last piece, in bytes. Doubling it accepts threads that are twice as far apart, and
/// doubles the memory and the zeros of a file with holes.
const REACH: u64 = 8 << 20;
/// Most pieces of one file that are kept. Doubling it doubles the overhead of a file of tiny pieces.
const PIECES_MAX: usize = 256;

/// Pieces by their offsets. No two overlap, and none begins at the end of the file or before it.
#[derive(Default)]
pub(super) struct Early(BTreeMap<u64, Piece>);

/// Bytes of one write, and their share of the memory for early bytes.
pub(super) struct Piece {
    pub(super) data: Vec<u8>,
    pub(super) permit: Counted,
}

impl Early {
    /// Offset of the first early byte.
    pub(super) fn start(&self) -> Option<u64> {
        self.0.first_key_value().map(|(offset, _)| *offset)
    }

    /// Offset behind the last early byte; 0 without one.
    pub(super) fn end(&self) -> u64 {
        self.0.last_key_value().map_or(0, |(offset, piece)| offset + piece.data.len() as u64)
    }

    /// Whether a write of `len` bytes to a file of `size` bytes is within reach, and overlaps no other.
    pub(super) fn has_room(&self, size: u64, offset: u64, len: usize) -> bool {
        let end = offset.saturating_add(len as u64);
        let before = self.0.range(..end).next_back();
        len > 0
            && end.saturating_sub(size) <= REACH
            && self.0.len() < PIECES_MAX
            && before.is_none_or(|(start, piece)| start + piece.data.len() as u64 <= offset)
    }

    /// Keeps a piece that [`Early::has_room`] for.
    pub(super) fn keep(&mut self, offset: u64, piece: Piece) {
        self.0.insert(offset, piece);
    }

    /// Takes out the piece that begins at `offset`.
    pub(super) fn take(&mut self, offset: u64) -> Option<Piece> {
        self.0.remove(&offset)
    }
}
