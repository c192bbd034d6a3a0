//! Reads of files that were opened on a listing's word (`inode/proof.rs`): where the first of them meets another version, the object's own
//! version is read in its place.

use std::sync::OnceLock;

use rustix::io::Errno;

use super::handle::{FileHandle, Reading};
use super::{Error, FileSystem, Result};
use crate::inode::{InodeNo, InodeTable};
use crate::prefetch::{Bytes, Prefetcher};
use crate::sync::Arc;
use crate::sync::atomic::Ordering::Relaxed;

/// Makes the kernel ask for the attributes of a file again: the size differs from the one that it knows.
#[derive(Clone, Default)]
pub(super) struct Resized(Arc<OnceLock<Box<Tell>>>);

type Tell = dyn Fn(InodeNo) + Send + Sync;

impl std::fmt::Debug for Resized {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Resized")
    }
}

impl Resized {
    pub(super) fn tell(&self, ino: InodeNo) {
        if let Some(tell) = self.0.get() {
            tell(ino);
        }
    }
}

/// The context of a read of such a file, beyond its reader.
pub(super) struct Listed {
    handle: Arc<FileHandle>,
    inodes: InodeTable,
    prefetcher: Prefetcher,
    resized: Resized,
}

impl FileSystem {
    /// Sets the way to make the kernel ask for a file's attributes again. Call it before the first open.
    pub fn tell_resized(&self, tell: impl Fn(InodeNo) + Send + Sync + 'static) {
        let _ = self.resized.0.set(Box::new(tell));
    }

    /// `None` once the version that the handle reads is known to be the object's own.
    pub(super) fn listed(&self, handle: &Arc<FileHandle>, reading: &Reading) -> Option<Listed> {
        reading.is_listed.load(Relaxed).then(|| Listed {
            handle: Arc::clone(handle),
            inodes: self.inodes.clone(),
            prefetcher: self.prefetcher.clone(),
            resized: self.resized.clone(),
        })
    }
}

impl Listed {
    /// Answers a read with what came, or with what the object's own version has there.
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
                    reading.is_listed.store(false, Relaxed);
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
            let Ok(Some(own)) = self.handle.reading().map(|reading| reading.own.get()) else {
                return done(result);
            };
            let (inodes, ino) = (self.inodes.clone(), self.handle.ino);
            own.read(offset, len, move |result| done(super::file::answered(&inodes, ino, result)));
        });
    }

    /// Opens the object's own version.
    async fn find_own(&self) -> Result<()> {
        let (ino, reading) = (self.handle.ino, self.handle.reading()?);
        let (id, size) = (reading.reader.id(), reading.reader.size());
        let Some((own, own_size)) = self.inodes.own_version(ino, id, size).await? else {
            let why = format!("\"{}\" was replaced since it was opened", id.key.as_str());
            return Err(Error::new(Errno::STALE, why));
        };
        if own_size < size {
            // The kernel reads on up to the size that it knows, and would take zeros for what is missing.
            let why = format!("\"{}\" has {own_size} bytes, and a listing said {size}", id.key.as_str());
            return Err(Error::new(Errno::STALE, why));
        }
        reading.own.get_or_init(|| Box::new(self.prefetcher.open(own, own_size, None)));
        reading.is_listed.store(false, Relaxed);
        if own_size != size {
            self.resized.tell(ino);
        }
        Ok(())
    }
}
