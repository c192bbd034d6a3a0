//! Attributes for stat. S3 stores neither owners nor modes: they come from the mount's flags.

use std::time::{Duration, SystemTime};

use crate::inode::{InodeNo, Kind, Stat};

/// Owner and modes of everything in a mount.
#[derive(Clone, Debug)]
pub struct Ownership {
    /// Owner of every file and directory.
    pub uid: u32,
    /// Group of every file and directory.
    pub gid: u32,
    /// Permission bits of files.
    pub file_mode: u16,
    /// Permission bits of directories.
    pub dir_mode: u16,
}

/// The answer to chmod, chown and utimens of stored files and directories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Attributes {
    /// EPERM, unless the call changes nothing.
    #[default]
    Refused,
    /// Success, and nothing changes (`--ignore-attributes`).
    Ignored,
}

/// The maker of a new file or directory, and the requested mode.
#[derive(Clone, Copy, Debug, Default)]
pub struct Maker {
    /// Permission bits, after the umask.
    pub mode: u32,
    /// User of the maker.
    pub uid: u32,
    /// Group of the maker.
    pub gid: u32,
}

/// The attributes of one file or directory, in the form of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attr {
    /// The inode number.
    pub ino: InodeNo,
    /// File or directory.
    pub kind: Kind,
    /// Bytes; 0 for directories.
    pub size: u64,
    /// Access time: equal to `modified`, unless a program set another one on a file that is not stored yet.
    pub accessed: SystemTime,
    /// Modification time, which is the change time, too.
    pub modified: SystemTime,
    /// Permission bits.
    pub mode: u16,
    /// 1 for files, 2 for directories.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Time for which the kernel may use these attributes without a new request.
    pub valid_for: Duration,
}

/// A name that a lookup found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The attributes of the file or directory.
    pub attr: Attr,
    /// Time for which the kernel may use the name without another lookup.
    pub valid_for: Duration,
}

impl Ownership {
    pub(super) fn attr(&self, ino: InodeNo, stat: &Stat) -> Attr {
        let (mode, links) = match stat.kind {
            Kind::Directory => (self.dir_mode, 2),
            // An object in an archive tier can't be opened: its mode of 0 says so.
            Kind::File if !stat.readable => (0, 1),
            Kind::File | Kind::Link => (self.file_mode, 1),
        };
        Attr {
            ino,
            kind: stat.kind,
            size: stat.size,
            accessed: stat.accessed,
            modified: stat.modified,
            mode,
            links,
            uid: self.uid,
            gid: self.gid,
            valid_for: stat.valid_for,
        }
    }
}
