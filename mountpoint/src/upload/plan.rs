//! The plan for a new version of a long object that changes in a few places: the parts that the store copies, and the parts that are sent.
//! Pure.
//!
//! Enters: the size, and the unchanged ranges. Leaves: parts in order, without gaps, of sizes that stores accept; or nothing if a copy
//! would save nothing.

use std::ops::Range;

use super::size::{PART_MAX, PART_MIN};

/// Most bytes of one copied part, unless there would be too many parts. Doubling it halves the requests for a large object, and lets the
/// store copy fewer parts at once.
const COPY: u64 = 512 << 20;

/// One part of the new object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// A part that the store copies from the same range of the object.
    Copied(Range<u64>),
    /// A part whose bytes are sent.
    Sent(Range<u64>),
}

/// Plans the parts of an object of `size` bytes. `unchanged`: ranges of the old object, in order, none of which touches another. A sent
/// part has at least `part` bytes, and less than twice as many, if there are enough to send. `None`: all bytes must be sent.
pub(super) fn plan(size: u64, unchanged: &[Range<u64>], part: u64, parts_max: u32) -> Option<Vec<Piece>> {
    let part = part.clamp(PART_MIN, PART_MAX / 2);
    let (mut least, mut copy) = (PART_MIN, COPY);
    loop {
        let pieces = cut(size, unchanged, (least, copy), part);
        if !pieces.iter().any(|piece| matches!(piece, Piece::Copied(_))) {
            return None;
        }
        if pieces.len() <= parts_max as usize {
            return Some(pieces);
        }
        // The next try copies only longer runs, and sends the bytes between them.
        (least, copy) = (least * 2, (copy * 2).min(PART_MAX));
    }
}

/// Cuts the object into parts: runs of at least `least` bytes are copied, in parts of at most `copy`, and the other bytes are sent. A sent
/// part that is too short for its place takes bytes from the run behind it.
fn cut(size: u64, unchanged: &[Range<u64>], (least, copy): (u64, u64), part: u64) -> Vec<Piece> {
    let (mut pieces, mut at) = (Vec::new(), 0);
    for run in unchanged {
        let start = if run.start > at { run.start.max(at + PART_MIN) } else { run.start };
        let end = run.end.min(size);
        if end < start.saturating_add(least) {
            continue;
        }
        pieces.extend(equal(at..start, |len| len / part).map(Piece::Sent));
        pieces.extend(equal(start..end, |len| len.div_ceil(copy)).map(Piece::Copied));
        at = end;
    }
    pieces.extend(equal(at..size, |len| len / part).map(Piece::Sent));
    pieces
}

