//! Open files and directories that outlive an engine: recorded while they are open, taken over by the next engine.
//!
//! A file that is being written does not outlive its engine: each call on its handle fails until its close, so no program believes that the
//! file is stored.

use std::sync::{OnceLock, mpsc};

use super::handle::{Closing, DirHandle, FileHandle, HandleNo, HandleTable, Mapping, Mode, Reading};
use super::read_mode::Course;
use super::short::Short;
use super::{DirItem, FileSystem};
use crate::inode::InodeNo;
use crate::outlive::{self, Journal, Place, Record, Restored};
use crate::sync::atomic::AtomicBool;
use crate::sync::{Arc, Mutex};

impl FileSystem {
    /// Takes over the open files and directories of an earlier engine, and records from now on. `runtime` runs the listings, and takes in the
    /// directories that no open file needs, while reads are answered. Call this before the kernel's first request.
    #[must_use]
    pub fn outliving(
        self,
        journal: Arc<Journal>,
        restored: Restored,
        runtime: &tokio::runtime::Handle,
    ) -> Self {
        let (files, dirs) = (HandleTable::outliving(&journal), HandleTable::outliving(&journal));
        let fs = Self { files, dirs, journal: Some(Arc::clone(&journal)), ..self };
        let Restored { directories, files, listings } = restored;
        let (versions, rest) = fs.inodes.outlive(&journal, directories, (&files, &listings));
        for (file, id) in files.iter().zip(versions) {
            let (no, ino) = (HandleNo(file.handle), InodeNo(file.ino));
            let Some(id) = id else {
                journal.forget_file(no.0);
                continue;
            };
            if journal.agreed().passthrough {
                fs.io_modes.restore(ino, file.passthrough);
            }
            let reader = fs.prefetcher.open(id, file.size, None);
            let course = Course::of_before(file.direct);
            // The journal does not have the kernel's size of the file.
            let may_read_behind = !file.direct && file.passthrough.is_none();
            let mode = Mode::Read(Reading {
                reader,
                is_listed: AtomicBool::new(false),
                own: OnceLock::new(),
                short: if may_read_behind {
                    OnceLock::from(Short::before_reads(file.size))
                } else {
                    OnceLock::new()
                },
                passthrough: file.passthrough,
                course,
            });
            let mapping = Mapping::new(file.may_write);
            if file.refused {
                mapping.refuse();
            }
            let handle = FileHandle { ino, opener: 0, mode, mapping, closing: Closing::default() };
            fs.files.insert(no, handle);
        }
        for dir in &listings {
            let (no, ino) = (HandleNo(dir.handle), InodeNo(dir.ino));
            match fs.inodes.reopen(ino, dir.places.clone(), runtime.clone()) {
                Ok(listing) => {
                    let places = Mutex::new(dir.places.clone());
                    fs.dirs.insert(no, DirHandle { ino, listing, places });
                }
                Err(_) => journal.forget_listing(no.0),
            }
        }
        let (inodes, (holds, held)) = (fs.inodes.clone(), mpsc::channel::<()>());
        runtime.spawn_blocking(move || inodes.take_in(rest, move || drop(holds)));
        // From here on, a request for a name waits until all directories are there.
        let _ = held.recv();
        fs
    }

    /// Notes that the kernel is about to learn the handle of an open file, by the answer to its request `unique`.
    pub fn gives_file(&self, no: HandleNo, unique: u64) {
        self.record(no, Some(Journal::first(unique)));
    }

    /// Notes that the kernel is about to learn the handle of an open directory, by the answer to its request `unique`.
    pub fn gives_directory(&self, no: HandleNo, unique: u64) {
        self.record_listing(no, None, Some(Journal::first(unique)));
    }

    /// The handle that an earlier engine made for this request, and that the kernel does not know.
    pub fn unanswered(&self, unique: u64) -> Option<outlive::Handle> {
        self.journal.as_ref()?.unanswered(unique)
    }

    /// Records the present state of a file that is open for reading. The kernel knows its handle.
    pub(super) fn record_file(&self, no: HandleNo) {
        self.record(no, None);
    }

    fn record(&self, no: HandleNo, asked: Option<u64>) {
        let Some(journal) = &self.journal else { return };
        let Some(open) = self.files.find(no) else { return };
        let Mode::Read(reading) = &open.mode else { return };
        let Some((parent, name, meta)) = self.inodes.whereabouts(open.ino) else { return };
        journal.record(&Record::File(outlive::File {
            handle: no.0,
            ino: open.ino.0,
            parent: parent.0,
            name,
            etag: meta.etag.as_str().into(),
            size: meta.size,
            modified: meta.last_modified,
            passthrough: reading.passthrough,
            direct: reading.course.is_direct,
            may_write: open.mapping.may_write,
            refused: open.mapping.is_refused(),
            asked,
        }));
    }

    /// Records the handles of a file that has another name now.
    pub(super) fn record_files_of(&self, ino: InodeNo) {
        if self.journal.is_some() {
            let open = self.files.numbered().into_iter().filter(|(_, open)| open.ino == ino);
            open.for_each(|(no, _)| self.record_file(no));
        }
    }

    /// Records an open directory. `answer`: the kernel requested names from this offset on, and is about to get those up to this one.
    fn record_listing(&self, no: HandleNo, answer: Option<(u64, &DirItem)>, asked: Option<u64>) {
        let Some(journal) = &self.journal else { return };
        let Some(dir) = self.dirs.find(no) else { return };
        let mut places = dir.places.lock();
        if let Some((asked, item)) = answer {
            let name = item.name().to_str().filter(|_| item.offset > 2).unwrap_or_default();
            let place = Place { offset: item.offset, name: name.into() };
            let before = std::mem::replace(&mut places[1], place);
            // If this answer is lost, the kernel repeats the request from the same offset.
            if places[0].offset != asked || before.offset == asked {
                places[0] = before;
            }
        }
        let (handle, ino) = (no.0, dir.ino.0);
        journal.record(&Record::Listing(outlive::Listing { handle, ino, places: places.clone(), asked }));
    }

    /// Notes that the kernel requested the names of an open directory from `offset` on, and is about to get those up to this one.
    pub fn gives(&self, no: HandleNo, offset: u64, last: &DirItem) {
        self.record_listing(no, Some((offset, last)), None);
    }

    pub(super) fn forget_file(&self, no: HandleNo) {
        if let Some(journal) = &self.journal {
            journal.forget_file(no.0);
        }
    }

    pub(super) fn forget_listing(&self, no: HandleNo) {
        if let Some(journal) = &self.journal {
            journal.forget_listing(no.0);
        }
    }
}
