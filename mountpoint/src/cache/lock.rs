//! One process per cache directory: an advisory lock that ends with the process, however it ends.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{FlockOperation, Mode, OFlags, flock, ftruncate, openat};
use rustix::io::{Errno, pread, pwrite};

use super::Error;

/// The lock file's name, within our folder.
pub(super) const LOCK_FILE: &str = "lock";

/// An exclusive lock on the cache's folder, until the value is dropped.
#[derive(Debug)]
pub(super) struct Lock {
    file: OwnedFd,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Unlock explicitly: a child of this process has the file open, too, until the child executes its program, and only the last close
        // would unlock the file.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

impl Lock {
    /// Takes the lock of the folder `home`, which lies in `dir` (for messages), and writes this process's pid into the lock file.
    ///
    /// # Errors
    /// [`Error::Locked`] if another process has the lock; [`Error::NotWritable`]; [`Error::Io`] for any other failure to lock.
    pub(super) fn take(home: BorrowedFd<'_>, dir: &Path) -> Result<Self, Error> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let refused = |e: Errno| Error::NotWritable { dir: dir.to_owned(), source: e.into() };
        let file = openat(home, LOCK_FILE, flags, Mode::RUSR | Mode::WUSR).map_err(refused)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                return Err(Error::Locked { dir: dir.to_owned(), pid: holder(&file) });
            }
            Err(e) => return Err(Error::Io { dir: dir.to_owned(), what: "lock", source: e.into() }),
        }
        let pid = format!("{}\n", std::process::id());
        ftruncate(&file, 0).and_then(|()| pwrite(&file, pid.as_bytes(), 0)).map_err(refused)?;
        Ok(Self { file })
    }
}

fn holder(file: &OwnedFd) -> Option<u32> {
    let mut text = [0; 16];
    let len = pread(file, &mut text, 0).ok()?;
    std::str::from_utf8(&text[..len]).ok()?.trim().parse().ok()
}
