//! Tests of plans for reads of many kinds: the fetched ranges, their order, and no more than that.

use super::run::{LATE, SLACK};
use super::*;
use proptest::prelude::*;

mod expected;
mod properties;
mod tables;

const MIB: u64 = 1 << 20;
const CALM: u64 = 16 * MIB;

fn window(size: u64) -> Window {
    Window::new(WindowConfig::default(), size)
}

/// Number of bytes fetched for runs of `run` bytes at random places, as the kernel reads them; per run, over the last half.
fn fetched_by_runs(run: u64, count: u64) -> u64 {
    let size = 64 << 30;
    let mut window = window(size);
    let mut fetched = 0;
    for n in 0..count {
        let start = (n * 0x9e37_79b1) % (size / run) * run;
        for at in (start..start + run).step_by(128 << 10) {
            let plan = window.on_read(&(at..at + (128 << 10)), Pressure::Low, 256 * MIB);
            if n >= count / 2 {
                let asked = plan.ahead.end - plan.ahead.start;
                fetched += if plan.sequential { asked } else { asked + plan.demand.end - plan.demand.start };
            }
        }
    }
    fetched / (count - count / 2)
}

#[test]
fn runs_that_end_like_those_before_them_fetch_what_they_read() {
    for run in [MIB, 3 * MIB, 8 * MIB, 40 * MIB] {
        let fetched = fetched_by_runs(run, 100);
        // The first two reads of a run ask for themselves.
        assert!(
            (run - (256 << 10)..=run + MIB).contains(&fetched),
            "{} KiB for {} MiB",
            fetched >> 10,
            run / MIB
        );
    }
}

#[test]
fn a_run_that_goes_on_beyond_those_before_it_is_fetched_ever_further() {
    let mut window = window(64 << 30);
    for n in 0..40 {
        for at in (0..MIB).step_by(128 << 10) {
            let at = (n << 30) + at;
            window.on_read(&(at..at + (128 << 10)), Pressure::Low, 256 * MIB);
        }
    }
    let (start, mut ahead) = (50 << 30, 0);
    for at in (start..start + 512 * MIB).step_by(128 << 10) {
        let plan = window.on_read(&(at..at + (128 << 10)), Pressure::Low, 256 * MIB);
        ahead = ahead.max(plan.ahead.end.saturating_sub(at));
        assert!(plan.ahead.end <= start + 2 * (at + (128 << 10) - start).max(MIB) + MIB, "at {at}");
    }
    assert!(ahead > 200 * MIB, "{} MiB", ahead / MIB);
}

#[test]
fn a_small_file_is_one_request() {
    let plan = window(100 << 10).on_read(&(0..100 << 10), Pressure::Low, CALM);
    assert_eq!((plan.demand, plan.ahead), (0..100 << 10, 100 << 10..100 << 10));
}

#[test]
fn a_long_first_read_brings_the_rest_of_a_file_of_up_to_8_mib() {
    let ahead = |size: u64, first: u64, pressure| window(size).on_read(&(0..first), pressure, CALM).ahead;
    assert_eq!(ahead(2 * MIB, MIB, Pressure::Low), MIB..2 * MIB);
    assert_eq!(ahead(8 * MIB, MIB, Pressure::Low), MIB..8 * MIB);
    assert!(ahead(8 * MIB + 1, MIB, Pressure::Low).is_empty());
    assert_eq!(ahead(2 * MIB, 128 << 10, Pressure::Low), 128 << 10..512 << 10);
    assert!(ahead(2 * MIB, MIB, Pressure::Some).is_empty());
}

