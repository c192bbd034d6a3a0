//! Stored files that programs change in memory (`mmap` with MAP_SHARED): refused, since an object can't be changed in place.
//!
//! FUSE does not report `mmap`. A file that is opened with O_RDWR and without O_TRUNC can be mapped for writing, and the kernel sends the
//! changed pages later: at msync, fsync, close or munmap, or when it needs memory. The kernel chooses any handle of the file, and would
//! report an error to the next close or fsync of the file by any program, also by one that only reads. So the kernel gets no error; msync,
//! fsync and close of the handles that could change the file fail here, each time.

use rustix::io::Errno;

use super::handle::{FileHandle, HandleNo};
use super::{Error, FileSystem, Result};
use crate::inode::InodeNo;

impl FileSystem {
    /// Refuses changes of a file that a program made in memory. From now on fsync and close of the file's handles fail, and the log has
    /// one line for each handle. The caller makes the kernel drop the pages.
    pub fn refuse_mapped(&self, ino: InodeNo, handle: HandleNo) {
        // The next open must not find the changed pages, even if it comes before the kernel has dropped them.
        self.inodes.doubt_pages(ino);
        let mut is_news = self.files.find(handle).is_none();
        for (no, open) in self.files.numbered() {
            if open.ino == ino && open.mapping.may_write && open.mapping.refuse() {
                is_news = true;
                self.record_file(no);
            }
        }
        if is_news {
            // A program that closed its descriptor before it changed the mapping, and calls no msync, gets no error: only the log reports
            // it.
            tracing::warn!("mmap failed: {}", self.refused_change(ino));
        }
    }

    /// Fails if a change of the file was refused: fsync and close of this handle then report the error.
    pub(super) fn check_mapping(&self, open: &FileHandle) -> Result<()> {
        if open.mapping.is_refused() { Err(self.refused_change(open.ino).already_logged()) } else { Ok(()) }
    }

    fn refused_change(&self, ino: InodeNo) -> Error {
        let key = self.inodes.key_of(ino);
        let why = format!(
            "\"{}\": a program changed the stored file in memory (mmap with MAP_SHARED); the changes are dropped. Write a copy, or replace \
             the file: open it with O_TRUNC under --allow-overwrite",
            key.as_ref().map_or("?", |key| key.as_str())
        );
        Error::new(Errno::IO, why)
    }
}
