//! Decides which payloads keep their memory, and which return it to the kernel. Pure.
//!
//! Each payload has address space for a whole block, and a queue has many payloads. Memory that large requests touched stays for the next
//! ones, up to a limit.

/// Bytes of each payload that always keep their memory: enough for the names and answers of small requests.
const SMALL: usize = 8 << 10;
/// Bytes of payloads that all queues together keep, unless the minimum of each queue adds up to more. Doubling it helps machines of more
/// than eight processors on which many large reads or writes run at once.
const KEPT: usize = 32 << 20;
/// Least and largest number of bytes that one queue keeps.
const KEPT_OF_QUEUE: std::ops::RangeInclusive<usize> = 1 << 20..=4 << 20;

/// The payloads of one queue that large requests touched, the longest unused first.
#[derive(Debug)]
pub(super) struct Warm {
    entries: Vec<(usize, usize)>,
    bytes: usize,
    kept: usize,
}

impl Warm {
    /// An empty list for one queue out of `queues`.
    pub(super) fn new(queues: usize) -> Self {
        let kept = (KEPT / queues.max(1)).clamp(*KEPT_OF_QUEUE.start(), *KEPT_OF_QUEUE.end());
        Self { entries: Vec::new(), bytes: 0, kept }
    }

    /// Notes that the first `len` bytes of this payload were used.
    pub(super) fn used(&mut self, entry: usize, len: usize) {
        if len <= SMALL {
            return;
        }
        let before = self.entries.iter().position(|&(other, _)| other == entry);
        let before = before.map_or(0, |at| self.entries.remove(at).1);
        self.entries.push((entry, len.max(before)));
        self.bytes += len.max(before) - before;
    }

    /// Whether no payload has more than a little memory.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Removes the payload unused for the longest time, if the queue keeps too much. The caller returns its memory.
    pub(super) fn excess(&mut self) -> Option<usize> {
        (self.bytes > self.kept).then(|| self.any())?
    }

    /// Removes the payload unused for the longest time, however much the queue keeps. The caller returns its memory.
    pub(super) fn any(&mut self) -> Option<usize> {
        let (entry, len) = (!self.entries.is_empty()).then(|| self.entries.remove(0))?;
        self.bytes -= len;
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_payloads_longest_unused_give_their_memory_back_beyond_the_limit() {
        let mut warm = Warm::new(2);
        warm.used(0, SMALL);
        assert!(warm.is_empty(), "a little is kept for ever");
        let large = warm.kept / 4;
        for entry in [1, 2, 3, 4, 2, 1] {
            warm.used(entry, large);
        }
        assert_eq!(warm.excess(), None, "four of a quarter");
        warm.used(2, 2 * large);
        assert_eq!((warm.excess(), warm.excess()), (Some(3), None));
        warm.used(5, large / 2);
        warm.used(5, large);
        assert_eq!((warm.excess(), warm.excess()), (Some(4), None));
        assert_eq!([warm.any(), warm.any(), warm.any(), warm.any()], [Some(1), Some(2), Some(5), None]);
        assert_eq!(warm.bytes, 0);
    }

    #[test]
    fn all_queues_together_keep_a_bounded_memory() {
        let kept = |queues| Warm::new(queues).kept >> 20;
        assert_eq!([1, 8, 16, 32, 128].map(kept), [4, 4, 2, 1, 1]);
    }
}
