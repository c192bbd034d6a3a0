//! Files whose lookup S3 answered a moment ago, for the open that follows (see [`FRESH`]). Pure.

use std::collections::VecDeque;
use std::time::Instant;

use foldhash::HashMap;

use super::{FRESH, InodeNo};
use crate::listing::expiry::left;

/// Lookups of the last 20 ms that no operation has used yet.
#[derive(Debug, Default)]
pub(super) struct Fresh {
    since: HashMap<InodeNo, Instant>,
    /// Files in the order of their answers. A file whose answer was used or renewed leaves a stale line, which goes when it reaches the
    /// front.
    order: VecDeque<(InodeNo, Instant)>,
}

impl Fresh {
    /// Most lookups kept. Beyond it the oldest is dropped, and the open after that lookup asks S3. The limit is reached at 50,000 lookups
    /// a second; the double moves it to 100,000.
    const MOST: usize = 1024;

    /// Notes that S3 answered a lookup of a file at `now`.
    pub(super) fn put(&mut self, ino: InodeNo, now: Instant) {
        while let Some((oldest, since)) = self.order.front().copied() {
            if self.order.len() < Self::MOST && !left(FRESH, since, now).is_zero() {
                break;
            }
            self.order.pop_front();
            if self.since.get(&oldest) == Some(&since) {
                self.since.remove(&oldest);
            }
        }
        self.since.insert(ino, now);
        self.order.push_back((ino, now));
    }

    /// Whether a fresh answer serves the open that begins now. Each answer serves once.
    pub(super) fn take(&mut self, ino: InodeNo, now: Instant) -> bool {
        self.since.remove(&ino).is_some_and(|since| !left(FRESH, since, now).is_zero())
    }

    /// Drops the answer of a file: another operation used it.
    pub(super) fn forget(&mut self, ino: InodeNo) {
        if !self.since.is_empty() {
            self.since.remove(&ino);
        }
    }

    pub(super) fn contains(&self, ino: InodeNo) -> bool {
        self.since.contains_key(&ino)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_answer_stands_once_and_for_20_ms() {
        let (mut fresh, now) = (Fresh::default(), Instant::now());
        fresh.put(InodeNo(7), now);
        assert!(fresh.contains(InodeNo(7)));
        assert!(fresh.take(InodeNo(7), now));
        assert!(!fresh.take(InodeNo(7), now));
        fresh.put(InodeNo(7), now);
        assert!(!fresh.take(InodeNo(7), now + FRESH));
        fresh.put(InodeNo(7), now);
        fresh.forget(InodeNo(7));
        assert!(!fresh.take(InodeNo(7), now));
    }

    #[test]
    fn a_renewed_answer_outlives_the_older_one() {
        let (mut fresh, now) = (Fresh::default(), Instant::now());
        fresh.put(InodeNo(7), now);
        fresh.put(InodeNo(7), now + Duration::from_millis(15));
        fresh.put(InodeNo(8), now + Duration::from_millis(25));
        assert!(fresh.take(InodeNo(7), now + Duration::from_millis(30)));
    }

    #[test]
    fn more_than_are_kept_push_the_oldest_out() {
        let (mut fresh, now) = (Fresh::default(), Instant::now());
        for i in 0..2 * Fresh::MOST as u64 {
            fresh.put(InodeNo(i), now);
        }
        assert_eq!((fresh.since.len(), fresh.order.len()), (Fresh::MOST, Fresh::MOST));
        assert!(!fresh.take(InodeNo(0), now));
        assert!(fresh.take(InodeNo(2 * Fresh::MOST as u64 - 1), now));
    }
}