#[test]
fn the_first_request_is_small_and_the_window_grows_to_whole_parts() {
    let mut window = window(1 << 30);
    let mut planned = 0;
    let mut sizes = Vec::new();
    for offset in (0..64 * MIB).step_by(128 << 10) {
        let plan = window.on_read(&(offset..offset + (128 << 10)), Pressure::Low, CALM);
        assert!(plan.sequential && (plan.forget.is_empty() || plan.forget.end <= offset - SLACK));
        planned = planned.max(plan.demand.end);
        if !plan.ahead.is_empty() {
            assert_eq!(plan.ahead.start, planned, "no gap and nothing twice");
            planned = plan.ahead.end;
            sizes.push(plan.ahead.end - plan.ahead.start);
        }
    }
    assert_eq!(sizes[0], (512 << 10) - (128 << 10));
    assert!(sizes.len() < 20, "few requests: {sizes:?}");
    assert_eq!(*sizes.last().unwrap(), 8 * MIB, "{sizes:?}");
    assert!(planned <= 64 * MIB + 16 * MIB, "calm readers stay within the calm window");
}

#[test]
fn a_link_that_asks_for_more_is_given_more() {
    let mut window = window(4 << 30);
    let mut planned = 0;
    for offset in (0..(1u64 << 30)).step_by(MIB as usize) {
        let range = offset..offset + MIB;
        planned = planned.max(window.on_read(&range, Pressure::Low, 200 * MIB).ahead.end);
    }
    let ahead = planned - (1 << 30);
    assert!((190 * MIB..=210 * MIB).contains(&ahead), "{} MiB ahead", ahead / MIB);
}

#[test]
fn random_reads_fetch_their_pages_and_nothing_more() {
    let mut window = window(1 << 30);
    for i in 1..2000u64 {
        let offset = (i * 7_919_654_321) % (1 << 30) / 4096 * 4096;
        let plan = window.on_read(&(offset..offset + 4096), Pressure::Low, CALM);
        assert!(!plan.sequential);
        assert_eq!(plan.demand, offset..offset + 4096);
        assert!(plan.ahead.is_empty());
    }
}

#[test]
fn a_first_read_of_the_end_gets_the_tail_and_a_later_one_its_pages() {
    let size = 100 * MIB + 777;
    let tail = (size - (128 << 10)).next_multiple_of(PAGE);
    let first = |range: Range<u64>, pressure| window(size).on_read(&range, pressure, CALM);
    for back in [8, PAGE, 2 * PAGE] {
        let mut window = window(size);
        let plan = window.on_read(&(size - back..size), Pressure::Low, CALM);
        assert_eq!(plan.demand, tail..size);
        assert!(plan.keep && !plan.sequential && plan.ahead.is_empty(), "{plan:?}");
        let later = window.on_read(&(size - back..size), Pressure::Low, CALM);
        assert!(later.demand.start > size - back - PAGE && !later.keep, "{later:?}");
    }
    // A longer read knows what it wants, one elsewhere is of no trailer, and memory is short.
    let own = |plan: &Plan, at: u64| plan.demand.start == at / PAGE * PAGE && !plan.keep;
    for back in [64 << 10, MIB] {
        assert!(own(&first(size - back..size, Pressure::Low), size - back), "{back}");
    }
    assert!(own(&first(size - 9000..size - 5000, Pressure::Low), size - 9000));
    assert!(own(&first(size - 8..size, Pressure::High), size - 8));
    // A read before the last bytes, within the tail, is not the second one of a run downwards.
    let mut table = window(3 * MIB);
    table.on_read(&(3 * MIB - PAGE..3 * MIB), Pressure::Low, CALM);
    let second = table.on_read(&(3 * MIB - 10 * PAGE..3 * MIB - PAGE), Pressure::Low, CALM);
    assert!(second.ahead.is_empty() && !second.sequential, "{second:?}");
    // All of a small file, whose beginning is in the tail.
    let small = window(10_000).on_read(&(9_000..10_000), Pressure::Low, CALM);
    assert_eq!(small.demand, 0..10_000);
}

#[test]
fn only_a_read_that_continues_none_before_it_jumps() {
    let mut window = window(1 << 30);
    let jumped = [0, MIB, 2 * MIB, 600 * MIB, 3 * MIB, 900 * MIB]
        .map(|at| window.on_read(&(at..at + MIB), Pressure::Low, CALM).jumped);
    assert_eq!(jumped, [false, false, false, true, false, true]);
}

