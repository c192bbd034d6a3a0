//! One staged file: its changes, and its records in the log.

use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::time::SystemTime;

use super::disk::Content;
use super::going::Ahead;
use super::image::{Fate, Image};
use super::lent::Lent;
use super::live::Live;
use super::log::{Digest, Dirty, Record};
use super::pieces::Copying;
use super::recover::Pending;
use super::turn::Turns;
use super::{Base, Error, Shared};
use crate::object::{ETag, ObjectId, ObjectKey, ObjectMeta};
use crate::prefetch::Reader;
use crate::s3::Replaces;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use crate::sync::{Arc, Mutex};

/// A file that programs read and change. The local disk has its bytes, except those that are only in the object.
///
/// One lock covers a change and its write to the local disk: two writes at one place do not mix, and a new size counts for the next
/// write.
pub struct Staged {
    pub(super) shared: Arc<Shared>,
    pub(super) number: u64,
    /// Number of names in `files/` up to the file's own.
    pub(super) names: u64,
    /// The open local file, while a program has the file open or a send reads it.
    pub(super) file: Mutex<Option<Arc<File>>>,
    pub(super) state: Mutex<State>,
    /// Whether no program has the file open for writing. Apart from the state, whose lock a close must not wait for: it holds the lock of
    /// all files.
    pub(super) is_closed: AtomicBool,
    was_closed: AtomicBool,
    /// The size from which full parts are due to go out early.
    pub(super) due: AtomicU64,
    /// One for each send, and each change of the name.
    pub(super) turns: Turns,
    /// Locked by the thread that syncs the file: the log has one mark per file.
    pub(super) syncing: Mutex<()>,
    /// Locked while a request replaces the version that reads of the file may need.
    pub(super) replacing: tokio::sync::Mutex<()>,
}

pub(super) struct State {
    pub(super) image: Image,
    /// The key for the file's object.
    pub(super) key: ObjectKey,
    /// The version in the bucket that a send replaces.
    pub(super) replaces: Replaces,
    /// The reader of the bytes that only the object has.
    pub(super) reader: Option<Arc<Reader>>,
    /// The error with which every change fails.
    pub(super) error: Option<Error>,
    /// Whether the log records that the file has changes.
    pub(super) is_noted: bool,
    /// Whether that record says that all bytes are here.
    pub(super) is_noted_whole: bool,
    /// Whether a later record says so.
    is_sealed: bool,
    /// The state of a file that the kernel writes, or may have written.
    pub(super) lent: Option<Lent>,
    /// Whether the file was ever lent to the kernel.
    pub(super) was_lent: bool,
    /// Time of a change by the kernel that no one has taken.
    pub(super) modified: Option<SystemTime>,
    /// Size of the object that a send replaces.
    pub(super) object: u64,
    /// Images of unanswered requests: the bucket may have one of them.
    pub(super) sent: Vec<Digest>,
    /// The copy of the file that is being made for a send.
    pub(super) copying: Option<Copying>,
    /// The upload that began while programs write the file.
    pub(super) ahead: Ahead,
    /// Whether the log once called the file's bytes durable.
    pub(super) was_synced: bool,
    /// The change up to which the bytes are durable.
    pub(super) synced: Option<u64>,
    /// Whether the file's name in `files/` is durable.
    pub(super) is_named: bool,
    /// Number of first changes after an open.
    pub(super) opens: u64,
    /// Number of facts in the log about the file's name, object and opens.
    pub(super) facts: u64,
    /// The number of facts with which the log, as the disk has it, vouches for whatever the file has on the disk.
    pub(super) vouched: Option<u64>,
    /// An image of this file that the bucket turned out to have, for the tree of names.
    pub(super) adopted: Option<ObjectMeta>,
}

/// Bytes that the local disk lacks.
#[derive(PartialEq, Eq)]
pub(super) struct Elsewhere {
    pub(super) runs: Vec<Range<u64>>,
    /// The version that has these bytes.
    id: Option<ObjectId>,
}

