//! The sectors of a block: the units in which it is fetched, checked and kept. Pure.

use std::ops::Range;

use super::CACHE_BLOCK;

/// Bytes that one checksum covers, and the least that the cache keeps. Doubling it halves the checksums in memory (256 bytes for a block
/// that is kept whole) and doubles what a small read must read and compare.
pub const SECTOR: u64 = 16 << 10;

/// Number of sectors of a block.
pub(super) const SECTORS: usize = (CACHE_BLOCK / SECTOR) as usize;
const _: () = assert!(SECTORS as u32 == u64::BITS);

/// A set of one block's sectors.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sectors(u64);

impl Sectors {
    /// No sector.
    pub const NONE: Self = Self(0);
    /// All sectors, whatever the block's length.
    pub const ALL: Self = Self(u64::MAX);

    /// The sectors that have a byte of `range`, which counts from the block's start.
    pub fn touching(range: &Range<u64>) -> Self {
        Self::numbered(range.start / SECTOR..range.end.div_ceil(SECTOR))
    }

    /// The sectors that lie completely in `range`, in a block of `len` bytes. The block's last sector may be short.
    pub(super) fn within(range: &Range<u64>, len: u64) -> Self {
        let end = if range.end >= len { len.div_ceil(SECTOR) } else { range.end / SECTOR };
        Self::numbered(range.start.div_ceil(SECTOR)..end)
    }

    fn numbered(numbers: Range<u64>) -> Self {
        let below = |n: u64| if n >= u64::from(u64::BITS) { u64::MAX } else { (1 << n) - 1 };
        Self(below(numbers.end) & !below(numbers.start))
    }

    /// Sectors from the bits of a sidecar.
    pub(super) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The bits for a sidecar.
    pub(super) fn bits(self) -> u64 {
        self.0
    }

    /// Whether the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether this set contains all of `others`.
    pub fn contains(self, others: Self) -> bool {
        others.0 & !self.0 == 0
    }

    pub(super) fn and(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    pub(super) fn without(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }

    /// The sectors before the first of `others`.
    pub(super) fn before(self, others: Self) -> Self {
        Self(self.0 & !u64::MAX.checked_shl(others.0.trailing_zeros()).unwrap_or(0))
    }

    /// Whether the sectors of the set lie side by side.
    pub(super) fn is_row(self) -> bool {
        self.0.leading_zeros() + self.0.count_ones() + self.0.trailing_zeros() == u64::BITS || self.is_empty()
    }

    /// The number of sectors.
    pub(super) fn count(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether this set contains sector `n`.
    pub(super) fn has(self, n: usize) -> bool {
        self.0 >> n & 1 == 1
    }

    /// The sectors' numbers, in order.
    pub(super) fn numbers(self) -> impl Iterator<Item = usize> {
        (0..SECTORS).filter(move |&n| self.has(n))
    }

    /// The byte ranges of the sectors in a block of `len` bytes. Adjacent sectors are joined.
    pub(super) fn runs(self, len: u64) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        for n in self.numbers() {
            let sector = bytes_of(n, len);
            match runs.last_mut() {
                Some(last) if last.end == sector.start => last.end = sector.end,
                _ => runs.push(sector),
            }
        }
        runs
    }

    /// The end of the last sector, in a block of `len` bytes; 0 for an empty set.
    pub(super) fn end(self, len: u64) -> u64 {
        self.numbers().last().map_or(0, |n| bytes_of(n, len).end)
    }

    /// The number of bytes of the sectors, in a block of `len` bytes.
    pub(super) fn len(self, len: u64) -> u64 {
        self.runs(len).iter().map(|run| run.end - run.start).sum()
    }
}

/// The bytes of sector `n` of a block of `len` bytes, counted from the block's start.
pub(super) fn bytes_of(n: usize, len: u64) -> Range<u64> {
    let start = n as u64 * SECTOR;
    start.min(len)..(start + SECTOR).min(len)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_range_touches_more_than_it_holds() {
        let range = SECTOR - 1..3 * SECTOR + 1;
        assert_eq!(Sectors::touching(&range).0, 0b1111);
        assert_eq!(Sectors::within(&range, CACHE_BLOCK).0, 0b0110);
        assert_eq!(Sectors::touching(&(0..CACHE_BLOCK)), Sectors::ALL);
        assert_eq!(Sectors::within(&(0..CACHE_BLOCK), CACHE_BLOCK), Sectors::ALL);
    }

    #[test]
    fn the_last_sector_of_an_object_is_whole_where_the_object_ends() {
        assert_eq!(Sectors::within(&(0..100), 100).0, 1);
        assert_eq!(Sectors::within(&(0..99), 100), Sectors::NONE);
        assert_eq!(Sectors::within(&(0..SECTOR + 7), SECTOR + 7).len(SECTOR + 7), SECTOR + 7);
    }

    proptest! {
        #[test]
        fn what_is_within_is_touched_and_runs_are_exactly_the_sectors(
            len in 1..=CACHE_BLOCK, a in 0..CACHE_BLOCK, b in 0..CACHE_BLOCK,
        ) {
            let (start, end) = (a.min(b).min(len), a.max(b).min(len));
            let within = Sectors::within(&(start..end), len);
            prop_assert!(start == end || Sectors::touching(&(start..end)).contains(within));
            let runs = within.runs(len);
            prop_assert!(runs.len() <= 1, "a range is one run");
            for run in &runs {
                prop_assert!(run.start >= start && run.end <= end && run.start < run.end);
                prop_assert!(run.start % SECTOR == 0 && (run.end % SECTOR == 0 || run.end == len));
            }
            prop_assert_eq!(within.len(len), runs.iter().map(|r| r.end - r.start).sum::<u64>());
        }
    }
}