#[test]
fn a_run_leaves_behind_all_that_was_fetched_for_it_and_each_byte_once() {
    let mut window = window(4 << 30);
    let (begun, skips) = (MIB + PAGE, 700 << 10);
    let mut read = |at: u64, len: u64| window.on_read(&(at..at + len), Pressure::Low, CALM);
    // Two that join, one out of order before both, and skips.
    let mut held = begun - PAGE;
    let mut fetched = 0;
    for at in [begun, begun + PAGE, begun - PAGE].into_iter().chain((1..200).map(|n| begun + n * skips)) {
        let plan = read(at, PAGE);
        if !plan.forget.is_empty() {
            assert!(plan.forget.start == held && plan.forget.end + LATE <= at + PAGE, "{plan:?}");
            held = plan.forget.end;
        }
        fetched = plan.ahead.end.max(plan.demand.end).max(fetched);
    }
    assert!(held + LATE + MIB >= begun + 199 * skips, "{held}");
    // Another run after another takes its place, in the end.
    let mut left = Vec::new();
    for run in 1..=RUNS_MAX as u64 {
        for at in [0, PAGE] {
            left.push(read((run << 28) + at, PAGE).forget);
        }
    }
    left.retain(|range| !range.is_empty());
    let all = held..fetched.next_multiple_of(KEPT);
    assert_eq!(left.as_slice(), std::slice::from_ref(&all));
}

#[test]
fn four_streams_of_one_handle_are_four_runs() {
    let mut window = window(1 << 30);
    let mut ahead = [0u64; 4];
    for step in 0..64u64 {
        for (i, ahead) in ahead.iter_mut().enumerate() {
            let offset = i as u64 * 200 * MIB + step * MIB;
            let plan = window.on_read(&(offset..offset + MIB), Pressure::Low, CALM);
            *ahead = (*ahead).max(plan.ahead.end.saturating_sub(offset));
        }
    }
    assert!(ahead.iter().all(|a| *a >= 8 * MIB), "{ahead:?}");
}

#[test]
fn a_real_stream_survives_random_reads_beside_it() {
    let mut window = window(1 << 30);
    for step in 0..100u64 {
        for i in 0..20u64 {
            let offset = 500 * MIB + (step * 20 + i) * 7_919 * 4096 % (400 * MIB);
            window.on_read(&(offset..offset + 4096), Pressure::Low, CALM);
        }
        let plan = window.on_read(&(step * MIB..(step + 1) * MIB), Pressure::Low, CALM);
        assert!(plan.sequential);
    }
}

/// Reads as the kernel sends them for a copy between `from` and `to` out of a mapping: 512 KiB around its last bytes, around its first
/// ones, and on from there. Returns the most bytes fetched beyond its ends, and the number of its reads until all of it was asked for.
fn copied(window: &mut Window, copy: Range<u64>, down: bool) -> (u64, usize) {
    const AROUND: u64 = 512 << 10;
    let around = |at: u64| at.saturating_sub(AROUND) / PAGE * PAGE..at + AROUND;
    let (first, last) = (around(copy.start), around(copy.end));
    let steps = (first.end..last.start).step_by(AROUND as usize).map(|at| at..(at + AROUND).min(last.start));
    let mut steps: Vec<_> = steps.collect();
    if down {
        steps.reverse();
    }
    let (touched, begun) = if down { (&first, &last) } else { (&last, &first) };
    let mut asked = vec![touched.clone(), begun.clone()];
    let mut all_at = 0;
    let mut beyond = 0;
    for (n, range) in [touched, begun].into_iter().chain(&steps).enumerate() {
        let plan = window.on_read(range, Pressure::Low, CALM);
        for range in [plan.demand, plan.ahead].into_iter().filter(|range| !range.is_empty()) {
            let (below, above) =
                (first.start.saturating_sub(range.start), range.end.saturating_sub(last.end));
            beyond = beyond.max(below).max(above);
            asked.push(range);
        }
        if all_at == 0 && covers(&asked, &copy) {
            all_at = n + 1;
        }
    }
    (beyond, all_at)
}

