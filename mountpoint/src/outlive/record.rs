//! One record of the journal as bytes. Pure: a [`Record`] in, a slot out, and back.
//!
//! A slot begins with a CRC32C over the rest and over its place in the table, so that neither a torn slot nor a copied one counts as a
//! record. A slot of zeros is free. The number of the open's request stands behind the record with a checksum of its own: releases that
//! don't know it read the record alone.

use std::time::{Duration, SystemTime};

use crate::checksum::{Checksum, ChecksumAlgorithm};

/// Bytes before the fields of a record: CRC32C, length, kind, a zero, number of the store.
const HEAD: usize = 16;

/// Bytes of the request's number behind a record, and of their CRC32C.
const ASKED: usize = 12;

/// The longest slot.
pub(super) const SLOT_MAX: usize = 1024;

/// The longest name of a file or directory.
const NAME_MAX: usize = 255;

/// The longest ETag that is recorded. Stores send up to about 70 bytes.
const ETAG_MAX: usize = 256;

/// Something of which the kernel holds a number that a new engine must know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A directory that the kernel refers to.
    Directory(Directory),
    /// A handle for reading a file.
    File(File),
    /// A handle of a directory.
    Listing(Listing),
}

/// The standing of an inode in its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// S3 has the directory.
    Remote,
    /// The file was made in this mount and is not stored yet.
    Local,
    /// The inode's name is gone, or means something else.
    Nowhere,
}

/// A directory. The root is not recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directory {
    /// Number of its inode.
    pub number: u64,
    /// Number of the parent directory.
    pub parent: u64,
    /// The directory's name there.
    pub name: Box<str>,
    /// The directory's standing there.
    pub standing: Standing,
    /// Whether the kernel references the directory itself, and not only its entries.
    pub held: bool,
}

/// An open file that is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Number of the handle.
    pub handle: u64,
    /// Number of its inode.
    pub ino: u64,
    /// Number of the directory that the inode is in.
    pub parent: u64,
    /// The inode's name there.
    pub name: Box<str>,
    /// Version of the object.
    pub etag: Box<str>,
    /// Bytes of the object.
    pub size: u64,
    /// The time at which the version was stored.
    pub modified: SystemTime,
    /// Number of the file that the kernel reads by itself.
    pub passthrough: Option<u32>,
    /// Whether the handle bypasses the page cache.
    pub direct: bool,
    /// Whether the file was opened with a right to write, which a mapping could use.
    pub may_write: bool,
    /// Whether a change of the file in memory was refused.
    pub refused: bool,
    /// Number of the request that the handle answers. If the kernel sends that request again, it does not know the handle.
    pub asked: Option<u64>,
}

/// An open directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// Number of the handle.
    pub handle: u64,
    /// Number of the directory's inode.
    pub ino: u64,
    /// The ends of the last two answers: one of them may not have reached the kernel.
    pub places: [Place; 2],
    /// Number of the request that the handle answers, as for a file.
    pub asked: Option<u64>,
}

/// A place in a listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The offset to go on from.
    pub offset: u64,
    /// The last name before the place; empty at the beginning, and behind `.` and `..`.
    pub name: Box<str>,
}

/// The spaces of numbers: a file and a directory may have handles of one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Subject {
    Inode(u64),
    File(u64),
    Listing(u64),
}

/// The records of a table by kind, in any order. A directory among handles would take three times its memory.
#[derive(Debug, Default)]
pub(super) struct Records {
    pub(super) directories: Vec<Directory>,
    pub(super) files: Vec<File>,
    pub(super) listings: Vec<Listing>,
}

impl Records {
    /// No records, with room for this number of directories.
    pub(super) fn with_capacity(directories: usize) -> Self {
        Self { directories: Vec::with_capacity(directories), ..Self::default() }
    }

    pub(super) fn push(&mut self, record: Record) {
        match record {
            Record::Directory(it) => self.directories.push(it),
            Record::File(it) => self.files.push(it),
            Record::Listing(it) => self.listings.push(it),
        }
    }

    pub(super) fn retain(&mut self, keeps: impl Fn(Subject) -> bool) {
        self.directories.retain(|it| keeps(Subject::Inode(it.number)));
        self.files.retain(|it| keeps(Subject::File(it.handle)));
        self.listings.retain(|it| keeps(Subject::Listing(it.handle)));
    }
}

impl FromIterator<Record> for Records {
    fn from_iter<I: IntoIterator<Item = Record>>(records: I) -> Self {
        let mut all = Self::default();
        records.into_iter().for_each(|record| all.push(record));
        all
    }
}

