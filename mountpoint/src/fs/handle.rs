//! Open files and directories by the kernel's handle numbers.

use std::collections::HashMap;
use std::sync::OnceLock;

use rustix::io::Errno;
use tokio::sync::OnceCell;

use super::ending::Ending;
use super::old_name::OldName;
use super::read_mode::Course;
use super::short::Short;
use super::{Error, Result};
use crate::inode::{InodeNo, Listing};
use crate::moves::Replaces;
use crate::object::{ObjectKey, ObjectMeta};
use crate::outlive::{self, Journal, Mark};
use crate::prefetch::Reader;
use crate::stage::Staged;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use crate::sync::{Arc, Mutex, RwLock};
use crate::upload::{self, Upload};

/// The kernel's number of an open file or directory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct HandleNo(pub u64);

/// An open file, for reading or for writing; only a handle of the stage does both.
#[derive(Debug)]
pub(super) struct FileHandle {
    pub(super) ino: InodeNo,
    /// Process that opened the file for writing; for a reader, the number that the kernel gave.
    pub(super) opener: u32,
    pub(super) mode: Mode,
    /// Mappings of a handle that reads; the kernel maps no page of a handle that writes.
    pub(super) mapping: Mapping,
    /// The closes of a handle that reads.
    pub(super) closing: Closing,
}

#[derive(Debug)]
pub(super) enum Mode {
    Read(Reading),
    Write(Writer),
    /// A handle that reads and writes through the stage.
    Staged(StagedHandle),
}

/// A handle for reading.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) reader: Reader,
    /// Whether only a listing named the version of the reader, and none of its bytes has arrived (`listed.rs`).
    pub(super) is_listed: AtomicBool,
    /// The reader of the object's own version, if the listing named another one.
    pub(super) own: OnceLock<Box<Reader>>,
    /// Set if the kernel's size may be larger than the version's.
    pub(super) short: OnceLock<Short>,
    /// The number of the file that the kernel reads itself.
    pub(super) passthrough: Option<u32>,
    /// The reads so far, which decide the read mode of files opened later.
    pub(super) course: Course,
}

/// A handle for writing. `upload` has the stage of the upload (`upload::Stage`).
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) upload: Arc<Upload>,
    /// The move after the object is stored: the upload had begun with the old key when the file was renamed.
    pub(super) moves: Mutex<Option<Move>>,
    /// The outcome of that move.
    pub(super) moved: OnceCell<std::result::Result<ObjectMeta, upload::Error>>,
    /// Locked while the inode table takes the outcome, so a second caller finds the outcome there.
    pub(super) settling: Mutex<()>,
    /// Reports the outcome to a program, or to the log.
    pub(super) ending: Ending,
    pub(super) last: LastWriter,
    /// Whether the opener closed its last descriptor and the writing went on: then a later close comes from another process, even if that
    /// process has the same number.
    pub(super) opener_left: AtomicBool,
}

/// A handle of a file in the stage.
#[derive(Debug)]
pub(super) struct StagedHandle {
    pub(super) staged: Arc<Staged>,
    /// Whether the open was for writing.
    pub(super) writes: bool,
    /// Whether mappings of the handle change pages of the mount, which the kernel sends later.
    pub(super) maps: bool,
    pub(super) last: LastWriter,
    /// Whether the opener closed its last descriptor that writes, as in [`Writer`].
    pub(super) opener_left: AtomicBool,
}

/// The thread that wrote to a handle last, with its process: the thread may have ended before the process is needed.
#[derive(Debug)]
pub(super) struct LastWriter {
    /// The thread that opened the file, and its process.
    opened_by: (u32, u32),
    /// The process in the upper half and the thread in the lower half; 0 before the first byte.
    last: AtomicU64,
    /// Processes of other threads that wrote before, by thread: programs write by many threads in turn.
    known: Mutex<HashMap<u32, u32>>,
}

impl LastWriter {
    /// Most threads whose processes are kept; one more drops all. Doubling it reads `/proc` less often for programs that write by more
    /// threads.
    const KNOWN_MAX: usize = 64;

    pub(super) fn new(opened_by: (u32, u32)) -> Self {
        Self { opened_by, last: AtomicU64::new(0), known: Mutex::default() }
    }

