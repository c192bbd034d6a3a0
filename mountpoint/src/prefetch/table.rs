//! Follows the first reads of one object version, by all handles: those of its tail, and the one after them. A program that reads a table
//! asks for the tail first, and then for columns that the tail tells of. Pure.

use std::ops::Range;

use crate::first::is_tail;

/// The reads of a version so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Table {
    /// No read came.
    #[default]
    Unread,
    /// All reads were of the tail.
    Tail,
    /// A read elsewhere came: no further read teaches anything.
    Known,
}

/// The meaning of one read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// The first read, and of the tail.
    Tail,
    /// The first read elsewhere after reads of the tail.
    Next,
    /// Any other read.
    Other,
}

impl Table {
    /// Notes a read of an object of `size` bytes.
    pub(super) fn on_read(&mut self, range: &Range<u64>, size: u64) -> Step {
        let (now, step) = match (*self, is_tail(size, range)) {
            (Self::Unread, true) => (Self::Tail, Step::Tail),
            (Self::Tail, true) => (Self::Tail, Step::Other),
            (Self::Tail, false) => (Self::Known, Step::Next),
            (Self::Unread, false) | (Self::Known, _) => (Self::Known, Step::Other),
        };
        *self = now;
        step
    }

    /// Notes the close of the last handle. Returns whether the tail alone was read.
    pub(super) fn close(&mut self) -> bool {
        std::mem::take(self) == Self::Tail
    }
}

/// Whether bytes that were read next of other tables may be fetched beside the tail of one of `size` bytes. A read of the first byte begins
/// a run, and so fetches more than these.
pub(super) fn fits(next: &Range<u64>, size: u64) -> bool {
    next.start > 0 && next.end <= size
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 3 << 20;

    #[test]
    fn bytes_behind_the_end_or_from_the_first_byte_on_are_not_fetched() {
        assert!(fits(&(4096..SIZE), SIZE));
        assert!(!fits(&(4096..SIZE + 1), SIZE) && !fits(&(0..4096), SIZE));
    }

    #[test]
    fn the_read_after_those_of_the_tail_is_the_next_one_and_no_other_is() {
        let mut table = Table::default();
        let mut step = |range: Range<u64>| table.on_read(&range, SIZE);
        assert_eq!(step(SIZE - 4096..SIZE), Step::Tail);
        assert_eq!(step(SIZE - 60_000..SIZE - 4096), Step::Other, "the contents");
        assert_eq!(step(8192..12_288), Step::Next);
        assert_eq!(step(SIZE - 4096..SIZE), Step::Other);
        assert_eq!(step(8192..12_288), Step::Other);
        assert!(!table.close());
    }

    #[test]
    fn a_file_that_is_read_elsewhere_first_or_is_short_is_no_table() {
        for (first, size) in [(0..4096, SIZE), (8192..12_288, SIZE), (4096..8192, 8192)] {
            let mut table = Table::default();
            assert_eq!(table.on_read(&first, size), Step::Other);
            assert_eq!(table.on_read(&(size - 4096..size), size), Step::Other);
            assert_eq!(table.on_read(&(4096..8192), size), Step::Other);
            assert!(!table.close(), "{first:?}");
        }
    }

    #[test]
    fn a_close_after_reads_of_the_tail_says_once_that_nothing_else_was_read() {
        let mut table = Table::default();
        assert!(!table.close());
        table.on_read(&(SIZE - 4096..SIZE), SIZE);
        assert!(table.close() && !table.close());
    }
}
