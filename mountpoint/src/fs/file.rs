//! create, open, read.

use std::sync::OnceLock;

use rustix::io::Errno;

use super::handle::{Closing, FileHandle, HandleNo, Mapping, Mode, Reading, Writer};
use super::io_mode::{Entered, Lent, PASSTHROUGH_MIN, Wish};
use super::process::thread_group;
use super::short::Short;
use super::{Entry, Error, FileSystem, Maker, Result};
use crate::inode::{Before, InodeNo, InodeTable, KnownSize, OpenRead, OpenWrite, WriteWish};
use crate::object::ObjectId;
use crate::prefetch::{Bytes, Lend, Reader};
use crate::sync::Arc;
use crate::sync::atomic::AtomicBool;

/// The flags of open(2) that matter here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenFlags {
    /// Whether the file is opened for writing (O_WRONLY or O_RDWR).
    pub write: bool,
    /// Whether the file is opened for reading too (O_RDWR).
    pub read: bool,
    /// Whether O_TRUNC is set.
    pub truncate: bool,
    /// Whether O_APPEND is set.
    pub append: bool,
    /// Whether O_DIRECT is set: the open asks the store anew, and bypasses the page cache.
    pub direct: bool,
    /// Whether O_SYNC or O_DSYNC is set.
    pub sync: bool,
}

/// An open file.
#[derive(Clone, Copy, Debug)]
pub struct Opened {
    /// The number by which the kernel names the handle.
    pub handle: HandleNo,
    /// Whether the kernel's cached pages of this inode are still valid.
    pub keep_cache: bool,
    /// Whether the file bypasses the page cache.
    pub direct: bool,
    /// The number of a file that the kernel reads itself; with `direct`, only through mappings.
    pub passthrough: Option<u32>,
    /// Whether a close of a descriptor means nothing to the engine: then the kernel sends no FLUSH.
    pub closes_unseen: bool,
}

/// An open for reading whose mode (engine or kernel) is not decided yet.
#[derive(Debug)]
pub struct Opening {
    ino: InodeNo,
    id: ObjectId,
    size: u64,
    reader: Reader,
    pid: u32,
    keep_cache: bool,
    /// Whether only a listing has named the version.
    is_listed: bool,
    /// The kernel's size of the file, compared with `size`.
    known: KnownSize,
    flags: OpenFlags,
}

impl Opening {
    fn wish(&self) -> Wish {
        match self.flags {
            OpenFlags { write: true, .. } => Wish::ReadWrite,
            OpenFlags { direct: true, .. } => Wish::Engine,
            _ => Wish::Read,
        }
    }
}

/// The result of an open from memory.
#[derive(Debug)]
pub enum Tried {
    /// The answer.
    Done(Result<Opened>),
    /// The disk of the cache must answer first: call [`FileSystem::finish_open`].
    Asks(Box<Opening>),
}

/// The result of one attempt to open a file.
enum Attempt {
    Opened(Opened),
    /// A writer has the file open.
    Busy {
        writer: HandleNo,
    },
    /// The open wants to write, and others read the file.
    HasReaders,
    /// The file has another version than the one that the open was to continue.
    Changed,
}

/// The error of a write that must be durable on return: by O_SYNC, O_DSYNC, or the RWF_SYNC and RWF_DSYNC of `pwritev2`.
pub fn unsynced() -> Error {
    let why = "a write can't be synced by itself (O_SYNC, O_DSYNC, RWF_DSYNC): a file is stored when it is closed or fsynced";
    Error::new(Errno::INVAL, why)
}

impl FileSystem {
    /// Whether a write can be made durable before its return: with `--commit disk`, the local disk has it then.
    pub fn syncs_writes(&self) -> bool {
        self.full.as_ref().is_some_and(|full| full.syncs_writes())
    }

    fn refuse_sync(&self, flags: OpenFlags) -> Result<()> {
        if flags.sync && !self.syncs_writes() { Err(unsynced()) } else { Ok(()) }
    }

    /// Creates a file and opens it for writing. The bucket has nothing of the file before the close.
    pub async fn create(
        &self,
        parent: InodeNo,
        name: &std::ffi::OsStr,
        flags: OpenFlags,
        maker: Maker,
        pid: u32,
    ) -> Result<(Entry, Opened)> {
        self.refuse_sync(flags)?;
        let entry = self.make_file(parent, name, maker).await?;
        self.open_made(entry, flags, pid).await
    }