impl Record {
    /// The subject of the record: each has one record.
    pub(super) fn subject(&self) -> Subject {
        match self {
            Self::Directory(directory) => Subject::Inode(directory.number),
            Self::File(file) => Subject::File(file.handle),
            Self::Listing(listing) => Subject::Listing(listing.handle),
        }
    }

    /// Number of the request that a handle answers.
    fn asked(&self) -> Option<u64> {
        match self {
            Self::Directory(_) => None,
            Self::File(file) => file.asked,
            Self::Listing(listing) => listing.asked,
        }
    }

    /// Whether the kernel could have these numbers, and a bucket these names.
    fn is_sound(&self) -> bool {
        let is_name = |name: &str| {
            !name.is_empty()
                && name.len() <= NAME_MAX
                && name != "."
                && name != ".."
                && !name.contains(['/', '\0'])
        };
        match self {
            Self::Directory(it) => {
                it.number > 1 && it.parent > 0 && it.number != it.parent && is_name(&it.name)
            }
            Self::File(it) => {
                it.handle > 0
                    && it.ino > 1
                    && it.parent > 0
                    && it.ino != it.parent
                    && is_name(&it.name)
                    && !it.etag.is_empty()
                    && it.etag.len() <= ETAG_MAX
                    && it.etag.chars().all(|c| !c.is_control())
                    && it.size < 1 << 63
            }
            Self::Listing(it) => {
                let is_place = |place: &Place| match &*place.name {
                    "" => place.offset <= 2,
                    name => place.offset > 2 && is_name(name),
                };
                it.handle > 0 && it.ino > 0 && it.places.iter().all(is_place)
            }
        }
    }
}

/// Encodes a record as a slot, without its checksums ([`seal`]). `store` counts the stores: of two slots about one subject, the later
/// counts. `None` for a record that no mount has.
pub(super) fn encode(record: &Record, store: u64) -> Option<Vec<u8>> {
    if !record.is_sound() {
        return None;
    }
    let mut out = vec![0; HEAD];
    let kind = match record {
        Record::Directory(it) => {
            put(&mut out, &[it.number, it.parent]);
            out.push(match it.standing {
                Standing::Remote => 0,
                Standing::Local => 1,
                Standing::Nowhere => 2,
            });
            out.push(it.held.into());
            text(&mut out, &it.name);
            1
        }
        Record::File(it) => {
            let modified = it.modified.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            put(&mut out, &[it.handle, it.ino, it.parent, it.size, modified.as_secs()]);
            out.extend(modified.subsec_nanos().to_le_bytes());
            out.extend(it.passthrough.unwrap_or(0).to_le_bytes());
            let flags = [it.passthrough.is_some(), it.direct, it.may_write, it.refused];
            out.push(flags.iter().rev().fold(0, |byte, flag| byte << 1 | u8::from(*flag)));
            text(&mut out, &it.name);
            text(&mut out, &it.etag);
            2
        }
        Record::Listing(it) => {
            put(&mut out, &[it.handle, it.ino]);
            for place in &it.places {
                put(&mut out, &[place.offset]);
                text(&mut out, &place.name);
            }
            3
        }
    };
    let len = u16::try_from(out.len()).ok()?;
    out[4..6].copy_from_slice(&len.to_le_bytes());
    out[6] = kind;
    out[8..16].copy_from_slice(&store.to_le_bytes());
    if let Some(asked) = record.asked() {
        out.extend(asked.to_le_bytes());
        out.extend([0; 4]);
    }
    Some(out)
}

/// Writes the checksums of a slot for its `place`.
pub(super) fn seal(slot: &mut [u8], place: u64) {
    let len = usize::from(u16::from_le_bytes([slot[4], slot[5]])).min(slot.len());
    let (record, behind) = slot.split_at_mut(len);
    let sum = sum(&record[4..], place);
    record[..4].copy_from_slice(&sum.to_le_bytes());
    if behind.len() == ASKED {
        let sum = sum_of_asked(record, &behind[..8]);
        behind[8..].copy_from_slice(&sum.to_le_bytes());
    }
}

