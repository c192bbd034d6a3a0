//! The null file system: five files in memory, on each transport of mount-s3. It shows the cost of the kernel's FUSE and of the
//! transport alone, without a server.

mod dev;
mod fuser;

use std::ffi::OsStr;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use crate::pattern::{PERIOD, base_of};

/// Largest FUSE read, in bytes.
const READ_MAX: u64 = 1 << 20;
/// TTL of names and attributes in the kernel.
const TTL: Duration = Duration::from_secs(3600);
/// Number of files, with the names of the first objects in the bucket of big objects.
const FILES: u64 = 5;
/// The inode of the first file.
const FIRST: u64 = 2;
/// Bytes in memory on either transport: the pattern, and its beginning again for reads across its end.
const MEMORY: u64 = PERIOD + READ_MAX;

/// The carrier of requests and replies, by the words of mount-s3's `--fuse-transport`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Transport {
    /// mount-s3's own loop.
    Dev,
    /// The library `fuser`.
    Fuser,
}

impl Transport {
    pub(crate) const ALL: [Self; 2] = [Self::Dev, Self::Fuser];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Dev => "dev",
            Self::Fuser => "fuser",
        }
    }
}

/// Serves a null file system on `dir` until it is unmounted.
///
/// # Errors
/// The system refuses the mount.
pub(crate) fn serve(transport: Transport, dir: &Path, size: u64) -> anyhow::Result<()> {
    match transport {
        Transport::Dev => dev::serve(dir, size),
        Transport::Fuser => fuser::serve(dir, size),
    }
}

/// The files, and where their bytes are in memory.
#[derive(Debug)]
struct Files {
    size: u64,
    bases: Vec<u64>,
}

impl Files {
    /// Files of `size` bytes each.
    fn new(size: u64) -> Self {
        Self { size, bases: (0..FILES).map(|number| base_of(&format!("{number:08}"))).collect() }
    }

    /// The inode with this name.
    fn inode(&self, name: &OsStr) -> Option<u64> {
        let number: u64 = name.to_str()?.parse().ok()?;
        (number < FILES).then_some(FIRST + number)
    }

    /// The size of a file; `None` for other inodes.
    fn size(&self, inode: u64) -> Option<u64> {
        (FIRST..FIRST + FILES).contains(&inode).then_some(self.size)
    }

    /// The range of memory with the answer to a read.
    fn span(&self, inode: u64, offset: u64, len: u64) -> Option<Range<usize>> {
        let base = self.bases.get(inode.checked_sub(FIRST)? as usize)?;
        let from = (base + offset) % PERIOD;
        let len = len.min(self.size.saturating_sub(offset)).min(READ_MAX);
        Some(from as usize..(from + len) as usize)
    }
}
