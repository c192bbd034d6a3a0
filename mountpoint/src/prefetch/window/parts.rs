//! Parts of longer reads: a program asks for several ranges of more than a MiB at once, as a reader of columns does by `posix_fadvise` or
//! by threads. The kernel asks for the first MiB of each, and for the rest once that has come, another round trip later.

use std::collections::VecDeque;
use std::ops::Range;

use super::LONG;

/// Such reads that wait at once before their continuations are fetched. Doubling it misses tables of few columns.
const AT_ONCE: usize = 4;

/// Most continuations fetched since one was read. Doubling it doubles the bytes fetched in vain by threads that read single MiB at random
/// places of one handle.
const VAIN_MAX: usize = 16;

/// Continuations that are remembered until they are read. Doubling it doubles a few hundred bytes.
const FETCHED_MAX: usize = 64;

/// The long reads of one handle that continued no run.
#[derive(Clone, Debug, Default)]
pub(super) struct Parts {
    /// Ends of those that came while others waited, as long as their continuations are not fetched.
    ends: Vec<u64>,
    /// Whether enough of them wait.
    is_on: bool,
    /// Beginnings of the fetched continuations that no read has asked for.
    fetched: VecDeque<u64>,
    /// Continuations fetched since one was read.
    in_vain: usize,
}

impl Parts {
    /// Takes in any read: it may be one of the fetched continuations.
    pub(super) fn on_read(&mut self, range: &Range<u64>) {
        if let Some(at) = self.fetched.iter().position(|start| *start == range.start) {
            self.fetched.remove(at);
            self.in_vain = 0;
        }
    }

    /// Takes in a read that continues no run. `is_beside`: another read of the handle waits. Returns the continuations to fetch.
    pub(super) fn began(&mut self, range: &Range<u64>, is_beside: bool, size: u64) -> Vec<Range<u64>> {
        if !is_beside {
            self.ends.clear();
            self.is_on = false;
        }
        if range.end - range.start != LONG || self.in_vain >= VAIN_MAX {
            return Vec::new();
        }
        self.ends.push(range.end);
        self.is_on |= self.ends.len() >= AT_ONCE;
        if !self.is_on {
            return Vec::new();
        }
        let next = self.ends.drain(..).map(|end| end..(end + LONG).min(size));
        let next: Vec<_> = next.filter(|range| !range.is_empty()).collect();
        self.in_vain += next.len();
        self.fetched.extend(next.iter().map(|range| range.start));
        let over = self.fetched.len().saturating_sub(FETCHED_MAX);
        self.fetched.drain(..over);
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 64 << 30;

    fn at(n: u64) -> Range<u64> {
        (n << 30)..(n << 30) + LONG
    }

    /// The continuations that reads of a MiB bring, of which the first waits alone.
    fn brought(parts: &mut Parts, numbers: Range<u64>) -> Vec<Range<u64>> {
        let first = numbers.start;
        numbers.flat_map(|n| parts.began(&at(n), n > first, SIZE)).collect()
    }

    #[test]
    fn the_fourth_long_read_at_once_brings_what_follows_all() {
        let mut parts = Parts::default();
        assert!(brought(&mut parts, 0..3).is_empty());
        let after = |n: u64| at(n).end..at(n).end + LONG;
        assert_eq!(brought(&mut parts, 10..16), (10..16).map(after).collect::<Vec<_>>());
        // One after another, as a mapping is read.
        assert!((20..60).all(|n| parts.began(&at(n), false, SIZE).is_empty()));
    }

    #[test]
    fn shorter_reads_at_once_bring_nothing() {
        let mut parts = Parts::default();
        let short = |n: u64| at(n).start..at(n).end - 4096;
        assert!((0..20).all(|n| parts.began(&short(n), n > 0, SIZE).is_empty()));
    }

    #[test]
    fn sixteen_in_vain_end_it_until_one_is_read() {
        let mut parts = Parts::default();
        let first = brought(&mut parts, 0..60);
        assert_eq!(first.len(), 16);
        parts.on_read(&at(30));
        assert!(brought(&mut parts, 0..20).is_empty());
        parts.on_read(&(first[3].start..first[3].start + 4096));
        assert_eq!(brought(&mut parts, 0..60).len(), 16);
    }

    #[test]
    fn nothing_lies_behind_the_end_of_the_object() {
        let mut parts = Parts::default();
        let size = at(3).end + 4096;
        let all: Vec<_> = [3, 0, 1, 2].iter().flat_map(|n| parts.began(&at(*n), true, size)).collect();
        assert_eq!(all[0], at(3).end..size);
        let mut parts = Parts::default();
        let all: Vec<_> = [3, 0, 1, 2].iter().flat_map(|n| parts.began(&at(*n), true, at(3).end)).collect();
        assert_eq!(all.len(), 3);
    }
}