/// The record of a slot, and the number of its store. `None`: free, torn, or not ours.
pub(super) fn decode(slot: &[u8], place: u64) -> Option<(Record, u64)> {
    let len: usize = u16::from_le_bytes(slot.get(4..6)?.try_into().ok()?).into();
    let (slot, behind) = slot.split_at_checked(len)?;
    let (mut head, body) = slot.split_at_checked(HEAD)?;
    if u32::from_le_bytes(head[..4].try_into().ok()?) != sum(&slot[4..], place) {
        return None;
    }
    let (kind, zero) = (head[6], head[7]);
    let asked = read_asked(head, behind);
    head = &head[8..];
    let (store, mut fields) = (number(&mut head)?, body);
    let f = &mut fields;
    let record = match kind {
        1 => Record::Directory(Directory {
            number: number(f)?,
            parent: number(f)?,
            standing: match byte(f)? {
                0 => Standing::Remote,
                1 => Standing::Local,
                2 => Standing::Nowhere,
                _ => return None,
            },
            held: byte(f)? == 1,
            name: read_text(f)?,
        }),
        2 => {
            let (handle, ino, parent, size) = (number(f)?, number(f)?, number(f)?, number(f)?);
            let (secs, nanos, id) = (number(f)?, small(f)?, small(f)?);
            let modified = Duration::new(secs, nanos.min(999_999_999));
            let modified = SystemTime::UNIX_EPOCH.checked_add(modified)?;
            let flags = byte(f)?;
            let has = |bit: u8| flags & 1 << bit != 0;
            Record::File(File {
                handle,
                ino,
                parent,
                size,
                modified,
                passthrough: has(0).then_some(id),
                direct: has(1),
                may_write: has(2),
                refused: has(3),
                name: read_text(f)?,
                etag: read_text(f)?,
                asked,
            })
        }
        3 => {
            let (handle, ino) = (number(f)?, number(f)?);
            let mut place = || Some(Place { offset: number(f)?, name: read_text(f)? });
            Record::Listing(Listing { handle, ino, places: [place()?, place()?], asked })
        }
        _ => return None,
    };
    (zero == 0 && fields.is_empty() && record.is_sound()).then_some((record, store))
}

/// CRC32C over a place, and over the bytes of a slot there.
fn sum(bytes: &[u8], place: u64) -> u32 {
    // A hasher that takes them one after the other costs more, and programs wait while thousands of records are read.
    let mut both = [0; 8 + SLOT_MAX];
    let Some(room) = both.get_mut(..8 + bytes.len()) else { return sum_of_long(bytes, place) };
    room[..8].copy_from_slice(&place.to_le_bytes());
    // copy: a slot's few bytes, beside its place.
    room[8..].copy_from_slice(bytes);
    Checksum::of(ChecksumAlgorithm::Crc32c, room).value as u32
}

/// The number of the request behind a record with this head, if it was written with this record.
fn read_asked(head: &[u8], behind: &[u8]) -> Option<u64> {
    let (asked, sum) = behind.get(..ASKED)?.split_at(8);
    let number = u64::from_le_bytes(asked.try_into().ok()?);
    (number > 0 && u32::from_le_bytes(sum.try_into().ok()?) == sum_of_asked(head, asked)).then_some(number)
}

/// CRC32C over the head of a record, its own checksum among it, and over the number of a request. An earlier record's number in the same
/// slot has another one.
fn sum_of_asked(record: &[u8], asked: &[u8]) -> u32 {
    let mut both = [0; HEAD + 8];
    // copy: 24 bytes that lie apart.
    both[..HEAD].copy_from_slice(&record[..HEAD]);
    both[HEAD..].copy_from_slice(asked);
    Checksum::of(ChecksumAlgorithm::Crc32c, &both).value as u32
}

fn sum_of_long(bytes: &[u8], place: u64) -> u32 {
    let mut hasher = crate::checksum::Hasher::new(ChecksumAlgorithm::Crc32c);
    hasher.update(&place.to_le_bytes());
    hasher.update(bytes);
    hasher.finish().value as u32
}

fn put(out: &mut Vec<u8>, numbers: &[u64]) {
    numbers.iter().for_each(|number| out.extend(number.to_le_bytes()));
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u16).to_le_bytes());
    out.extend(text.as_bytes());
}

fn take<'a>(left: &mut &'a [u8], n: usize) -> Option<&'a [u8]> {
    let (head, tail) = left.split_at_checked(n)?;
    *left = tail;
    Some(head)
}

fn byte(left: &mut &[u8]) -> Option<u8> {
    take(left, 1).map(|bytes| bytes[0])
}

fn small(left: &mut &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(take(left, 4)?.try_into().ok()?))
}

fn number(left: &mut &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(take(left, 8)?.try_into().ok()?))
}

