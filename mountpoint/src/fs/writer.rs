//! write, flush, fsync, release, newcomers and the end of the mount: the life of a file during its writing.
//!
//! One table decides the effect of each operation ([`Stage`]); this file carries the decision out.

use std::pin::pin;
use std::time::Duration;

use rustix::io::Errno;

use super::handle::{FileHandle, HandleNo, LastWriter, Mode, StagedHandle, Writer};
use super::process::{Which, holds, is_of_process, thread_group, threads};
use super::{Error, FileSystem, Result};
use crate::inode::InodeNo;
use crate::object::ObjectMeta;
use crate::sync::Arc;
use crate::sync::atomic::{AtomicBool, Ordering::Relaxed};
use crate::upload::{self, Closer, Decision, Event, Stage};

/// Longest wait of a newcomer for the RELEASE of a closed file; then its operation is refused. The kernel sends RELEASE after close(2) has
/// returned, usually within a few hundred microseconds. Doubling it doubles the wait of a newcomer between two programs that write one file
/// in turn.
pub(super) const MOMENT: Duration = Duration::from_secs(1);

/// Longest wait, at the end of a mount, for a store that copies and moves no byte: the limit of one copy. Then the file is given up.
/// Doubling it doubles the end of a mount whose store takes copies and never answers.
const COPIED_WITHIN: Duration = Duration::from_secs(300);

/// The outcome of an upload.
type Outcome = std::result::Result<ObjectMeta, upload::Error>;

/// The work left after the release of a file.
#[derive(Debug)]
pub enum Released {
    /// A written file, to be completed or given up.
    Written(Decision),
    /// A handle of the stage was released.
    Staged,
    /// A handle that only read was released, and the file is in the stage.
    Read(InodeNo),
}

/// The way in which a mount ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountEnd {
    /// Unmounted: every descriptor is gone.
    Unmounted,
    /// The engine leaves an adopted device, and programs may have files open.
    Left,
    /// The connection ended under the mount, as by `umount -f` of a mount in use, and programs may have files open.
    Aborted,
}

impl FileSystem {
    /// Takes the next bytes of a file, which thread `tid` writes. `done` is called when there is room for more, so a slow store slows the
    /// writer down.
    pub fn write<F>(self: &Arc<Self>, handle: HandleNo, offset: u64, data: &[u8], tid: u32, done: F)
    where
        F: FnOnce(Result<()>) + Send + 'static,
    {
        let open = match self.files.get(handle) {
            Ok(open) => open,
            Err(error) => return done(Err(error)),
        };
        if let Mode::Staged(staged) = &open.mode {
            if let Some(runtime) = self.waits_for_disk(&staged.staged) {
                let (fs, data) = (Arc::clone(self), data.to_vec()); // copy: a write that waits for the local disk
                let write = move || {
                    if let Mode::Staged(staged) = &open.mode {
                        fs.write_or_wait_for_room((&open, handle), staged, (offset, &data), tid, done);
                    }
                };
                return drop(runtime.spawn_blocking(write));
            }
            return self.write_or_wait_for_room((&open, handle), staged, (offset, data), tid, done);
        }
        let writer = match open.writer() {
            Ok(writer) => writer,
            Err(error) => return done(Err(error)),
        };
        writer.last.is(tid, thread_group);
        let (fs, ino, upload) = (Arc::clone(self), open.ino, Arc::clone(&writer.upload));
        let after = Arc::clone(&upload);
        let waits = upload.write(
            offset,
            data,
            Box::new(move |result| {
                if result.is_ok() {
                    fs.inodes.written(ino, after.length());
                }
                done(result.map_err(Error::from));
            }),
        );
        // If the thread is killed, programs that share the descriptor continue to write after these bytes, which count as written.
        if waits {
            self.inodes.written(open.ino, writer.upload.length());
        }
    }

