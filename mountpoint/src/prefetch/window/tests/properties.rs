//! Properties of runs downwards, of copies, of strides and of random reads, whatever their lengths and places.

use super::*;

/// The ranges that a plan fetches beyond the read's own.
fn brought(plan: &Plan) -> impl Iterator<Item = Range<u64>> {
    std::iter::once(plan.ahead.clone()).chain(plan.stride.clone()).filter(|range| !range.is_empty())
}

fn overlaps(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

/// The reads of a copy out of a mapping: `around` bytes on each side of its last and first page, and on from there.
fn reads_of(copy: &Range<u64>, around: u64, down: bool) -> Vec<Range<u64>> {
    let around_page = |at: u64| (at - around) / PAGE * PAGE..(at + around) / PAGE * PAGE;
    let (first, last) = (around_page(copy.start), around_page(copy.end - 1));
    let mut reads = if down { vec![first.clone(), last.clone()] } else { vec![last.clone(), first.clone()] };
    let mut between = first.end..last.start;
    while !between.is_empty() {
        let read = if down {
            between.start.max(between.end.saturating_sub(around))..between.end
        } else {
            between.start..between.end.min(between.start + around)
        };
        between = if down { between.start..read.start } else { read.end..between.end };
        reads.push(read);
    }
    reads
}

proptest! {
    #[test]
    fn a_run_downwards_fetches_nothing_twice_and_at_most_the_maximum(
        size in 2 * MIB..1 << 30,
        pages in proptest::collection::vec(1u64..=256, 1..200),
        pressures in proptest::collection::vec(0..4usize, 7),
    ) {
        let mut window = window(size);
        let (mut here, mut top) = (Vec::<Range<u64>>::new(), size);
        for (n, pages) in pages.into_iter().enumerate() {
            let range = top.saturating_sub(pages * PAGE) / PAGE * PAGE..top;
            if range.is_empty() {
                break;
            }
            let pressure = [Pressure::Low, Pressure::Low, Pressure::Some, Pressure::High][pressures[n % 7]];
            let plan = window.on_read(&range, pressure, 256 * MIB);
            prop_assert!(plan.demand.start <= range.start && range.end <= plan.demand.end, "{plan:?}");
            for new in brought(&plan) {
                prop_assert!(new.end <= size && range.start.saturating_sub(new.start) <= 264 * MIB, "{plan:?}");
                prop_assert!(!here.iter().any(|old| overlaps(old, &new)), "{n}: {plan:?} after {here:?}");
                here.push(new);
            }
            top = range.start;
            here.push(range);
        }
    }

    #[test]
    fn a_copy_fetches_nothing_twice_and_no_copy_anything_beyond_its_ends(
        copies in proptest::collection::vec((MIB..512 * MIB, 4 * MIB..64 * MIB, any::<bool>()), 1..6),
        around in prop_oneof![Just(64u64 << 10), Just(128 << 10), Just(512 << 10)],
    ) {
        let mut window = window(8 << 30);
        for (n, (at, long, down)) in copies.into_iter().enumerate() {
            let from = ((n as u64) << 30) + at;
            let reads = reads_of(&(from..from + long), around, down);
            let (low, high) = (reads[0].start.min(reads[1].start), reads[0].end.max(reads[1].end));
            let mut here: Vec<Range<u64>> = Vec::new();
            for range in reads {
                let plan = window.on_read(&range, Pressure::Low, 256 * MIB);
                prop_assert!(plan.stride.is_empty() && brought(&plan).all(|new| low <= new.start && new.end <= high), "{plan:?}");
                // A later copy may be guessed at its second read, and is planned once more at the third: the pieces have it by then.
                prop_assert!(n > 0 || !here.iter().any(|old| overlaps(old, &plan.ahead)), "{plan:?} after {here:?}");
                here.push(plan.ahead);
                here.push(range);
            }
        }
    }

    #[test]
    fn a_stride_brings_each_next_read_once_and_nothing_else(
        long in 70_000u64..1_000_000,
        more in 65_536..64 * MIB,
        down in any::<bool>(),
        first in 0u64..1 << 20,
        count in 3usize..40,
    ) {
        let size = 8 << 30;
        let mut window = window(size);
        let mut here: Vec<Range<u64>> = Vec::new();
        for n in 0..count as u64 {
            let at = MIB + first + n * (long + more);
            let start = if down { size - at - long } else { at };
            let range = start / PAGE * PAGE..(start + long).next_multiple_of(PAGE);
            let is_here = here.iter().any(|old| old.start <= range.start && range.end <= old.end);
            prop_assert_eq!(is_here, n >= 3, "{}: {:?} in {:?}", n, range, here);
            let plan = window.on_read(&range, Pressure::Low, 256 * MIB);
            for new in brought(&plan) {
                prop_assert!(!here.iter().any(|old| overlaps(old, &new)), "{new:?} after {here:?}");
                here.push(new);
            }
        }
        // Eight reads ahead, each with the pages in which it may begin or end.
        let fetched: u64 = here.iter().map(|range| range.end - range.start).sum();
        prop_assert!(fetched <= (count as u64 + 5) * (long + 14 * PAGE), "{fetched}");
    }

    #[test]
    fn random_reads_get_their_pages_alone(
        reads in proptest::collection::vec((any::<u64>(), 1u64..64 << 10), 1..60),
    ) {
        let size = 64u64 << 30;
        let mut window = window(size);
        for (at, long) in reads {
            let start = 1 + at % (size - MIB);
            let range = start..start + long;
            let plan = window.on_read(&range, Pressure::Low, 256 * MIB);
            prop_assert!(!plan.sequential && brought(&plan).next().is_none(), "{plan:?}");
            prop_assert_eq!(plan.demand, start / PAGE * PAGE..range.end.next_multiple_of(PAGE));
        }
    }
}

#[test]
fn while_memory_is_short_neither_a_copy_nor_a_stride_is_fetched_at_once() {
    for pressure in [Pressure::Some, Pressure::High] {
        let mut window = window(8 << 30);
        // A copy like one that was right is fetched at its second read.
        let whole = |n: u64| (n << 30) + MIB..(n << 30) + 31 * MIB;
        for range in reads_of(&whole(0), 512 << 10, false) {
            window.on_read(&range, Pressure::Low, CALM);
        }
        for range in reads_of(&whole(1), 512 << 10, false) {
            let plan = window.on_read(&range, pressure, CALM);
            let ahead: u64 = brought(&plan).map(|range| range.end - range.start).sum();
            assert!(ahead <= 2 * MIB, "{pressure:?}: {plan:?}");
        }
        for at in (0..20).map(|n| (4u64 << 30) + n * 8 * MIB) {
            let plan = window.on_read(&(at..at + 500_000), pressure, CALM);
            assert!(brought(&plan).next().is_none(), "{pressure:?}: {plan:?}");
        }
    }
}