    /// Notes that a thread writes. `process_of` finds the process of a thread that neither opened the file nor is known.
    pub(super) fn is(&self, thread: u32, process_of: impl FnOnce(u32) -> Option<u32>) {
        if self.last.load(Relaxed) as u32 == thread {
            return;
        }
        let process = if thread == self.opened_by.0 {
            self.opened_by.1
        } else {
            let mut known = self.known.lock();
            if known.len() >= Self::KNOWN_MAX && !known.contains_key(&thread) {
                known.clear();
            }
            *known.entry(thread).or_insert_with(|| process_of(thread).unwrap_or(thread))
        };
        self.last.store(u64::from(process) << 32 | u64::from(thread), Relaxed);
    }

    /// The thread and its process; `None` before the first byte, and for a thread in a process namespace that the engine can't see.
    pub(super) fn get(&self) -> Option<(u32, u32)> {
        let last = self.last.load(Relaxed);
        (last as u32 != 0).then_some((last as u32, (last >> 32) as u32))
    }
}

/// The known mappings of a handle (see `mapping.rs`).
#[derive(Debug, Default)]
pub(super) struct Mapping {
    /// Whether the handle was opened with O_RDWR, and reads.
    pub(super) may_write: bool,
    /// Whether a change of the file was refused.
    refused: AtomicBool,
}

/// Whether a descriptor of a read handle was closed; usually that was the last one (see `readers.rs`).
#[derive(Debug, Default)]
pub(super) struct Closing(AtomicBool);

/// An open directory.
#[derive(Debug)]
pub(super) struct DirHandle {
    pub(super) ino: InodeNo,
    pub(super) listing: Listing,
    /// The ends of the last two answers, if the mount may outlive this engine.
    pub(super) places: Mutex<[outlive::Place; 2]>,
}

/// All open files or directories of a mount. The lock is held for the look-up only.
#[derive(Debug)]
pub(super) struct HandleTable<T> {
    open: RwLock<HashMap<u64, Arc<T>>>,
    next: AtomicU64,
    /// End of the numbers that the journal reserves, if the mount may outlive this engine.
    limit: AtomicU64,
    journal: Option<Arc<Journal>>,
    /// End of the numbers that earlier engines gave out.
    lost_below: u64,
}

impl<T> Default for HandleTable<T> {
    fn default() -> Self {
        Self {
            open: RwLock::default(),
            next: AtomicU64::new(1),
            limit: AtomicU64::new(u64::MAX),
            journal: None,
            lost_below: 0,
        }
    }
}

impl<T> HandleTable<T> {
    /// A table for a mount that outlives its engine: it gives out no number of an earlier engine.
    pub(super) fn outliving(journal: &Arc<Journal>) -> Self {
        let first = journal.marks().handles;
        let (next, limit) = (AtomicU64::new(first), AtomicU64::new(first));
        Self { next, limit, journal: Some(Arc::clone(journal)), lost_below: first, ..Self::default() }
    }

    /// Reserves a number for a handle that is about to be made.
    pub(super) fn reserve(&self) -> HandleNo {
        let no = self.next.fetch_add(1, Relaxed);
        if no >= self.limit.load(Relaxed)
            && let Some(journal) = &self.journal
        {
            self.limit.fetch_max(journal.raise(Mark::Handles, no), Relaxed);
        }
        HandleNo(no)
    }

    /// Number of open entries, and the next number.
    pub(super) fn count(&self) -> (usize, u64) {
        (self.open.read().len(), self.next.load(Relaxed))
    }

    /// Whether this is the number of a handle of an earlier engine that this engine did not take over.
    pub(super) fn is_lost(&self, no: HandleNo) -> bool {
        no.0 < self.lost_below && self.find(no).is_none()
    }

    pub(super) fn insert(&self, no: HandleNo, handle: T) {
        self.open.write().insert(no.0, Arc::new(handle));
    }

    pub(super) fn get(&self, no: HandleNo) -> Result<Arc<T>> {
        self.find(no).ok_or_else(|| match no.0 < self.lost_below {
            true => {
                let why = "was opened before the engine was restarted, and can't go on: close it; what was written by it is not stored";
                Error::new(Errno::IO, format!("handle {} {why}", no.0))
            }
            false => Error::new(Errno::BADF, format!("handle {} is not open", no.0)),
        })
    }

    pub(super) fn find(&self, no: HandleNo) -> Option<Arc<T>> {
        self.open.read().get(&no.0).cloned()
    }

