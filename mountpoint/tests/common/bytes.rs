//! Contents that can be computed again at any offset, so that a test need not keep gigabytes to compare.

use std::io::{Read, Write};
use std::path::Path;

use mountpoint::checksum::{Checksum, ChecksumAlgorithm, Hasher};

/// Endless bytes by a seed: every 8 aligned bytes depend on the seed and their offset alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pattern(pub(crate) u64);

impl Pattern {
    fn word(self, index: u64) -> [u8; 8] {
        let state = (self.0 ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(0xd1b5_4a32_d192_ed03);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)).to_le_bytes()
    }

    /// Bytes from an offset.
    pub(crate) fn fill(self, offset: u64, into: &mut [u8]) {
        let head = into.len().min((offset.next_multiple_of(8) - offset) as usize);
        let (first, rest) = into.split_at_mut(head);
        let skip = 8 - (offset.next_multiple_of(8) - offset) as usize;
        if head > 0 {
            first.copy_from_slice(&self.word(offset / 8)[skip..skip + head]);
        }
        let start = (offset + head as u64) / 8;
        for (i, chunk) in rest.chunks_mut(8).enumerate() {
            chunk.copy_from_slice(&self.word(start + i as u64)[..chunk.len()]);
        }
    }

    /// `len` bytes from an offset.
    pub(crate) fn bytes(self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.fill(offset, &mut bytes);
        bytes
    }

    /// Whether these are the bytes from an offset.
    pub(crate) fn is(self, offset: u64, bytes: &[u8]) -> bool {
        let mut expected = [0; 4096];
        bytes.chunks(expected.len()).enumerate().all(|(i, chunk)| {
            self.fill(offset + (i * expected.len()) as u64, &mut expected);
            chunk == &expected[..chunk.len()]
        })
    }

    /// Writes the first `len` bytes in pieces of `piece`; their checksum.
    pub(crate) fn write_to(self, out: &mut impl Write, len: u64, piece: usize) -> std::io::Result<Checksum> {
        let mut buffer = vec![0; piece];
        let mut hasher = Hasher::new(ChecksumAlgorithm::Crc64Nvme);
        let mut at = 0;
        while at < len {
            let n = piece.min((len - at) as usize);
            self.fill(at, &mut buffer[..n]);
            hasher.update(&buffer[..n]);
            out.write_all(&buffer[..n])?;
            at += n as u64;
        }
        Ok(hasher.finish())
    }
}

/// Reads a file to its end in pieces; its length and checksum.
pub(crate) fn hash_file(path: &Path, piece: usize) -> std::io::Result<(u64, Checksum)> {
    let mut file = std::fs::File::open(path)?;
    let mut buffer = vec![0; piece];
    let mut hasher = Hasher::new(ChecksumAlgorithm::Crc64Nvme);
    let mut len = 0;
    loop {
        let n = file.read(&mut buffer)?;
        if n == 0 {
            return Ok((len, hasher.finish()));
        }
        hasher.update(&buffer[..n]);
        len += n as u64;
    }
}
