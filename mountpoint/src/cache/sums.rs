//! The checksums of a block's present sectors. Pure.

use super::sector::Sectors;
use super::weight::heap;

/// The sectors of a block that the cache has, and the CRC32C of each, in their order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Sums {
    present: Sectors,
    crcs: Box<[u32]>,
}

impl Sums {
    /// The checksums of these sectors; `crc` returns the checksum of a sector by its number.
    pub(super) fn new(present: Sectors, crc: impl FnMut(usize) -> u32) -> Self {
        let mut crcs = Vec::with_capacity(present.count());
        crcs.extend(present.numbers().map(crc));
        Self { present, crcs: crcs.into_boxed_slice() }
    }

    /// The sectors.
    pub(super) fn present(&self) -> Sectors {
        self.present
    }

    /// Number and checksum of each sector.
    pub(super) fn each(&self) -> impl Iterator<Item = (usize, u32)> {
        self.present.numbers().zip(self.crcs.iter().copied())
    }

    /// The checksums of adjacent sectors, if all of them are present.
    pub(super) fn of(&self, wanted: Sectors) -> Option<&[u32]> {
        debug_assert!(wanted.is_row(), "{wanted:?}");
        let from = self.present.before(wanted).count();
        self.present.contains(wanted).then(|| self.crcs.get(from..from + wanted.count())).flatten()
    }

    /// Adds sectors. Present ones keep their checksums.
    pub(super) fn with(&self, more: Sectors, mut crc: impl FnMut(usize) -> u32) -> Self {
        let new = more.without(self.present);
        let mut known = self.crcs.iter();
        Self::new(self.present.and(new), |n| {
            if new.has(n) { crc(n) } else { known.next().copied().unwrap_or_default() }
        })
    }

    /// The additional memory of the checksums, in bytes.
    pub(super) fn memory(&self) -> u64 {
        heap(size_of_val(&*self.crcs))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cache::sector::{SECTOR, SECTORS};

    /// A checksum that tells its sector.
    fn crc(n: usize) -> u32 {
        n as u32 + 1000
    }

    proptest! {
        #[test]
        fn each_sector_keeps_its_own_checksum_in_any_order_of_arrival(
            pieces in proptest::collection::vec(any::<u64>(), 1..5),
            (from, to) in (0..SECTORS as u64, 1..=SECTORS as u64),
        ) {
            let mut sums = Sums::default();
            let mut present = Sectors::NONE;
            for piece in pieces.into_iter().map(Sectors::from_bits) {
                sums = sums.with(piece, |n| {
                    assert!(!present.has(n), "sector {n} was here");
                    crc(n)
                });
                present = present.and(piece);
            }
            prop_assert_eq!(&sums, &Sums::new(present, crc));
            prop_assert!(sums.each().eq(present.numbers().map(|n| (n, crc(n)))));
            let sector = SECTOR;
            let wanted = Sectors::touching(&(from * sector..(from + to).min(SECTORS as u64) * sector));
            let crcs: Option<Vec<u32>> = present.contains(wanted).then(|| wanted.numbers().map(crc).collect());
            prop_assert_eq!(sums.of(wanted), crcs.as_deref());
            prop_assert_eq!(sums.memory(), heap(4 * present.count()));
        }
    }
}
