//! Tables: their head, footer and contents are read in an order that resembles a copy downwards.

use super::*;

#[test]
fn the_head_of_a_table_and_its_footer_are_no_copy() {
    for footer in [PAGE, 60 << 10] {
        let size = 512 * MIB;
        let mut window = window(size);
        let below = |n: u64| size - footer - (n + 1) * MIB..size - footer - n * MIB;
        for range in [0..128 << 10, size - footer..size, below(0), below(1)] {
            let plan = window.on_read(&range, Pressure::Low, CALM);
            assert!(plan.ahead.end - plan.ahead.start <= 8 * MIB, "{footer}: {plan:?}");
        }
    }
}

/// The bytes fetched ahead for a table that is read by its head, its footer, the rest of its contents before that, and four columns.
fn fetched_for_table(size: u64, head: u64, footer: u64, contents: u64) -> u64 {
    let mut window = window(size);
    window.on_read(&(0..head), Pressure::Low, CALM);
    let footer = (size - footer) / PAGE * PAGE..size;
    let contents = footer.start - contents..footer.start;
    let columns = [5, 41, 17, 29].map(|n| n * MIB..n * MIB + 300 * PAGE);
    let reads = [footer, contents].into_iter().chain(columns);
    reads
        .map(|range| window.on_read(&range, Pressure::Low, CALM))
        .map(|plan| plan.ahead.end - plan.ahead.start)
        .sum()
}

#[test]
fn a_table_whose_contents_are_longer_than_its_footer_is_no_copy() {
    // pyarrow reads 64 KiB of a table's end; the kernel makes whole pages of it.
    let size = 512 * MIB + 777;
    for contents in [PAGE, 300 << 10, MIB] {
        assert_eq!(fetched_for_table(size, 128 << 10, 64 << 10, contents), 0, "{contents}");
    }
}

#[test]
fn a_column_after_the_contents_of_a_table_is_no_copy_up_to_them() {
    let size = 512 * MIB + 777;
    let mut window = window(size);
    let footer = size - (64 << 10);
    for range in
        [0..128 << 10, footer..size, footer - (300 << 10)..footer, 40 * MIB..41 * MIB, 41 * MIB..42 * MIB]
    {
        let plan = window.on_read(&range, Pressure::Low, CALM);
        assert!(plan.ahead.end - plan.ahead.start <= 8 * MIB, "{range:?}: {plan:?}");
    }
}

/// The most bytes that one of these reads fetches ahead.
fn most_ahead(window: &mut Window, reads: &[Range<u64>]) -> u64 {
    let ahead = |range| window.on_read(range, Pressure::Low, CALM).ahead;
    reads.iter().map(ahead).map(|ahead| ahead.end - ahead.start).max().unwrap_or(0)
}

#[test]
fn a_column_after_a_footer_that_was_read_alone_is_no_copy_up_to_it() {
    let size = 512 * MIB + 777;
    for footer in [8, PAGE, 64 << 10, 100 << 10] {
        // The footer, as the kernel asks for it, and a column of four reads.
        let column = (40..44).map(|n| n * MIB..(n + 1) * MIB);
        let reads: Vec<_> = std::iter::once((size - footer) / PAGE * PAGE..size).chain(column).collect();
        let most = most_ahead(&mut window(size), &reads);
        // A run of such reads has 8 MiB ahead at its third read in any case.
        assert!(most <= 16 * MIB, "{footer}: {most}");
    }
}

#[test]
fn a_copy_up_to_the_last_byte_is_fetched_at_its_third_read() {
    for around in [64 << 10, 512 << 10] {
        for odd in [0, 777] {
            let (size, start) = (512 * MIB + odd, 100 * MIB);
            let last = (size - 1) / PAGE * PAGE - around..size;
            let reads = [last, start - around..start + around, start + around..start + 2 * around];
            let most = most_ahead(&mut window(size), &reads);
            assert!(most >= 24 * MIB, "{around} {odd}: {most}");
        }
    }
}

proptest! {
    #[test]
    fn no_table_is_fetched_ahead_because_of_its_footer_and_contents(
        odd in 0..PAGE,
        head in 1..=256u64,
        footer in 1..=30u64,
        contents in 1..=256u64,
    ) {
        // Contents as long as half of the head look like a copy down to the first byte.
        prop_assume!(footer < 16 || contents.abs_diff(head / 2) > 3);
        let size = 512 * MIB + odd;
        prop_assert_eq!(fetched_for_table(size, head * PAGE, footer * PAGE, contents * PAGE), 0);
    }
}
