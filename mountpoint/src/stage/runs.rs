//! A set of byte ranges. Pure.

use std::collections::BTreeMap;
use std::ops::Range;

/// Byte ranges that neither overlap nor touch, by their start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Runs {
    ends: BTreeMap<u64, u64>,
    bytes: u64,
}

impl Runs {
    /// Number of bytes in all ranges.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The ranges in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = Range<u64>> {
        self.ends.iter().map(|(&start, &end)| start..end)
    }

    /// Adds a range.
    pub(super) fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let Range { mut start, mut end } = range;
        // All ranges that overlap or touch become one. They lie next to each other, so the loop begins at the last one below `end`.
        while let Some((&from, &to)) = self.ends.range(..=end).next_back().filter(|(_, to)| **to >= start) {
            self.ends.remove(&from);
            self.bytes -= to - from;
            (start, end) = (start.min(from), end.max(to));
        }
        self.ends.insert(start, end);
        self.bytes += end - start;
    }

    /// Drops all bytes from `size` on.
    pub(super) fn truncate(&mut self, size: u64) {
        let behind = self.ends.split_off(&size);
        self.bytes -= behind.iter().map(|(start, end)| end - start).sum::<u64>();
        if let Some((_, end)) = self.ends.iter_mut().next_back()
            && *end > size
        {
            self.bytes -= *end - size;
            *end = size;
        }
    }

    /// Whether the ranges contain this whole range.
    pub(super) fn has(&self, range: Range<u64>) -> bool {
        range.is_empty()
            || self.ends.range(..=range.start).next_back().is_some_and(|(_, &end)| end >= range.end)
    }

    /// The first bytes from `at` on that lie in none of the ranges, up to the next range.
    pub(super) fn gap(&self, at: u64) -> Range<u64> {
        let start = self.ends.range(..=at).next_back().map_or(at, |(_, &end)| end.max(at));
        start..self.ends.range(start..).next().map_or(u64::MAX, |(&next, _)| next)
    }

    /// The parts of a range that lie in none of the ranges.
    pub(super) fn missing(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut missing = Vec::new();
        let mut at = range.start;
        let before = self.ends.range(..=range.start).next_back().map_or(range.start, |(start, _)| *start);
        for (&start, &end) in self.ends.range(before..range.end.max(before)) {
            if start > at {
                missing.push(at..start);
            }
            at = at.max(end);
        }
        if at < range.end {
            missing.push(at..range.end);
        }
        missing
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn runs_are_a_set_of_bytes(
            steps in prop::collection::vec((0u8..4, 0u64..64, 0u64..64), 0..60),
            (from, len) in (0u64..64, 0u64..64),
        ) {
            let mut runs = Runs::default();
            let mut model = [false; 128];
            for (step, at, len) in steps {
                if step == 0 {
                    runs.truncate(at);
                    model[at as usize..].fill(false);
                } else {
                    runs.insert(at..at + len);
                    model[at as usize..(at + len) as usize].fill(true);
                }
                prop_assert_eq!(runs.bytes(), model.iter().filter(|there| **there).count() as u64);
                let ranges: Vec<_> = runs.iter().collect();
                prop_assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start), "{:?}", ranges);
                prop_assert!(ranges.iter().all(|run| run.start < run.end));
            }
            let missing: Vec<_> = runs.missing(from..from + len).into_iter().flatten().collect();
            let expected: Vec<_> = (from..from + len).filter(|at| !model[*at as usize]).collect();
            prop_assert_eq!(&missing, &expected);
            prop_assert_eq!(runs.has(from..from + len), expected.is_empty());
            let gap = (from..128).skip_while(|at| model[*at as usize]).take_while(|at| !model[*at as usize]);
            prop_assert!(runs.gap(from).take_while(|at| *at < 128).eq(gap));
        }
    }
}
