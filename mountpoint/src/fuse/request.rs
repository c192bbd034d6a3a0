//! Decodes a request of the kernel. Pure: bytes in, a [`Request`] that borrows from them out.
//!
//! The layouts are those of `linux/fuse.h`, protocol 7.31 and later. The decoder reads small fields one by one and casts nothing. A
//! request that is too short, or has an unterminated name, is an error and gets EIO; an unknown opcode gets ENOSYS.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, SystemTime};

use crate::fs::TimeWish;

/// Bytes of the header before every request.
pub(super) const HEADER_LEN: usize = 40;

/// One decoded request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Request<'a> {
    pub(super) unique: u64,
    pub(super) node: u64,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) pid: u32,
    pub(super) operation: Operation<'a>,
}

/// The operation of a request. Numbers are as the kernel gives them; names come without their NUL.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Operation<'a> {
    Init {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u64,
    },
    Destroy,
    Lookup {
        name: &'a OsStr,
    },
    Forget {
        count: u64,
    },
    BatchForget {
        nodes: Vec<(u64, u64)>,
    },
    Getattr,
    Setattr {
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        /// The open file of ftruncate.
        handle: Option<u64>,
        accessed: Option<TimeWish>,
        modified: Option<TimeWish>,
    },
    Mknod {
        mode: u32,
        name: &'a OsStr,
    },
    Mkdir {
        mode: u32,
        name: &'a OsStr,
    },
    Unlink {
        name: &'a OsStr,
    },
    Rmdir {
        name: &'a OsStr,
    },
    Rename {
        name: &'a OsStr,
        new_parent: u64,
        new_name: &'a OsStr,
        /// The flags of renameat2(2).
        flags: u32,
    },
    Symlink {
        name: &'a OsStr,
        target: &'a OsStr,
    },
    Readlink,
    Link {
        name: &'a OsStr,
    },
    Open {
        flags: i32,
    },
    Create {
        flags: i32,
        mode: u32,
        name: &'a OsStr,
    },
    Read {
        handle: u64,
        offset: u64,
        size: u32,
    },
    Write {
        handle: u64,
        offset: u64,
        data: &'a [u8],
        /// Whether these are pages that a program changed in a mapping, perhaps through another handle of the file.
        mapped: bool,
        /// The flags of the open, and O_DSYNC for a `pwritev2` with RWF_DSYNC or RWF_SYNC.
        flags: i32,
    },
    Flush {
        handle: u64,
    },
    Fsync {
        handle: u64,
    },
    Release {
        handle: u64,
    },
    Opendir,
    Readdir {
        handle: u64,
        offset: u64,
        size: u32,
    },
    Readdirplus {
        handle: u64,
        offset: u64,
        size: u32,
    },
    Releasedir {
        handle: u64,
    },
    Fsyncdir {
        handle: u64,
    },
    Setxattr {
        name: &'a OsStr,
        value: &'a [u8],
        /// The flags of setxattr(2).
        flags: u32,
    },
    Getxattr {
        name: &'a OsStr,
        /// Bytes of the caller's buffer; 0 requests the length of the value.
        size: u32,
    },
    Listxattr {
        size: u32,
    },
    Removexattr {
        name: &'a OsStr,
    },
    Lseek {
        handle: u64,
        offset: u64,
        /// The whence of lseek(2): SEEK_DATA or SEEK_HOLE.
        whence: u32,
    },
    Statfs,
    Interrupt {
        unique: u64,
    },
    Fallocate {
        handle: u64,
        offset: u64,
        len: u64,
        mode: u32,
    },
    /// An operation that the engine does not implement.
    Other {
        opcode: u32,
    },
}