impl State {
    fn new(
        image: Image,
        key: ObjectKey,
        replaces: Replaces,
        reader: Option<Arc<Reader>>,
        object: u64,
    ) -> Self {
        Self {
            image,
            key,
            replaces,
            reader,
            error: None,
            is_noted: false,
            is_noted_whole: false,
            is_sealed: false,
            lent: None,
            was_lent: false,
            modified: None,
            object,
            sent: Vec::new(),
            copying: None,
            ahead: Ahead::default(),
            was_synced: false,
            synced: None,
            is_named: false,
            opens: 0,
            facts: 0,
            vouched: None,
            adopted: None,
        }
    }

    pub(super) fn elsewhere(&self, range: &Range<u64>) -> Elsewhere {
        let id = self.reader.as_ref().map(|reader| reader.id().clone());
        Elsewhere { runs: self.image.missing(range.clone()), id }
    }

    pub(super) fn replaced(&self) -> Option<String> {
        match &self.replaces {
            Replaces::Version(etag) => Some(etag.as_str().to_owned()),
            Replaces::Anything | Replaces::Nothing => None,
        }
    }
}

impl Staged {
    /// Makes the file in the stage.
    pub(super) fn create(shared: Arc<Shared>, key: ObjectKey, base: Option<Base>) -> Result<Self, Error> {
        let (number, file) = shared.folder.create()?;
        let names = shared.folder.names_made();
        let state = match base {
            None => State::new(Image::new(), key, Replaces::Nothing, None, 0),
            Some(Base { id, size, first }) => {
                shared.folder.disk().set_len(&file, size)?;
                let replaces = Replaces::Version(id.etag.clone());
                let reader = shared.prefetcher.open(id, size, first);
                State::new(Image::of_object(size), key, replaces, Some(Arc::new(reader)), size)
            }
        };
        let (file, state) = (Mutex::new(Some(Arc::new(file))), Mutex::new(state));
        let (is_closed, was_closed, turns, syncing, replacing) = Default::default();
        let due = AtomicU64::new(Self::ahead_from(&shared));
        Ok(Self { shared, number, names, file, state, is_closed, was_closed, due, turns, syncing, replacing })
    }

    /// A file that an earlier mount left for this mount to store.
    pub(super) fn pending(shared: Arc<Shared>, Pending { live, size, modified, is_out }: Pending) -> Self {
        let over = live.over_object();
        let is_sealed = over.is_none();
        let Live { dirty, sending, is_synced, .. } = live;
        let key = ObjectKey::new(dirty.key.unwrap_or_default());
        let base = over.as_ref().map_or(0, |(base, _)| *base);
        let image = Image::pending(size, base, over.map(|(_, runs)| runs));
        shared.folder.hold(image.held());
        let etag = dirty.replaces.map(ETag::new);
        let reader = etag.clone().filter(|_| image.needs_base()).map(|etag| {
            let id = ObjectId { key: key.clone(), etag, modified: None };
            Arc::new(shared.prefetcher.open(id, dirty.object, None))
        });
        let replaces = etag.map_or(Replaces::Nothing, Replaces::Version);
        let is_whole = !image.needs_base();
        let now = shared.folder.clock().wall();
        let lent = (is_whole && is_out).then(|| Lent::of_before(size, modified, now));
        let state = State {
            is_noted: true,
            is_noted_whole: !dirty.is_partial,
            is_sealed,
            was_lent: lent.is_some(),
            lent,
            is_named: true,
            was_synced: is_synced,
            sent: sending,
            ..State::new(image, key, replaces, reader, dirty.object)
        };
        Self {
            shared,
            number: dirty.file,
            names: 0,
            file: Mutex::default(),
            state: Mutex::new(state),
            is_closed: AtomicBool::new(true),
            was_closed: AtomicBool::new(true),
            // A file that an earlier mount left goes out as a whole.
            due: AtomicU64::new(u64::MAX),
            turns: Turns::default(),
            syncing: Mutex::default(),
            replacing: tokio::sync::Mutex::default(),
        }
    }

    /// The open file on the local disk.
    pub(super) fn file(&self) -> std::io::Result<Arc<File>> {
        let mut file = self.file.lock();
        if let Some(file) = &*file {
            return Ok(Arc::clone(file));
        }
        let opened = Arc::new(self.shared.folder.reopen(self.number)?);
        *file = Some(Arc::clone(&opened));
        Ok(opened)
    }

    /// The file on the local disk, for a short task: afterwards a waiting file holds no descriptor.
    pub(super) fn file_for_now(&self) -> std::io::Result<Arc<File>> {
        match &*self.file.lock() {
            Some(file) => Ok(Arc::clone(file)),
            None => Ok(Arc::new(self.shared.folder.reopen(self.number)?)),
        }
    }