    fn write_or_wait_for_room<F>(
        self: &Arc<Self>,
        (open, handle): (&FileHandle, HandleNo),
        staged: &StagedHandle,
        (offset, data): (u64, &[u8]),
        tid: u32,
        done: F,
    ) where
        F: FnOnce(Result<()>) + Send + 'static,
    {
        let written = self.write_staged(open, staged, (offset, data), tid);
        match self.room_may_come(&written, data.len() as u64) {
            Some(runtime) => {
                let (fs, data) = (Arc::clone(self), data.to_vec()); // copy: a write that waits for room in the stage
                let write =
                    async move { done(fs.write_once_there_is_room(handle, (offset, data), tid).await) };
                drop(runtime.spawn(write));
            }
            None => done(written),
        }
    }

    /// close(2) of one descriptor by thread `tid`. `None`: the caller waits for the outcome with [`FileSystem::fsync`].
    pub fn try_flush(&self, handle: HandleNo, tid: u32) -> Option<Result<()>> {
        let open = match self.files.get(handle) {
            Ok(open) => open,
            Err(error) => return Some(Err(error)),
        };
        if let Mode::Staged(staged) = &open.mode {
            return self.flush_staged(&open, staged, tid);
        }
        let Mode::Write(writer) = &open.mode else {
            open.closing.flushed();
            return Some(self.check_mapping(&open));
        };
        if let Some(error) = writer.upload.error() {
            self.settle(&open, writer, &Err(error.clone()));
            return Some(Err(error.into()));
        }
        let closer = self.closer(&open, &writer.last, &writer.opener_left, tid);
        let completes = closer.completes(writer.upload.added());
        let leaves = !completes && closer.leaves();
        if leaves {
            writer.opener_left.store(true, Relaxed);
        }
        match writer.upload.tell(Event::Close { completes }) {
            Decision::Done => Some(Ok(())),
            _ => None,
        }
    }

    /// Reads facts from `/proc` about the process of thread `tid`, which closes a descriptor.
    pub(super) fn closer(
        &self,
        open: &FileHandle,
        last: &LastWriter,
        opener_left: &AtomicBool,
        tid: u32,
    ) -> Closer {
        // A file in the stage has readers beside its writers.
        let which = if matches!(open.mode, Mode::Staged(_)) { Which::Writing } else { Which::All };
        let is_opener = !opener_left.load(Relaxed) && is_of_process(open.opener, tid);
        // The descriptors are read only if the answer matters.
        let holds = |tid| self.mount.get().and_then(|&mount| holds(tid, mount, open.ino, which));
        let holds_another = if is_opener { holds(tid) } else { None };
        let another_writes = is_opener
            && holds_another != Some(true)
            && last.get().is_some_and(|(thread, process)| {
                // A thread that has ended has no descriptors, but its process still has them.
                let holds = |thread| holds(thread) == Some(true);
                process != open.opener && (holds(thread) || threads(process).any(holds))
            });
        Closer { is_opener, holds_another, another_writes }
    }

    /// Completes a file that is being written; each call returns the same outcome.
    pub async fn fsync(&self, handle: HandleNo) -> Result<()> {
        let open = self.files.get(handle)?;
        if let Mode::Staged(staged) = &open.mode {
            return self.sync_staged(open.ino, &staged.staged).await;
        }
        let Mode::Write(writer) = &open.mode else {
            self.check_mapping(&open)?;
            // Opened before a program began to write the file.
            let staged = self.full.as_ref().and_then(|full| full.find(open.ino));
            return match staged {
                Some(staged) => self.sync_staged(open.ino, &staged).await,
                None => Ok(()),
            };
        };
        writer.upload.tell(Event::Sync);
        self.finish(&open, writer).await.map(drop).map_err(Error::from)
    }

    /// Notes that the close or fsync (`operation`) of this handle was interrupted. The upload goes on; the log reports its end.
    pub fn nobody_waits(&self, handle: HandleNo, operation: &'static str) {
        if let Some(open) = self.files.find(handle)
            && let Mode::Write(writer) = &open.mode
            && let Some(line) = writer.ending.unheard(&writer.upload.key(), operation)
        {
            tracing::warn!("{line}");
        }
    }

