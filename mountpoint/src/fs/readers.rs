//! Opens for writing of a file that is open for reading: such an open waits for readers whose last close has begun.
//!
//! close(2) waits for the FLUSH of its descriptor, but not for the RELEASE of the open file: another thread may take the RELEASE after
//! the OPEN that follows it. A handle that was flushed once has most likely been closed for good.

use rustix::io::Errno;

use super::writer::MOMENT;
use super::{Error, FileSystem, Result};
use crate::inode::InodeNo;

impl FileSystem {
    /// Waits a moment while this file's readers are being closed; the caller tries again then.
    ///
    /// # Errors
    /// `PERM`: one of them stays.
    pub(super) async fn wait_for_readers(&self, ino: InodeNo) -> Result<()> {
        let end = self.clock.now() + MOMENT;
        loop {
            let left = self.reader_left.notified();
            if !self.inodes.has_readers(ino) {
                return Ok(());
            }
            let closing = self.files.all().iter().all(|open| open.ino != ino || open.closing.is_likely());
            let patience = end.saturating_duration_since(self.clock.now());
            if !closing || self.clock.timeout(patience, left).await.is_none() {
                let key = self.inodes.key_of(ino);
                let why = format!(
                    "\"{}\" is open for reading; a file has readers or one writer",
                    key.as_ref().map_or("?", |key| key.as_str())
                );
                return Err(Error::new(Errno::PERM, why));
            }
        }
    }
}