    pub(super) fn remove(&self, no: HandleNo) -> Option<Arc<T>> {
        self.open.write().remove(&no.0)
    }

    /// All open entries with their numbers.
    pub(super) fn numbered(&self) -> Vec<(HandleNo, Arc<T>)> {
        self.open.read().iter().map(|(no, handle)| (HandleNo(*no), Arc::clone(handle))).collect()
    }

    pub(super) fn all(&self) -> Vec<Arc<T>> {
        self.open.read().values().cloned().collect()
    }
}

impl Writer {
    /// The state of a new handle for writing. `opened_by`: a thread and its process.
    pub(super) fn new(upload: Arc<Upload>, opened_by: (u32, u32)) -> Self {
        Self {
            upload,
            moves: Mutex::default(),
            moved: OnceCell::new(),
            settling: Mutex::new(()),
            ending: Ending::default(),
            last: LastWriter::new(opened_by),
            opener_left: AtomicBool::new(false),
        }
    }
}

/// A move that is due once the object is stored.
#[derive(Debug)]
pub(super) struct Move {
    pub(super) to: ObjectKey,
    pub(super) replaces: Replaces,
    /// The key of the upload, until the object has moved.
    pub(super) old_name: Option<OldName>,
}

impl Writer {
    /// Notes the newest name of a file whose upload can't change its key. The key of the upload itself needs no move.
    pub(super) fn moves_later(&self, (to, replaces): (ObjectKey, Replaces), old_name: OldName) {
        let moves = (to != *old_name.key()).then(|| Move { to, replaces, old_name: Some(old_name) });
        *self.moves.lock() = moves;
    }
}

impl Reading {
    /// Checks that a read may be answered with the received bytes (`short.rs`). `is_old`: the same as in [`Short::allows`].
    ///
    /// # Errors
    /// `STALE`: the read may not be answered. The kernel sends another read for bytes that a program waits for.
    pub(super) fn allows(&self, offset: u64, len: usize, is_old: impl FnOnce() -> bool) -> Result<()> {
        match self.short.get() {
            Some(short) if !short.allows(offset, len, is_old) => {
                let key = &self.reader.id().key;
                let why = format!("\"{}\" ends before the {len} bytes at {offset}", key.as_str());
                // The log has the wrong size already, and the kernel requests many bytes that no program waits for.
                Err(Error::new(Errno::STALE, why).already_logged())
            }
            _ => Ok(()),
        }
    }
}

impl FileHandle {
    pub(super) fn reading(&self) -> Result<&Reading> {
        match &self.mode {
            Mode::Read(reading) => Ok(reading),
            Mode::Write(_) | Mode::Staged(_) => Err(Error::new(
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
            Mode::Read(_) | Mode::Staged(_) => Err(Error::new(
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
    /// The mappings of a new handle that reads: none yet.
    pub(super) fn new(may_write: bool) -> Self {
        Self { may_write, refused: AtomicBool::new(false) }
    }

    /// Notes that a change of the file was refused; true the first time.
    pub(super) fn refuse(&self) -> bool {
        !self.refused.swap(true, Relaxed)
    }

    /// Whether a change was refused.
    pub(super) fn is_refused(&self) -> bool {
        self.refused.load(Relaxed)
    }
}

impl Closing {
    /// Notes that a descriptor was closed. Copies of it and mappings may still be open.
    pub(super) fn flushed(&self) {
        self.0.store(true, Relaxed);
    }

    /// Whether the RELEASE will probably come soon.
    pub(super) fn is_likely(&self) -> bool {
        self.0.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_process_of_a_thread_is_asked_once_and_kept_beyond_its_end() {
        let last = super::LastWriter::new((11, 10));
        assert_eq!(last.get(), None);
        last.is(11, |_| unreachable!("it opened the file"));
        assert_eq!(last.get(), Some((11, 10)));
        last.is(21, |_| Some(20));
        last.is(11, |_| unreachable!("it opened the file"));
        last.is(21, |_| None);
        assert_eq!(last.get(), Some((21, 20)));
        for other in 100..1000 {
            last.is(other, |_| None);
            assert_eq!(last.get(), Some((other, other)));
        }
        assert!(last.known.lock().len() <= super::LastWriter::KNOWN_MAX);
    }

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
