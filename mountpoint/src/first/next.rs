//! Predicts, by the ending of a file's name, what a program reads of a file after its tail. Tables of one make have their columns at the
//! same places, and a program reads the same columns of all, often by a second open of each. Pure.

use std::collections::VecDeque;
use std::ops::Range;

use super::LEN;
use super::endings::ending;

/// Most endings kept. Beyond it the ending that was learned first is dropped. Doubling it doubles a few kilobytes.
const ENDINGS_MAX: usize = 16;
/// Files of an ending, in a row, with reads of the same bytes, before the engine requests these bytes of the next one.
const ENOUGH: u8 = 2;
/// Files of an ending, in a row, of which a program read the tail alone, before the bytes have to be learned anew. Doubling it doubles what
/// is fetched in vain by a program that reads tails alone after one that did not.
const UNREAD_MAX: u8 = 2;

/// The latest such read of an ending's files.
#[derive(Debug)]
struct Read {
    ending: Box<str>,
    range: Range<u64>,
    /// Files in a row with this read.
    files: u8,
    /// Files in a row since, of which only the tail was read.
    unread: u8,
}

/// The bytes that are read after the tail, by ending.
#[derive(Debug, Default)]
pub struct Nexts(VecDeque<Read>);

impl Nexts {
    /// The bytes of this key's file that a program probably reads next.
    pub fn likely(&self, key: &str) -> Option<Range<u64>> {
        let ending = ending(key)?;
        let known = self.0.iter().find(|known| *known.ending == *ending)?;
        (known.files >= ENOUGH).then(|| known.range.clone())
    }

    /// Notes the first read of this key's file after its tail.
    pub fn began(&mut self, key: &str, range: &Range<u64>) {
        let Some(ending) = ending(key) else { return };
        let at = self.0.iter().position(|known| *known.ending == *ending);
        if range.end - range.start > LEN as u64 {
            if let Some(at) = at {
                self.0.remove(at);
            }
            return;
        }
        match at.and_then(|at| self.0.get_mut(at)) {
            Some(known) if known.range == *range => {
                (known.files, known.unread) = ((known.files + 1).min(ENOUGH), 0);
            }
            Some(known) => (known.range, known.files, known.unread) = (range.clone(), 1, 0),
            None => {
                if self.0.len() >= ENDINGS_MAX {
                    self.0.pop_front();
                }
                self.0.push_back(Read { ending: ending.into(), range: range.clone(), files: 1, unread: 0 });
            }
        }
    }

    /// Notes that this key's file was closed after its tail alone was read.
    pub fn unread(&mut self, key: &str) {
        let Some(ending) = ending(key) else { return };
        let Some(known) = self.0.iter_mut().find(|known| *known.ending == *ending) else { return };
        known.unread += 1;
        if known.unread >= UNREAD_MAX {
            (known.files, known.unread) = (0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_files_with_the_same_read_teach_it_and_another_read_ends_it() {
        let mut nexts = Nexts::default();
        nexts.began("a/0.parquet", &(4096..8192));
        assert_eq!(nexts.likely("a/1.parquet"), None);
        nexts.began("a/1.parquet", &(4096..8192));
        assert_eq!(nexts.likely("a/2.PARQUET"), Some(4096..8192));
        assert_eq!((nexts.likely("a/2.orc"), nexts.likely("parquet")), (None, None));
        nexts.began("a/2.parquet", &(8192..12_288));
        assert_eq!(nexts.likely("a/3.parquet"), None);
    }

    #[test]
    fn two_files_in_a_row_of_which_the_tail_alone_was_read_end_it() {
        let mut nexts = Nexts::default();
        nexts.unread("a.parquet");
        (0..2).for_each(|_| nexts.began("a.parquet", &(4096..8192)));
        nexts.unread("b.PARQUET");
        assert!(nexts.likely("c.parquet").is_some());
        nexts.began("c.parquet", &(4096..8192));
        nexts.unread("d.parquet");
        nexts.unread("d.orc");
        assert!(nexts.likely("e.parquet").is_some(), "not in a row");
        nexts.unread("e.parquet");
        assert_eq!(nexts.likely("f.parquet"), None);
        nexts.began("f.parquet", &(4096..8192));
        assert_eq!(nexts.likely("g.parquet"), None);
        nexts.began("g.parquet", &(4096..8192));
        assert!(nexts.likely("h.parquet").is_some(), "two teach it again");
    }

    #[test]
    fn a_read_that_is_too_long_is_not_predicted() {
        let mut nexts = Nexts::default();
        for _ in 0..3 {
            nexts.began("a.parquet", &(0..LEN as u64 + 1));
            assert_eq!(nexts.likely("a.parquet"), None);
        }
        (0..2).for_each(|_| nexts.began("a.parquet", &(0..LEN as u64)));
        assert!(nexts.likely("a.parquet").is_some());
        nexts.began("a.parquet", &(0..1 << 20));
        assert_eq!(nexts.likely("a.parquet"), None);
    }

    #[test]
    fn no_more_than_16_endings_are_remembered() {
        let mut nexts = Nexts::default();
        for n in 0..100 {
            (0..2).for_each(|_| nexts.began(&format!("file.e{n}"), &(0..4096)));
        }
        assert_eq!(nexts.0.len(), ENDINGS_MAX);
        assert!(nexts.likely("file.e99").is_some() && nexts.likely("file.e1").is_none());
    }
}
