//! The sizes of parts and first blocks: pure functions.

use crate::buffer::{BLOCK, charge};

/// Parts an object may have.
pub(super) const PARTS_MAX: u32 = 10_000;

/// Bytes an object may have: 48.8 TiB, as many as parts have. AWS took 5 TiB until 2025, and other stores may still; they refuse the last
/// request then.
pub(super) const OBJECT_MAX: u64 = PARTS_MAX as u64 * PART_MAX;

/// Parts grow until so many bytes fit, whatever the first ones have: larger parts would take memory that most files don't need.
const GROWS_TO: u64 = 5 << 40;

/// Bytes of the smallest part S3 takes, the last one excepted.
pub(super) const PART_MIN: u64 = 5 << 20;

/// Bytes of the largest part S3 takes.
const PART_MAX: u64 = 5 << 30;

/// Parts until the size doubles. Doubling keeps a part small against what was written before it, so that an object of
/// a few GiB is still cut finely; 1000 at a time, ten steps, reach 5 TiB.
const STEP: u32 = PARTS_MAX / 10;

/// Growth starts from at least this: ten steps from 5 MiB would miss 5 TiB narrowly.
const GROW_FROM: u64 = 6 << 20;

/// Once 10,000 parts of this size make 5 TiB, they stop growing.
const ENOUGH: u64 = GROWS_TO.div_ceil(PARTS_MAX as u64);

/// Bytes of part `number` (from 1) when the first ones have `base`.
pub(super) fn part_size(number: u32, base: u64) -> u64 {
    let step = number.saturating_sub(1) / STEP;
    if step == 0 || base >= ENOUGH {
        return base.min(PART_MAX);
    }
    (base.max(GROW_FROM) << step.min(9)).min(PART_MAX)
}

/// The pool's charge for `len` bytes cut into blocks.
pub(super) fn charges(len: u64) -> u64 {
    let block = BLOCK as u64;
    len / block * block + charge((len % block) as usize)
}

/// How large the one block of a small file becomes when `incoming` bytes follow the `filled` it has: exactly as large for
/// the first write, then in leaps of four, so that a file of 4 KiB holds 4 KiB and one written in small pieces
/// is copied twice at most. `None` when one block is not enough, or not yet.
pub(super) fn first_block(filled: u64, incoming: usize, part_max: u64) -> Option<usize> {
    let most = part_max.min(BLOCK as u64);
    let needed = filled + incoming as u64;
    (needed > 0 && needed <= most).then(|| needed.max((filled * 4).min(most)) as usize)
}

const _: () = assert!(PART_MIN <= GROW_FROM && GROW_FROM << 9 <= PART_MAX);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_base_reaches_5_tib_within_10000_parts_that_s3_takes(base in PART_MIN..=PART_MAX) {
            let sizes: Vec<u64> = (1..=PARTS_MAX).map(|n| part_size(n, base)).collect();
            prop_assert!(sizes[..1000].iter().all(|s| *s == base));
            prop_assert!(sizes.iter().sum::<u64>() >= GROWS_TO);
            prop_assert!(sizes.iter().all(|s| (PART_MIN..=PART_MAX).contains(s)));
            prop_assert!(sizes.is_sorted(), "a part is never smaller than the one before it");
        }

        #[test]
        fn a_first_block_holds_what_is_needed_and_not_much_more(
            filled in 0..2 * BLOCK as u64, incoming in 0..2 * BLOCK, part_max in 1..4 * BLOCK as u64
        ) {
            let needed = filled + incoming as u64;
            match first_block(filled, incoming, part_max) {
                Some(len) => {
                    prop_assert!(len as u64 >= needed && len <= BLOCK && len as u64 <= part_max);
                    prop_assert!(len as u64 == needed || len as u64 <= 4 * filled);
                }
                None => prop_assert!(needed == 0 || needed > part_max.min(BLOCK as u64)),
            }
        }
    }

    #[test]
    fn the_smallest_base_reaches_5_tib() {
        assert!((1..=PARTS_MAX).map(|n| part_size(n, PART_MIN)).sum::<u64>() >= GROWS_TO);
    }

    #[test]
    fn the_largest_parts_make_the_largest_object() {
        let sizes = (1..=PARTS_MAX).map(|n| part_size(n, PART_MAX));
        assert_eq!(sizes.sum::<u64>(), OBJECT_MAX);
        assert_eq!(OBJECT_MAX >> 30, 50_000);
    }

    #[test]
    fn small_pieces_grow_by_leaps_and_a_first_write_is_exact() {
        assert_eq!(first_block(0, 4096, 8 << 20), Some(4096));
        assert_eq!(first_block(4096, 4096, 8 << 20), Some(16384));
        assert_eq!(first_block(0, BLOCK, 8 << 20), Some(BLOCK));
        assert_eq!(first_block(BLOCK as u64, 1, 8 << 20), None);
    }

    #[test]
    fn charges_are_what_the_pool_takes_for_each_block() {
        assert_eq!(charges(8 << 20), 8 << 20);
        assert_eq!(charges((8 << 20) + 1), (8 << 20) + 4096);
        assert_eq!(charges(0), 0);
    }
}
