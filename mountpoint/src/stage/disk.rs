//! Calls by which the stage changes its disk. All of them pass here, so that a test can have any of them fail.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

#[cfg(test)]
use crate::sync::Arc;

/// The disk of one stage. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Disk {
    #[cfg(test)]
    faults: Arc<faults::Faults>,
}

impl Disk {
    /// Opens a file, and makes it if the options say so.
    pub(super) fn open(&self, options: &OpenOptions, path: &Path) -> io::Result<File> {
        self.may()?;
        options.open(path)
    }

    /// Writes all bytes. If that fails, some of them may be written.
    pub(super) fn write(&self, file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
        if let Err(error) = self.may() {
            file.write_all_at(&bytes[..bytes.len() / 2], at)?;
            return Err(error);
        }
        file.write_all_at(bytes, at)
    }

    pub(super) fn set_len(&self, file: &File, len: u64) -> io::Result<()> {
        self.may()?;
        file.set_len(len)
    }

    /// Returns when the bytes outlive a loss of power.
    pub(super) fn sync_data(&self, file: &File) -> io::Result<()> {
        self.may()?;
        file.sync_data()
    }

    /// Returns when bytes and attributes do; of a folder, its names.
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

    #[cfg(not(test))]
    fn may(&self) -> io::Result<()> {
        Ok(())
    }

    /// Refuses the call if it is one of those that are to fail.
    #[cfg(test)]
    fn may(&self) -> io::Result<()> {
        self.faults.count()
    }

    /// Has calls fail, counted from now on: the first is 1.
    #[cfg(test)]
    pub(super) fn fail(&self, calls: std::ops::Range<u64>) {
        self.faults.fail(calls);
    }

    /// Calls since then.
    #[cfg(test)]
    pub(super) fn calls(&self) -> u64 {
        self.faults.calls()
    }
}

#[cfg(test)]
mod faults {
    use std::io;
    use std::ops::Range;

    use crate::sync::Mutex;

    /// Calls so far, and those that fail.
    #[derive(Debug)]
    pub(super) struct Faults(Mutex<(u64, Range<u64>)>);

    impl Default for Faults {
        fn default() -> Self {
            Self(Mutex::new((0, 0..0)))
        }
    }

    impl Faults {
        pub(super) fn count(&self) -> io::Result<()> {
            let mut faults = self.0.lock();
            faults.0 += 1;
            match faults.1.contains(&faults.0) {
                true => Err(rustix::io::Errno::NOSPC.into()),
                false => Ok(()),
            }
        }

        pub(super) fn fail(&self, calls: Range<u64>) {
            *self.0.lock() = (0, calls);
        }

        pub(super) fn calls(&self) -> u64 {
            self.0.lock().0
        }
    }
}