fn covers(ranges: &[Range<u64>], all: &Range<u64>) -> bool {
    let mut at = all.start;
    let mut sorted = ranges.to_vec();
    sorted.sort_by_key(|range| range.start);
    for range in sorted {
        if range.start <= at {
            at = at.max(range.end);
        }
    }
    at >= all.end
}

#[test]
fn a_copy_is_fetched_at_once_between_its_ends_and_not_beyond() {
    for down in [false, true] {
        let mut window = window(4 << 30);
        for n in 1..4 {
            let from = (n << 30) + 12_345 * PAGE;
            let expected = (0, if n == 1 { 3 } else { 2 });
            assert_eq!(copied(&mut window, from..from + 30 * MIB, down), expected, "{n} {down}");
        }
        let from = (4 << 30) - 70 * MIB;
        assert_eq!(copied(&mut window, from..from + 60 * MIB, down), (0, 3), "another length, {down}");
    }
}

#[test]
fn a_copy_down_to_the_first_byte_is_fetched_between_its_ends_and_once() {
    const AROUND: u64 = 512 << 10;
    let size = 128 * MIB;
    let mut window = window(size);
    // The kernel's reads around the first and the last page, and on down from there.
    let last = size - AROUND - PAGE;
    let steps =
        (MIB..last).rev().step_by(AROUND as usize).map(|at| (at + 1).saturating_sub(AROUND).max(MIB)..at + 1);
    let mut asked: Vec<Range<u64>> = Vec::new();
    let mut ahead_at_third = 0;
    for (n, range) in [0..MIB, last..size].into_iter().chain(steps).enumerate() {
        let plan = window.on_read(&range, Pressure::Low, CALM);
        if n == 2 {
            ahead_at_third = plan.ahead.end - plan.ahead.start;
        }
        asked.push(range);
        if n > 1 && !plan.ahead.is_empty() {
            let is_new =
                |range: &Range<u64>| asked.iter().all(|old| old.end <= range.start || old.start >= range.end);
            assert!(is_new(&plan.ahead), "{n}: {:?} of {asked:?}", plan.ahead);
            asked.push(plan.ahead);
        }
    }
    assert!(ahead_at_third >= 30 * MIB, "{ahead_at_third}");
    assert!(covers(&asked, &(0..size)), "{asked:?}");
}

#[test]
fn three_pairs_of_reads_as_far_apart_as_the_last_copy_end_the_guessing() {
    let mut window = window(64 << 30);
    copied(&mut window, MIB..31 * MIB, false);
    let (mut ahead, mut forgotten) = (0, 0);
    for n in 1..60u64 {
        let at = n << 30;
        for start in [at, at + 30 * MIB, at + 600 * MIB] {
            let plan = window.on_read(&(start..start + PAGE), Pressure::Low, CALM);
            ahead += plan.ahead.end - plan.ahead.start;
            forgotten += plan.forget.end - plan.forget.start;
        }
    }
    assert_eq!(ahead, 3 * (30 * MIB - PAGE));
    assert!(forgotten >= ahead, "{forgotten} of {ahead}");
}

/// A copy as two threads of a daemon hand it over: after the first read, or both ends, consecutive reads change places.
fn copied_out_of_order(window: &mut Window, copy: Range<u64>, with_ends: bool, seed: &mut u64) -> u64 {
    let mut reads = vec![copy.start];
    if with_ends {
        reads.push(copy.end - MIB);
        if *seed >> 63 == 0 {
            reads.reverse();
        }
    }
    let mut at = reads.len();
    let end = if with_ends { copy.end - MIB } else { copy.end };
    reads.extend((copy.start + MIB..end).step_by(MIB as usize));
    while at + 2 < reads.len() {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        match *seed >> 62 {
            0 => reads.swap(at, at + 1),
            1 => reads[at..at + 3].rotate_right(1),
            _ => {}
        }
        at += 3;
    }
    let mut beyond = 0;
    for at in reads {
        let plan = window.on_read(&(at..at + MIB), Pressure::Low, 200 * MIB);
        beyond = beyond.max(plan.ahead.end.saturating_sub(copy.end));
    }
    beyond
}

