//! The process to which a file of the state directory belongs, and whether that process lives. A living process holds a lock on its file.
//! The file also names the process, for file systems without locks, or with locks of one machine alone.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::ops::Deref;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use procfs::process::Process;
use rustix::fs::{FlockOperation, OFlags, flock, fstatfs};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// The file with the ID of this machine, the same over all its boots. Containers may have none.
const MACHINE: &str = "/etc/machine-id";
/// The numbers of statfs(2) for file systems of local disks, and of memory. Their locks count for all processes that can see a file. On a
/// network file system, a lock may count only on its own machine: NFS with `nolock`, Lustre with `localflock`, BeeGFS.
pub(crate) const LOCAL: [u32; 8] = [
    0xef53,      // ext2, ext3, ext4
    0x5846_5342, // XFS
    0x9123_683e, // Btrfs
    0xf2f5_2010, // F2FS
    0x2fc1_2fc1, // ZFS
    0xca45_1a4e, // bcachefs
    0x0102_1994, // tmpfs
    0x794c_7630, // overlayfs
];

/// A process, distinguished from earlier and later processes with the same number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Owner {
    pub(crate) boot_id: String,
    pub(crate) pid: i32,
    /// The start of the process, in clock ticks since the boot.
    pub(crate) start: u64,
}

/// A file whose lock this process holds.
#[derive(Debug)]
pub(crate) struct Locked(File);

/// The ID of this machine; empty if it is unknown.
pub(crate) fn machine() -> String {
    fs::read_to_string(MACHINE).unwrap_or_default().trim().to_owned()
}

/// Makes a file that only this user can read.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create_new(true).mode(0o600).open(path)
}

/// The number of the file system's type (statfs(2)).
pub(crate) fn kind(file: &File) -> Option<u32> {
    // The kernel's numbers have 32 bits, in a field whose width and sign differ between architectures.
    Some(fstatfs(file).ok()?.f_type as u32)
}

impl Owner {
    /// The identity of this process.
    pub(crate) fn this() -> procfs::ProcResult<Self> {
        let start = Process::myself()?.stat()?;
        Ok(Self { boot_id: procfs::sys::kernel::random::boot_id()?, pid: start.pid, start: start.starttime })
    }

    /// Whether the process is over, as far as `this` process can tell. The lock of its file is free already.
    pub(crate) fn is_over(&self, this: &Self, is_known: bool) -> bool {
        self.is_dead(&this.boot_id, is_known, start_of(self.pid))
    }

    /// Whether the process is dead. Pure. `boot_id` is this boot's, `start` that of the present process with this number. The lock of the
    /// entry is free already; this check protects a living process on a file system without locks, or with locks of one machine alone.
    /// `is_known`: a living process would be on this machine, or hold the lock. Another running machine has another boot, too.
    fn is_dead(&self, boot_id: &str, is_known: bool, start: Option<u64>) -> bool {
        match self.boot_id == boot_id {
            true => start != Some(self.start),
            false => is_known,
        }
    }
}

fn start_of(pid: i32) -> Option<u64> {
    Some(Process::new(pid).ok()?.stat().ok()?.starttime)
}

impl Locked {
    /// Takes the lock of a file.
    ///
    /// # Errors
    /// `WouldBlock`: another process holds the lock.
    pub(crate) fn new(file: File) -> io::Result<Self> {
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self(file))
    }

    /// Opens and locks the file that a dead process left. `None` if another process holds its lock, or if it can't be opened or locked.
    pub(crate) fn take(path: &Path) -> Option<Self> {
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
        let file = OpenOptions::new().read(true).append(true).custom_flags(flags as i32).open(path).ok()?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Some(Self(file)),
            Err(Errno::WOULDBLOCK) => None,
            Err(error) => {
                tracing::debug!(path = %path.display(), %error, "no lock on a file of the state directory: left alone");
                None
            }
        }
    }

    /// The text of the file, at most `max` bytes.
    pub(crate) fn text(&self, max: u64) -> io::Result<String> {
        let mut text = String::new();
        (&self.0).take(max).read_to_string(&mut text)?;
        Ok(text)
    }
}

impl Deref for Locked {
    type Target = File;

    fn deref(&self) -> &File {
        &self.0
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // This call unlocks the file, since its last close may come late: a child of this process has the file open, too, until the child
        // executes its program.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}
