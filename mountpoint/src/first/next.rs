//! Predicts, by the ending of a file's name, what a program reads of a file whose tail the kernel has. Tables of one make have their
//! columns at the same places, and a program that opens each table a second time reads the same columns of all. Pure.

use std::collections::VecDeque;
use std::ops::Range;

use super::LEN;
use super::endings::ending;

/// Most endings kept. Beyond it the ending that was learned first is dropped. Doubling it doubles a few kilobytes.
const ENDINGS_MAX: usize = 16;
/// Files of an ending, in a row, with reads of the same bytes, before the engine requests these bytes of the next one.
const ENOUGH: u8 = 2;

/// The latest such read of an ending's files.
#[derive(Debug)]
struct Read {
    ending: Box<str>,
    range: Range<u64>,
    /// Files in a row with this read.
    files: u8,
}

/// The bytes that are read after the tail, by ending.
#[derive(Debug, Default)]
pub(super) struct Nexts(VecDeque<Read>);

impl Nexts {
    /// The bytes of this key's file that a program probably reads next.
    pub(super) fn likely(&self, key: &str) -> Option<Range<u64>> {
        let ending = ending(key)?;
        let known = self.0.iter().find(|known| *known.ending == *ending)?;
        (known.files >= ENOUGH).then(|| known.range.clone())
    }

    /// Notes the first read of this key's file after an open at which the kernel had the tail.
    pub(super) fn began(&mut self, key: &str, range: &Range<u64>) {
        let Some(ending) = ending(key) else { return };
        let at = self.0.iter().position(|known| *known.ending == *ending);
        if range.end - range.start > LEN as u64 {
            if let Some(at) = at {
                self.0.remove(at);
            }
            return;
        }
        match at.and_then(|at| self.0.get_mut(at)) {
            Some(known) if known.range == *range => known.files = (known.files + 1).min(ENOUGH),
            Some(known) => (known.range, known.files) = (range.clone(), 1),
            None => {
                if self.0.len() >= ENDINGS_MAX {
                    self.0.pop_front();
                }
                self.0.push_back(Read { ending: ending.into(), range: range.clone(), files: 1 });
            }
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
