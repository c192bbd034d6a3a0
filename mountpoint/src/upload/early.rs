//! Early bytes: bytes that a program writes beyond the end of a file. The upload keeps them until the bytes before them come, or until the
//! file is closed; bytes that are still missing then become zeros. Programs write this way if their threads write pieces of one file side
//! by side (DuckDB's COPY), or if they leave holes.

use std::collections::BTreeMap;

use super::memory::Counted;

/// Longest distance from the end of a file to the end of an early write, in bytes. A write farther away fails. Doubling it accepts threads
/// that are twice as far apart, and doubles the memory and the zeros of a file with holes.
const REACH: u64 = 8 << 20;
/// Most early pieces of one file; a write beyond them fails. Doubling it doubles the overhead of a file of tiny pieces.
const PIECES_MAX: usize = 256;

/// Early pieces by their offsets. They do not overlap, and all begin behind the end of the file.
#[derive(Default)]
pub(super) struct Early(BTreeMap<u64, Piece>);

/// The bytes of one early write, and the permit for their memory.
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

    /// Whether an early write of `len` bytes to a file of `size` bytes can be kept: it is close enough, overlaps no other piece, and there
    /// are fewer than [`PIECES_MAX`].
    pub(super) fn has_room(&self, size: u64, offset: u64, len: usize) -> bool {
        let end = offset.saturating_add(len as u64);
        let before = self.0.range(..end).next_back();
        len > 0
            && end.saturating_sub(size) <= REACH
            && self.0.len() < PIECES_MAX
            && before.is_none_or(|(start, piece)| start + piece.data.len() as u64 <= offset)
    }

    /// Keeps a piece for which [`Early::has_room`].
    pub(super) fn keep(&mut self, offset: u64, piece: Piece) {
        self.0.insert(offset, piece);
    }

    /// Removes and returns the piece that begins at `offset`.
    pub(super) fn take(&mut self, offset: u64) -> Option<Piece> {
        self.0.remove(&offset)
    }
}
