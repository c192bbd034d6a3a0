//! open, read, write, flush, fsync, fallocate and release of files in the stage.

use std::sync::atomic::Ordering::Relaxed;

use rustix::io::Errno;

use super::Full;
use super::seeking::may_map;
use crate::fs::handle::{Closing, FileHandle, LastWriter, Mapping, Mode, StagedHandle};
use crate::fs::process::thread_group;
use crate::fs::{Error, Fallocate, FileSystem, HandleNo, OpenFlags, Opened, Result};
use crate::inode::InodeNo;
use crate::stage::{Commit, Staged};
use crate::sync::Arc;
use crate::sync::atomic::AtomicBool;

/// FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE of fallocate(2).
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 16;

impl FileSystem {
    /// Opens a file by way of the stage.
    pub(in crate::fs) async fn open_staged(
        &self,
        ino: InodeNo,
        flags: OpenFlags,
        pid: u32,
    ) -> Result<Opened> {
        let writes = flags.write || flags.truncate;
        if writes {
            self.wait_for_place(ino).await?;
        }
        let (staged, keep_cache) = self.open_in_stage(ino, writes).await?;
        // Only a close that stores the file needs to know whose it is.
        let opener = match self.full()?.is_deferred() {
            true => pid,
            false => thread_group(pid).unwrap_or(pid),
        };
        // Before the first change, so that a waiting file is not sent half-written.
        if writes {
            self.full()?.writer_comes(ino, self.clock.now());
        }
        if flags.truncate
            && let Err(error) = self.resize_staged(ino, &staged, 0).await
        {
            self.full()?.writer_goes(ino, &staged, self.clock.now());
            self.leave_stage(ino, &staged).await;
            return Err(error);
        }
        let passthrough = match self.mode_of_staged(ino, &staged, flags).await {
            Ok(passthrough) => passthrough,
            Err(error) => {
                if writes {
                    self.full()?.writer_goes(ino, &staged, self.clock.now());
                }
                self.leave_stage(ino, &staged).await;
                return Err(error);
            }
        };
        // The kernel wrote past its pages.
        let keep_cache = keep_cache && !staged.was_lent();
        let maps = may_map(flags, passthrough.is_some());
        if maps {
            self.full()?.mapper_comes(ino);
        }
        let handle = StagedHandle {
            staged,
            writes,
            maps,
            last: LastWriter::new((pid, opener)),
            opener_left: AtomicBool::new(false),
        };
        let (mapping, closing) = (Mapping::default(), Closing::default());
        let handle = FileHandle { ino, opener, mode: Mode::Staged(handle), mapping, closing };
        let no = self.files.reserve();
        self.files.insert(no, handle);
        // Through the page cache, which all handles share: shared mappings need that. Where the kernel has the file, writes that must be
        // durable on return still come here.
        let direct = passthrough.is_some() && (flags.sync || flags.direct);
        Ok(Opened { handle: no, keep_cache, direct, passthrough, closes_unseen: false })
    }

    /// The staged file of an inode, for a program that opens it: waits while an unlink or a rename changes the file's name. The caller ends
    /// with [`FileSystem::leave_stage`].
    pub(super) async fn open_in_stage(&self, ino: InodeNo, to_write: bool) -> Result<(Arc<Staged>, bool)> {
        let _opening = self.full()?.openings.open(ino, to_write).await;
        self.enter_stage(ino).await
    }

    /// Takes in a new handle: the number of the file if the kernel reads and writes it by itself.
    async fn mode_of_staged(
        &self,
        ino: InodeNo,
        staged: &Arc<Staged>,
        flags: OpenFlags,
    ) -> Result<Option<u32>> {
        let writes = flags.write || flags.truncate;
        let is_plain = writes && !flags.sync && !flags.direct;
        let may_lend = self.io_modes.may_write(ino) && (is_plain && staged.may_be_lent() || staged.is_out());
        if may_lend && writes {
            staged.is_opened_by_kernel().await?;
        }
        let lend = || if may_lend { staged.lend(writes) } else { None };
        let passthrough = self.io_modes.enter_staged(ino, lend);
        // The inode may have that mode for other programs.
        if passthrough.is_some()
            && writes
            && let Err(error) = staged.is_opened_by_kernel().await
        {
            self.io_modes.leave(ino);
            return Err(error.into());
        }
        Ok(passthrough)
    }

    /// Sets the size of a staged file, also in the tree of names.
    pub(super) async fn resize_staged(&self, ino: InodeNo, staged: &Arc<Staged>, size: u64) -> Result<()> {
        staged.resize(size).await?;
        self.was_resized(ino, size);
        Ok(())
    }

    fn was_resized(&self, ino: InodeNo, size: u64) {
        self.inodes.written(ino, 0);
        self.inodes.resized(ino, size);
    }

    /// Writes bytes anywhere. The thread waits for the local disk's page cache at most, unless [`Staged::waits_for_disk`].
    pub(in crate::fs) fn write_staged(
        &self,
        open: &FileHandle,
        staged: &StagedHandle,
        (offset, data): (u64, &[u8]),
        tid: u32,
    ) -> Result<()> {
        if !staged.writes {
            let why = format!("inode {}: opened for reading", open.ino.0);
            return Err(Error::new(Errno::BADF, why));
        }
        if tid != 0 && self.full.as_ref().is_some_and(|full| !full.is_deferred()) {
            staged.last.is(tid, thread_group);
        }
        let size = staged.staged.write(offset, data)?;
        staged.staged.send_ahead(size);
        self.inodes.written(open.ino, size);
        Ok(())
    }

