//! Stored entries of a listing: two allocations per page, 40 bytes and the text per entry.

use std::time::{Instant, SystemTime};

use super::EntryNo;
use super::expiry::{Said, Ttl};
use super::merge::{Entry, What, order};
use crate::object::{ETag, ObjectMeta};

/// A sequence of entries.
#[derive(Debug)]
pub(crate) struct Batch {
    /// The inode number reserved for entry 0; the numbers of the other entries follow.
    first: EntryNo,
    /// The event of the page's request, and the times of request and answer.
    pub(crate) asked: u64,
    pub(crate) since: Instant,
    pub(crate) arrived: Instant,
    text: Box<str>,
    packed: Box<[Packed]>,
}

#[derive(Debug)]
struct Packed {
    /// The offset of the name in the text. The ETag follows the name.
    start: u32,
    etag_len: u32,
    name_len: u8,
    kind: PackedKind,
    readable: bool,
    /// Size of a file in bytes; for a local entry, its inode number.
    size: u64,
    modified: SystemTime,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PackedKind {
    Directory,
    File,
    Local,
}

impl Batch {
    /// Packs the entries of a page requested at event `asked`; `times`: of the request and of the answer.
    ///
    /// Names have at most 255 bytes: longer ones are never shown.
    pub(crate) fn new(first: EntryNo, asked: u64, times: [Instant; 2], entries: &[Entry]) -> Self {
        let mut text = String::new();
        let pack = |entry: &Entry| {
            let start = text.len() as u32;
            text.push_str(&entry.name);
            let mut packed = Packed {
                start,
                etag_len: 0,
                name_len: entry.name.len() as u8,
                kind: PackedKind::Directory,
                readable: true,
                size: 0,
                modified: SystemTime::UNIX_EPOCH,
            };
            match &entry.what {
                What::Directory | What::Marked => {}
                What::Local(ino) => (packed.kind, packed.size) = (PackedKind::Local, ino.0),
                What::File(meta) => {
                    text.push_str(meta.etag.as_str());
                    packed.etag_len = meta.etag.as_str().len() as u32;
                    packed.kind = PackedKind::File;
                    (packed.size, packed.modified, packed.readable) =
                        (meta.size, meta.last_modified, meta.readable);
                }
            }
            packed
        };
        let packed = entries.iter().map(pack).collect();
        let [since, arrived] = times;
        Self { first, asked, since, arrived, text: text.into_boxed_str(), packed }
    }

    pub(crate) fn len(&self) -> usize {
        self.packed.len()
    }

    pub(crate) fn last_name(&self) -> Option<&str> {
        Some(self.name(self.len().checked_sub(1)?))
    }

    /// How long a stat may repeat this page's facts about a file.
    pub(crate) fn said(&self, ttl: Ttl) -> Said {
        Said { asked: self.asked, at: self.arrived, until: ttl.of_page(self.since, self.arrived) }
    }

    pub(crate) fn name(&self, index: usize) -> &str {
        let packed = &self.packed[index];
        let start = packed.start as usize;
        self.text.get(start..start + usize::from(packed.name_len)).unwrap_or_default()
    }

    /// The number for an inode of this entry.
    pub(crate) fn ino(&self, index: usize) -> EntryNo {
        EntryNo(self.first.0 + index as u64)
    }

    /// The inode of an entry that exists only here.
    pub(crate) fn local(&self, index: usize) -> Option<EntryNo> {
        let packed = &self.packed[index];
        (packed.kind == PackedKind::Local).then_some(EntryNo(packed.size))
    }

    pub(crate) fn is_file(&self, index: usize) -> bool {
        self.packed[index].kind == PackedKind::File
    }

    /// Whether the listing names an archive tier for a file. S3 lists a restored object with its archive tier, too.
    pub(crate) fn is_archived(&self, index: usize) -> bool {
        self.is_file(index) && !self.packed[index].readable
    }

    pub(crate) fn etag(&self, index: usize) -> &str {
        let packed = &self.packed[index];
        let start = packed.start as usize + usize::from(packed.name_len);
        self.text.get(start..start + packed.etag_len as usize).unwrap_or_default()
    }

    /// Size and time of a file, and whether it can be read.
    pub(crate) fn file(&self, index: usize) -> (u64, SystemTime, bool) {
        let packed = &self.packed[index];
        (packed.size, packed.modified, packed.readable)
    }

    /// The listing's metadata of a file; `None` for a directory.
    pub(crate) fn meta(&self, index: usize) -> Option<ObjectMeta> {
        let (size, last_modified, readable) = self.file(index);
        self.is_file(index).then(|| ObjectMeta {
            size,
            etag: ETag::new(self.etag(index)),
            last_modified,
            readable,
        })
    }

    /// Finds a name in the entries, which are in order.
    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            match order(self.name(middle), name) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Equal => return Some(middle),
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        None
    }
}
