//! The log of the stage: which file in it belongs to which key. Frames with a number and a checksum; a torn end is left out.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::Commit;
use crate::checksum::{Checksum, ChecksumAlgorithm};
use crate::object::ObjectMeta;

/// Length, number and checksum before each record.
const HEADER: usize = 16;
/// The longest record: a key of 1,024 bytes and its names, with room. A frame that says more is torn.
const RECORD_MAX: usize = 16 << 10;

/// One fact about the stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Record {
    /// A mount took the stage.
    Mount(Mount),
    /// The file gets its first change since it was opened: what it is to become. Its earlier records do not count any more.
    Dirty(Dirty),
    /// These ranges of a file that shows an object's bytes elsewhere were written here.
    Wrote {
        /// Number of the file.
        file: u64,
        /// First bytes and ends.
        runs: Vec<(u64, u64)>,
    },
    /// The object's bytes show up to here at most: the file was shorter for a while.
    Cut {
        /// Number of the file.
        file: u64,
        /// The first byte that is the object's no longer.
        base: u64,
    },
    /// All bytes of the file are here: a send of it begins.
    Sealed {
        /// Number of the file.
        file: u64,
    },
    /// An object of these bytes is about to be stored.
    Sending {
        /// Number of the file.
        file: u64,
        /// The bytes.
        image: Digest,
    },
    /// The store refused what was about to be stored.
    Refused {
        /// Number of the file.
        file: u64,
    },
    /// The bucket has what was sent last, as this version. Changes since then are to be stored.
    Stored {
        /// Number of the file.
        file: u64,
        /// The ETag.
        etag: String,
        /// Bytes of the object.
        size: u64,
        /// A sync since the last open, if there was one, counts still; false: it is older.
        #[serde(default)]
        is_synced: bool,
    },
    /// The file is to have another key, or none.
    Moved {
        /// Number of the file.
        file: u64,
        /// The key; `None`: it has no name any more.
        key: Option<String>,
        /// ETag of the object that it replaces there.
        replaces: Option<String>,
    },
    /// A sync of a file that shows an object's bytes begins.
    Syncing {
        /// Number of the file.
        file: u64,
    },
    /// All that was written before that began is on the disk, whatever becomes of the machine.
    Synced {
        /// Number of the file.
        file: u64,
        /// No byte was only in the object then.
        #[serde(default)]
        is_whole: bool,
    },
    /// The disk failed a sync: what it has of the file is not known.
    Failed {
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
    /// The promise to programs: with `close`, what is not stored is none of the bucket's.
    #[serde(default)]
    pub(super) commit: Commit,
}

/// A file with changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Dirty {
    /// Number of the file.
    pub(super) file: u64,
    /// The key that it is to have; `None`: it has no name any more.
    pub(super) key: Option<String>,
    /// ETag of the object that it replaces; `None`: it replaces none.
    pub(super) replaces: Option<String>,
    /// Whether some of its bytes are only in that object: the file has holes there.
    pub(super) is_partial: bool,
    /// Bytes of that object that show, from its start, where nothing was written.
    #[serde(default)]
    pub(super) base: u64,
    /// Size of that object in bytes.
    #[serde(default)]
    pub(super) object: u64,
}

/// An object by which a later mount knows it: the number of its bytes, and their SHA-256 in hexadecimal digits. Of an object of which the store copied
/// parts, the ETag that it is to have stands for that; `None`: it can't be known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Digest {
    pub(super) size: u64,
    pub(super) sha256: String,
    #[serde(default)]
    pub(super) etag: Option<String>,
}

impl Digest {
    /// Whether an object of this size and ETag is the one.
    pub(super) fn is_named(&self, meta: &ObjectMeta) -> bool {
        self.size == meta.size && self.etag.as_deref().is_some_and(|etag| meta.etag.matches(etag))
    }
}

/// The content of a log.
#[derive(Debug, Default)]
pub(super) struct Read {
    /// The records up to the first frame that is torn, damaged or out of order.
    pub(super) records: Vec<Record>,
    /// Files of which frames behind that one speak: what the records say of them may be outdated.
    pub(super) doubtful: HashSet<u64>,
}

impl Record {
    /// The file that it is about.
    pub(super) fn file(&self) -> Option<u64> {
        match self {
            Self::Mount(_) => None,
            Self::Dirty(dirty) => Some(dirty.file),
            Self::Wrote { file, .. }
            | Self::Cut { file, .. }
            | Self::Sealed { file }
            | Self::Sending { file, .. }
            | Self::Refused { file }
            | Self::Stored { file, .. }
            | Self::Moved { file, .. }
            | Self::Syncing { file }
            | Self::Synced { file, .. }
            | Self::Failed { file }
            | Self::Gone { file } => Some(*file),
        }
    }

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

/// Reads a log.
pub(super) fn read(mut bytes: &[u8]) -> Read {
    let mut read = Read::default();
    while let Some((_, record, rest)) = first(bytes, |number| number == read.records.len() as u64) {
        read.records.push(record);
        bytes = rest;
    }
    let next = read.records.len() as u64;
    while !bytes.is_empty() {
        bytes = match first(bytes, |number| number >= next) {
            Some((_, record, rest)) => {
                read.doubtful.extend(record.file());
                rest
            }
            None => &bytes[1..],
        };
    }
    read
}

/// The frame at the beginning of these bytes, and the bytes behind it.
fn first(bytes: &[u8], is_it: impl Fn(u64) -> bool) -> Option<(u64, Record, &[u8])> {
    let (header, rest) = bytes.split_at_checked(HEADER)?;
    let len = u32::from_le_bytes(header[..4].try_into().ok()?) as usize;
    let text = rest.get(..len).filter(|_| len <= RECORD_MAX)?;
    let number = Some(u64::from_le_bytes(header[4..12].try_into().ok()?)).filter(|number| is_it(*number))?;
    let is_whole = u32::from_le_bytes(header[12..].try_into().ok()?) == checksum(number, text);
    let record = is_whole.then(|| serde_json::from_slice(text).ok())??;
    Some((number, record, &rest[len..]))
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
            ..Dirty::default()
        };
        vec![
            Record::Mount(Mount { bucket: "bucket".into(), ..Mount::default() }),
            Record::Dirty(dirty(1, "a\"\n\u{1f}é")),
            Record::Dirty(dirty(2, "dir/b")),
            Record::Wrote { file: 2, runs: vec![(0, 7), (u64::MAX - 1, u64::MAX)] },
            Record::Sealed { file: 1 },
            Record::Synced { file: 1, is_whole: true },
            Record::Gone { file: 2 },
        ]
    }

    fn written(records: &[Record]) -> Vec<u8> {
        records.iter().zip(0..).flat_map(|(record, number)| record.frame(number)).collect()
    }

    proptest! {
        #[test]
        fn a_log_that_is_cut_or_damaged_gives_a_beginning_of_it(cut in 0usize..2000, at in 0usize..2000, bit in 0u8..8) {
            let records = |bytes: &[u8]| read(bytes).records;
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
            let lost: HashSet<u64> = all[read.len() + 1..].iter().filter_map(Record::file).collect();
            prop_assert_eq!(super::read(&damaged).doubtful, lost, "files of later frames are doubtful");
        }

        #[test]
        fn a_log_of_any_bytes_is_read(bytes: Vec<u8>) {
            let read = read(&bytes);
            prop_assert!(read.records.len() + read.doubtful.len() <= bytes.len() / HEADER);
        }
    }
}