    /// close(2) of one descriptor. `None`: the caller has to store the file by [`FileSystem::sync_staged`].
    pub(in crate::fs) fn flush_staged(
        &self,
        open: &FileHandle,
        staged: &StagedHandle,
        tid: u32,
    ) -> Option<Result<()>> {
        if !staged.writes {
            return Some(Ok(()));
        }
        if let Some(error) = staged.staged.error() {
            return Some(Err(error.into()));
        }
        if !staged.staged.is_dirty() || self.full.as_ref().is_some_and(Full::is_deferred) {
            return Some(Ok(()));
        }
        let closer = self.closer(open, &staged.last, &staged.opener_left, tid);
        // Count at least one written byte: a file that was only emptied has to be stored, too.
        let completes = closer.completes(1);
        if !completes && closer.leaves() {
            staged.opener_left.store(true, Relaxed);
        }
        (!completes).then_some(Ok(()))
    }

    /// Stores the file as it is now: in the bucket or, with `--commit disk`, on the local disk.
    pub(in crate::fs) async fn sync_staged(&self, ino: InodeNo, staged: &Arc<Staged>) -> Result<()> {
        if let Some(error) = staged.error() {
            return Err(error.into());
        }
        // Some changes of a mapping show only in a sync.
        if !staged.is_dirty() && !staged.is_lent() {
            return Ok(());
        }
        let full = self.full()?;
        if full.area.commit() == Commit::Disk {
            staged.sync().await?;
            full.synced(ino, staged, self.clock.now());
            return Ok(());
        }
        let turn = full.turn_to_send(staged).await;
        let stored = self.store_staged(ino, staged, &turn).await;
        if stored.is_err() {
            self.give_name_back(ino, staged);
        }
        stored
    }

    /// fallocate of a staged file: reserves room, punches holes, writes zeros.
    ///
    /// # Errors
    /// `OPNOTSUPP`: ranges to collapse or insert. Also the errors of the stage.
    pub(in crate::fs) fn fallocate_staged(
        &self,
        open: &FileHandle,
        staged: &StagedHandle,
        wish: Fallocate,
    ) -> Result<()> {
        let Fallocate { offset, len, mode } = wish;
        let (staged, end) = (&staged.staged, offset.saturating_add(len));
        match mode {
            0 | KEEP_SIZE => {}
            _ if mode == PUNCH_HOLE | KEEP_SIZE || mode & !KEEP_SIZE == ZERO_RANGE => {
                staged.zero(offset..end)?
            }
            _ => {
                let why = format!(
                    "fallocate of \"{}\": mode {mode:#x}: an object has no parts that move",
                    staged.key()
                );
                return Err(Error::new(Errno::OPNOTSUPP, why).already_logged());
            }
        }
        if mode & KEEP_SIZE == 0 && end > staged.size() {
            staged.set_size(end)?;
            self.was_resized(open.ino, end);
        }
        Ok(())
    }

    /// Whether this file takes pages that a program changed in a mapping.
    pub fn takes_mapped(&self, handle: HandleNo) -> bool {
        self.full.is_some()
            && self.files.find(handle).is_some_and(|open| matches!(open.mode, Mode::Staged(_)))
    }

    /// Undoes an open whose caller was killed: a file that this open made, and that no other handle has, disappears.
    pub(in crate::fs) fn take_back_staged(&self, ino: InodeNo, staged: &Staged) {
        let is_alone = self.full.as_ref().is_some_and(|full| full.users(ino) == 1);
        if is_alone && !staged.is_in_bucket() && !staged.was_closed() && staged.size() == 0 {
            // The caller is gone: no program can get an error.
            if let Err(error) = staged.unlinked() {
                tracing::debug!(%error, "a file that was made and not opened could not be noted as removed");
            }
        }
    }

    /// Releases a handle whose last descriptor is gone.
    pub(in crate::fs) async fn release_staged(&self, handle: HandleNo) {
        let Some(open) = self.files.remove(handle) else { return };
        if let Mode::Staged(staged) = &open.mode {
            self.io_modes.leave(open.ino);
            if staged.maps
                && let Some(full) = &self.full
            {
                full.mapper_goes(open.ino);
            }
            if staged.writes
                && let Some(full) = &self.full
            {
                full.writer_goes(open.ino, &staged.staged, self.clock.now());
            }
            self.store_beside_readers(open.ino, staged).await;
            self.leave_stage(open.ino, &staged.staged).await;
        }
    }

    /// Stores what the last writer left, with `--commit close`: the last user would do so, but a reader may have the file open for long. A
    /// failure is repeated and logged there.
    async fn store_beside_readers(&self, ino: InodeNo, handle: &StagedHandle) {
        let Some(full) = self.full.as_ref().filter(|full| !full.is_deferred()) else { return };
        if handle.writes
            && full.writers(ino) == 0
            && full.users(ino) > 1
            && let Err(error) = self.sync_staged(ino, &handle.staged).await
        {
            tracing::debug!(%error, "a file that programs read could not be stored behind its last writer");
        }
    }
}