    /// Opens the file that [`FileSystem::create`] made. Other programs may find the file before this call ends: the kernel lets them look
    /// it up when the creating program is killed.
    pub(super) async fn open_made(
        &self,
        entry: Entry,
        flags: OpenFlags,
        pid: u32,
    ) -> Result<(Entry, Opened)> {
        let flags = OpenFlags { write: true, ..flags };
        match self.open(entry.attr.ino, flags, pid).await {
            Ok(opened) => {
                let Some(full) = &self.full else { return Ok((entry, opened)) };
                // A file in the stage has attributes that hold, which spares the kernel a question before the first write.
                let attr = self.try_getattr(entry.attr.ino).and_then(Result::ok).unwrap_or(entry.attr);
                let closes_unseen = full.needs_no_flush(&opened);
                Ok((Entry { attr, ..entry }, Opened { closes_unseen, ..opened }))
            }
            Err(error) => {
                self.inodes.remove_new(entry.attr.ino);
                self.forget(entry.attr.ino, 1);
                Err(error)
            }
        }
    }

    /// Opens a file for reading, if memory has the answer.
    pub fn try_open(&self, ino: InodeNo, flags: OpenFlags, pid: u32) -> Option<Tried> {
        if flags.write || flags.truncate || flags.direct || flags.sync {
            return None;
        }
        let _opening = match &self.full {
            Some(full) => Some(full.try_opening(ino)?),
            None => None,
        };
        match self.inodes.try_open_read(ino)? {
            Ok(OpenRead::Object { id, size, keep_cache, first, is_listed, known }) => {
                if known == KnownSize::Other {
                    self.resized.tell(&self.inodes, ino);
                }
                let reader = self.prefetcher.open(id.clone(), size, first);
                let opening = Opening { ino, id, size, reader, pid, keep_cache, is_listed, known, flags };
                Some(match self.lends(&opening) {
                    Lend::Now(_) if self.io_modes.asks_driver() => Tried::Asks(Box::new(opening)),
                    Lend::Now(whole) => Tried::Done(self.opened(opening, Some(Lent::File(whole)))),
                    Lend::No => Tried::Done(self.opened(opening, None)),
                    Lend::Later => Tried::Asks(Box::new(opening)),
                })
            }
            Ok(OpenRead::Busy { .. }) => None,
            Err(error) => Some(Tried::Done(Err(error.into()))),
        }
    }

    /// Completes an open for reading. May wait for the disk of the cache and for the driver, each with a time limit; after it the engine
    /// reads.
    pub async fn finish_open(&self, opening: Opening) -> Result<Opened> {
        let whole = match self.lends(&opening) {
            Lend::Now(whole) => Some(whole),
            Lend::Later => self.prefetcher.whole(&opening.id, opening.size).await,
            Lend::No => None,
        };
        let lent = match whole {
            Some(whole) => self.io_modes.lend(whole, &self.clock).await,
            None => None,
        };
        self.opened(opening, lent)
    }

    /// Answers from memory whether the kernel may read this file itself.
    fn lends(&self, opening: &Opening) -> Lend {
        let Opening { ino, id, size, .. } = opening;
        let asks =
            *size >= PASSTHROUGH_MIN && self.io_modes.asks(*ino, &id.key, opening.wish(), self.clock.now());
        if asks { self.prefetcher.lends(id, *size) } else { Lend::No }
    }

    /// Opens a file for reading or for writing. Waits while the file is being stored.
    pub async fn open(&self, ino: InodeNo, flags: OpenFlags, pid: u32) -> Result<Opened> {
        self.refuse_sync(flags)?;
        if (flags.write || flags.truncate) && self.config.read_only {
            return Err(Error::new(Errno::ROFS, "the mount is read-only"));
        }
        if self.full.is_some() && (flags.write || flags.truncate || self.inodes.is_local(ino)) {
            return self.open_staged(ino, flags, pid).await;
        }
        if flags.truncate && !flags.write {
            self.empty(ino, flags, pid).await?;
        }
        self.open_as(ino, flags, pid).await
    }

    /// Replaces a file by an empty one, for an open with O_TRUNC and O_RDONLY, as local file systems do. Such an open needs the same
    /// permission as any other replacement.
    async fn empty(&self, ino: InodeNo, flags: OpenFlags, pid: u32) -> Result<()> {
        let opened = self.open_as(ino, OpenFlags { write: true, ..flags }, pid).await?;
        let stored = self.fsync(opened.handle).await;
        if let Some(released) = self.release(opened.handle)? {
            self.finish_released(opened.handle, released).await;
        }
        stored
    }

