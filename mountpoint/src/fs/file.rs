//! create, open, read, write, flush, fsync, release.

use std::time::Duration;

use rustix::io::Errno;

use super::ending::{Ending, Fate};
use super::handle::{FileHandle, HandleNo, Mode, Writer};
use super::process::{is_of_process, thread_group};
use super::{Entry, Error, FileSystem, Result};
use crate::inode::{InodeNo, OpenRead, OpenWrite, WriteWish};
use crate::object::ObjectMeta;
use crate::prefetch::Bytes;
use crate::sync::Arc;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::upload;

/// The flags of open(2) that matter here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenFlags {
    /// Opened for writing (O_WRONLY or O_RDWR).
    pub write: bool,
    /// Opened for reading too (O_RDWR).
    pub read: bool,
    /// O_TRUNC.
    pub truncate: bool,
    /// O_APPEND.
    pub append: bool,
    /// O_DIRECT: ask the store anew, keep out of the page cache.
    pub direct: bool,
    /// O_SYNC or O_DSYNC.
    pub sync: bool,
}

/// An open file.
#[derive(Clone, Copy, Debug)]
pub struct Opened {
    /// By this number.
    pub handle: HandleNo,
    /// What the kernel's page cache holds of this inode is still right.
    pub keep_cache: bool,
    /// Keep out of the page cache.
    pub direct: bool,
}

/// What an upload came to.
type Outcome = std::result::Result<ObjectMeta, upload::Error>;

/// What closing a descriptor does to an unfinished file. Pure; see [`on_flush`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FlushAction {
    Complete,
    WaitForRelease,
}

/// A descriptor was closed. The file is completed then, so that close(2) tells the outcome; but not when another process
/// closed a descriptor it inherited (the owner goes on writing), nor while nothing was written (shells open, duplicate,
/// and close the original before the first byte).
fn on_flush(written: u64, by_opener: bool) -> FlushAction {
    if written > 0 && by_opener { FlushAction::Complete } else { FlushAction::WaitForRelease }
}

fn refuse_sync(flags: OpenFlags) -> Result<()> {
    if flags.sync {
        let why = "O_SYNC and O_DSYNC can't be honoured: a file is stored when it is closed or fsynced";
        return Err(Error::new(Errno::INVAL, why));
    }
    Ok(())
}

impl FileSystem {
    /// Creates a file and opens it for writing. Nothing is in the bucket before it is closed.
    pub async fn create(
        &self,
        parent: InodeNo,
        name: &std::ffi::OsStr,
        flags: OpenFlags,
        pid: u32,
    ) -> Result<(Entry, Opened)> {
        refuse_sync(flags)?;
        let entry = self.make_file(parent, name).await?;
        let flags = OpenFlags { write: true, ..flags };
        match self.open(entry.attr.ino, flags, pid).await {
            Ok(opened) => Ok((entry, opened)),
            Err(error) => {
                // Nobody will write it: the name goes, too.
                self.inodes.abandon_write(entry.attr.ino);
                self.inodes.forget(entry.attr.ino, 1);
                Err(error)
            }
        }
    }

    /// Opens a file for reading, if that needs nobody to be asked.
    pub fn try_open(&self, ino: InodeNo, flags: OpenFlags, pid: u32) -> Option<Result<Opened>> {
        if flags.write || flags.direct || flags.sync {
            return None;
        }
        match self.inodes.try_open_read(ino)? {
            Ok(OpenRead::Object { id, size, keep_cache }) => {
                let mode = Mode::Read(self.prefetcher.open(id, size));
                Some(Ok(self.opened(ino, mode, pid, keep_cache, false)))
            }
            Ok(OpenRead::Busy { .. }) => None,
            Err(error) => Some(Err(error.into())),
        }
    }

