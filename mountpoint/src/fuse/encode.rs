//! Encodes answers for the kernel. Pure: the engine's types in, bytes out, in the layouts of `linux/fuse.h`.

use std::time::{Duration, SystemTime};

use crate::fs::{Attr, DirItem, Entry, Opened, StatFs};
use crate::inode::Kind;

const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const LINK: u32 = 0o120_000;

/// `FOPEN_*`.
const OPEN_DIRECT: u32 = 1;
const OPEN_KEEP_CACHE: u32 = 1 << 1;
const OPEN_NO_FLUSH: u32 = 1 << 5;
const OPEN_PASSTHROUGH: u32 = 1 << 7;

fn kind(of: Kind) -> u32 {
    match of {
        Kind::Directory => DIRECTORY,
        Kind::File => REGULAR,
        Kind::Link => LINK,
    }
}

fn seconds(duration: Duration) -> (u64, u32) {
    (duration.as_secs(), duration.subsec_nanos())
}

/// Seconds from 1970, negative before, and the nanoseconds after them.
fn since_1970(time: SystemTime) -> (u64, u32) {
    let before = match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => return seconds(after),
        Err(before) => before.duration(),
    };
    let begun = u64::from(before.subsec_nanos() > 0);
    let nanos = (1_000_000_000 - before.subsec_nanos()) % 1_000_000_000;
    ((before.as_secs() + begun).wrapping_neg(), nanos)
}

/// `struct fuse_attr`, 88 bytes.
fn attr(out: &mut Vec<u8>, attr: &Attr) {
    let ((accessed, accessed_ns), (time, nanos)) = (since_1970(attr.accessed), since_1970(attr.modified));
    for field in [attr.ino.0, attr.size, attr.size.div_ceil(512), accessed, time, time] {
        out.extend(field.to_ne_bytes());
    }
    let mode = kind(attr.kind) | u32::from(attr.mode);
    for field in [accessed_ns, nanos, nanos, mode, attr.links, attr.uid, attr.gid, 0, 4096, 0] {
        out.extend(field.to_ne_bytes());
    }
}

/// `struct fuse_entry_out`, 128 bytes.
fn entry_out(out: &mut Vec<u8>, ino: u64, entry_valid: Duration, of: &Attr) {
    let ((entry_s, entry_ns), (attr_s, attr_ns)) = (seconds(entry_valid), seconds(of.valid_for));
    // Inode numbers are never used twice, so generation 0 suffices.
    for field in [ino, 0, entry_s, attr_s] {
        out.extend(field.to_ne_bytes());
    }
    out.extend(entry_ns.to_ne_bytes());
    out.extend(attr_ns.to_ne_bytes());
    attr(out, of);
}

pub(super) fn entry(entry: &Entry) -> Vec<u8> {
    let mut out = Vec::with_capacity(128);
    entry_out(&mut out, entry.attr.ino.0, entry.valid_for, &entry.attr);
    out
}

/// `struct fuse_attr_out`, 104 bytes.
pub(super) fn attributes(of: &Attr) -> Vec<u8> {
    let mut out = Vec::with_capacity(104);
    let (s, ns) = seconds(of.valid_for);
    out.extend(s.to_ne_bytes());
    out.extend(ns.to_ne_bytes());
    out.extend(0u32.to_ne_bytes());
    attr(&mut out, of);
    out
}

/// `struct fuse_open_out`, 16 bytes.
pub(super) fn open(opened: &Opened) -> [u8; 16] {
    let mut flags = 0;
    flags |= if opened.direct { OPEN_DIRECT } else { 0 };
    flags |= if opened.keep_cache { OPEN_KEEP_CACHE } else { 0 };
    flags |= if opened.closes_unseen { OPEN_NO_FLUSH } else { 0 };
    flags |= if opened.passthrough.is_some() { OPEN_PASSTHROUGH } else { 0 };
    let mut out = open_out(opened.handle.0, flags);
    out[12..].copy_from_slice(&opened.passthrough.unwrap_or_default().to_ne_bytes());
    out
}

/// `struct fuse_getxattr_out`, 8 bytes.
pub(super) fn attribute_len(len: usize) -> [u8; 8] {
    let mut out = [0; 8];
    out[..4].copy_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_ne_bytes());
    out
}

pub(super) fn open_out(handle: u64, flags: u32) -> [u8; 16] {
    let mut out = [0; 16];
    out[..8].copy_from_slice(&handle.to_ne_bytes());
    out[8..12].copy_from_slice(&flags.to_ne_bytes());
    out
}

pub(super) fn create(entry: &Entry, opened: &Opened) -> Vec<u8> {
    let mut out = self::entry(entry);
    out.extend(open(opened));
    out
}

/// `struct fuse_write_out`, 8 bytes.
pub(super) fn written(bytes: u32) -> [u8; 8] {
    let mut out = [0; 8];
    out[..4].copy_from_slice(&bytes.to_ne_bytes());
    out
}

