//! The sizes of parts and first blocks. Pure.

use crate::buffer::{BLOCK, charge};
use crate::s3::PartLimits;

/// Most bytes of an object: 48.8 TiB, the size of 10,000 parts of the largest size. AWS accepted only 5 TiB until 2025. Other stores may
/// still have that limit: they refuse the last request of a larger object.
pub(super) const OBJECT_MAX: u64 = 10_000 * PART_MAX;

/// Object size up to which parts grow, whatever the size of the first ones. Larger parts would take memory that most files don't need.
const GROWS_TO: u64 = 5 << 40;

/// Least bytes of a part on S3, except the last one.
pub(super) const PART_MIN: u64 = 5 << 20;

/// Most bytes of a part on S3.
pub(super) const PART_MAX: u64 = 5 << 30;

/// Least size from which parts grow: ten steps from 5 MiB would narrowly miss 5 TiB.
const GROW_FROM: u64 = 6 << 20;

/// Number of sizes. Each step doubles the size, so a part stays small compared with the bytes before it, and an object of a few GiB has
/// many parts. Ten steps of 1000 parts each reach 5 TiB.
const STEPS: u32 = 10;

/// Size of part `number` (from 1), in bytes, if the first parts have `base` bytes. Parts do not grow on a store that wants equal ones.
pub(super) fn part_size(number: u32, base: u64, limits: PartLimits) -> u64 {
    let step = number.saturating_sub(1) / (limits.parts_max / STEPS).max(1);
    // Parts stop growing once the allowed number of parts of this size makes 5 TiB.
    let is_enough = base >= GROWS_TO.div_ceil(u64::from(limits.parts_max.max(1)));
    if step == 0 || limits.are_equal || is_enough {
        return base.min(PART_MAX);
    }
    (base.max(GROW_FROM) << step.min(STEPS - 1)).min(PART_MAX)
}

/// Number of equal parts that fit into the writers' guaranteed memory, if the user names no size. The part size limits the size of files
/// there. Doubling it halves the parts and so the largest file, and lets twice as many be filled or sent at once.
const EQUAL_IN_MEMORY: u64 = 16;

/// Size of equal parts in bytes: `base`, or more if `sure` memory allows it, up to the size that the largest object needs.
pub(super) fn equal_part(base: u64, sure: u64, limits: PartLimits) -> u64 {
    let enough = GROWS_TO.div_ceil(u64::from(limits.parts_max.max(1)));
    let fits = (sure / EQUAL_IN_MEMORY) / BLOCK as u64 * BLOCK as u64;
    fits.min(enough).max(base)
}

/// The pool's charge in bytes for `len` bytes in blocks.
pub(super) fn charges(len: u64) -> u64 {
    let block = BLOCK as u64;
    len / block * block + charge((len % block) as usize)
}

/// Size of the only block of a small file when `incoming` bytes follow its `filled` bytes: exact for the first write, then growing
/// fourfold. So a file of 4 KiB has 4 KiB, and a file written in small pieces is copied at most twice. `None` if the file needs more than
/// one block, or none yet.
pub(super) fn first_block(filled: u64, incoming: usize, part_max: u64) -> Option<usize> {
    let most = part_max.min(BLOCK as u64);
    let needed = filled + incoming as u64;
    (needed > 0 && needed <= most).then(|| needed.max((filled * 4).min(most)) as usize)
}

const _: () = assert!(PART_MIN <= GROW_FROM && GROW_FROM << (STEPS - 1) <= PART_MAX);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const S3: PartLimits = PartLimits { parts_max: 10_000, are_equal: false };

    proptest! {
        #[test]
        fn every_base_reaches_5_tib_within_10000_parts_that_s3_takes(base in PART_MIN..=PART_MAX) {
            let sizes: Vec<u64> = (1..=S3.parts_max).map(|n| part_size(n, base, S3)).collect();
            prop_assert!(sizes[..1000].iter().all(|s| *s == base));
            prop_assert!(sizes.iter().sum::<u64>() >= GROWS_TO);
            prop_assert!(sizes.iter().all(|s| (PART_MIN..=PART_MAX).contains(s)));
            prop_assert!(sizes.is_sorted(), "a part is never smaller than the one before it");
        }

        #[test]
        fn parts_of_a_store_that_wants_them_equal_are_equal(base in PART_MIN..=PART_MAX, number in 1..=10_000u32) {
            prop_assert_eq!(part_size(number, base, PartLimits { are_equal: true, ..S3 }), base);
        }

        #[test]
        fn a_store_of_few_parts_gets_far_more_than_parts_of_the_first_size(base in PART_MIN..=64 << 20u64) {
            let few = PartLimits { parts_max: 1000, ..S3 };
            let sizes: Vec<u64> = (1..=1000).map(|n| part_size(n, base, few)).collect();
            prop_assert!(sizes.iter().sum::<u64>() >= 20 * 1000 * base.max(GROW_FROM));
            prop_assert!(sizes.iter().all(|s| (PART_MIN..=PART_MAX).contains(s)) && sizes.is_sorted());
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
        assert!((1..=S3.parts_max).map(|n| part_size(n, PART_MIN, S3)).sum::<u64>() >= GROWS_TO);
    }

    #[test]
    fn the_largest_parts_make_the_largest_object() {
        let sizes = (1..=S3.parts_max).map(|n| part_size(n, PART_MAX, S3));
        assert_eq!(sizes.sum::<u64>(), OBJECT_MAX);
        assert_eq!(OBJECT_MAX >> 30, 50_000);
    }

    #[test]
    fn equal_parts_are_a_sixteenth_of_memory_within_the_largest_need() {
        const MIB: u64 = 1 << 20;
        assert_eq!(equal_part(8 * MIB, 1 << 30, S3), 64 * MIB);
        assert_eq!(equal_part(8 * MIB, 32 * MIB, S3), 8 * MIB, "little memory: as on other stores");
        assert_eq!(equal_part(8 * MIB, 1 << 40, S3), GROWS_TO.div_ceil(10_000));
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