    /// Opens a file for reading or for writing.
    pub async fn open(&self, ino: InodeNo, flags: OpenFlags, pid: u32) -> Result<Opened> {
        refuse_sync(flags)?;
        if flags.write && self.config.read_only {
            return Err(Error::new(Errno::ROFS, "the mount is read-only"));
        }
        // A file can be written anew or read, not both: O_RDWR without O_TRUNC on one that is there reads.
        let reads = !flags.write || (flags.read && !flags.truncate && !self.inodes.is_local(ino));
        if reads { self.open_read(ino, flags, pid).await } else { self.open_write(ino, flags, pid).await }
    }

    async fn open_read(&self, ino: InodeNo, flags: OpenFlags, pid: u32) -> Result<Opened> {
        loop {
            match self.inodes.open_read(ino, flags.direct).await? {
                OpenRead::Object { id, size, keep_cache } => {
                    let mode = Mode::Read(self.prefetcher.open(id, size));
                    return Ok(self.opened(ino, mode, pid, keep_cache && !flags.direct, flags.direct));
                }
                OpenRead::Busy { writer } => self.settle_writer(ino, HandleNo(writer)).await?,
            }
        }
    }

    async fn open_write(&self, ino: InodeNo, flags: OpenFlags, pid: u32) -> Result<Opened> {
        let no = self.files.reserve();
        let wish = WriteWish {
            truncate: flags.truncate,
            append: flags.append,
            allow_overwrite: self.config.allow_overwrite,
        };
        loop {
            match self.inodes.open_write(ino, no.0, wish).await? {
                OpenWrite::Granted { key, .. } => {
                    let writer = Writer {
                        upload: self.uploader.create(key.clone(), false),
                        key,
                        flushed: AtomicBool::new(false),
                        released: AtomicBool::new(false),
                        settled: AtomicBool::new(false),
                        asked: AtomicBool::new(false),
                        reported: AtomicBool::new(false),
                        ending: Ending::default(),
                    };
                    let opener = thread_group(pid).unwrap_or(pid);
                    self.files.insert(no, FileHandle { ino, opener, mode: Mode::Write(writer) });
                    // Past the page cache: nothing reads there what is being written, and its pages cost the writer
                    // more than all the rest.
                    return Ok(Opened { handle: no, keep_cache: false, direct: true });
                }
                OpenWrite::Busy { writer } => self.settle_writer(ino, HandleNo(writer)).await?,
            }
        }
    }

    fn opened(&self, ino: InodeNo, mode: Mode, pid: u32, keep_cache: bool, direct: bool) -> Opened {
        let handle = self.files.reserve();
        self.files.insert(handle, FileHandle { ino, opener: pid, mode });
        Opened { handle, keep_cache, direct }
    }

    /// Somebody opens a file that is being written. If its writer closed it already (the last word of close comes later than
    /// close(2) returns), it is completed now; if the writer is still at it, the newcomer is refused.
    async fn settle_writer(&self, ino: InodeNo, writer: HandleNo) -> Result<()> {
        let Some(handle) = self.files.find(writer) else {
            // Being released right now; give that a moment to finish.
            tokio::task::yield_now().await;
            return Ok(());
        };
        let open = handle.writer()?;
        if !open.flushed.load(Ordering::Acquire) {
            let why =
                format!("inode {}: the file is being written; it can be opened once it is closed", ino.0);
            return Err(Error::new(Errno::PERM, why));
        }
        self.complete(&handle).await
    }

    /// Reads at most `len` bytes. `done` gets them: now, or later on another thread.
    pub fn read<F>(&self, handle: HandleNo, offset: u64, len: usize, done: F)
    where
        F: FnOnce(Result<Bytes>) + Send + 'static,
    {
        let handle = match self.files.get(handle) {
            Ok(handle) => handle,
            Err(error) => return done(Err(error)),
        };
        match handle.reader() {
            Ok(reader) => reader.read(offset, len, |result| done(result.map_err(Error::from))),
            Err(error) => done(Err(error)),
        }
    }