    /// Notes that no program has the file open for writing any more.
    pub fn closed(&self) {
        self.was_closed.store(true, Relaxed);
        self.is_closed.store(true, Relaxed);
    }

    /// Whether a program made and closed the file, or an earlier mount left it.
    pub fn was_closed(&self) -> bool {
        self.was_closed.load(Relaxed)
    }

    /// Closes the local file, because more files may wait for a send than may be open.
    pub fn rest(&self) {
        let mut state = self.state.lock();
        if let Some(lent) = &mut state.lent {
            lent.rest();
        }
        if !state.image.is_kept() {
            *self.file.lock() = None;
        }
    }

    /// Number of the file, unique in this mount.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Bytes of the file.
    pub fn size(&self) -> u64 {
        self.look().image.size()
    }

    /// The key for the file's object.
    pub fn key(&self) -> ObjectKey {
        self.state.lock().key.clone()
    }

    /// Whether the bucket lacks a change of the file.
    pub fn is_dirty(&self) -> bool {
        let mut state = self.state.lock();
        let is_known = |state: &State| state.image.is_dirty() || self.is_loose(state);
        if is_known(&state) {
            return true;
        }
        self.observe(&mut state);
        is_known(&state)
    }

    /// Whether the file's bytes lie in `kept/`.
    pub fn is_kept(&self) -> bool {
        self.state.lock().image.is_kept()
    }

    /// Whether the bucket has an object under the file's key, as far as this mount knows.
    pub fn is_in_bucket(&self) -> bool {
        self.state.lock().replaces != Replaces::Nothing
    }

    /// ETag and size of the object that the file replaces.
    pub fn replaced_object(&self) -> Option<(ETag, u64)> {
        let state = self.state.lock();
        match &state.replaces {
            Replaces::Version(etag) => Some((etag.clone(), state.object)),
            Replaces::Anything | Replaces::Nothing => None,
        }
    }

    /// The error with which every change of the file fails.
    pub fn error(&self) -> Option<Error> {
        self.state.lock().error.clone()
    }

