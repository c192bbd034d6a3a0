//! Predicts, by the ending of a file's name, whether a program reads the file whole. Names without an ending count as one kind: the chunks
//! of an array are called `0`, `1` and so on. Files of a new ending are likely to be read whole, because a program opens many of them at
//! once before the first read could teach. Pure.

use std::collections::VecDeque;

use super::endings::ending;

/// Most endings kept. Beyond it the ending that was learned first is dropped, and counts as new. Doubling it doubles two kilobytes.
const ENDINGS_MAX: usize = 64;
/// Files read whole, in a row, before the engine requests files of that ending whole again after a first read of another kind.
const ENOUGH: u8 = 2;

/// Digits of an ending from which on hexadecimal ones count as a digest.
const DIGEST_MIN: usize = 8;

/// Endings of which a file was not read whole, and the number of whole reads in a row since.
#[derive(Debug, Default)]
pub(super) struct Wholes(VecDeque<(Box<str>, u8)>);

/// The kind of a file, by its name. Numbers and digests, as of parts, chunks and rotated logs, are one kind: each name has another one.
fn kind(key: &str) -> String {
    let ending = ending(key).unwrap_or_default();
    let is_number = !ending.is_empty() && ending.bytes().all(|byte| byte.is_ascii_digit());
    let is_digest = ending.len() >= DIGEST_MIN && ending.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_number || is_digest { "#".to_owned() } else { ending }
}

impl Wholes {
    /// Whether a program probably reads this key's file whole.
    pub(super) fn is_likely(&self, key: &str) -> bool {
        let kind = kind(key);
        !self.0.iter().any(|(known, score)| **known == *kind && *score < ENOUGH)
    }

    /// Notes the first read of this key's file.
    pub(super) fn began(&mut self, key: &str, is_of_all: bool) {
        let kind = kind(key);
        match self.0.iter_mut().find(|(known, _)| **known == *kind) {
            Some((_, score)) if is_of_all => *score = (*score + 1).min(ENOUGH),
            Some((_, score)) => *score = 0,
            None if is_of_all => {}
            None => {
                if self.0.len() >= ENDINGS_MAX {
                    self.0.pop_front();
                }
                self.0.push_back((kind.into(), 0));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_new_ending_are_likely_and_one_not_read_whole_ends_it() {
        for [one, two, other] in
            [["a/c/0", "a/c/1", "a/c/0.bin"], ["x.BIN", "y.bin", "z"], ["x.1", "y.1", "bin/z"]]
        {
            let mut wholes = Wholes::default();
            assert!(wholes.is_likely(one));
            wholes.began(two, true);
            wholes.began(other, false);
            assert!(wholes.is_likely(one) && !wholes.is_likely(other));
            wholes.began(one, false);
            assert!(!wholes.is_likely(two));
            wholes.began(one, true);
            assert!(!wholes.is_likely(two), "two in a row");
            wholes.began(two, true);
            assert!(wholes.is_likely(one) && wholes.is_likely(two));
        }
    }

    #[test]
    fn numbers_and_digests_are_one_kind() {
        let mut wholes = Wholes::default();
        wholes.began("data.00001", false);
        for key in ["data.00002", "log.17", "0.0.1", "blob.0123abcd"] {
            assert!(!wholes.is_likely(key), "{key}");
        }
        assert!(wholes.is_likely("a.7z") && wholes.is_likely("chunk"));
    }

    #[test]
    fn no_more_than_64_endings_are_remembered() {
        let mut wholes = Wholes::default();
        for n in 0..1000 {
            wholes.began(&format!("file.e{n}"), false);
        }
        assert_eq!(wholes.0.len(), ENDINGS_MAX);
        assert!(!wholes.is_likely("x.e999") && wholes.is_likely("x.e900"));
    }
}
