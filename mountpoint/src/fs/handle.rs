//! Open files and directories by the kernel's handle numbers.

use std::collections::HashMap;

use rustix::io::Errno;

use super::ending::Ending;
use super::read_mode::Course;
use super::{Error, Result};
use crate::inode::{InodeNo, Listing};
use crate::object::ObjectKey;
use crate::prefetch::Reader;
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use crate::sync::{Arc, Mutex, RwLock};
use crate::upload::Upload;

/// Names an open file or directory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct HandleNo(pub u64);

/// An open file: one that is read or one that is written, never both.
#[derive(Debug)]
pub(super) struct FileHandle {
    pub(super) ino: InodeNo,
    /// Process that opened it for writing; for reading, whatever the kernel said.
    pub(super) opener: u32,
    pub(super) mode: Mode,
    /// Of a handle that reads; the kernel maps no page of one that writes.
    pub(super) mapping: Mapping,
    /// Of a handle that reads.
    pub(super) closing: Closing,
}

#[derive(Debug)]
pub(super) enum Mode {
    Read(Reading),
    Write(Writer),
}

/// A handle for reading.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) reader: Reader,
    /// What was read so far, for the files that are opened later.
    pub(super) course: Course,
}

/// A handle for writing. Where it stands, its upload knows (`upload::Stage`).
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) key: ObjectKey,
    pub(super) upload: Arc<Upload>,
    /// Held while the inode table takes the outcome, so that a second caller finds it there.
    pub(super) settling: Mutex<()>,
    /// Whether a program receives the outcome, or the log.
    pub(super) ending: Ending,
    /// The thread that wrote last; 0 before the first byte.
    pub(super) last: AtomicU32,
    /// The opener closed its last descriptor and the writing went on: a process that closes one is another, even by the same number.
    pub(super) opener_left: AtomicBool,
}

/// The mappings of a handle, as far as they are known (see `mapping.rs`).
#[derive(Debug, Default)]
pub(super) struct Mapping {
    /// It was opened with O_RDWR, and reads.
    pub(super) may_write: bool,
    /// A change of the file was refused.
    refused: AtomicBool,
}

/// Whether a descriptor of a handle that reads was closed; mostly it was the last one (see `readers.rs`).
#[derive(Debug, Default)]
pub(super) struct Closing(AtomicBool);

/// An open directory.
#[derive(Debug)]
pub(super) struct DirHandle {
    pub(super) ino: InodeNo,
    pub(super) listing: Listing,
}

/// All open files or directories of a mount. The lock is held for the look-up only.
#[derive(Debug)]
pub(super) struct HandleTable<T> {
    open: RwLock<HashMap<u64, Arc<T>>>,
    next: AtomicU64,
}

impl<T> Default for HandleTable<T> {
    fn default() -> Self {
        Self { open: RwLock::default(), next: AtomicU64::new(1) }
    }
}

impl<T> HandleTable<T> {
    /// A free number, before there is a handle behind it.
    pub(super) fn reserve(&self) -> HandleNo {
        HandleNo(self.next.fetch_add(1, Relaxed))
    }

    pub(super) fn insert(&self, no: HandleNo, handle: T) {
        self.open.write().insert(no.0, Arc::new(handle));
    }

    pub(super) fn get(&self, no: HandleNo) -> Result<Arc<T>> {
        self.find(no).ok_or_else(|| Error::new(Errno::BADF, format!("handle {} is not open", no.0)))
    }

    pub(super) fn find(&self, no: HandleNo) -> Option<Arc<T>> {
        self.open.read().get(&no.0).cloned()
    }

    pub(super) fn remove(&self, no: HandleNo) -> Option<Arc<T>> {
        self.open.write().remove(&no.0)
    }

    pub(super) fn all(&self) -> Vec<Arc<T>> {
        self.open.read().values().cloned().collect()
    }
}

impl Writer {
    /// Of a new file, to be stored under `key`.
    pub(super) fn new(upload: Arc<Upload>, key: ObjectKey) -> Self {
        Self {
            key,
            upload,
            settling: Mutex::new(()),
            ending: Ending::default(),
            last: AtomicU32::new(0),
            opener_left: AtomicBool::new(false),
        }
    }
}

impl FileHandle {
    pub(super) fn reading(&self) -> Result<&Reading> {
        match &self.mode {
            Mode::Read(reading) => Ok(reading),
            Mode::Write(_) => Err(Error::new(
                Errno::BADF,
                format!(
                    "inode {}: a file that is being written can't be read before it is closed",
                    self.ino.0
                ),
            )),
        }
    }

    pub(super) fn writer(&self) -> Result<&Writer> {
        match &self.mode {
            Mode::Write(writer) => Ok(writer),
            Mode::Read(_) => Err(Error::new(
                Errno::BADF,
                format!(
                    "inode {}: opened for reading; to replace a file, open it with O_TRUNC under --allow-overwrite",
                    self.ino.0
                ),
            )),
        }
    }
}

impl Mapping {
    /// Of a handle that reads.
    pub(super) fn new(may_write: bool) -> Self {
        Self { may_write, refused: AtomicBool::new(false) }
    }

    /// A change of the file is refused. True the first time.
    pub(super) fn refuse(&self) -> bool {
        !self.refused.swap(true, Relaxed)
    }

    /// Whether a change was refused.
    pub(super) fn is_refused(&self) -> bool {
        self.refused.load(Relaxed)
    }
}

impl Closing {
    /// One was closed. Copies of it may be open, and mappings.
    pub(super) fn flushed(&self) {
        self.0.store(true, Relaxed);
    }

    /// Whether the RELEASE is likely to be on its way.
    pub(super) fn is_likely(&self) -> bool {
        self.0.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    #[cfg(feature = "shuttle")]
    #[test]
    fn shuttle_a_handle_is_found_by_its_number_until_one_thread_removes_it() {
        use shuttle::thread::spawn;

        use super::*;
        crate::testing::model::check(|| {
            let table = Arc::new(HandleTable::<u64>::default());
            let opened: Vec<_> = (0..3)
                .map(|_| {
                    let table = Arc::clone(&table);
                    spawn(move || {
                        let no = table.reserve();
                        assert!(table.find(no).is_none(), "a number that was given already");
                        table.insert(no, no.0);
                        assert_eq!(table.get(no).map(|handle| *handle).ok(), Some(no.0));
                        let twin = Arc::clone(&table);
                        let closing = spawn(move || twin.remove(no).is_some());
                        assert!(table.all().iter().all(|handle| **handle <= 3));
                        let here = table.remove(no).is_some();
                        assert!(here ^ closing.join().unwrap(), "one of two has it");
                        assert!(table.get(no).is_err());
                        no
                    })
                })
                .collect();
            let mut numbers: Vec<_> = opened.into_iter().map(|thread| thread.join().unwrap().0).collect();
            numbers.sort_unstable();
            assert_eq!(numbers, [1, 2, 3]);
            assert!(table.all().is_empty());
        });
    }
}