#[test]
fn a_copy_whose_reads_come_out_of_order_is_fetched_to_its_end_only() {
    let mut seed = 7;
    for with_ends in [true, false] {
        let mut too_far = Vec::new();
        for n in 0..500 {
            let mut window = window(64 << 30);
            for copy in 0..8 {
                let from = (copy * 7 % 8 * 1000 + 9) * MIB;
                let beyond = copied_out_of_order(&mut window, from..from + 21 * MIB, with_ends, &mut seed);
                // Without its ends the first one says nothing of its length, and reads out of order make others seem a little longer.
                let is_right = if with_ends { beyond == 0 } else { copy == 0 || beyond <= 16 * MIB };
                if !is_right {
                    too_far.push((n, copy, beyond / MIB));
                }
            }
        }
        assert!(too_far.is_empty(), "{with_ends}: {} of 4000: {too_far:?}", too_far.len());
    }
}

#[test]
fn a_long_copy_is_fetched_step_by_step_until_one_guess_was_right() {
    let mut window = window(8 << 30);
    let (beyond, first) = copied(&mut window, MIB * 100..MIB * 228, false);
    assert!(beyond == 0 && first > 100, "{beyond} {first}");
    assert_eq!(copied(&mut window, MIB * 1000..MIB * 1128, false), (0, 2));
    assert_eq!(copied(&mut window, MIB * 2000..MIB * 2148, true), (0, 3), "another length");
}

#[test]
fn copies_without_ends_go_as_far_as_the_one_before() {
    // `rep movsb` and copies past the processor's caches read so: upwards, nothing of the end before it.
    let mut window = window(8 << 30);
    let long = 22 * MIB;
    for (n, from) in [MIB * 4000, MIB * 1000, MIB * 3000, MIB * 2000].into_iter().enumerate() {
        let mut furthest = 0;
        for at in (from..from + long).step_by(MIB as usize) {
            let plan = window.on_read(&(at..at + MIB), Pressure::Low, 256 * MIB);
            furthest = furthest.max(plan.ahead.end);
        }
        let beyond = (furthest - from - long) / MIB;
        assert_eq!(beyond > 2, n == 0, "{n}: {beyond} MiB too far");
        assert!(furthest >= from + long, "{n}: all of it is fetched ahead");
    }
    // One that goes on beyond is fetched further, and is not waited for more often than its length doubles.
    let (from, mut waits) = (MIB * 5000, 0);
    let mut asked = from;
    for at in (from..from + 512 * MIB).step_by(MIB as usize) {
        waits += u32::from(at + MIB > asked);
        asked = asked.max(window.on_read(&(at..at + MIB), Pressure::Low, 256 * MIB).ahead.end);
    }
    assert!(waits <= 8, "{waits} waits");
}

#[test]
fn streams_side_by_side_do_not_hold_each_other_back() {
    let mut window = window(8 << 30);
    let mut ahead = [0; 2];
    for step in 0..100 {
        for (n, ahead) in ahead.iter_mut().enumerate() {
            let at = n as u64 * 4000 * MIB + step * MIB;
            let plan = window.on_read(&(at..at + MIB), Pressure::Low, 64 * MIB);
            *ahead = (*ahead).max(plan.ahead.end);
        }
    }
    assert!(ahead[0] >= 150 * MIB && ahead[1] >= 4150 * MIB, "{ahead:?}");
}