    /// Handles another open of this writer's file, or a rename that needs the file stored. Waits while the file is being stored; the caller
    /// then tries again. `wanted`: the word for what the caller wants done to the file.
    ///
    /// # Errors
    /// `PERM`: the writer goes on.
    pub(super) async fn wait_for_writer(&self, writer: HandleNo, wanted: &str) -> Result<()> {
        let Some(open) = self.files.find(writer) else {
            // The handle will exist soon, or was just removed.
            tokio::task::yield_now().await;
            return Ok(());
        };
        let writer = open.writer()?;
        match writer.upload.tell_in_a_moment(Event::Open, MOMENT).await {
            Decision::Outcome => {
                // An error belongs to the writer. The next attempt finds the present state.
                let _ = self.finish(&open, writer).await;
                Ok(())
            }
            _ => {
                let why = format!(
                    "\"{}\" is being written; it can be {wanted} once its last descriptor is closed",
                    writer.upload.key()
                );
                Err(Error::new(Errno::PERM, why))
            }
        }
    }

    /// Handles the removal of the name of this writer's file. Gives the file up if all its descriptors are closed; the caller then tries
    /// again.
    ///
    /// # Errors
    /// `PERM`: the writer goes on.
    pub(super) async fn cancel_writer(&self, writer: HandleNo) -> Result<()> {
        let Some(open) = self.files.find(writer) else {
            tokio::task::yield_now().await;
            return Ok(());
        };
        let writer = open.writer()?;
        match writer.upload.tell_in_a_moment(Event::Unlink, MOMENT).await {
            Decision::Outcome => {
                let _ = self.finish(&open, writer).await;
                Ok(())
            }
            Decision::GiveUp => {
                self.give_up(&open, writer).await;
                Ok(())
            }
            _ => {
                let why = format!("\"{}\" is being written; close it first", writer.upload.key());
                Err(Error::new(Errno::PERM, why))
            }
        }
    }