    async fn open_as(&self, ino: InodeNo, flags: OpenFlags, pid: u32) -> Result<Opened> {
        loop {
            // A handle either writes a file anew or reads it: O_RDWR without O_TRUNC on a stored file reads.
            let reads = !flags.write || (flags.read && !flags.truncate && !self.inodes.is_local(ino));
            let opened = if reads {
                self.open_read(ino, flags, pid).await?
            } else {
                self.open_write(ino, flags, pid).await?
            };
            match opened {
                Attempt::Opened(opened) => return Ok(opened),
                Attempt::Busy { .. } if self.full.is_some() => {
                    return self.open_staged(ino, flags, pid).await;
                }
                Attempt::Busy { writer } => self.wait_for_writer(writer, "opened").await?,
                Attempt::HasReaders => self.wait_for_readers(ino).await?,
                Attempt::Changed => {}
            }
        }
    }

    /// Opens a file for reading, or names its writer.
    async fn open_read(&self, ino: InodeNo, flags: OpenFlags, pid: u32) -> Result<Attempt> {
        let answer = {
            // Once the file counts this reader, an unlink or a rename over it finds the reader.
            let _opening = match &self.full {
                Some(full) => Some(full.opening(ino).await),
                None => None,
            };
            self.inodes.open_read(ino, flags.direct).await?
        };
        Ok(match answer {
            OpenRead::Object { id, size, keep_cache, first, is_listed, known } => {
                if known == KnownSize::Other {
                    self.resized.tell(&self.inodes, ino);
                }
                let reader = self.prefetcher.open(id.clone(), size, first);
                let keep_cache = keep_cache && !flags.direct;
                let opening = Opening { ino, id, size, reader, pid, keep_cache, is_listed, known, flags };
                Attempt::Opened(self.finish_open(opening).await?)
            }
            OpenRead::Busy { writer } => Attempt::Busy { writer: HandleNo(writer) },
        })
    }

    /// Opens a file for writing, or names its writer, or reports that it has readers.
    async fn open_write(&self, ino: InodeNo, flags: OpenFlags, pid: u32) -> Result<Attempt> {
        let no = self.files.reserve();
        let _open = self.begin_open(ino).await;
        if let Some(key) = self.inodes.key_of(ino) {
            self.old_names.may_be_taken(&key, |_, _| false)?;
        }
        // Before the file gets this writer: other opens need not wait for the store's answer.
        let appends = self.append_to(ino, flags).await?;
        let kept = self.kept_before(ino).await?;
        let wish = WriteWish {
            allow_append: self.config.allow_append,
            truncate: flags.truncate,
            append: flags.append,
            allow_overwrite: self.config.allow_overwrite,
        };
        Ok(match self.inodes.open_write(ino, no.0, wish).await? {
            OpenWrite::Granted { key, before } => {
                let continues = flags.append && !flags.truncate && before == Before::Exists;
                let was = self.inodes.before_writer(ino);
                if continues && appends.as_ref().map(|(id, _)| id) != was.as_ref() {
                    // Another program appended meanwhile.
                    self.inodes.abandon_write(ino);
                    return Ok(Attempt::Changed);
                }
                self.io_modes.enter(ino, &key, Wish::Engine, self.clock.now(), || None);
                // The store decides at the end, in one step: another client may have stored the name since the mount looked it up.
                let only_if_absent = before == Before::Absent && !self.config.allow_overwrite;
                let opener = thread_group(pid).unwrap_or(pid);
                let upload = match appends.filter(|_| before == Before::Exists) {
                    Some((_, upload)) => upload,
                    None => self.uploader.create(key, only_if_absent),
                };
                self.keep_with(ino, kept, &upload);
                let writer = Writer::new(upload, (pid, opener));
                let mapping = Mapping::default();
                let handle = FileHandle {
                    ino,
                    opener,
                    mode: Mode::Write(writer),
                    mapping,
                    closing: Closing::default(),
                };
                self.files.insert(no, handle);
                // Past the page cache: no program reads a file that is being written, and its pages would cost the writer more than all
                // other work.
                Attempt::Opened(Opened {
                    handle: no,
                    keep_cache: false,
                    direct: true,
                    passthrough: None,
                    closes_unseen: false,
                })
            }
            OpenWrite::Busy { writer } => Attempt::Busy { writer: HandleNo(writer) },
            OpenWrite::HasReaders => Attempt::HasReaders,
        })
    }