#[test]
fn copies_side_by_side_are_one_run() {
    let mut window = window(4 << 30);
    let mut fetched = 0;
    let mut asked = Vec::new();
    for n in 0..32u64 {
        // The end of the next one; then what follows the end of the one before.
        let from = if n == 0 { 512 << 10 } else { n * 16 * MIB + (512 << 10) };
        let to = (n + 1) * 16 * MIB;
        let last = to - (512 << 10)..to + (512 << 10);
        let steps = (from..last.start).step_by(512 << 10).map(|at| at..at + (512 << 10));
        let first = (n == 0).then_some(0..512 << 10);
        for range in std::iter::once(last.clone()).chain(first).chain(steps) {
            let plan = window.on_read(&range, Pressure::Low, CALM);
            for range in [plan.demand, plan.ahead].into_iter().filter(|range| !range.is_empty()) {
                fetched += if covers(&asked, &range) { 0 } else { range.end - range.start };
                asked.push(range);
            }
        }
    }
    let all = 512 * MIB;
    assert!(covers(&asked, &(0..all)), "no gap");
    assert!(asked.iter().all(|range| range.end <= all + MIB), "nothing beyond the last end");
    assert!(fetched <= 2 * all, "{} MiB", fetched / MIB);
}

#[test]
fn a_read_ahead_of_the_front_leaves_the_front_where_it_is() {
    let mut window = window(4 << 30);
    for at in (0..64 * MIB).step_by(MIB as usize) {
        window.on_read(&(at..at + MIB), Pressure::Low, 64 * MIB);
    }
    let far = window.on_read(&(100 * MIB..101 * MIB), Pressure::Low, 64 * MIB);
    assert!(far.sequential && far.ahead.is_empty() && far.forget.is_empty(), "{far:?}");
    let next = window.on_read(&(64 * MIB..65 * MIB), Pressure::Low, 64 * MIB);
    assert!(next.sequential && next.forget.end <= 65 * MIB, "{next:?}");
    // Two in a row there: the reader has moved.
    window.on_read(&(80 * MIB..81 * MIB), Pressure::Low, 64 * MIB);
    let moved = window.on_read(&(81 * MIB..82 * MIB), Pressure::Low, 64 * MIB);
    assert!(moved.sequential && moved.forget.end > 70 * MIB, "{moved:?}");
}

#[test]
fn a_run_downwards_grows_as_one_upwards_and_ends_at_the_first_byte() {
    let size = 200 * MIB + 777;
    let mut window = window(size);
    let (mut lowest, mut steps) = (size, Vec::new());
    for at in (0..400).rev().map(|n| n * (512 << 10)) {
        let plan = window.on_read(&(at..at + (512 << 10)), Pressure::Low, CALM);
        if !plan.ahead.is_empty() {
            assert!(
                plan.descending && plan.ahead.end <= lowest.min(at + (512 << 10)),
                "nothing twice: {plan:?}"
            );
            lowest = plan.ahead.start;
            steps.push(plan.ahead.end - plan.ahead.start);
        }
        assert!(plan.forget.is_empty() || plan.forget.start >= at + SLACK, "{plan:?}");
    }
    assert_eq!(lowest, 0);
    assert!(steps[0] <= MIB && steps.iter().max() == Some(&(8 * MIB)) && steps.len() < 40, "{steps:?}");
}

#[test]
fn three_wrong_ends_of_copies_end_the_guessing() {
    let mut window = window(64 << 30);
    let mut ahead = 0;
    for n in 1..100u64 {
        // Something small ahead, and a record of two reads.
        let at = n * (256 << 20);
        for range in [at + 200 * MIB..at + 200 * MIB + PAGE, at..at + MIB, at + MIB..at + 2 * MIB] {
            let plan = window.on_read(&range, Pressure::Low, CALM);
            ahead += plan.ahead.end.saturating_sub(plan.ahead.start);
        }
    }
    assert!(ahead <= 12 * 32 * MIB, "{} MiB", ahead / MIB);
}