    /// Takes the next bytes of a file. `done` is called when there is room for more, which is how the writer feels a slow store.
    pub fn write<F>(self: &Arc<Self>, handle: HandleNo, offset: u64, data: &[u8], done: F)
    where
        F: FnOnce(Result<()>) + Send + 'static,
    {
        let open = match self.files.get(handle) {
            Ok(open) => open,
            Err(error) => return done(Err(error)),
        };
        let writer = match open.writer() {
            Ok(writer) => writer,
            Err(error) => return done(Err(error)),
        };
        if writer.settled.load(Ordering::Acquire) {
            let why = format!(
                "inode {}: the file was completed by fsync or by another open; open it anew",
                open.ino.0
            );
            return done(Err(Error::new(Errno::BADF, why)));
        }
        let (fs, ino, upload) = (Arc::clone(self), open.ino, Arc::clone(&writer.upload));
        let after = Arc::clone(&upload);
        upload.write(
            offset,
            data,
            Box::new(move |result| {
                if result.is_ok() {
                    fs.inodes.written(ino, after.size());
                }
                done(result.map_err(Error::from));
            }),
        );
    }

    /// close(2) of one descriptor. `None` when there is nothing to wait for.
    pub fn try_flush(&self, handle: HandleNo, pid: u32) -> Option<Result<()>> {
        let open = match self.files.get(handle) {
            Ok(open) => open,
            Err(error) => return Some(Err(error)),
        };
        let Ok(writer) = open.writer() else { return Some(Ok(())) };
        writer.flushed.store(true, Ordering::Release);
        match on_flush(writer.upload.size(), is_of_process(open.opener, pid)) {
            FlushAction::Complete => {
                writer.asked.store(true, Ordering::Release);
                None
            }
            FlushAction::WaitForRelease => Some(Ok(())),
        }
    }

    /// Completes a file that is being written; its outcome is the answer, however often it is asked.
    pub async fn fsync(&self, handle: HandleNo) -> Result<()> {
        let open = self.files.get(handle)?;
        let Ok(writer) = open.writer() else { return Ok(()) };
        writer.asked.store(true, Ordering::Release);
        self.complete(&open).await
    }

    /// The close or fsync (`operation`) of this handle was interrupted. The upload goes on to its end; the log tells of it.
    pub fn nobody_waits(&self, handle: HandleNo, operation: &'static str) {
        if let Some(open) = self.files.find(handle)
            && let Mode::Write(writer) = &open.mode
            && let Some(line) = writer.ending.unheard(&writer.key, operation)
        {
            tracing::warn!("{line}");
        }
    }

    /// Undoes an open whose opener was killed before it heard of it, as if it had never been: nothing is stored, and what was there
    /// stays.
    pub async fn take_back(&self, handle: HandleNo) {
        let Some(open) = self.files.remove(handle) else { return };
        match &open.mode {
            Mode::Read(_) => self.inodes.close_read(open.ino),
            Mode::Write(writer) => {
                if !writer.settled.swap(true, Ordering::AcqRel) {
                    self.inodes.abandon_write(open.ino);
                    writer.upload.abort().await;
                }
            }
        }
    }

    async fn complete(&self, open: &FileHandle) -> Result<()> {
        let outcome = self.finish(open, open.writer()?).await;
        outcome.map(drop).map_err(Error::from)
    }

    async fn finish(&self, open: &FileHandle, writer: &Writer) -> Outcome {
        let outcome = writer.upload.finish().await;
        if !writer.settled.swap(true, Ordering::AcqRel) {
            match &outcome {
                Ok(meta) => self.inodes.commit_write(open.ino, meta.clone()),
                Err(_) => self.inodes.abandon_write(open.ino),
            }
            writer.tell(&outcome);
        }
        outcome
    }