impl Operation<'_> {
    /// Whether the kernel waits for an answer.
    pub(super) fn is_answered(&self) -> bool {
        !matches!(self, Self::Forget { .. } | Self::BatchForget { .. } | Self::Interrupt { .. })
    }

    /// Whether the request needs no permission of its own, because it ends something, or works on an open file.
    pub(super) fn follows_an_open(&self) -> bool {
        matches!(
            self,
            Self::Init { .. }
                | Self::Destroy
                | Self::Forget { .. }
                | Self::BatchForget { .. }
                | Self::Read { .. }
                | Self::Write { .. }
                | Self::Flush { .. }
                | Self::Fsync { .. }
                | Self::Fallocate { .. }
                | Self::Release { .. }
                | Self::Releasedir { .. }
                | Self::Fsyncdir { .. }
                | Self::Lseek { .. }
                | Self::Interrupt { .. }
        )
    }
}

/// The reason why bytes are not a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DecodeError {
    /// The request has no header.
    NoHeader,
    /// The header is valid, the body is not: this request gets EIO.
    Body { unique: u64, opcode: u32 },
}

/// Reads the fields at the front of a body, one after the other.
struct Fields<'a> {
    left: &'a [u8],
    /// Names and data, if they do not follow the fields.
    apart: Option<&'a [u8]>,
}

impl<'a> Fields<'a> {
    fn bytes(&mut self, n: usize) -> Option<&'a [u8]> {
        take(&mut self.left, n)
    }

    /// The rest of the request: names and data.
    fn rest(&mut self) -> &mut &'a [u8] {
        self.apart.as_mut().unwrap_or(&mut self.left)
    }

    fn data(&mut self, n: usize) -> Option<&'a [u8]> {
        take(self.rest(), n)
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_ne_bytes(self.bytes(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_ne_bytes(self.bytes(8)?.try_into().ok()?))
    }

    fn name(&mut self) -> Option<&'a OsStr> {
        let end = self.rest().iter().position(|b| *b == 0)?;
        let name = self.data(end + 1)?;
        Some(OsStr::from_bytes(&name[..end]))
    }
}

fn take<'a>(left: &mut &'a [u8], n: usize) -> Option<&'a [u8]> {
    let (head, tail) = left.split_at_checked(n)?;
    *left = tail;
    Some(head)
}

/// Decodes the bytes of one read(2) of the device.
pub(super) fn decode(bytes: &[u8]) -> Result<Request<'_>, DecodeError> {
    let header = Header::read(bytes)?;
    if header.len != bytes.len() {
        return Err(header.unreadable());
    }
    header.with(Fields { left: &bytes[HEADER_LEN..], apart: None })
}

/// Decodes a request that came in parts: the header, the memory of the first argument (the length in the header says how many of its bytes
/// count), and all other arguments.
pub(super) fn decode_parts<'a>(
    header: &[u8],
    first: &'a [u8],
    rest: &'a [u8],
) -> Result<Request<'a>, DecodeError> {
    let header = Header::read(header)?;
    let len = header.len.checked_sub(HEADER_LEN + rest.len());
    let first = len.and_then(|len| first.get(..len)).ok_or_else(|| header.unreadable())?;
    header.with(Fields { left: first, apart: Some(rest) })
}

/// `struct fuse_in_header`.
#[derive(Clone, Copy)]
struct Header {
    len: usize,
    opcode: u32,
    unique: u64,
    node: u64,
    uid: u32,
    gid: u32,
    pid: u32,
}

impl Header {
    fn read(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut fields = Fields { left: bytes, apart: None };
        let mut read = || {
            let (len, opcode, unique, node) = (fields.u32()?, fields.u32()?, fields.u64()?, fields.u64()?);
            let (uid, gid, pid, _ext) = (fields.u32()?, fields.u32()?, fields.u32()?, fields.u32()?);
            Some(Self { len: len as usize, opcode, unique, node, uid, gid, pid })
        };
        read().ok_or(DecodeError::NoHeader)
    }

    fn unreadable(self) -> DecodeError {
        DecodeError::Body { unique: self.unique, opcode: self.opcode }
    }

