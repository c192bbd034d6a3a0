//! The content of every object of the bench: a fixed pseudo-random pattern that can be computed and checked at any offset.
//!
//! The pattern repeats after a prime number of pages, so blocks at different multiples of a power of two differ. Each key
//! begins at another page, so two files differ, too.

const PAGE: u64 = 4096;
const WORD: u64 = 8;
/// Length of the pattern in bytes: a prime number of pages, about 64 MiB, more than most processors' caches.
pub(crate) const PERIOD: u64 = 16_411 * PAGE;

/// The offset in the pattern at which an object with this key begins, in bytes; a multiple of a page.
pub(crate) fn base_of(key: &str) -> u64 {
    hash(key.as_bytes()) % (PERIOD / PAGE) * PAGE
}

/// FNV-1a, mixed; not for hostile input.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    stir(bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    }))
}

/// A pseudo-random number that depends only on `number`.
pub(crate) fn stir(number: u64) -> u64 {
    fastrand::Rng::with_seed(number).u64(..)
}

/// Fills `buf` with the content at `offset` of an object that begins at `base`.
pub(crate) fn fill(base: u64, offset: u64, buf: &mut [u8]) {
    let mut at = 0;
    for (skip, len, word) in words(base, offset, buf.len()) {
        buf[at..at + len].copy_from_slice(&word.to_le_bytes()[skip..skip + len]);
        at += len;
    }
}

/// The pattern from `offset` on: for each word, the number of its bytes to skip, the number to take, and the word.
fn words(base: u64, offset: u64, len: usize) -> impl Iterator<Item = (usize, usize, u64)> {
    let mut position = (base + offset) % PERIOD;
    let mut left = len;
    std::iter::from_fn(move || {
        if left == 0 {
            return None;
        }
        let skip = (position % WORD) as usize;
        let take = left.min(WORD as usize - skip);
        let word = stir(position / WORD);
        position = (position + take as u64) % PERIOD;
        left -= take;
        Some((skip, take, word))
    })
}

/// The position of a byte that differs from the object's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mismatch {
    /// Offset of the wrong byte in the object.
    pub(crate) offset: u64,
}

impl std::fmt::Display for Mismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "wrong byte at offset {}", self.offset)
    }
}

impl std::error::Error for Mismatch {}

/// Compares `data`, read at `offset`, with the content of an object that begins at `base`.
///
/// # Errors
/// The position of the first wrong byte.
pub(crate) fn check(base: u64, offset: u64, data: &[u8]) -> Result<(), Mismatch> {
    let mut at = 0;
    for (skip, len, word) in words(base, offset, data.len()) {
        let (want, got) = (&word.to_le_bytes()[skip..skip + len], &data[at..at + len]);
        if want != got {
            let wrong = want.iter().zip(got).position(|(a, b)| a != b).unwrap_or(0);
            return Err(Mismatch { offset: offset + (at + wrong) as u64 });
        }
        at += len;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flipped_bit_is_found_at_its_offset() {
        let base = base_of("some/key");
        for (offset, len, flip) in [(0, 4096, 0), (5, 4099, 4098), (PERIOD - 13, 64, 20), (3, 1, 0)] {
            let mut data = vec![0; len];
            fill(base, offset, &mut data);
            assert_eq!(check(base, offset, &data), Ok(()));
            data[flip] ^= 0x10;
            assert_eq!(check(base, offset, &data), Err(Mismatch { offset: offset + flip as u64 }));
        }
    }

    #[test]
    fn blocks_mixed_up_by_a_power_of_two_differ() {
        let mut data = vec![0; 4096];
        for shift in 12..40 {
            fill(0, 1 << shift, &mut data);
            assert!(check(0, 0, &data).is_err(), "offset 2^{shift} looks like offset 0");
        }
    }

    #[test]
    fn a_read_in_pieces_equals_one_read() {
        let mut whole = vec![0; 10_000];
        fill(8192, PERIOD - 3000, &mut whole);
        let mut pieces = Vec::new();
        for (index, size) in [1, 7, 8, 9, 4096, 5879].into_iter().enumerate() {
            let mut piece = vec![0; size];
            fill(8192, PERIOD - 3000 + pieces.len() as u64, &mut piece);
            pieces.extend_from_slice(&piece);
            assert!(pieces.len() <= whole.len(), "piece {index}");
        }
        assert_eq!(pieces, whole);
    }
}
