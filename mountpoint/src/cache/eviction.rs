//! Chooses the blocks to evict when room is needed: the least recently used ones, and only as many as necessary. Pure.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Divisor of the limit for the slack: bytes that a round frees beyond the immediate need, so one walk over the index serves many puts.
const SLACK_SHARE: u64 = 64;

/// Most slack of a round, in bytes.
const SLACK_MAX: u64 = 256 << 20;

/// Bytes to free to bring `used` down to `limit`, plus some slack; 0 if `used` is not above the limit.
pub(super) fn to_free(used: u64, limit: u64) -> u64 {
    if used <= limit { 0 } else { used - limit + (limit / SLACK_SHARE).min(SLACK_MAX) }
}

/// The most bytes that the cache may hold so that `percent` of the file system stays free: its own bytes, plus the free bytes beyond that
/// share (or minus the missing ones).
pub(super) fn allowed(used: u64, free: u64, total: u64, percent: u8) -> u64 {
    let keep = (u128::from(total) * u128::from(percent) / 100) as u64;
    (used + free.saturating_sub(keep)).saturating_sub(keep.saturating_sub(free))
}

/// Collects the coldest of all offered blocks, up to `need` bytes. Keeps only those.
#[derive(Debug)]
pub(super) struct Coldest<T> {
    need: u64,
    bytes: u64,
    warmest_first: BinaryHeap<Candidate<T>>,
}

#[derive(Debug)]
struct Candidate<T> {
    used: u64,
    bytes: u64,
    what: T,
}

impl<T> Coldest<T> {
    /// An empty choice.
    pub(super) fn new(need: u64) -> Self {
        Self { need, bytes: 0, warmest_first: BinaryHeap::new() }
    }

    /// Whether [`Coldest::offer`] would keep a block last used at `used`. Check this before you make the value to offer.
    pub(super) fn wants(&self, used: u64) -> bool {
        self.bytes < self.need || self.warmest_first.peek().is_some_and(|warmest| used < warmest.used)
    }

    /// Offers a block: the time of its last use (smaller is colder), and the bytes that it would free.
    pub(super) fn offer(&mut self, used: u64, bytes: u64, what: T) {
        if !self.wants(used) {
            return;
        }
        self.bytes += bytes;
        self.warmest_first.push(Candidate { used, bytes, what });
        while self.warmest_first.peek().is_some_and(|w| self.bytes - w.bytes >= self.need) {
            self.bytes -= self.warmest_first.pop().map_or(0, |w| w.bytes);
        }
    }

    /// The chosen blocks, coldest first.
    pub(super) fn into_chosen(self) -> impl Iterator<Item = T> {
        self.warmest_first.into_sorted_vec().into_iter().map(|c| c.what)
    }
}

impl<T> PartialEq for Candidate<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T> Eq for Candidate<T> {}

impl<T> PartialOrd for Candidate<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Candidate<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.used, self.bytes).cmp(&(other.used, other.bytes))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn within_the_limit_nothing_goes() {
        assert_eq!(to_free(100, 100), 0);
        assert_eq!(to_free(101, 100), 2);
        assert_eq!(to_free(1 << 50, 1 << 49), (1 << 49) + SLACK_MAX);
    }

    #[test]
    fn the_allowance_follows_what_is_free() {
        assert_eq!(allowed(10, 50, 100, 5), 55, "45 more may be used");
        assert_eq!(allowed(10, 2, 100, 5), 7, "3 must be given back");
        assert_eq!(allowed(1, 0, 100, 5), 0);
        assert_eq!(allowed(0, u64::MAX / 2, u64::MAX, 100), 0);
    }

    proptest! {
        #[test]
        fn a_round_ends_below_the_limit_the_coldest_first_and_no_block_too_many(
            blocks in proptest::collection::vec((0u64..50, 1u64..20), 0..60),
            limit in 0u64..600,
        ) {
            let used: u64 = blocks.iter().map(|b| b.1).sum();
            let need = to_free(used, limit);
            let mut coldest = Coldest::new(need);
            for (i, (at, bytes)) in blocks.iter().enumerate() {
                coldest.offer(*at, *bytes, i);
            }
            let gone: Vec<usize> = coldest.into_chosen().collect();
            let freed: u64 = gone.iter().map(|&i| blocks[i].1).sum();
            prop_assert!(used - freed <= limit);
            prop_assert!(freed >= need.min(used));
            if let Some(&last) = gone.last() {
                prop_assert!(freed - blocks[last].1 < need, "the warmest that went had to");
            }
            let warmest_gone = gone.iter().map(|&i| blocks[i].0).max().unwrap_or(0);
            for (i, block) in blocks.iter().enumerate() {
                prop_assert!(gone.contains(&i) || gone.is_empty() || block.0 >= warmest_gone);
            }
            prop_assert!(gone.windows(2).all(|w| blocks[w[0]].0 <= blocks[w[1]].0));
        }
    }
}
