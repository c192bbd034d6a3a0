//! The log of the stage: records which file of the stage belongs to which key. A frame has a number and a checksum; readers ignore a torn
//! end.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::Commit;
use crate::checksum::{Checksum, ChecksumAlgorithm};
use crate::object::ObjectMeta;

/// Length, number and checksum before each record.
const HEADER: usize = 16;
/// The longest record: a key of 1,024 bytes and its names, with room. A frame with a larger length is torn.
const RECORD_MAX: usize = 16 << 10;

/// One fact about the stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Record {
    /// A mount took the stage.
    Mount(Mount),
    /// The file gets its first change since its opening: key and object for its upload. Earlier records of the file no longer count.
    Dirty(Dirty),
    /// A program wrote these ranges of a file that shows an object's bytes elsewhere.
    Wrote {
        /// Number of the file.
        file: u64,
        /// Beginning and end of each range.
        runs: Vec<(u64, u64)>,
    },
    /// The object's bytes show at most up to an offset: the file was shorter for a while.
    Cut {
        /// Number of the file.
        file: u64,
        /// The first byte that no longer comes from the object.
        base: u64,
    },
    /// The file has all its bytes: a send of it begins.
    Sealed {
        /// Number of the file.
        file: u64,
    },
    /// A request is about to store an object with these bytes.
    Sending {
        /// Number of the file.
        file: u64,
        /// Digest of the bytes.
        image: Digest,
    },
    /// The store refused the request that was about to store the object.
    Refused {
        /// Number of the file.
        file: u64,
    },
    /// The bucket has the last sent image, as this version. Later changes still wait.
    Stored {
        /// Number of the file.
        file: u64,
        /// ETag of the object.
        etag: String,
        /// Bytes of the object.
        size: u64,
        /// Whether the last sync still counts: false if the sync is older than the object.
        #[serde(default)]
        is_synced: bool,
    },
    /// The file gets another key, or loses its name.
    Moved {
        /// Number of the file.
        file: u64,
        /// The key; `None`: the file has no name any more.
        key: Option<String>,
        /// ETag of the object that the file replaces there.
        replaces: Option<String>,
    },
    /// A sync begins, of a file that shows an object's bytes.
    Syncing {
        /// Number of the file.
        file: u64,
    },
    /// All writes before the sync began are durable.
    Synced {
        /// Number of the file.
        file: u64,
        /// Whether the file had all its bytes when the sync began. Otherwise some bytes were only in the object.
        #[serde(default)]
        is_whole: bool,
    },
    /// The disk failed a sync: its content for the file is unknown.
    Failed {
        /// Number of the file.
        file: u64,
    },
    /// The file has no use any more: it was stored or removed, or lies in `kept/`. A directory owes no marker any more.
    Gone {
        /// Number of the file.
        file: u64,
    },
    /// A directory was made here, and the bucket lacks its marker.
    Directory {
        /// Number of the empty file that stands for the directory.
        file: u64,
        /// The key for the marker.
        key: String,
    },
}

/// The mount that used a stage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mount {
    pub(super) bucket: String,
    pub(super) prefix: String,
    pub(super) endpoint: String,
    pub(super) boot: String,
    /// The promise to programs: with `close`, programs do not count on a file that is not stored.
    #[serde(default)]
    pub(super) commit: Commit,
    /// Whether the kernel may write files of the stage past the engine, for this mount or for an earlier one.
    #[serde(default)]
    pub(super) lends: bool,
}

/// A file with changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Dirty {
    /// Number of the file.
    pub(super) file: u64,
    /// The key for the file's object; `None`: the file has no name any more.
    pub(super) key: Option<String>,
    /// ETag of the object that the file replaces; `None`: it replaces none.
    pub(super) replaces: Option<String>,
    /// Whether some of the file's bytes are only in that object: the file has holes there.
    pub(super) is_partial: bool,
    /// Bytes of that object that show where nothing was written, counted from its start.
    #[serde(default)]
    pub(super) base: u64,
    /// Size of that object in bytes.
    #[serde(default)]
    pub(super) object: u64,
}

/// Marks by which a later mount recognises an object: its size, and the SHA-256 of its bytes in hexadecimal digits. If the store copied
/// parts of the object, the expected ETag replaces the SHA-256; `None`: the object can't be recognised.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Digest {
    pub(super) size: u64,
    pub(super) sha256: String,
    #[serde(default)]
    pub(super) etag: Option<String>,
}

impl Digest {
    /// Whether an object of this size and ETag has these marks.
    pub(super) fn is_named(&self, meta: &ObjectMeta) -> bool {
        self.size == meta.size && self.etag.as_deref().is_some_and(|etag| meta.etag.matches(etag))
    }
}

/// The content of a log.
#[derive(Debug, Default)]
pub(super) struct Read {
    /// The records before the first frame that is torn, damaged or out of order.
    pub(super) records: Vec<Record>,
    /// Files that frames after that one name: their records may be outdated.
    pub(super) doubtful: HashSet<u64>,
}

impl Record {
    /// The file that the record describes. A directory's record describes none: it makes no earlier record doubtful.
    pub(super) fn file(&self) -> Option<u64> {
        match self {
            Self::Mount(_) | Self::Directory { .. } => None,
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

    /// Encodes the record as a frame with this number.
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

/// The frame at the beginning of these bytes, and the bytes after it.
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
            Record::Directory { file: 3, key: "dir/é/".into() },
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
