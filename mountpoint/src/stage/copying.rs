//! Copies of staged files, for sends of files that programs write all the time.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

use super::disk::Disk;
use super::lent::YOUNG;
use super::send::{Draft, PIECE};
use super::{Error, Staged};
use crate::sync::Arc;

/// Most looks for a moment in which nobody writes a file that the kernel has. Doubling it finds rarer ones, and takes that many more copies.
const STILL_MAX: u32 = 10;

/// Bytes that are copied of a file that the kernel writes before the next look at it. Doubling it reads and writes more in vain where the
/// file changes.
const LOOK_EVERY: u64 = 16 << 20;

/// Room that a copy of such a file leaves on the disk, beside itself. Doubling it leaves more to programs, and sends fewer long files of a
/// disk that is nearly full before they are closed.
const LEFT_FREE: u64 = 256 << 20;

impl Staged {
    /// Copies the file to one without a name. Writes wait meanwhile, so the copy has the bytes of one moment. The copy does not count
    /// against `--stage-size`.
    pub(super) async fn copy(self: &Arc<Self>) -> Result<(Draft, Option<Arc<File>>), Error> {
        let this = Arc::clone(self);
        let copied = self.shared.runtime.spawn_blocking(move || {
            let file = this.file_for_now()?;
            let (number, copy) = this.shared.folder.create()?;
            let (path, disk) = (this.shared.folder.path(number), this.shared.folder.disk());
            let unlinked = disk.remove(&path);
            // `draft` takes the lock of writes itself, so the loop compares generations under that lock.
            loop {
                let draft = this.draft()?;
                let state = this.state.lock();
                if state.image.generation() != draft.generation {
                    continue;
                }
                let is_cloned = this.shared.folder.clones() && disk.clone_file(&file, &copy).is_ok();
                disk.set_len(&copy, draft.size)?;
                let runs = state.image.present().iter().filter(|_| !is_cloned);
                for run in runs {
                    copy_range(disk, &file, &copy, run)?;
                }
                unlinked?;
                return Ok((draft, Some(Arc::new(copy))));
            }
        });
        copied.await.map_err(io::Error::other)?
    }

    /// Copies a file that programs write by the kernel, once nothing changes it during the copy.
    ///
    /// # Errors
    /// `Restless`: something does, all the time.
    pub(super) async fn copy_still(self: &Arc<Self>) -> Result<(Draft, Option<Arc<File>>), Error> {
        for _ in 0..STILL_MAX {
            let this = Arc::clone(self);
            let copied = self.shared.runtime.spawn_blocking(move || this.copy_if_still());
            if let Some((draft, copy)) = copied.await.map_err(io::Error::other)?? {
                return Ok((draft, Some(Arc::new(copy))));
            }
            self.shared.folder.clock().sleep(2 * YOUNG).await;
        }
        Err(Error::Restless { key: self.key() })
    }

    fn copy_if_still(&self) -> Result<Option<(Draft, File)>, Error> {
        let (folder, disk) = (&self.shared.folder, self.shared.folder.disk());
        let file = folder.reopen_to_read(self.number)?;
        let began = folder.clock().wall();
        // A mapping's next change of a page shows in the file's time only after the page went to the disk.
        disk.sync_data(&file).map_err(|error| self.fail(error))?;
        let draft = self.draft()?;
        if let Some(lent) = &mut self.state.lock().lent {
            if !lent.is_still(began, folder.clock().wall()) {
                return Ok(None);
            }
            // An open may settle the file during the send. A copy of a quiet file has no change in part.
            lent.was_sent |= !lent.is_quiet;
        }
        let (number, copy) = folder.create()?;
        disk.remove(&folder.path(number))?;
        let is_same = || self.look().image.generation() == draft.generation;
        if folder.clones() && disk.clone_file(&file, &copy).is_ok() {
            return Ok(is_same().then_some((draft, copy)));
        }
        if !has_room(&copy, draft.size)? {
            return Err(io::Error::from(io::ErrorKind::StorageFull).into());
        }
        let mut at = 0;
        while at < draft.size {
            let end = draft.size.min(at + LOOK_EVERY);
            match copy_range(disk, &file, &copy, at..end) {
                // It became shorter.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
                copied => copied?,
            }
            if !is_same() {
                return Ok(None);
            }
            at = end;
        }
        Ok(is_same().then_some((draft, copy)))
    }

    /// The copy of one moment that a send of a file makes that programs write all the time.
    #[cfg(test)]
    pub(super) async fn copied(self: &Arc<Self>) -> Result<Arc<File>, Error> {
        Ok(self.copy().await?.1.expect("a copy"))
    }
}

/// Whether the disk has room for a copy of this size and more.
fn has_room(copy: &File, size: u64) -> io::Result<bool> {
    let about = rustix::fs::fstatvfs(copy)?;
    Ok(about.f_bavail.saturating_mul(about.f_frsize) >= size.saturating_add(LEFT_FREE))
}

fn copy_range(disk: &Disk, from: &File, to: &File, run: Range<u64>) -> io::Result<()> {
    let mut bytes = vec![0; PIECE.min(run.end - run.start) as usize];
    let mut at = run.start;
    while at < run.end {
        let length = bytes.len().min((run.end - at) as usize);
        from.read_exact_at(&mut bytes[..length], at)?;
        disk.write(to, &bytes[..length], at)?;
        at += length as u64;
    }
    Ok(())
}