/// Cuts the range into pieces of equal sizes, as many as `count` returns for its length, but at least one. An empty range has no pieces.
fn equal(range: Range<u64>, count: impl Fn(u64) -> u64) -> impl Iterator<Item = Range<u64>> {
    let len = range.end - range.start;
    let count = if len == 0 { 0 } else { count(len).max(1) };
    let at = move |i: u64| range.start + (u128::from(len) * u128::from(i) / u128::from(count)) as u64;
    (0..count).map(move |i| at(i)..at(i + 1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;
    const PART: u64 = 8 * MIB;

    fn range(piece: &Piece) -> Range<u64> {
        let (Piece::Copied(range) | Piece::Sent(range)) = piece;
        range.clone()
    }

    fn len(piece: &Piece) -> u64 {
        range(piece).end - range(piece).start
    }

    fn sent(pieces: &[Piece]) -> u64 {
        pieces.iter().filter(|piece| matches!(piece, Piece::Sent(_))).map(len).sum()
    }

    /// A byte every 20 MiB, as often as that.
    fn changed(times: u64) -> Vec<Range<u64>> {
        (0..times).map(|i| i * 20 * MIB..i * 20 * MIB + 1).collect()
    }

    /// The ranges between these changes.
    fn between(size: u64, changes: &[Range<u64>]) -> Vec<Range<u64>> {
        let (mut unchanged, mut at) = (Vec::new(), 0);
        for change in changes {
            unchanged.push(at..change.start);
            at = change.end;
        }
        unchanged.push(at..size);
        unchanged.retain(|run| !run.is_empty());
        unchanged
    }

    proptest! {
        #[test]
        fn parts_cover_the_file_and_a_store_takes_each(
            steps in prop::collection::vec((1..3 * COPY, 1..60 * MIB, any::<bool>()), 0..60),
            part in PART_MIN..64 * MIB,
            parts_max in 100u32..10_000,
        ) {
            let (mut changes, mut at) = (Vec::new(), 0);
            for (gap, change, is_near) in steps {
                let start = at + if is_near { gap % (12 * MIB) + 1 } else { gap };
                changes.push(start..start + change);
                at = start + change;
            }
            let size = at + 12 * MIB;
            let unchanged = between(size, &changes);
            let Some(pieces) = plan(size, &unchanged, part, parts_max) else {
                prop_assert!(parts_max < 5_000, "the last run is worth a copy");
                return Ok(());
            };
            prop_assert!(pieces.len() <= parts_max as usize);
            prop_assert_eq!((range(&pieces[0]).start, range(pieces.last().unwrap()).end), (0, size));
            prop_assert!(pieces.windows(2).all(|pair| range(&pair[0]).end == range(&pair[1]).start));
            prop_assert!(pieces[..pieces.len() - 1].iter().all(|piece| len(piece) >= PART_MIN), "{:?}", pieces);
            for piece in &pieces {
                match piece {
                    Piece::Copied(copy) => {
                        prop_assert!(copy.end - copy.start <= PART_MAX);
                        prop_assert!(unchanged.iter().any(|run| run.start <= copy.start && copy.end <= run.end));
                    }
                    Piece::Sent(sent) => prop_assert!(sent.end - sent.start < 2 * part),
                }
            }
            // Each change costs its own bytes, the bytes that it lacks to a part, and a following run that is too short for a copy.
            if parts_max > 5_000 {
                let changed: u64 = changes.iter().map(|run| run.end - run.start).sum();
                prop_assert!(sent(&pieces) <= changed + (changes.len() as u64 + 1) * 2 * PART_MIN);
            }
        }
    }

    #[test]
    fn a_gibibyte_patched_in_ten_places_sends_fifty_mebibytes() {
        let changes: Vec<_> = (0..10).map(|i| (i * 100 + 50) * MIB..(i * 100 + 50) * MIB + 4096).collect();
        let pieces = plan(1 << 30, &between(1 << 30, &changes), PART, 10_000).unwrap();
        assert_eq!((pieces.len(), sent(&pieces)), (21, 50 * MIB));
    }

    #[test]
    fn a_part_that_is_sent_is_one_that_stores_take_however_large_parts_are() {
        const GIB: u64 = 1 << 30;
        let pieces = plan(10 * GIB, &[0..GIB, 9 * GIB..10 * GIB], 5 * GIB, 10_000).unwrap();
        assert!(pieces.iter().all(|piece| len(piece) <= PART_MAX), "{pieces:?}");
    }

    #[test]
    fn short_runs_are_sent_and_many_changes_make_fewer_copies() {
        assert_eq!(plan(4 * MIB, &between(4 * MIB, &changed(1)), PART, 10_000), None);
        assert_eq!(plan(0, &[], PART, 10_000), None);
        let size = 9_000 * 20 * MIB;
        let plan_of = |times, parts_max| plan(size, &between(size, &changed(times)), PART, parts_max);
        assert_eq!(plan_of(9_000, 10_000), None, "all runs are too short then");
        let pieces = plan_of(100, 500).unwrap();
        assert_eq!(sent(&pieces), 100 * 5 * MIB, "longer copies are fewer");
    }
}
