//! Converts the engine's types into those of FUSE: attributes, flags, errno.

use std::time::SystemTime;

use ::fuser::{FileAttr, FileType, FopenFlags, INodeNo, OpenAccMode};

use crate::fs::{Attr, Error, OpenFlags, Opened};
use crate::inode::Kind;
use crate::metrics::Metrics;

/// O_* of Linux that the kernel passes through in `open` (asm-generic values, the same on x86-64 and arm64 but O_DIRECT).
mod flags {
    use rustix::fs::OFlags;

    pub(super) fn has(flags: i32, flag: OFlags) -> bool {
        flags as u32 & flag.bits() != 0
    }
}

pub(super) fn open_flags(raw: i32) -> OpenFlags {
    use rustix::fs::OFlags;
    let mode = ::fuser::OpenFlags(raw).acc_mode();
    OpenFlags {
        write: mode != OpenAccMode::O_RDONLY,
        read: mode != OpenAccMode::O_WRONLY,
        truncate: flags::has(raw, OFlags::TRUNC),
        append: flags::has(raw, OFlags::APPEND),
        direct: flags::has(raw, OFlags::DIRECT),
        sync: flags::has(raw, OFlags::DSYNC),
    }
}

pub(super) fn fopen_flags(opened: &Opened) -> FopenFlags {
    let mut flags = FopenFlags::empty();
    flags.set(FopenFlags::FOPEN_KEEP_CACHE, opened.keep_cache);
    flags.set(FopenFlags::FOPEN_DIRECT_IO, opened.direct);
    flags.set(FopenFlags::FOPEN_NOFLUSH, opened.closes_unseen);
    flags
}

pub(super) fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Link => FileType::Symlink,
    }
}

pub(super) fn file_attr(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.ino.0),
        size: attr.size,
        blocks: attr.size.div_ceil(512),
        atime: attr.accessed,
        mtime: attr.modified,
        ctime: attr.modified,
        crtime: SystemTime::UNIX_EPOCH,
        kind: file_type(attr.kind),
        perm: attr.mode,
        nlink: attr.links,
        uid: attr.uid,
        gid: attr.gid,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

/// The errno of a refused operation, which is also counted and logged. The log gets a warning, unless the error is an everyday answer, or
/// the failure of a request to the store, which has its line already (`s3/client.rs`).
pub(super) fn refusal(operation: &str, error: &Error, metrics: &Metrics) -> i32 {
    metrics.fuse_errors.of(operation).inc();
    if error.is_news() {
        tracing::warn!("{operation} failed: {error}");
    } else {
        tracing::debug!("{operation}: {error}");
    }
    error.errno().raw_os_error()
}
