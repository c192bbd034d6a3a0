//! System calls that change the stage's disk. All of them go through this file, so that a test can make any of them fail.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{Errno, ReadWriteFlags, preadv2, retry_on_intr};

#[cfg(test)]
use crate::sync::Arc;

/// Bytes per piece that goes from the disk to an upload or a copy. Doubling it halves the calls, and doubles the memory that a send takes
/// beside the budget.
pub(super) const PIECE: u64 = 128 << 10;

/// Most bytes that a task reads and hashes by itself, where memory has them. Doubling it spares more wake-ups of other threads, and holds
/// other tasks up for twice as long, some 10 us.
pub(super) const IN_PLACE_MAX: u64 = 16 << 10;

/// The new content of a range.
#[derive(Clone, Copy, Debug)]
pub(super) enum Content<'a> {
    /// One byte for each of the range.
    Bytes(&'a [u8]),
    /// Zeros.
    Zeros,
}

/// The disk of one stage. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Disk {
    #[cfg(test)]
    faults: Arc<faults::Faults>,
}

impl Disk {
    /// Opens a file, and creates it if the options say so.
    pub(super) fn open(&self, options: &OpenOptions, path: &Path) -> io::Result<File> {
        self.may()?;
        options.open(path)
    }

    /// Writes all bytes. After a failure some of them may be written.
    pub(super) fn write(&self, file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
        if let Err(error) = self.may() {
            file.write_all_at(&bytes[..bytes.len() / 2], at)?;
            return Err(error);
        }
        file.write_all_at(bytes, at)
    }

    /// Gives a range within the file this content. After a failure a part of it may have it.
    pub(super) fn fill(&self, file: &File, range: Range<u64>, content: Content<'_>) -> io::Result<()> {
        match content {
            Content::Bytes(bytes) => self.write(file, bytes, range.start),
            Content::Zeros => {
                self.may()?;
                zero(file, range)
            }
        }
    }

    pub(super) fn set_len(&self, file: &File, len: u64) -> io::Result<()> {
        self.may()?;
        file.set_len(len)
    }

    /// Makes `to` a copy of `from` that shares its blocks, where the file system can do that (btrfs, xfs). It takes no room.
    pub(super) fn clone_file(&self, from: &File, to: &File) -> io::Result<()> {
        self.may()?;
        Ok(rustix::fs::ioctl_ficlone(to, from)?)
    }

    /// Makes a file's bytes durable, so that they outlive a loss of power.
    pub(super) fn sync_data(&self, file: &File) -> io::Result<()> {
        self.may()?;
        file.sync_data()
    }

    /// Makes a file's bytes and attributes durable; for a folder, the names in it.
    pub(super) fn sync_all(&self, file: &File) -> io::Result<()> {
        self.may()?;
        file.sync_all()
    }

    pub(super) fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.may()?;
        fs::rename(from, to)
    }

    pub(super) fn remove(&self, path: &Path) -> io::Result<()> {
        self.may()?;
        fs::remove_file(path)
    }

    /// Bytes that may still be written to the disk of this file.
    pub(super) fn room(&self, file: &File) -> io::Result<u64> {
        #[cfg(test)]
        if let Some(room) = self.faults.room() {
            return Ok(room);
        }
        let about = rustix::fs::fstatvfs(file)?;
        Ok(about.f_bavail.saturating_mul(about.f_frsize))
    }

    #[cfg(not(test))]
    fn may(&self) -> io::Result<()> {
        Ok(())
    }

    /// Fails the call if a test chose its number.
    #[cfg(test)]
    fn may(&self) -> io::Result<()> {
        self.faults.count()
    }

    /// Makes the calls with these numbers fail, counted from now on: the first is 1.
    #[cfg(test)]
    pub(super) fn fail(&self, calls: std::ops::Range<u64>) {
        self.faults.fail(calls);
    }

    /// Makes the calls with these numbers wait until the next [`Disk::hold`], counted as for [`Disk::fail`].
    #[cfg(test)]
    pub(super) fn hold(&self, calls: std::ops::Range<u64>) {
        self.faults.hold(calls);
    }

    /// Makes the disk have this much room; `None`: as much as it has.
    #[cfg(test)]
    pub(super) fn set_room(&self, room: Option<u64>) {
        self.faults.set_room(room);
    }

    /// Number of calls since [`Disk::fail`].
    #[cfg(test)]
    pub(super) fn calls(&self) -> u64 {
        self.faults.calls()
    }
}

/// Fills a range with zeros: by a hole, where the file system makes holes.
fn zero(file: &File, Range { start, end }: Range<u64>) -> io::Result<()> {
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match retry_on_intr(|| fallocate(file, mode, start, end - start)) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
        done => return Ok(done?),
    }
    let zeros = vec![0; PIECE.min(end - start) as usize];
    for at in (start..end).step_by(PIECE as usize) {
        file.write_all_at(&zeros[..PIECE.min(end - at) as usize], at)?;
    }
    Ok(())
}

/// Reads until the buffer is full or the file ends.
pub(super) fn read_at_most(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut got = 0;
    while got < buffer.len() {
        match file.read_at(&mut buffer[got..], offset + got as u64) {
            Ok(0) => break,
            Ok(read) => got += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(got)
}

/// Reads all of `buffer` if memory has these bytes: never waits for the disk. False where it has not, and on file systems that can't tell.
pub(super) fn read_cached(file: &File, buffer: &mut [u8], offset: u64) -> bool {
    let len = buffer.len();
    let read = preadv2(file, &mut [IoSliceMut::new(buffer)], offset, ReadWriteFlags::NOWAIT);
    read.is_ok_and(|read| read == len)
}

#[cfg(test)]
mod faults {
    use std::io;
    use std::ops::Range;
    use std::time::Duration;

    use crate::sync::Mutex;

    /// Number of calls so far, and the numbers of those that fail; then the numbers of those that wait, and the room that the disk is to have.
    #[derive(Debug)]
    pub(super) struct Faults(Mutex<(u64, Range<u64>)>, Mutex<Range<u64>>, Mutex<Option<u64>>);

    impl Default for Faults {
        fn default() -> Self {
            Self(Mutex::new((0, 0..0)), Mutex::new(0..0), Mutex::default())
        }
    }

    impl Faults {
        pub(super) fn count(&self) -> io::Result<()> {
            let (number, fails) = {
                let mut faults = self.0.lock();
                faults.0 += 1;
                (faults.0, faults.1.contains(&faults.0))
            };
            while self.1.lock().contains(&number) {
                std::thread::sleep(Duration::from_millis(1));
            }
            if fails { Err(rustix::io::Errno::NOSPC.into()) } else { Ok(()) }
        }

        pub(super) fn hold(&self, calls: Range<u64>) {
            *self.1.lock() = calls;
        }

        pub(super) fn fail(&self, calls: Range<u64>) {
            *self.0.lock() = (0, calls);
        }

        pub(super) fn room(&self) -> Option<u64> {
            *self.2.lock()
        }

        pub(super) fn set_room(&self, room: Option<u64>) {
            *self.2.lock() = room;
        }

        pub(super) fn calls(&self) -> u64 {
            self.0.lock().0
        }
    }
}