    /// The last descriptor is gone. True: it was a writer's, and [`FileSystem::finish_released`] is due. Nobody waits for that:
    /// the kernel would only keep one of the few places for its read-ahead busy.
    pub fn release(&self, handle: HandleNo) -> Result<bool> {
        let open = self.files.get(handle)?;
        match &open.mode {
            Mode::Read(_) => {
                self.files.remove(handle);
                self.inodes.close_read(open.ino);
                Ok(false)
            }
            Mode::Write(writer) => {
                writer.released.store(true, Ordering::Release);
                writer.flushed.store(true, Ordering::Release);
                Ok(true)
            }
        }
    }

    /// Completes a file that was released. An error that nobody is told goes to the log.
    pub async fn finish_released(&self, handle: HandleNo) {
        // Found by others (a new open, the end of the mount) until it is settled, then removed.
        let Some(open) = self.files.find(handle) else { return };
        let Mode::Write(writer) = &open.mode else { return };
        let is_asked = writer.asked.load(Ordering::Acquire);
        // What a close or an fsync asked for is under way already; the rest begins here, in turn.
        let _turn = if is_asked { None } else { self.finishing.acquire().await.ok() };
        let is_told = is_asked || writer.settled.load(Ordering::Acquire);
        let outcome = self.finish(&open, writer).await;
        self.files.remove(handle);
        // An error that close(2) or fsync tells, or the log in their place, is not news.
        if !is_told && outcome.is_err() {
            writer.report_closed(&outcome);
        }
    }

    /// The mount ends. What was closed is completed, since close(2) has answered or was interrupted; what is still being
    /// written is given up, so that no half upload stays in the store. All at once, within `limit`.
    pub async fn end(self: &Arc<Self>, limit: Duration) {
        let ends: Vec<_> = self
            .files
            .all()
            .into_iter()
            .filter(|open| matches!(&open.mode, Mode::Write(w) if !w.settled.load(Ordering::Acquire)))
            .map(|open| {
                let fs = Arc::clone(self);
                tokio::spawn(async move { fs.end_writer(&open, limit * 3 / 4).await })
            })
            .collect();
        let _ = tokio::time::timeout(limit, async {
            for end in ends {
                let _ = end.await;
            }
        })
        .await;
    }

    async fn end_writer(&self, open: &FileHandle, limit: Duration) {
        let Mode::Write(writer) = &open.mode else { return };
        if writer.released.load(Ordering::Acquire) || writer.asked.load(Ordering::Acquire) {
            match tokio::time::timeout(limit, self.finish(open, writer)).await {
                Ok(Ok(_)) => return,
                Ok(outcome) => writer.report_closed(&outcome),
                Err(_) => tracing::error!(
                    "\"{}\": closed, but not known to be stored in time before the end: look at it before relying on it",
                    writer.key
                ),
            }
        } else {
            tracing::warn!("\"{}\": given up, it was still open when the mount ended", writer.key);
        }
        if !writer.settled.swap(true, Ordering::AcqRel) {
            writer.upload.abort().await;
            writer.tell(&writer.upload.finish().await);
        }
    }
}

impl Writer {
    /// The upload of a closed file ended so, and its application can't be told: the log is, once.
    fn report_closed(&self, outcome: &Outcome) {
        if self.reported.swap(true, Ordering::Relaxed) {
            return;
        }
        let fate = Fate::of(outcome.as_ref().map(|meta| &meta.etag));
        tracing::error!("\"{}\" was closed; {fate}", self.key);
    }

    /// The upload ended so: a line in the log if nobody hears it.
    fn tell(&self, outcome: &Outcome) {
        if let Some(line) = self.ending.ended(&self.key, outcome.as_ref().map(|meta| &meta.etag)) {
            tracing::warn!("{line}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn close_completes_what_its_opener_wrote_and_nothing_else() {
        assert_eq!(on_flush(1, true), FlushAction::Complete);
        assert_eq!(on_flush(0, true), FlushAction::WaitForRelease);
        assert_eq!(on_flush(1, false), FlushAction::WaitForRelease);
    }
}