    /// Creates a handle that reads.
    ///
    /// # Errors
    /// `STALE`: another mode of the inode excludes this open. The kernel looks the name up anew, and finds another inode.
    fn opened(&self, opening: Opening, lent: Option<Lent>) -> Result<Opened> {
        let wish = opening.wish();
        let Opening { ino, id, size, reader, pid, keep_cache, is_listed, known, flags } = opening;
        let passthrough = match self.io_modes.enter(ino, &id.key, wish, self.clock.now(), || lent) {
            Entered::Engine => None,
            Entered::Passthrough(file) => Some(file),
            Entered::Apart => {
                self.inodes.set_apart(ino);
                self.inodes.close_read(ino);
                let why = format!("\"{}\" is open for reading from the disk cache", id.key.as_str());
                return Err(Error::new(Errno::STALE, why));
            }
        };
        // The kernel reads such a file without the engine, so the listing's marks must be verified first.
        let is_listed = is_listed && (passthrough.is_none() || !self.inodes.is_proven(ino, &id, size));
        let mut course = self.read_modes.begin(size, pid);
        // If the kernel's size is too large, the kernel may show zeros behind the end.
        let is_unsure = known == KnownSize::Other || known == KnownSize::More && !self.resized.is_learnt();
        // A file that the kernel reads itself has no page cache in this mount, which a mapping that may write needs.
        course.is_direct = flags.direct
            || passthrough.is_none()
                && !flags.write
                && (is_unsure || self.read_modes.is_direct(ino, &course, || self.inodes.readers(ino) > 1));
        let direct = course.is_direct;
        let may_read_behind = known != KnownSize::Right && !direct && passthrough.is_none();
        let handle = self.files.reserve();
        let mapping = Mapping::new(flags.write);
        let mode = Mode::Read(Reading {
            short: if may_read_behind { OnceLock::from(Short::before_reads(size)) } else { OnceLock::new() },
            reader,
            is_listed: AtomicBool::new(is_listed),
            own: OnceLock::new(),
            passthrough,
            course,
        });
        self.files
            .insert(handle, FileHandle { ino, opener: pid, mode, mapping, closing: Closing::default() });
        let keep_cache = keep_cache && passthrough.is_none();
        Ok(Opened { handle, keep_cache, direct, passthrough, closes_unseen: false })
    }

    /// Reads at most `len` bytes, and calls `done` with them: now, or later on another thread.
    pub fn read<F>(&self, handle: HandleNo, offset: u64, len: usize, done: F)
    where
        F: FnOnce(Result<Bytes>) + Send + 'static,
    {
        let handle = match self.files.get(handle) {
            Ok(handle) => handle,
            Err(error) => return done(Err(error)),
        };
        let staged = match (&handle.mode, &self.full) {
            (Mode::Staged(staged), _) => Some(Arc::clone(&staged.staged)),
            // Opened before a program began to write the file.
            (_, Some(full)) => full.find(handle.ino),
            (_, None) => None,
        };
        if let Some(staged) = staged {
            return staged.read(offset, len, move |result| done(result.map_err(Error::from)));
        }
        match handle.reading() {
            Ok(reading) => {
                reading.course.read(offset, len);
                // The order matters: the version of a listed file is settled once this call returns.
                let listed = self.listed(&handle, reading);
                let reader = reading.own.get().map_or(&reading.reader, |own| &**own);
                if let Err(error) = reading.allows(offset, len, || self.inodes.take_old_end(handle.ino)) {
                    return done(Err(error));
                }
                let (inodes, ino) = (self.inodes.clone(), handle.ino);
                reader.read(offset, len, move |result| match listed {
                    Some(listed) => listed.answer((offset, len), result.map_err(Error::from), done),
                    None => done(answered(&inodes, ino, result)),
                });
            }
            Err(error) => done(Err(error)),
        }
    }
}

/// Converts the result of a read to its answer. After a corrupt or stale result, the inode's pages or version are checked anew.
pub(super) fn answered(
    inodes: &InodeTable,
    ino: InodeNo,
    result: std::result::Result<Bytes, crate::prefetch::Error>,
) -> Result<Bytes> {
    if result.as_ref().is_err_and(|error| error.is_corrupt()) {
        inodes.doubt_pages(ino);
    }
    let result = result.map_err(Error::from);
    if result.as_ref().is_err_and(|error| error.errno() == Errno::STALE) {
        inodes.doubt(ino);
    }
    result
}
