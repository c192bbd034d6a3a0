//! Opens for writing of a file that is open for reading: such an open waits for readers whose last close has begun.
//!
//! close(2) waits for the FLUSH of its descriptor, but not for the RELEASE of the open file: another thread may take the RELEASE after the
//! OPEN that follows it. So a handle with one flush has most likely been closed for good.

use std::time::Duration;

use rustix::io::Errno;

use super::process::{Which, holds};
use super::writer::MOMENT;
use super::{Error, FileSystem, Result};
use crate::inode::InodeNo;

/// Longest wait of an open for writing for the RELEASE of readers whose processes have no descriptor of the file any more; then the open is
/// refused. On an overloaded machine, RELEASE can be behind many other requests. Doubling it doubles the wait of an open that is refused
/// because a process has the file mapped and has closed its descriptor.
const CLOSED: Duration = Duration::from_secs(10);

impl FileSystem {
    /// Waits a moment while this file's readers are being closed, and longer while no process that opened the file has a descriptor of it.
    /// The caller then tries again.
    ///
    /// # Errors
    /// `PERM`: a reader stays.
    pub(super) async fn wait_for_readers(&self, ino: InodeNo) -> Result<()> {
        let begun = self.clock.now();
        let mut end = begun + MOMENT;
        loop {
            let left = self.reader_left.notified();
            if !self.inodes.has_readers(ino) {
                return Ok(());
            }
            let closing = self.files.all().iter().all(|open| open.ino != ino || open.closing.is_likely());
            let patience = end.saturating_duration_since(self.clock.now());
            if closing && self.clock.timeout(patience, left).await.is_some() {
                continue;
            }
            if closing && end < begun + CLOSED && self.none_holds(ino) {
                end = begun + CLOSED;
                continue;
            }
            let key = self.inodes.key_of(ino);
            let why = format!(
                "\"{}\" is open for reading; a file has readers or one writer",
                key.as_ref().map_or("?", |key| key.as_str())
            );
            return Err(Error::new(Errno::PERM, why));
        }
    }

    /// Whether no process that opened this file has a descriptor of it, as far as the engine can see.
    fn none_holds(&self, ino: InodeNo) -> bool {
        let Some(&mount) = self.mount.get() else { return true };
        self.files
            .all()
            .iter()
            .filter(|open| open.ino == ino)
            .all(|open| holds(open.opener, mount, ino, Which::All) != Some(true))
    }
}