    /// Writes all of `data` at `offset`. Returns the size of the file.
    ///
    /// # Errors
    /// `Full`, `Disk`; that of a conflict.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<u64, Error> {
        let mut state = self.look();
        let range = offset..offset.saturating_add(data.len() as u64);
        self.begin_change(&mut state)?;
        self.change(&mut state, range, Content::Bytes(data))?;
        Ok(state.image.size())
    }

    /// Sets the size.
    ///
    /// # Errors
    /// The errors of a write.
    pub fn set_size(&self, size: u64) -> Result<(), Error> {
        let mut state = self.look();
        self.begin_change(&mut state)?;
        let file = self.file()?;
        let end = state.image.size();
        self.save_for_copy(&mut state, &file, size..end);
        state.ahead.resized(size);
        self.shared.folder.disk().set_len(&file, size)?;
        let held = state.image.held();
        let is_cut = self.logs_ranges(&state) && size < state.image.base();
        state.image.resized(size);
        self.shared.folder.give(held - state.image.held());
        if is_cut {
            let noted = self.shared.folder.append(&[Record::Cut { file: self.number, base: size }]);
            // The file is shorter even if the record failed: the next change records all of the file anew, or fails.
            if let Err(error) = noted {
                self.is_closed.store(true, Relaxed);
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Sets the size as [`Staged::set_size`] does, and leaves the thread if the change has to wait for the disk.
    ///
    /// # Errors
    /// The errors of a write.
    pub async fn resize(self: &Arc<Self>, size: u64) -> Result<(), Error> {
        if !self.waits_for_disk() {
            return self.set_size(size);
        }
        let this = Arc::clone(self);
        let resized = self.shared.runtime.spawn_blocking(move || this.set_size(size));
        resized.await.map_err(std::io::Error::other)?
    }

    /// Whether the next change waits for the disk: its record must be durable before it, it saves bytes for a copy, or `kept/` is counted
    /// before it.
    pub fn waits_for_disk(&self) -> bool {
        let state = self.state.lock();
        state.was_synced && (!state.is_noted || self.is_closed.load(Relaxed))
            || state.copying.is_some()
            || self.shared.folder.may_grow().is_err()
    }

    /// Fills a range with zeros, within the file's size: by holes in the local file.
    ///
    /// # Errors
    /// The errors of a write.
    pub fn zero(&self, range: Range<u64>) -> Result<(), Error> {
        let mut state = self.look();
        self.begin_change(&mut state)?;
        for run in state.image.not_zero(range) {
            self.change(&mut state, run, Content::Zeros)?;
        }
        Ok(())
    }

    /// Notes the first change after an open in the log, before the change happens.
    fn begin_change(&self, state: &mut State) -> Result<(), Error> {
        if let Some(error) = &state.error {
            return Err(error.clone());
        }
        // A close that comes from here on counts for the next change.
        let was_closed = self.is_closed.swap(false, Relaxed);
        if !state.is_noted || was_closed {
            let begun = self.note_first(state);
            if was_closed && begun.is_err() {
                self.is_closed.store(true, Relaxed);
            }
            begun?;
        }
        self.seal(state)
    }

    /// Notes in the log that the file has all its bytes, unless it says so already: from then on the log gets no range that is written.
    pub(super) fn seal(&self, state: &mut State) -> Result<(), Error> {
        if !state.is_noted_whole && !state.is_sealed && !state.image.needs_base() {
            self.shared.folder.append(&[Record::Sealed { file: self.number }])?;
            state.is_sealed = true;
        }
        Ok(())
    }

    fn note_first(&self, state: &mut State) -> Result<(), Error> {
        self.note(state)?;
        // The disk may take the change before the record; then the synced bytes would mix two moments.
        if state.was_synced {
            self.shared.folder.sync_log()?;
        }
        Ok(())
    }

    /// Notes changes that nobody will tell: the record has to say that all bytes are here.
    pub(super) fn begin_change_as_whole(&self, state: &mut State) -> Result<(), Error> {
        self.is_closed.fetch_or(!state.is_noted_whole, Relaxed);
        self.begin_change(state)
    }

    /// Records key, object and changes of the file in the log.
    pub(super) fn note(&self, state: &mut State) -> Result<(), Error> {
        let is_unlinked = state.image.fate() == Fate::Unlinked;
        let dirty = Dirty {
            file: self.number,
            key: (!is_unlinked).then(|| state.key.as_str().to_owned()),
            replaces: state.replaced(),
            is_partial: state.image.needs_base(),
            base: state.image.base(),
            object: state.object,
        };
        self.shared.folder.note_dirty(dirty, state.image.present())?;
        (state.is_noted, state.is_noted_whole, state.synced) = (true, !state.image.needs_base(), None);
        state.is_sealed = false;
        (state.opens, state.facts) = (state.opens + 1, state.facts + 1);
        Ok(())
    }

    /// Records a new file, which is stored even if no program writes to it.
    ///
    /// # Errors
    /// `Disk`.
    pub fn note_new(&self) -> Result<(), Error> {
        let mut state = self.state.lock();
        if state.is_noted { Ok(()) } else { self.note(&mut state) }
    }

    /// Records the file's key, and the object that the file replaces there.
    fn note_moved(&self, state: &mut State) -> Result<(), Error> {
        state.facts += 1;
        if !state.is_noted {
            return Ok(());
        }
        let is_unlinked = state.image.fate() == Fate::Unlinked;
        let key = (!is_unlinked).then(|| state.key.as_str().to_owned());
        let moved = Record::Moved { file: self.number, key, replaces: state.replaced() };
        Ok(self.shared.folder.append(&[moved])?)
    }

    /// Whether the log must have each written range, because the object has the other bytes.
    fn logs_ranges(&self, state: &State) -> bool {
        self.shared.folder.commit().is_deferred() && state.image.needs_base()
    }

    /// Writes a range for a program.
    fn change(&self, state: &mut State, range: Range<u64>, content: Content<'_>) -> Result<(), Error> {
        let folder = &self.shared.folder;
        if folder.may_grow().is_err() && state.image.added_by(range.clone()) > 0 {
            // The user may have removed some.
            if folder.is_to_count_kept() {
                folder.count_kept();
            }
            folder.may_grow()?;
        }
        let is_logged = self.logs_ranges(state) && !state.image.present().has(range.clone());
        let added = self.put(state, range.clone(), content)?;
        if is_logged {
            let wrote = Record::Wrote { file: self.number, runs: vec![(range.start, range.end)] };
            let noted = self.shared.folder.append(&[wrote]);
            if let Err(error) = noted {
                self.shared.folder.give(added);
                self.cut_off(state, &*self.file()?);
                return Err(error.into());
            }
        }
        state.image.wrote(range);
        Ok(())
    }

    /// Writes a range to the local file. Returns the room that it took.
    fn put(&self, state: &mut State, range: Range<u64>, content: Content<'_>) -> Result<u64, Error> {
        let (file, added) = (self.file()?, state.image.added_by(range.clone()));
        self.shared.folder.take(added)?;
        self.save_for_copy(state, &file, range.clone());
        state.ahead.touched(&range);
        let disk = self.shared.folder.disk();
        disk.fill(&file, range, content).inspect_err(|_| {
            self.shared.folder.give(added);
            self.cut_off(state, &file);
        })?;
        Ok(added)
    }

    /// Removes what a failed write left behind the end, where a longer file would show it. Behind the end of a file that the kernel writes
    /// may be more by now.
    fn cut_off(&self, state: &State, file: &File) {
        if state.lent.is_none() {
            let _ = self.shared.folder.disk().set_len(file, state.image.size());
        }
    }

    /// Puts bytes of the object into the local file, except where a program wrote meanwhile.
    pub(super) fn fill(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let mut state = self.state.lock();
        for run in state.image.missing(offset..offset + bytes.len() as u64) {
            let of = |at: u64| (at - offset) as usize;
            let here = Content::Bytes(&bytes[of(run.start)..of(run.end)]);
            self.put(&mut state, run.clone(), here)?;
            state.image.filled(run);
        }
        Ok(())
    }

    /// The object is under another key, by an operation of this mount that copied the version `source`. If that is not the file's version but another
    /// client's, the file has the key alone: it shares no bytes with the copy, and its next send is a conflict.
    ///
    /// # Errors
    /// `Disk`.
    pub fn moved(&self, id: ObjectId, size: u64, source: &ETag) -> Result<(), Error> {
        let mut state = self.state.lock();
        state.key = id.key.clone();
        state.sent.clear();
        state.ahead.end();
        let is_ours = matches!(&state.replaces, Replaces::Version(etag) if etag.matches(source.as_str()));
        if !is_ours {
            state.image.shares_nothing();
            return self.note_moved(&mut state);
        }
        state.replaces = Replaces::Version(id.etag.clone());
        state.reader = match state.image.needs_base() {
            true => Some(Arc::new(self.shared.prefetcher.open(id, size, None))),
            false => None,
        };
        state.object = size;
        self.note_moved(&mut state)
    }

    /// Gives a file that the bucket lacks another key, where it replaces this version.
    pub fn renamed(&self, key: ObjectKey, replaces: Replaces) -> Result<(), Error> {
        let mut state = self.state.lock();
        (state.key, state.replaces) = (key, replaces);
        state.image.shares_nothing();
        state.sent.clear();
        state.ahead.end();
        if state.is_noted { self.note_moved(&mut state) } else { self.note(&mut state) }
    }

    /// Notes that the file lost its name. The bytes stay until the last handle closes.
    ///
    /// # Errors
    /// `Disk`: the log refuses the record, and the next mount may restore the file if this process ends now.
    pub fn unlinked(&self) -> Result<(), Error> {
        let mut state = self.state.lock();
        state.image.unlinked();
        state.ahead.end();
        self.note_moved(&mut state)
    }
}

impl fmt::Debug for Staged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        f.debug_struct("Staged").field("key", &state.key).field("image", &state.image).finish_non_exhaustive()
    }
}

/// Deletes the local file if the bucket has its bytes, or no program can reach it. A kept file was moved away before.
impl Drop for Staged {
    fn drop(&mut self) {
        let state = self.state.lock();
        self.shared.folder.give(state.image.held());
        if state.is_noted && (state.image.is_dirty() || self.is_loose(&state)) || state.image.is_kept() {
            // The next mount finds the file and names it.
            return;
        }
        if let Err(error) = self.shared.folder.remove(self.number, state.was_synced) {
            tracing::debug!(%error, "a file of the stage that was stored could not be removed");
        }
    }
}
