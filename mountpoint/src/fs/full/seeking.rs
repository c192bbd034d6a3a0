//! lseek(2) to data or a hole.
//!
//! A file in the stage has holes where nothing was written, as on a local disk; bytes that are only in the bucket are data. A file outside
//! the stage is all data. So is a file whose bytes a program may change in memory: the kernel sends such pages later, and asks for holes
//! before it has sent them, so that a copy would miss them. A mapping of a file that the kernel writes by itself changes the staged file.

use rustix::io::Errno;

use super::Full;
use crate::fs::handle::{HandleNo, Mode};
use crate::fs::{Error, FileSystem, OpenFlags, Result};
use crate::inode::InodeNo;
use crate::stage::Seek;
use crate::sync::Arc;

/// SEEK_DATA and SEEK_HOLE of lseek(2).
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

impl Full {
    /// Notes a handle whose mappings change pages of the mount.
    pub(super) fn mapper_comes(&self, ino: InodeNo) {
        if let Some(file) = self.files.lock().get_mut(ino) {
            file.mappers += 1;
        }
    }

    /// Notes that such a handle is released: the kernel has sent its pages before.
    pub(super) fn mapper_goes(&self, ino: InodeNo) {
        if let Some(file) = self.files.lock().get_mut(ino) {
            file.mappers = file.mappers.saturating_sub(1);
        }
    }

    fn may_be_mapped(&self, ino: InodeNo) -> bool {
        self.files.lock().get(ino).is_some_and(|file| file.mappers > 0)
    }
}

impl FileSystem {
    /// The next data or hole of an open file from `offset` on. `whence`: that of lseek(2).
    ///
    /// # Errors
    /// `NXIO`: the file has no data from there on, or ends before. Also the errors of the stage's disk and, for a file outside the stage,
    /// those of its attributes.
    pub async fn seek(&self, handle: HandleNo, offset: u64, whence: u32) -> Result<u64> {
        let (open, full) = (self.files.get(handle)?, self.full()?);
        let seek = match whence {
            SEEK_DATA => Seek::Data,
            SEEK_HOLE => Seek::Hole,
            _ => return Err(Error::new(Errno::INVAL, format!("lseek with whence {whence}"))),
        };
        let staged = match &open.mode {
            Mode::Staged(staged) => Some(Arc::clone(&staged.staged)),
            // Opened before a program began to write the file.
            _ => full.find(open.ino),
        };
        let found = match staged {
            Some(staged) if full.may_be_mapped(open.ino) => in_all_data(offset, staged.size(), seek),
            Some(staged) => full.area.on_disk(|| staged.seek(offset, seek))?,
            None => in_all_data(offset, self.getattr(open.ino).await?.size, seek),
        };
        found.ok_or_else(|| {
            let why = format!("inode {}: no such place from {offset} on", open.ino.0);
            Error::new(Errno::NXIO, why).already_logged()
        })
    }
}

/// Whether a mapping of a handle with these flags changes pages of the mount. `is_kernels`: the kernel reads and writes the file by itself.
pub(super) fn may_map(flags: OpenFlags, is_kernels: bool) -> bool {
    flags.write && flags.read && !is_kernels
}

/// The place in a file of this size that has no hole but its end.
fn in_all_data(offset: u64, size: u64, seek: Seek) -> Option<u64> {
    (offset < size).then_some(match seek {
        Seek::Data => offset,
        Seek::Hole => size,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_all_data_ends_with_a_hole() {
        let seeks = |offset| [Seek::Data, Seek::Hole].map(|seek| in_all_data(offset, 10, seek));
        assert_eq!(seeks(3), [Some(3), Some(10)]);
        assert_eq!([seeks(10), seeks(11)], [[None; 2]; 2]);
    }

    #[test]
    fn only_a_handle_that_reads_and_writes_may_be_mapped_for_writing() {
        for (read, write, is_kernels, may) in [
            (true, true, false, true),
            (true, true, true, false),
            (false, true, false, false),
            (true, false, false, false),
        ] {
            let flags = OpenFlags { read, write, ..OpenFlags::default() };
            assert_eq!(may_map(flags, is_kernels), may, "{flags:?}");
        }
    }
}