/// `struct fuse_kstatfs`, 80 bytes.
pub(super) fn statfs(s: &StatFs) -> Vec<u8> {
    let mut out = Vec::with_capacity(80);
    for field in [s.blocks, s.blocks, s.blocks, s.files, s.files] {
        out.extend(field.to_ne_bytes());
    }
    for field in [s.block_size, s.name_max, s.block_size, 0, 0, 0, 0, 0, 0, 0] {
        out.extend(field.to_ne_bytes());
    }
    out
}

/// Bytes of a `struct fuse_dirent` without its name, and of a `struct fuse_entry_out`.
const DIRENT: usize = 24;
const ENTRY_OUT: usize = 128;

/// A directory reply under construction, up to the size that the kernel requested.
#[derive(Debug)]
pub(super) struct DirReply {
    bytes: Vec<u8>,
    size: usize,
}

impl DirReply {
    pub(super) fn new(size: u32) -> Self {
        let size = size as usize;
        Self { bytes: Vec::with_capacity(size.min(64 << 10)), size }
    }

    /// The most names that can fit, if each has one letter. It would be in vain to look up more.
    pub(super) fn most(size: u32) -> usize {
        (size as usize / padded(DIRENT + 1)).max(1)
    }

    /// The most names with attributes that fit.
    pub(super) fn most_plus(size: u32) -> usize {
        (size as usize / (ENTRY_OUT + padded(DIRENT + 1))).max(1)
    }

    /// Adds a `struct fuse_dirent`. False if it does not fit; then nothing was added.
    pub(super) fn add(&mut self, item: &DirItem) -> bool {
        if self.bytes.len() + padded(DIRENT + item.name().len()) > self.size {
            return false;
        }
        self.dirent(item);
        true
    }

    /// Number of these items that fit as `struct fuse_direntplus`.
    pub(super) fn fit_plus(&self, items: &[DirItem]) -> usize {
        let mut room = self.size - self.bytes.len();
        let fits = |item: &&DirItem| {
            let left = room.checked_sub(ENTRY_OUT + padded(DIRENT + item.name().len()));
            room = left.unwrap_or(room);
            left.is_some()
        };
        items.iter().take_while(fits).count()
    }

    /// Adds a `struct fuse_direntplus` that fits. An item without an entry (`.` and `..`) gives the kernel no reference.
    pub(super) fn add_plus(&mut self, item: &DirItem, entry: Option<&Entry>) {
        match entry {
            Some(entry) => entry_out(&mut self.bytes, entry.attr.ino.0, entry.valid_for, &entry.attr),
            None => self.bytes.extend([0; ENTRY_OUT]),
        }
        self.dirent(item);
    }

    fn dirent(&mut self, item: &DirItem) {
        let name = item.name().as_encoded_bytes();
        self.bytes.extend(item.attr.ino.0.to_ne_bytes());
        self.bytes.extend(item.offset.to_ne_bytes());
        self.bytes.extend((name.len() as u32).to_ne_bytes());
        let kind = kind(item.attr.kind) >> 12;
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(name);
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

fn padded(len: usize) -> usize {
    len.next_multiple_of(8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::HandleNo;
    use crate::inode::InodeNo;

    fn an_entry() -> Entry {
        let attr = Attr {
            ino: InodeNo(7),
            kind: Kind::File,
            size: 1000,
            accessed: SystemTime::UNIX_EPOCH + Duration::from_millis(2500),
            modified: SystemTime::UNIX_EPOCH + Duration::from_millis(1500),
            mode: 0o644,
            links: 1,
            uid: 1,
            gid: 2,
            valid_for: Duration::from_millis(100),
        };
        Entry { attr, valid_for: Duration::from_secs(1) }
    }

    #[test]
    fn structures_have_the_sizes_of_the_kernel_s_header() {
        let e = an_entry();
        let (keep_cache, closes_unseen) = (true, true);
        let opened =
            Opened { handle: HandleNo(3), keep_cache, direct: false, passthrough: None, closes_unseen };
        assert_eq!(entry(&e).len(), ENTRY_OUT);
        assert_eq!(attributes(&e.attr).len(), 104);
        assert_eq!(create(&e, &opened).len(), 144);
        assert_eq!(open(&opened)[..12], [3, 0, 0, 0, 0, 0, 0, 0, 2 | 32, 0, 0, 0]);
        assert_eq!(statfs(&StatFs { blocks: 1, block_size: 2, files: 3, name_max: 4 }).len(), 80);
    }

    #[test]
    fn times_before_1970_are_negative_seconds_and_nanoseconds_after_them() {
        let before = |millis| since_1970(SystemTime::UNIX_EPOCH - Duration::from_millis(millis));
        assert_eq!(before(0), (0, 0));
        assert_eq!(before(2_000), (2u64.wrapping_neg(), 0));
        assert_eq!(before(1_500), (2u64.wrapping_neg(), 500_000_000));
    }

    #[test]
    fn as_many_names_are_prepared_as_fit_the_kernels_buffer_at_least_one() {
        assert_eq!((DirReply::most(32 << 10), DirReply::most_plus(32 << 10)), (1024, 204));
        assert_eq!((DirReply::most(1), DirReply::most_plus(1)), (1, 1));
    }
}