    fn with(self, fields: Fields<'_>) -> Result<Request<'_>, DecodeError> {
        let Self { opcode, unique, node, uid, gid, pid, .. } = self;
        let operation = body(opcode, fields).ok_or_else(|| self.unreadable())?;
        Ok(Request { unique, node, uid, gid, pid, operation })
    }
}

fn body<'a>(opcode: u32, mut f: Fields<'a>) -> Option<Operation<'a>> {
    Some(match opcode {
        1 => Operation::Lookup { name: f.name()? },
        2 => Operation::Forget { count: f.u64()? },
        3 => Operation::Getattr,
        4 => {
            let (valid, _) = (f.u32()?, f.u32()?);
            let (handle, size, _lock_owner) = (f.u64()?, f.u64()?, f.u64()?);
            let (atime, mtime, _ctime) = (f.u64()?, f.u64()?, f.u64()?);
            let (atime_ns, mtime_ns, _ctime_ns) = (f.u32()?, f.u32()?, f.u32()?);
            let (mode, _unused, uid, gid) = (f.u32()?, f.u32()?, f.u32()?, f.u32()?);
            let has = |bits: u32| valid & bits != 0;
            let wish = |set: u32, now: u32, s, ns| {
                has(1 << set | 1 << now)
                    .then(|| if has(1 << now) { TimeWish::Now } else { TimeWish::At(time(s, ns)) })
            };
            Operation::Setattr {
                mode: has(1).then_some(mode),
                uid: has(1 << 1).then_some(uid),
                gid: has(1 << 2).then_some(gid),
                size: has(1 << 3).then_some(size),
                handle: has(1 << 6).then_some(handle),
                accessed: wish(4, 7, atime, atime_ns),
                modified: wish(5, 8, mtime, mtime_ns),
            }
        }
        5 => Operation::Readlink,
        6 => Operation::Symlink { name: f.name()?, target: f.name()? },
        8 => {
            let mode = f.u32()?;
            f.bytes(12)?;
            Operation::Mknod { mode, name: f.name()? }
        }
        9 => {
            let (mode, _umask) = (f.u32()?, f.u32()?);
            Operation::Mkdir { mode, name: f.name()? }
        }
        10 => Operation::Unlink { name: f.name()? },
        11 => Operation::Rmdir { name: f.name()? },
        12 => {
            let new_parent = f.u64()?;
            Operation::Rename { name: f.name()?, new_parent, new_name: f.name()?, flags: 0 }
        }
        13 => {
            let _of = f.u64()?;
            Operation::Link { name: f.name()? }
        }
        14 => Operation::Open { flags: f.u32()? as i32 },
        15 => Operation::Read { handle: f.u64()?, offset: f.u64()?, size: f.u32()? },
        16 => {
            let (handle, offset, size) = (f.u64()?, f.u64()?, f.u32()?);
            // FUSE_WRITE_CACHE.
            let mapped = f.u32()? & 1 != 0;
            f.bytes(8)?;
            let flags = f.u32()? as i32;
            f.bytes(4)?;
            Operation::Write { handle, offset, data: f.data(size as usize)?, mapped, flags }
        }
        17 => Operation::Statfs,
        18 => Operation::Release { handle: f.u64()? },
        20 => Operation::Fsync { handle: f.u64()? },
        21 => {
            // Short, as without FUSE_SETXATTR_EXT.
            let (size, flags) = (f.u32()?, f.u32()?);
            Operation::Setxattr { name: f.name()?, value: f.data(size as usize)?, flags }
        }
        22 => {
            let (size, _) = (f.u32()?, f.u32()?);
            Operation::Getxattr { name: f.name()?, size }
        }
        23 => Operation::Listxattr { size: f.u32()? },
        24 => Operation::Removexattr { name: f.name()? },
        25 => Operation::Flush { handle: f.u64()? },
        26 => {
            let (major, minor, max_readahead, flags) = (f.u32()?, f.u32()?, f.u32()?, f.u32()?);
            // The upper half came with 7.36 and is there only if bit 30 says so.
            let upper = if flags & 1 << 30 != 0 { f.u32()? } else { 0 };
            Operation::Init { major, minor, max_readahead, flags: u64::from(upper) << 32 | u64::from(flags) }
        }
        27 => Operation::Opendir,
        28 => Operation::Readdir { handle: f.u64()?, offset: f.u64()?, size: f.u32()? },
        29 => Operation::Releasedir { handle: f.u64()? },
        30 => Operation::Fsyncdir { handle: f.u64()? },
        35 => {
            // The kernel has applied the umask already.
            let (flags, mode, _umask, _open_flags) = (f.u32()? as i32, f.u32()?, f.u32()?, f.u32()?);
            Operation::Create { flags, mode, name: f.name()? }
        }
        36 => Operation::Interrupt { unique: f.u64()? },
        38 => Operation::Destroy,
        42 => {
            let (count, _) = (f.u32()?, f.u32()?);
            // The capacity is limited by the received bytes, not by the claimed count.
            let mut nodes = Vec::with_capacity((count as usize).min(f.left.len() / 16));
            for _ in 0..count {
                nodes.push((f.u64()?, f.u64()?));
            }
            Operation::BatchForget { nodes }
        }
        43 => {
            let (handle, offset, len, mode) = (f.u64()?, f.u64()?, f.u64()?, f.u32()?);
            Operation::Fallocate { handle, offset, len, mode }
        }
        44 => Operation::Readdirplus { handle: f.u64()?, offset: f.u64()?, size: f.u32()? },
        45 => {
            let (new_parent, flags, _) = (f.u64()?, f.u32()?, f.u32()?);
            Operation::Rename { name: f.name()?, new_parent, new_name: f.name()?, flags }
        }
        46 => Operation::Lseek { handle: f.u64()?, offset: f.u64()?, whence: f.u32()? },
        opcode => Operation::Other { opcode },
    })
}

