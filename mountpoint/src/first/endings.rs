//! Decides by the ending of a file's name whether reads begin at its head or its tail: formats with a table of contents at their end are read
//! from there. Pure.

use std::collections::VecDeque;

/// The part of a file that its first read is expected in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    Head,
    Tail,
}

/// Endings that are known to be read from the tail, until reads say otherwise.
const SEEDS: [&str; 4] = ["parquet", "orc", "zip", "npz"];
/// Most endings that are remembered; the one that was learned first goes beyond it. Doubling it doubles a few kilobytes.
const ENDINGS_MAX: usize = 64;
/// Longest ending, in bytes: what follows a dot farther from the end says nothing of the format.
const ENDING_MAX: usize = 16;
/// Reads from the tail, in a row, before it is asked for. One from the head ends it.
const ENOUGH: u8 = 2;

/// Endings whose files were read from the tail, each with its score.
#[derive(Debug)]
pub(super) struct Endings(VecDeque<(Box<str>, u8)>);

impl Default for Endings {
    fn default() -> Self {
        Self(SEEDS.iter().map(|ending| ((*ending).into(), ENOUGH)).collect())
    }
}

/// The ending of a key, in lower case; none without a dot in its name.
fn ending(key: &str) -> Option<String> {
    let name = key.rsplit('/').next().unwrap_or_default();
    let (_, ending) = name.rsplit_once('.')?;
    (!ending.is_empty() && ending.len() <= ENDING_MAX).then(|| ending.to_ascii_lowercase())
}

impl Endings {
    /// The side at which a read of this key is expected.
    pub(super) fn side(&self, key: &str) -> Side {
        let Some(ending) = ending(key) else { return Side::Head };
        let found = self.0.iter().find(|(known, _)| **known == *ending);
        if found.is_some_and(|(_, score)| *score >= ENOUGH) { Side::Tail } else { Side::Head }
    }

    /// The first read of this key began there.
    pub(super) fn began(&mut self, key: &str, side: Side) {
        let Some(ending) = ending(key) else { return };
        let known = self.0.iter_mut().find(|(known, _)| **known == *ending);
        match (known, side) {
            (Some((_, score)), Side::Tail) => *score = (*score + 1).min(ENOUGH),
            (Some((_, score)), Side::Head) => *score = 0,
            (None, Side::Head) => {}
            (None, Side::Tail) => {
                if self.0.len() >= ENDINGS_MAX {
                    self.0.pop_front();
                }
                self.0.push_back((ending.into(), 1));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_reads_from_the_tail_teach_an_ending_and_one_from_the_head_ends_it() {
        let mut endings = Endings::default();
        assert_eq!(endings.side("a/b.tbl"), Side::Head);
        endings.began("a/b.tbl", Side::Tail);
        assert_eq!(endings.side("a/c.tbl"), Side::Head);
        endings.began("a/c.TBL", Side::Tail);
        assert_eq!(endings.side("x/d.tbl"), Side::Tail);
        assert_eq!(endings.side("x.tbl/d"), Side::Head, "a folder's name says nothing");
        endings.began("a/b.tbl", Side::Head);
        assert_eq!(endings.side("a/b.tbl"), Side::Head);
    }

    #[test]
    fn tables_of_known_formats_are_read_from_the_tail_until_one_is_not() {
        let mut endings = Endings::default();
        assert_eq!(endings.side("table.parquet"), Side::Tail);
        assert_eq!(endings.side("arrays.npz"), Side::Tail);
        assert_eq!(endings.side("parquet"), Side::Head);
        endings.began("table.parquet", Side::Head);
        assert_eq!(endings.side("table.parquet"), Side::Head);
    }

    #[test]
    fn no_more_than_64_endings_are_remembered() {
        let mut endings = Endings::default();
        for n in 0..1000 {
            for _ in 0..2 {
                endings.began(&format!("file.e{n}"), Side::Tail);
            }
        }
        assert_eq!(endings.0.len(), ENDINGS_MAX);
        assert_eq!(endings.side("file.e999"), Side::Tail);
        assert_eq!(endings.side("file.e900"), Side::Head);
        for name in ["", ".", "name.", "name", &format!("a.{}", "x".repeat(17)), "ä.ö"] {
            endings.began(name, Side::Tail);
            assert_eq!(endings.side(name), Side::Head, "{name}");
        }
    }
}
