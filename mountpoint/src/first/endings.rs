//! Predicts, by the ending of a file's name, whether reads begin at the head or the tail of the file, and how much of the tail they want.
//! Formats with a table of contents at the end begin at the tail. Pure.

use std::collections::VecDeque;

use super::LEN;

/// The part of a file that its first read touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Began {
    Head,
    /// The tail: the number of bytes from the read's beginning to the end of the file.
    Tail(u64),
}

/// Endings that count as read from the tail until reads show the contrary.
const SEEDS: [&str; 4] = ["parquet", "orc", "zip", "npz"];
/// Bytes of the tail to request for these endings until reads show how much they want: the first read of pyarrow and DuckDB in a table.
const SEED: u64 = 64 << 10;
/// Most endings kept. Beyond it the ending that was learned first is dropped. Doubling it doubles a few kilobytes.
const ENDINGS_MAX: usize = 64;
/// Longest ending, in bytes. A dot farther from the end does not mark a format.
const ENDING_MAX: usize = 16;
/// Reads from the tail, in a row, before the engine requests tails of that ending. One read from the head stops that.
const ENOUGH: u8 = 2;
/// Number of latest tail reads of an ending; the engine requests the longest of them. Doubling it requests more where lengths differ, and
/// shrinks later.
const LAST: usize = 3;
/// The kernel rounds the beginning of a read down to a multiple of this.
const PAGE: u64 = 4096;

/// An ending whose files begin with a read of the tail.
#[derive(Debug)]
struct Ending {
    name: Box<str>,
    score: u8,
    /// The lengths of the latest tails, the newest at the back.
    lengths: VecDeque<u64>,
}

impl Ending {
    fn new(name: &str, score: u8, length: u64) -> Self {
        Self { name: name.into(), score, lengths: VecDeque::from([length]) }
    }

    /// Notes a read of a tail of this length.
    fn was(&mut self, length: u64) {
        if self.lengths.len() >= LAST {
            self.lengths.pop_front();
        }
        self.lengths.push_back(length);
    }

    /// The bytes to request. In a file of another size the same read may begin up to a page earlier.
    fn wanted(&self) -> u64 {
        let longest = self.lengths.iter().copied().max().unwrap_or_default();
        (longest + PAGE - 1).min(LEN as u64)
    }
}

/// Endings whose files begin with a read of the tail.
#[derive(Debug)]
pub(super) struct Endings(VecDeque<Ending>);

impl Default for Endings {
    fn default() -> Self {
        Self(SEEDS.iter().map(|name| Ending::new(name, ENOUGH, SEED)).collect())
    }
}

/// The ending of a key, in lower case; `None` for a name without a dot.
pub(super) fn ending(key: &str) -> Option<String> {
    let name = key.rsplit('/').next().unwrap_or_default();
    let (_, ending) = name.rsplit_once('.')?;
    (!ending.is_empty() && ending.len() <= ENDING_MAX).then(|| ending.to_ascii_lowercase())
}

impl Endings {
    /// The bytes at the end of this key's file in which its first read is likely. `None`: the first read is likely at the head.
    pub(super) fn tail(&self, key: &str) -> Option<u64> {
        let ending = ending(key)?;
        let known = self.0.iter().find(|known| *known.name == *ending)?;
        (known.score >= ENOUGH).then(|| known.wanted())
    }

    /// Notes where the first read of this key's file began.
    pub(super) fn began(&mut self, key: &str, began: Began) {
        let Some(ending) = ending(key) else { return };
        let known = self.0.iter_mut().find(|known| *known.name == *ending);
        match (known, began) {
            (Some(known), Began::Tail(length)) => {
                known.score = (known.score + 1).min(ENOUGH);
                known.was(length);
            }
            (Some(known), Began::Head) => known.score = 0,
            (None, Began::Head) => {}
            (None, Began::Tail(length)) => {
                if self.0.len() >= ENDINGS_MAX {
                    self.0.pop_front();
                }
                self.0.push_back(Ending::new(&ending, 1, length));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAIL: Began = Began::Tail(10_000);

    #[test]
    fn two_reads_from_the_tail_teach_an_ending_and_one_from_the_head_ends_it() {
        let mut endings = Endings::default();
        assert_eq!(endings.tail("a/b.tbl"), None);
        endings.began("a/b.tbl", TAIL);
        assert_eq!(endings.tail("a/c.tbl"), None);
        endings.began("a/c.TBL", TAIL);
        assert!(endings.tail("x/d.tbl").is_some());
        assert_eq!(endings.tail("x.tbl/d"), None, "a folder's name says nothing");
        endings.began("a/b.tbl", Began::Head);
        assert_eq!(endings.tail("a/b.tbl"), None);
    }

    #[test]
    fn tables_of_known_formats_are_read_from_the_tail_until_one_is_not() {
        let mut endings = Endings::default();
        assert!(endings.tail("table.parquet").is_some());
        assert!(endings.tail("arrays.npz").is_some());
        assert_eq!(endings.tail("parquet"), None);
        endings.began("table.parquet", Began::Head);
        assert_eq!(endings.tail("table.parquet"), None);
    }

    #[test]
    fn the_longest_of_the_last_three_tails_is_asked_for_and_a_page_more() {
        let mut endings = Endings::default();
        let asked = |endings: &Endings| endings.tail("t.parquet").unwrap();
        assert_eq!(asked(&endings), SEED + PAGE - 1);
        for _ in 0..3 {
            endings.began("t.parquet", Began::Tail(16_384));
        }
        assert_eq!(asked(&endings), 16_384 + PAGE - 1);
        endings.began("t.parquet", Began::Tail(60_000));
        assert_eq!(asked(&endings), 60_000 + PAGE - 1);
        endings.began("t.parquet", Began::Tail(u64::from(u32::MAX)));
        assert_eq!(asked(&endings), LEN as u64, "never more than that");
    }

    #[test]
    fn no_more_than_64_endings_are_remembered() {
        let mut endings = Endings::default();
        for n in 0..1000 {
            for _ in 0..2 {
                endings.began(&format!("file.e{n}"), TAIL);
            }
        }
        assert_eq!(endings.0.len(), ENDINGS_MAX);
        assert!(endings.tail("file.e999").is_some());
        assert_eq!(endings.tail("file.e900"), None);
        for name in ["", ".", "name.", "name", &format!("a.{}", "x".repeat(17)), "ä.ö"] {
            endings.began(name, TAIL);
            assert_eq!(endings.tail(name), None, "{name}");
        }
    }
}
