//! The log of the stage: which file in it belongs to which key. Frames with a number and a checksum; a torn end is left out.

use serde::{Deserialize, Serialize};

use crate::checksum::{Checksum, ChecksumAlgorithm};

/// Length, number and checksum before each record.
const HEADER: usize = 16;
/// The longest record: a key of 1,024 bytes and its names, with room. A frame that says more is torn.
const RECORD_MAX: usize = 16 << 10;

/// One fact about the stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Record {
    /// A mount took the stage.
    Mount(Mount),
    /// The file has changes that the bucket lacks, or another key.
    Dirty(Dirty),
    /// All bytes of the file are here: a send of it begins.
    Sealed {
        /// Number of the file.
        file: u64,
    },
    /// Nothing of the file is wanted any more: it was stored, removed, or lies in `kept/`.
    Gone {
        /// Number of the file.
        file: u64,
    },
}

/// The mount that used a stage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mount {
    pub(super) bucket: String,
    pub(super) prefix: String,
    pub(super) endpoint: String,
    pub(super) boot: String,
}

/// A file with changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Dirty {
    /// Number of the file.
    pub(super) file: u64,
    /// The key that it is to have; `None`: it has no name any more.
    pub(super) key: Option<String>,
    /// ETag of the object that it replaces; `None`: it replaces none.
    pub(super) replaces: Option<String>,
    /// Whether some of its bytes are only in that object: the file has holes there.
    pub(super) is_partial: bool,
}

impl Record {
    /// The record as a frame with this number.
    pub(super) fn frame(&self, number: u64) -> Vec<u8> {
        let text = serde_json::to_vec(self).unwrap_or_default();
        let mut frame = Vec::with_capacity(HEADER + text.len());
        frame.extend((text.len() as u32).to_le_bytes());
        frame.extend(number.to_le_bytes());
        frame.extend(checksum(number, &text).to_le_bytes());
        frame.extend(text);
        frame
    }
}

fn checksum(number: u64, text: &[u8]) -> u32 {
    let bytes = [&number.to_le_bytes()[..], text].concat();
    Checksum::of(ChecksumAlgorithm::Crc32c, &bytes).value as u32
}

/// The records of a log up to the first frame that is torn, damaged or out of order.
pub(super) fn records(mut bytes: &[u8]) -> Vec<Record> {
    let mut records = Vec::new();
    while let Some((record, rest)) = first(bytes, records.len() as u64) {
        records.push(record);
        bytes = rest;
    }
    records
}

fn first(bytes: &[u8], number: u64) -> Option<(Record, &[u8])> {
    let (header, rest) = bytes.split_at_checked(HEADER)?;
    let len = u32::from_le_bytes(header[..4].try_into().ok()?) as usize;
    let text = rest.get(..len).filter(|_| len <= RECORD_MAX)?;
    let is_it = u64::from_le_bytes(header[4..12].try_into().ok()?) == number
        && u32::from_le_bytes(header[12..].try_into().ok()?) == checksum(number, text);
    let record = serde_json::from_slice(text).ok().filter(|_| is_it)?;
    Some((record, &rest[len..]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn some() -> Vec<Record> {
        let dirty = |file, key: &str| Dirty {
            file,
            key: Some(key.to_owned()),
            replaces: Some("\"e\"".to_owned()),
            is_partial: file % 2 == 0,
        };
        vec![
            Record::Mount(Mount { bucket: "bucket".into(), ..Mount::default() }),
            Record::Dirty(dirty(1, "a\"\n\u{1f}é")),
            Record::Dirty(dirty(2, "dir/b")),
            Record::Sealed { file: 1 },
            Record::Gone { file: 2 },
        ]
    }

    fn written(records: &[Record]) -> Vec<u8> {
        records.iter().zip(0..).flat_map(|(record, number)| record.frame(number)).collect()
    }

    proptest! {
        #[test]
        fn a_log_that_is_cut_or_damaged_gives_a_beginning_of_it(cut in 0usize..2000, at in 0usize..2000, bit in 0u8..8) {
            let all = some();
            let whole = written(&all);
            prop_assert_eq!(&records(&whole), &all);
            let cut = &whole[..cut.min(whole.len())];
            let read = records(cut);
            prop_assert!(all.starts_with(&read));
            prop_assert!(cut.len() < whole.len() || read.len() == all.len());
            let mut damaged = whole.clone();
            let at = at % whole.len();
            damaged[at] ^= 1 << bit;
            let read = records(&damaged);
            prop_assert!(all.starts_with(&read) && read.len() < all.len(), "{:?}", read);
        }

        #[test]
        fn a_log_of_any_bytes_is_read(bytes: Vec<u8>) {
            prop_assert!(records(&bytes).len() <= bytes.len() / HEADER);
        }
    }
}