fn read_text(left: &mut &[u8]) -> Option<Box<str>> {
    let len = u16::from_le_bytes(take(left, 2)?.try_into().ok()?);
    std::str::from_utf8(take(left, len.into())?).ok().map(Into::into)
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(in crate::outlive) fn a_directory(number: u64, parent: u64, name: &str) -> Record {
        Record::Directory(Directory {
            number,
            parent,
            name: name.into(),
            standing: Standing::Remote,
            held: true,
        })
    }

    pub(in crate::outlive) fn a_file(handle: u64) -> Record {
        Record::File(File {
            handle,
            ino: 9,
            parent: 1,
            name: "file".into(),
            etag: "\"etag\"".into(),
            size: 5,
            modified: SystemTime::UNIX_EPOCH + Duration::from_nanos(1_234_567_890_123),
            passthrough: Some(3),
            direct: false,
            may_write: true,
            refused: false,
            asked: None,
        })
    }

    /// The handle of an open that this request asked for.
    pub(in crate::outlive) fn asked(mut record: Record, unique: u64) -> Record {
        match &mut record {
            Record::Directory(_) => {}
            Record::File(file) => file.asked = Some(unique),
            Record::Listing(listing) => listing.asked = Some(unique),
        }
        record
    }

    fn a_listing(places: [(u64, &str); 2]) -> Record {
        let places = places.map(|(offset, name)| Place { offset, name: name.into() });
        Record::Listing(Listing { handle: 4, ino: 1, places, asked: None })
    }

    #[test]
    fn a_record_is_read_back_and_no_byte_of_it_may_differ() {
        let long = "n".repeat(NAME_MAX);
        for record in
            [a_directory(7, 1, "d"), a_directory(7, 1, &long), a_file(1), a_listing([(2, ""), (9, &long)])]
        {
            let mut slot = encode(&record, 5).expect("a sound record");
            seal(&mut slot, 4096);
            assert_eq!(decode(&slot, 4096), Some((record, 5)));
            assert_eq!(decode(&slot, 8192), None, "a copy elsewhere");
            for at in 0..slot.len() {
                let mut torn = slot.clone();
                torn[at] ^= 1;
                assert_eq!(decode(&torn, 4096), None, "byte {at}");
                assert_eq!(decode(&slot[..at], 4096), None, "cut at {at}");
            }
        }
        assert_eq!(decode(&[0; 128], 4096), None, "free");
    }

    #[test]
    fn the_number_of_a_request_is_read_only_behind_its_own_record() {
        for record in [a_file(1), a_listing([(2, ""), (9, "last")])] {
            let sealed = |record: &Record, store| {
                let mut slot = encode(record, store).expect("a sound record");
                seal(&mut slot, 4096);
                slot
            };
            let with = asked(record.clone(), 46);
            let slot = sealed(&with, 5);
            let plain = sealed(&record, 5);
            // An earlier release reads this much, and finds the record that it would have written.
            assert_eq!(slot[..plain.len()], plain);
            let room = |slot: &[u8]| [slot, &[0; 64]].concat();
            assert_eq!(decode(&room(&slot), 4096), Some((with.clone(), 5)));
            assert_eq!(decode(&room(&plain), 4096), Some((record.clone(), 5)));
            for at in plain.len()..slot.len() {
                let mut torn = room(&slot);
                torn[at] ^= 1;
                assert_eq!(decode(&torn, 4096), Some((record.clone(), 5)), "byte {at}");
            }
            // A release that knows no such numbers wrote the same record there later.
            let later = [&sealed(&record, 6), &slot[plain.len()..]].concat();
            assert_eq!(decode(&later, 4096), Some((record, 6)));
        }
    }

    #[test]
    fn a_checksum_is_that_of_its_place_and_bytes_one_after_the_other() {
        for len in [0, 1, 100, SLOT_MAX, SLOT_MAX + 1] {
            let bytes: Vec<u8> = (0..len).map(|i| i as u8).collect();
            assert_eq!(sum(&bytes, 65_664), sum_of_long(&bytes, 65_664), "{len}");
        }
    }

    #[test]
    fn numbers_and_names_that_no_mount_has_are_no_record() {
        let too_long = "n".repeat(NAME_MAX + 1);
        for (number, parent, name) in [
            (0, 1, "d"),
            (1, 1, "d"),
            (7, 7, "d"),
            (7, 0, "d"),
            (7, 1, ""),
            (7, 1, ".."),
            (7, 1, "a/b"),
            (7, 1, &too_long),
        ] {
            assert_eq!(encode(&a_directory(number, parent, name), 1), None, "{number} {parent} {name:?}");
        }
        assert_eq!(encode(&a_listing([(3, ""), (2, "")]), 1), None);
        assert_eq!(encode(&a_listing([(2, "a"), (2, "")]), 1), None);
        assert_eq!(encode(&a_file(0), 1), None);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_with_a_right_checksum_are_a_sound_record_or_none(kind in 1u8..4, body in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut slot = vec![0; HEAD];
            slot.extend(&body);
            let len = slot.len() as u16;
            slot[4..6].copy_from_slice(&len.to_le_bytes());
            slot[6] = kind;
            seal(&mut slot, 0);
            if let Some((record, store)) = decode(&slot, 0) {
                prop_assert!(record.is_sound());
                prop_assert!(encode(&record, store).is_some());
            }
        }
    }
}