/// The parts of this room that fuzz targets reach.
#[cfg(feature = "testing")]
pub mod fuzzing {
    use std::ffi::OsStr;

    use super::Operation;

    /// The decoded parts of a request.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Facts<'a> {
        /// The number of the request, for its answer.
        pub unique: u64,
        /// The name in the request.
        pub name: Option<&'a OsStr>,
        /// A second name, or the target of a link.
        pub other: Option<&'a OsStr>,
        /// The bytes to write, or the value of an attribute.
        pub data: Option<&'a [u8]>,
        /// Number of inodes that the request releases.
        pub nodes: usize,
    }

    /// Decodes the bytes of one read of the device. `None` if they do not form a request.
    pub fn decode(bytes: &[u8]) -> Option<Facts<'_>> {
        let request = super::decode(bytes).ok()?;
        let facts = Facts { unique: request.unique, ..Facts::default() };
        Some(match request.operation {
            Operation::Lookup { name }
            | Operation::Mknod { name, .. }
            | Operation::Mkdir { name, .. }
            | Operation::Unlink { name }
            | Operation::Rmdir { name }
            | Operation::Link { name }
            | Operation::Getxattr { name, .. }
            | Operation::Removexattr { name }
            | Operation::Create { name, .. } => Facts { name: Some(name), ..facts },
            Operation::Rename { name, new_name: other, .. } | Operation::Symlink { name, target: other } => {
                Facts { name: Some(name), other: Some(other), ..facts }
            }
            Operation::Setxattr { name, value, .. } => Facts { name: Some(name), data: Some(value), ..facts },
            Operation::Write { data, .. } => Facts { data: Some(data), ..facts },
            Operation::BatchForget { nodes } => Facts { nodes: nodes.len(), ..facts },
            _ => facts,
        })
    }
}

/// The time of these seconds since 1970 (negative before it) and the nanoseconds after them. A time out of range becomes 1970.
fn time(seconds: u64, nanos: u32) -> SystemTime {
    let seconds = seconds as i64;
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let begun = match seconds < 0 {
        true => SystemTime::UNIX_EPOCH.checked_sub(whole),
        false => SystemTime::UNIX_EPOCH.checked_add(whole),
    };
    let time = begun.and_then(|begun| begun.checked_add(Duration::from_nanos(nanos.into())));
    time.unwrap_or(SystemTime::UNIX_EPOCH)
}

#[cfg(test)]
mod tests;
