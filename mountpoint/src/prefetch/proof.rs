//! The checksum of a whole object version, combined from the checksums of its pieces in any order. Pure.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::checksum::Checksum;

/// The most runs of bytes without a gap, 48 bytes of memory each; beyond it the proof begins anew. Doubling it proves files that are read
/// in twice as many places at once.
const RUNS_MAX: usize = 1024;

/// The verdict after a piece came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// Bytes are missing.
    Open,
    /// All bytes came, and have the store's checksum.
    Right,
    /// All bytes came, and have this other checksum.
    Wrong(Checksum),
}

/// The pieces of a version that came so far, by their checksums.
#[derive(Debug)]
pub(super) struct Proof {
    expected: Checksum,
    size: u64,
    /// Runs of joined pieces, by the offset at which each begins.
    runs: BTreeMap<u64, Run>,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    end: u64,
    sum: Checksum,
}

impl Proof {
    /// A proof for a version of `size` bytes with the store's checksum.
    pub(super) fn new(expected: Checksum, size: u64) -> Self {
        Self { expected, size, runs: BTreeMap::new() }
    }

    /// The store's checksum.
    pub(super) fn expected(&self) -> Checksum {
        self.expected
    }

    /// Adds a piece, which is not empty and lies within the object. Of bytes that come twice the last ones count; all bytes of a run with
    /// such bytes must come again.
    pub(super) fn came(&mut self, piece: &Range<u64>, sum: Checksum) -> Verdict {
        if sum.algorithm != self.expected.algorithm {
            return Verdict::Open;
        }
        self.runs.retain(|start, run| run.end <= piece.start || piece.end <= *start);
        let (mut start, mut run) = (piece.start, Run { end: piece.end, sum });
        if let Some((&before, left)) = self.runs.range(..start).next_back()
            && left.end == start
        {
            run.sum = left.sum.combine(sum, piece.end - piece.start);
            self.runs.remove(&before);
            start = before;
        }
        if let Some(right) = self.runs.remove(&run.end) {
            run = Run { end: right.end, sum: run.sum.combine(right.sum, right.end - run.end) };
        }
        if start == 0 && run.end == self.size {
            self.runs.clear();
            return if run.sum == self.expected { Verdict::Right } else { Verdict::Wrong(run.sum) };
        }
        if self.runs.len() >= RUNS_MAX {
            self.runs.clear();
        }
        self.runs.insert(start, run);
        Verdict::Open
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::checksum::ChecksumAlgorithm;

    fn bytes(len: usize) -> Vec<u8> {
        (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
    }

    proptest! {
        #[test]
        fn pieces_in_any_order_prove_the_whole_and_one_changed_bit_refutes_it(
            cuts in proptest::collection::btree_set(1usize..5000, 0..12),
            order in any::<u64>(),
            flip in proptest::option::of(any::<prop::sample::Index>()),
        ) {
            for algorithm in ChecksumAlgorithm::ALL {
                let right = bytes(5000);
                let mut came = right.clone();
                if let Some(at) = flip {
                    came[at.index(5000)] ^= 1;
                }
                let edges: Vec<usize> = [0].into_iter().chain(cuts.iter().copied()).chain([5000]).collect();
                let mut pieces: Vec<_> = edges.windows(2).map(|edge| edge[0]..edge[1]).collect();
                pieces.sort_by_key(|piece| (piece.start as u64 + 1).wrapping_mul(order | 1));
                let mut proof = Proof::new(Checksum::of(algorithm, &right), 5000);
                let mut give = |piece: &Range<usize>| {
                    let sum = Checksum::of(algorithm, &came[piece.clone()]);
                    proof.came(&(piece.start as u64..piece.end as u64), sum)
                };
                let (last, others) = pieces.split_last().unwrap();
                for piece in others {
                    prop_assert_eq!(give(piece), Verdict::Open);
                }
                let verdict = give(last);
                match flip {
                    None => prop_assert_eq!(verdict, Verdict::Right),
                    Some(_) => prop_assert_eq!(verdict, Verdict::Wrong(Checksum::of(algorithm, &came))),
                }
            }
        }
    }

    #[test]
    fn bytes_that_come_twice_count_as_they_came_last() {
        let algorithm = ChecksumAlgorithm::Crc32c;
        let (right, wrong) = (bytes(300), vec![7; 300]);
        let mut proof = Proof::new(Checksum::of(algorithm, &right), 300);
        let mut give = |of: &[u8], piece: Range<usize>| {
            let sum = Checksum::of(algorithm, &of[piece.clone()]);
            proof.came(&(piece.start as u64..piece.end as u64), sum)
        };
        assert_eq!(give(&wrong, 0..100), Verdict::Open);
        assert_eq!(give(&right, 0..100), Verdict::Open);
        assert_eq!(give(&right, 200..300), Verdict::Open);
        assert_eq!(give(&right, 100..200), Verdict::Right);
        // Proven, and read anew: nothing of before counts.
        assert_eq!(give(&right, 0..200), Verdict::Open);
        assert!(matches!(give(&wrong, 200..300), Verdict::Wrong(_)));
        // A piece that overlaps a run takes all of it out.
        assert_eq!(give(&right, 0..100), Verdict::Open);
        assert_eq!(give(&right, 100..200), Verdict::Open);
        assert_eq!(give(&right, 150..300), Verdict::Open);
        assert_eq!(give(&right, 0..150), Verdict::Right);
    }

    #[test]
    fn reads_in_many_places_take_no_memory_without_end() {
        let (size, sum) = (1 << 40, Checksum::of(ChecksumAlgorithm::Crc32c, b"x"));
        let mut proof = Proof::new(sum, size);
        for n in 0..10 * RUNS_MAX as u64 {
            assert_eq!(proof.came(&(n * 3..n * 3 + 1), sum), Verdict::Open);
            assert!(proof.runs.len() <= RUNS_MAX);
        }
        let other = Checksum::of(ChecksumAlgorithm::Crc32, b"x");
        assert_eq!(proof.came(&(0..size), other), Verdict::Open, "of another algorithm: it proves nothing");
    }
}
