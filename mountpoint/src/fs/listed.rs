//! Reads of files that were opened with the facts of a listing alone (`inode/proof.rs`): if the first read finds another version than the
//! listing named, the engine reads the object's own version instead.

use std::sync::OnceLock;

use rustix::io::Errno;

use super::handle::{FileHandle, Reading};
use super::short::Short;
use super::{Error, FileSystem, Result};
use crate::inode::{InodeNo, InodeTable};
use crate::prefetch::{Bytes, Prefetcher};
use crate::sync::atomic::Ordering::{Acquire, Release};
use crate::sync::{Arc, Mutex};

/// The function that makes the kernel request a file's attributes again, because it has a wrong size.
#[derive(Clone, Default)]
pub(super) struct Resized(Arc<OnceLock<Kernel>>);

struct Kernel {
    /// Whether the kernel learns from a short answer to a read where a file ends.
    learns_sizes: bool,
    /// Held during the notification: other callers wait for its end.
    telling: Mutex<()>,
    tell: Box<dyn Fn(InodeNo) + Send + Sync>,
}

impl std::fmt::Debug for Resized {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Resized")
    }
}

impl Resized {
    /// Notifies the kernel, once for each wrong size: a second notification could come between a request and its short answer, which the
    /// kernel would then ignore. On return the notification has arrived.
    pub(super) fn tell(&self, inodes: &InodeTable, ino: InodeNo) {
        if let Some(kernel) = self.0.get() {
            let _telling = kernel.telling.lock();
            if inodes.take_resized(ino) {
                (kernel.tell)(ino);
            }
        }
    }

    /// Whether the kernel learns where a file ends from a short answer.
    pub(super) fn is_learnt(&self) -> bool {
        self.0.get().is_some_and(|kernel| kernel.learns_sizes)
    }
}

/// The context of a read of a file that was opened with the facts of a listing alone.
pub(super) struct Listed {
    handle: Arc<FileHandle>,
    inodes: InodeTable,
    prefetcher: Prefetcher,
    resized: Resized,
}

impl FileSystem {
    /// Sets the function that makes the kernel request a file's attributes again, and whether the kernel learns the end of a file from a
    /// short answer (Linux 5.17). Call this before the first open.
    pub fn tell_resized(&self, learns_sizes: bool, tell: impl Fn(InodeNo) + Send + Sync + 'static) {
        let _ = self.resized.0.set(Kernel { learns_sizes, telling: Mutex::new(()), tell: Box::new(tell) });
    }

    /// The context of a read; `None` once the version that the handle reads is known to be the object's own.
    pub(super) fn listed(&self, handle: &Arc<FileHandle>, reading: &Reading) -> Option<Listed> {
        reading.is_listed.load(Acquire).then(|| Listed {
            handle: Arc::clone(handle),
            inodes: self.inodes.clone(),
            prefetcher: self.prefetcher.clone(),
            resized: self.resized.clone(),
        })
    }
}

impl Listed {
    /// Answers a read with the received bytes, or with those of the object's own version.
    pub(super) fn answer(
        self,
        (offset, len): (u64, usize),
        result: Result<Bytes>,
        done: impl FnOnce(Result<Bytes>) + Send + 'static,
    ) {
        let Ok(reading) = self.handle.reading() else { return done(result) };
        match &result {
            Ok(_) => {
                let (id, size) = (reading.reader.id(), reading.reader.size());
                if reading.own.get().is_some() || self.inodes.is_proven(self.handle.ino, id, size) {
                    reading.is_listed.store(false, Release);
                    return done(result);
                }
            }
            Err(error) if error.errno() == Errno::STALE => {}
            Err(_) => return done(result),
        }
        let prefetcher = self.prefetcher.clone();
        prefetcher.spawn(async move {
            if let Err(error) = self.find_own().await {
                self.inodes.doubt(self.handle.ino);
                return done(Err(error));
            }
            let Ok(reading) = self.handle.reading() else { return done(result) };
            let Some(own) = reading.own.get() else { return done(result) };
            let (inodes, ino) = (self.inodes.clone(), self.handle.ino);
            if let Err(error) = reading.allows(offset, len, || inodes.take_old_end(ino)) {
                return done(Err(error));
            }
            own.read(offset, len, move |result| done(super::file::answered(&inodes, ino, result)));
        });
    }

    /// Opens a reader of the object's own version.
    async fn find_own(&self) -> Result<()> {
        let (ino, reading) = (self.handle.ino, self.handle.reading()?);
        let (id, size) = (reading.reader.id(), reading.reader.size());
        let Some((own, own_size)) = self.inodes.own_version(ino, id, size).await? else {
            let why = format!("\"{}\" was replaced since it was opened", id.key.as_str());
            return Err(Error::new(Errno::STALE, why));
        };
        let why = || format!("\"{}\" has {own_size} bytes, and a listing said {size}", id.key.as_str());
        if own_size < size && (reading.course.is_direct || !self.resized.is_learnt()) {
            // The kernel reads on up to its size of the file, and would show zeros for the missing bytes. A read for a mapping looks the
            // same as one past the page cache.
            return Err(Error::new(Errno::STALE, why()));
        }
        // The notification comes first. A read behind the file's end fails, the kernel sends another read, and the kernel believes the
        // short answer to it only if the notification came before.
        if own_size != size {
            self.resized.tell(&self.inodes, ino);
        }
        if own_size < size && reading.short.set(Short::amid_reads(own_size)).is_ok() {
            tracing::warn!("{}: reads behind its end fail until the kernel knows the size", why());
        }
        reading.own.get_or_init(|| Box::new(self.prefetcher.open(own, own_size, None)));
        reading.is_listed.store(false, Release);
        Ok(())
    }
}
