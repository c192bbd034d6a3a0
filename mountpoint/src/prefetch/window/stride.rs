//! Reads of one length at one distance from each other, as programs read a column or a plane of an array.

use std::ops::Range;

use super::run::PAGE;

/// Reads of one length at one distance before the stride is fetched ahead. Doubling it misses short strides.
const ENOUGH: u32 = 3;
/// Most reads to fetch ahead. Doubling it doubles the bytes fetched in vain at the end of a stride.
const AHEAD_MAX: u64 = 8;

/// Length of reads for which two more pages are a small part. Doubling it saves pages of shorter reads, and misses the edges of some.
const LONG: u64 = 64 << 10;

/// The last reads that continued no run.
#[derive(Clone, Debug, Default)]
pub(super) struct Stride {
    first: Range<u64>,
    last: Range<u64>,
    /// Reads of this length at this distance so far.
    reads: u32,
    /// Whether all distances are the same to the byte. A distance that is not a multiple of a page varies by a page.
    exact: bool,
    /// The number of fetched reads after the last one.
    ahead: u64,
}

impl Stride {
    /// Takes in a read that continues no run. Returns the ranges to fetch ahead, none outside the object.
    pub(super) fn on_read(&mut self, range: &Range<u64>, size: u64) -> Vec<Range<u64>> {
        let distance = between(&self.last, range);
        let (long, before) = (range.end - range.start, self.last.end - self.last.start);
        let apart = distance.unsigned_abs() >= u128::from(long.max(PAGE));
        if self.reads == 0 || !apart || long.abs_diff(before) > PAGE {
            *self = Self { first: range.clone(), last: range.clone(), reads: 1, exact: true, ahead: 0 };
            return Vec::new();
        }
        if self.reads > 1 {
            let off = (distance - self.distance(1)).unsigned_abs();
            if off > u128::from(PAGE) {
                let first = std::mem::replace(&mut self.last, range.clone());
                *self = Self { first, last: range.clone(), reads: 2, exact: true, ahead: 0 };
                return Vec::new();
            }
            self.exact &= off == 0;
        }
        self.last = range.clone();
        self.reads = self.reads.saturating_add(1);
        if self.reads < ENOUGH {
            return Vec::new();
        }
        // The program read one of the fetched ranges.
        self.ahead = self.ahead.saturating_sub(1);
        let wanted = 1_u64 << (self.reads - ENOUGH).min(AHEAD_MAX.ilog2());
        if self.ahead * 2 > wanted {
            return Vec::new();
        }
        let ranges = (self.ahead + 1..=wanted).filter_map(|n| self.nth(n, size)).collect();
        self.ahead = wanted;
        ranges
    }

    /// The distance from the last read's start to that of the `n`th from now, by the mean of the distances so far.
    fn distance(&self, n: u64) -> i128 {
        between(&self.first, &self.last) * i128::from(n) / i128::from(self.reads.max(2) - 1)
    }

    /// The range of the `n`th read from now in whole pages, with the pages at both ends in which it may begin or end. Short reads at
    /// equal distances are taken literally.
    fn nth(&self, n: u64, size: u64) -> Option<Range<u64>> {
        let distance = self.distance(n);
        let start = u64::try_from(i128::from(self.last.start) + distance).ok()?;
        let end = u64::try_from(i128::from(self.last.end) + distance).ok()?;
        let is_short = self.last.end - self.last.start < LONG;
        let off = 1 + n.div_ceil(u64::from(self.reads.max(2)) - 1);
        let more = if self.exact && is_short { 0 } else { PAGE * off };
        let range = start.saturating_sub(more) / PAGE * PAGE..end.saturating_add(more).min(size);
        let range = range.start..range.end.checked_next_multiple_of(PAGE)?.min(size);
        (end <= size && !range.is_empty()).then_some(range)
    }
}

/// The distance from the start of one range to that of another.
fn between(from: &Range<u64>, to: &Range<u64>) -> i128 {
    i128::from(to.start) - i128::from(from.start)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The ranges that reads of `long` bytes at these places bring.
    fn brought(starts: &[u64], long: u64, size: u64) -> Vec<Range<u64>> {
        let mut stride = Stride::default();
        starts.iter().flat_map(|&start| stride.on_read(&(start..start + long), size)).collect()
    }

    #[test]
    fn a_stride_of_nothing_or_of_less_than_a_read_is_none() {
        assert!(brought(&[1 << 20; 20], 8192, 1 << 30).is_empty());
        let slow: Vec<_> = (0..20).map(|n| n * PAGE).collect();
        assert!(brought(&slow, 2 * PAGE, 1 << 30).is_empty());
    }

    #[test]
    fn the_third_read_brings_the_next_one_and_later_ones_two_four_and_eight() {
        let mut stride = Stride::default();
        let mut read = |n: u64| {
            let brought = stride.on_read(&(n << 20..(n << 20) + PAGE), 1 << 40);
            brought.last().map(|range| (range.start >> 20) - n)
        };
        // The farthest read that is on its way, counted from this one.
        assert_eq!([0, 1, 2, 3, 4, 5].map(&mut read), [None, None, Some(1), Some(2), Some(4), Some(8)]);
        // One elsewhere ends it: three more make a stride again.
        assert_eq!([500, 6, 7, 8].map(&mut read), [None, None, None, Some(1)]);
    }

    #[test]
    fn a_stride_ends_with_the_object_in_both_directions() {
        const SIZE: u64 = 10 << 20;
        let up: Vec<_> = (0..10).map(|n| n << 20).collect();
        let down: Vec<_> = up.iter().rev().copied().collect();
        for starts in [up, down] {
            let brought = brought(&starts, 65_536, SIZE);
            assert_eq!(brought.len(), 7, "those behind the third: {brought:?}");
            assert!(brought.iter().all(|range| range.start < range.end && range.end <= SIZE));
        }
        assert!(brought(&[SIZE - (3 << 20), SIZE - (2 << 20), SIZE - (1 << 20)], 1 << 20, SIZE).is_empty());
    }

    proptest! {
        #[test]
        fn whatever_is_read_a_stride_brings_bytes_of_the_object_alone(
            size in prop_oneof![1..u64::MAX, u64::MAX - (1 << 20)..=u64::MAX, 1..1_u64 << 30],
            first in any::<u64>(),
            distance in prop_oneof![any::<i64>(), -(1_i64 << 24)..1 << 24],
            reads in prop::collection::vec((0..4_u64, 1..1_u64 << 20), 1..40),
        ) {
            let mut stride = Stride::default();
            let mut at = i128::from(first % size);
            for (off, long) in reads {
                let start = at.clamp(0, i128::from(size - 1)) as u64;
                let range = start..start.saturating_add(long).min(size);
                let ranges = stride.on_read(&range, size);
                prop_assert!(ranges.len() <= 8);
                prop_assert!(ranges.iter().all(|range| range.start < range.end && range.end <= size));
                at += i128::from(distance) + i128::from(off);
            }
        }
    }
}