    /// Sets the size of a file that a program writes. Returns whether the file shows this size from now on. False for a handle that does
    /// not write, and for a size below the written bytes: then the file will not be stored, unless a later size fits.
    ///
    /// # Errors
    /// The size is beyond S3's limit, or the file accepts no more bytes.
    pub(super) fn set_size(&self, handle: HandleNo, size: u64) -> Result<bool> {
        let Some(open) = self.files.find(handle) else { return Ok(false) };
        let Mode::Write(writer) = &open.mode else { return Ok(false) };
        match writer.upload.set_size(size) {
            Ok(()) => {
                self.inodes.resized(open.ino, size);
                Ok(true)
            }
            Err(upload::Error::Unmeant) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Undoes an open whose caller was killed before the reply reached it, as if the open had never been: nothing is stored, and an earlier
    /// object stays.
    pub async fn take_back(&self, handle: HandleNo) {
        if let Some(open) = self.files.find(handle)
            && let Mode::Staged(staged) = &open.mode
        {
            self.take_back_staged(open.ino, &staged.staged);
            return self.release_staged(handle).await;
        }
        let Some(open) = self.files.remove(handle) else { return };
        self.io_modes.leave(open.ino);
        match &open.mode {
            Mode::Read(_) => {
                self.forget_file(handle);
                self.inodes.close_read(open.ino);
                self.reader_left.notify_waiters();
            }
            Mode::Write(writer) => self.give_up(&open, writer).await,
            Mode::Staged(_) => {}
        }
    }

    /// Waits for the outcome of a file that is being stored, and passes it to the inode table.
    pub(super) async fn finish(&self, open: &FileHandle, writer: &Writer) -> Outcome {
        let outcome = match writer.upload.outcome().await {
            Ok(meta) => self.follow_up(open.ino, writer, meta).await,
            failed => failed,
        };
        self.settle(open, writer, &outcome);
        outcome
    }

    /// Finishes the work on a stored file: moves the object if a rename changed its key during the upload, and stores attributes that
    /// programs set too late for the upload.
    async fn follow_up(&self, ino: InodeNo, writer: &Writer, meta: ObjectMeta) -> Outcome {
        let meta = self.follow(writer, meta).await?;
        let key = writer.moves.lock().as_ref().map(|moves| moves.to.clone());
        self.keep_rest(ino, key.unwrap_or_else(|| writer.upload.key()), meta).await
    }

    /// Passes the outcome of the upload to the inode table, once.
    fn settle(&self, open: &FileHandle, writer: &Writer, outcome: &Outcome) {
        let _settling = writer.settling.lock();
        if writer.upload.tell(Event::Settle) == Decision::Done {
            match outcome {
                Ok(meta) => {
                    let key = writer.moves.lock().as_ref().map(|moves| moves.to.clone());
                    let key = key.unwrap_or_else(|| writer.upload.key());
                    let tell = || self.inodes.commit_write(open.ino, meta.clone());
                    self.pauses.stored(&key, &meta.etag, tell);
                    self.keeps().into_iter().for_each(|keeping| keeping.ended(open.ino));
                }
                Err(_) => {
                    self.keeps().into_iter().for_each(|keeping| keeping.forget(open.ino));
                    self.inodes.abandon_write(open.ino);
                }
            }
            let told = writer.ending.ended(&writer.upload.key(), outcome.as_ref().map(|meta| &meta.etag));
            if let Some(line) = told {
                tracing::warn!("{line}");
            }
        }
    }

    /// Gives a file up, if its upload can still be stopped. Its name is free at once, or shows the earlier object; the call returns when
    /// the store has answered.
    async fn give_up(&self, open: &FileHandle, writer: &Writer) {
        writer.upload.give_up();
        if let Some(error) = writer.upload.error() {
            self.settle(open, writer, &Err(error));
        }
        writer.upload.abort().await;
        let _ = self.finish(open, writer).await;
    }

    /// Releases a handle whose last descriptor is gone. The caller answers the kernel first, and then calls [`FileSystem::finish_released`]
    /// with the result.
    pub fn release(&self, handle: HandleNo) -> Result<Option<Released>> {
        if self.files.is_lost(handle) {
            return Ok(None);
        }
        let open = self.files.get(handle)?;
        if let Mode::Staged(_) = &open.mode {
            return Ok(Some(Released::Staged));
        }
        self.io_modes.leave(open.ino);
        match &open.mode {
            Mode::Staged(_) => Ok(None),
            Mode::Read(reading) => {
                self.files.remove(handle);
                self.forget_file(handle);
                self.read_modes.released(open.ino, &reading.course);
                self.inodes.close_read(open.ino);
                self.reader_left.notify_waiters();
                let is_staged = self.full.as_ref().is_some_and(|full| full.find(open.ino).is_some());
                Ok(is_staged.then_some(Released::Read(open.ino)))
            }
            Mode::Write(writer) => Ok(Some(Released::Written(writer.upload.tell(Event::Release)))),
        }
    }

    /// Completes a released file. An error that no program receives goes to the log.
    pub async fn finish_released(&self, handle: HandleNo, due: Released) {
        let decision = match due {
            Released::Written(decision) => decision,
            Released::Staged => return self.release_staged(handle).await,
            Released::Read(ino) => return self.reader_left_stage(ino).await,
        };
        // Other operations (a new open, the end of the mount) find the handle until its outcome is settled; then it is removed.
        let Some(open) = self.files.find(handle) else { return };
        let Mode::Write(writer) = &open.mode else { return };
        match decision {
            Decision::Store => {
                let outcome = self.finish(&open, writer).await;
                report_closed(writer, &outcome);
            }
            Decision::GiveUp => {
                tracing::warn!(
                    "\"{}\" was closed, and has not the size that a program asked for, which was refused: nothing is stored",
                    writer.upload.key()
                );
                self.give_up(&open, writer).await;
            }
            // close(2), fsync or the log has reported this error already.
            _ => drop(self.finish(&open, writer).await),
        }
        self.files.remove(handle);
    }

    /// Ends all writing when the mount ends. Closed files are completed, since close(2) has answered or was interrupted; files that are
    /// still being written are given up, so no half upload stays in the store. All files are handled side by side. If programs may still
    /// use the device ([`MountEnd::Left`]), this takes at most `limit`; else it goes on as long as bytes move, and for up to 2.5 times
    /// `limit` without.
    pub async fn end(self: &Arc<Self>, limit: Duration, how: MountEnd) {
        // No file waits for a turn any more.
        self.uploader.ends();
        self.end_staged(limit, how).await;
        if how != MountEnd::Left {
            self.end_writers(limit, how).await;
        } else if self.clock.timeout(limit, self.end_writers_of_the_living(limit)).await.is_none() {
            for open in self.unsettled() {
                let Mode::Write(writer) = &open.mode else { continue };
                tracing::error!("\"{}\": the engine ended before the file was stored", writer.upload.key());
            }
        }
    }

    /// Ends the writers of a mount that stays, whose programs close files while others are being stored.
    async fn end_writers_of_the_living(self: &Arc<Self>, limit: Duration) {
        loop {
            // At least one round: it also waits for the aborts of failed uploads.
            self.end_writers(limit, MountEnd::Left).await;
            if self.unsettled().is_empty() {
                return;
            }
        }
    }

    /// Handles of files whose outcome the inode table, or a waiting program, does not have yet.
    fn unsettled(&self) -> Vec<Arc<FileHandle>> {
        let mut open = self.files.all();
        open.retain(|open| matches!(&open.mode, Mode::Write(writer) if !is_settled(writer)));
        open
    }

    async fn end_writers(self: &Arc<Self>, limit: Duration, how: MountEnd) {
        let end = |open: Arc<FileHandle>| {
            let fs = Arc::clone(self);
            tokio::spawn(async move { fs.end_writer(&open, limit, how).await })
        };
        let ends: Vec<_> = self.unsettled().into_iter().map(end).collect();
        for end in ends {
            let _ = end.await;
        }
        // Aborts of files that failed and were closed.
        let _ = self.clock.timeout(limit / 2, self.uploader.aborted()).await;
    }

    /// Waits for `done`: as long as bytes move or the store copies parts, and for one to two times `limit` without. A store that copies has
    /// [`COPIED_WITHIN`] for the next finished copy. `None` after the limit.
    pub(super) async fn while_bytes_move<T>(
        &self,
        limit: Duration,
        done: impl Future<Output = T>,
    ) -> Option<T> {
        let mut done = pin!(done);
        let progress = || (self.uploader.moved(), self.uploader.copied());
        let mut since = self.clock.now();
        loop {
            let before = progress();
            let outcome = self.clock.timeout(limit, done.as_mut()).await;
            let (is_still, now) = (progress() == before, self.clock.now());
            if !is_still {
                since = now;
            }
            let may_copy = self.uploader.is_copying() && now < since + COPIED_WITHIN;
            if outcome.is_some() || is_still && !may_copy {
                return outcome;
            }
        }
    }

    async fn end_writer(&self, open: &FileHandle, limit: Duration, how: MountEnd) {
        let Mode::Write(writer) = &open.mode else { return };
        // After `umount -l -f` the table of mounts lacks the mount, but programs still have files open.
        let holds = || {
            self.mount.get().and_then(|&mount| holds(open.opener, mount, open.ino, Which::All)) == Some(true)
        };
        let unmounted = how == MountEnd::Unmounted && !holds();
        // No RELEASE comes through a device that has ended.
        let moment = if how == MountEnd::Left { MOMENT } else { Duration::ZERO };
        let decision = writer.upload.tell_in_a_moment(Event::End { unmounted }, moment).await;
        if matches!(decision, Decision::Store | Decision::Outcome) {
            match self.while_bytes_move(limit * 3 / 4, self.finish(open, writer)).await {
                Some(outcome) => return report_closed(writer, &outcome),
                None => tracing::error!(
                    "\"{}\": closed, but the mount ended before the store confirmed it: check the object before you rely on it",
                    writer.upload.key()
                ),
            }
        } else {
            tracing::warn!(
                "\"{}\": not stored: the file was still open when the mount ended",
                writer.upload.key()
            );
        }
        let _ = self.clock.timeout(limit / 2, self.give_up(open, writer)).await;
    }
}

/// Whether every party that waits for a writer's outcome has it.
fn is_settled(writer: &Writer) -> bool {
    matches!(writer.upload.stage(), Stage::Stored { settled: true } | Stage::Failed { settled: true })
}

/// Logs, once, the error of a closed file that no program receives. The caller that gave an upload up has its error already.
fn report_closed(writer: &Writer, outcome: &Outcome) {
    if let Err(error) = outcome
        && !matches!(error, upload::Error::Aborted)
        && let Some(line) = writer.ending.closed(&writer.upload.key(), Err(error))
    {
        tracing::error!("{line}");
    }
}