#[test]
fn reads_at_one_distance_bring_the_next_ones() {
    for distance in [8_000_000i64, -8_000_000, 8 << 20] {
        let mut window = window(4 << 30);
        let mut asked: Vec<Range<u64>> = Vec::new();
        for n in 0..40 {
            let start = (2_000_000_000 + n * distance) as u64;
            let range = start / PAGE * PAGE..(start + 500_000).next_multiple_of(PAGE);
            let here = asked.iter().any(|a| a.start <= range.start && a.end >= range.end);
            assert_eq!(here, n >= 3, "{distance} {n}");
            let plan = window.on_read(&range, Pressure::Low, CALM);
            assert!(plan.ahead.is_empty() && plan.stride.len() <= 8);
            asked.extend(plan.stride);
        }
        let fetched: u64 = asked.iter().map(|range| range.end - range.start).sum();
        assert!(fetched < 48 * (500_000 + 4 * PAGE), "{fetched}");
        let elsewhere = window.on_read(&(5_000..9_000), Pressure::Low, CALM);
        assert!(elsewhere.stride.is_empty());
    }
}

#[test]
fn one_stream_upwards_and_one_downwards_on_one_handle_are_two_runs() {
    const STEP: u64 = 512 << 10;
    let size = 256 * MIB;
    let mut window = window(size);
    let mut asked = [0, 0];
    for n in 0..200 {
        for (side, at) in [n * STEP, size - (n + 1) * STEP].into_iter().enumerate() {
            let range = at..at + STEP;
            let plan = window.on_read(&range, Pressure::Low, CALM);
            assert!(plan.demand.start <= range.start && plan.demand.end >= range.end);
            if n > 2 {
                assert_eq!((plan.sequential, plan.descending), (true, side == 1), "{n}: {plan:?}");
            }
            asked[side] += plan.ahead.end - plan.ahead.start;
        }
    }
    assert!(asked.iter().all(|asked| (90 * MIB..=128 * MIB).contains(asked)), "{asked:?}");
}

#[test]
fn nine_streams_of_one_handle_get_what_they_ask_for_and_eight_are_runs() {
    let mut window = window(16 << 30);
    let mut fetched = 0;
    for step in 0..64 {
        for stream in 0..9 {
            let at = (stream << 30) + step * MIB;
            let plan = window.on_read(&(at..at + MIB), Pressure::Low, CALM);
            assert!(plan.demand.start <= at && plan.demand.end >= at + MIB, "{plan:?}");
            assert!(plan.ahead.end <= at + 64 * MIB, "{plan:?}");
            fetched += plan.ahead.end.saturating_sub(plan.ahead.start);
        }
    }
    assert!(fetched <= 9 * 128 * MIB, "{} MiB for 576", fetched / MIB);
    for step in 64..70 {
        for stream in 0..8 {
            let at = (stream << 30) + step * MIB;
            let plan = window.on_read(&(at..at + MIB), Pressure::Low, CALM);
            assert!(step < 68 || plan.sequential, "{stream} {step}");
        }
    }
}

proptest! {
    #[test]
    fn plans_stay_within_the_object_and_within_the_maximum(
        size in 1u64..(1 << 32),
        reads in proptest::collection::vec((any::<u64>(), 1u64..(2 * MIB), any::<bool>(), 0..3u8), 1..100),
    ) {
        let mut window = window(size);
        let mut next = 0;
        let mut tail = 128 << 10;
        for (at, len, follow, pressure) in reads {
            let start = if follow && next < size { next } else { at % size };
            let range = start..(start + len).min(size);
            next = range.end;
            let pressure = [Pressure::Low, Pressure::Some, Pressure::High][pressure as usize];
            let plan = window.on_read(&range, pressure, CALM * 16);
            prop_assert!(plan.demand.start <= range.start && plan.demand.end >= range.end);
            prop_assert!(plan.demand.end <= size && plan.ahead.end <= size);
            prop_assert!(plan.demand.end - plan.demand.start < len + 2 * PAGE + tail);
            tail = 0;
            prop_assert!(plan.ahead.start <= plan.ahead.end);
            prop_assert!(plan.ahead.end.saturating_sub(range.end) <= 256 * MIB + 8 * MIB);
            prop_assert!(range.start.saturating_sub(plan.ahead.start) <= 256 * MIB + 8 * MIB || !plan.descending);
            prop_assert!(plan.stride.len() <= 8 && plan.stride.iter().all(|r| r.start < r.end && r.end <= size));
        }
    }
}
