//! One file being written: its bytes, its [`Stage`] and its result.

use std::collections::VecDeque;
use std::fmt;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, RwLock, watch};
use tracing::error;

use super::append::Behind;
use super::early::{Early, Piece};
use super::hold::{Base, Ground, Hold};
use super::memory::Counted;
use super::multipart::Multipart;
use super::part::Part;
use super::size::OBJECT_MAX;
use super::stage::{Decision, Event, Stage};
use super::{Error, Shared};
use crate::buffer::Beside;
use crate::checksum::Checksum;
use crate::object::{ObjectKey, ObjectMeta};
use crate::s3::{NewObject, PartLimits, Properties, Replaces};
use crate::sync::{Arc, Mutex, MutexGuard};

/// Completes the properties of the object just before a request contains them. `is_whole`: the request also contains all bytes.
pub(super) type Describe = Box<dyn Fn(&mut Properties, bool) + Send + Sync>;

/// Called once with the result of a write.
pub type WriteDone = Box<dyn FnOnce(Result<(), Error>) + Send>;

/// Most held writes of one file. FUSE sends one write after the other, except for direct, asynchronous ones. A write beyond this limit gets
/// `NoMemory`.
const HELD_WRITES_MAX: usize = 64;

/// An object being written. Dropping it without [`Upload::finish`] aborts the upload in the background.
///
/// | file | methods |
/// |---|---|
/// | `upload.rs` | calls of the file system, and failures |
/// | `filling.rs` | bytes into parts: the pump, the spiller, zeros at the end |
/// | `finish.rs` | the request that makes the object |
pub struct Upload {
    pub(super) shared: Arc<Shared>,
    /// The object to make. The key may change until a request contains it.
    pub(super) object: Mutex<NewObject>,
    /// The function that completes the object's properties.
    describe: OnceLock<Describe>,
    /// The object to which the file appends, as it was at the open.
    pub(super) behind: Option<Behind>,
    /// Place of that object now.
    pub(super) ground: Ground,
    /// The store's limits on parts at the beginning of the upload: all parts of one file follow them.
    pub(super) limits: PartLimits,
    pub(super) state: Mutex<State>,
    /// Notified when the turn is released, and when an event may end the wait of a newcomer.
    pub(super) changed: Notify,
    pub(super) outcome: watch::Sender<Option<Outcome>>,
}

pub(super) type Outcome = Result<ObjectMeta, Error>;

pub(super) struct State {
    /// Bytes accepted, including held ones.
    pub(super) size: u64,
    /// Number of the last sealed part, and the checksum of all sent bytes.
    pub(super) sealed: u32,
    pub(super) whole: Option<Checksum>,
    pub(super) part: Option<Part>,
    pub(super) multipart: Option<Arc<Multipart>>,
    /// Held writes in order, whose replies wait.
    pub(super) held: VecDeque<Held>,
    /// Early bytes, whose writes have been answered.
    pub(super) early: Early,
    pub(super) stage: Stage,
    /// Whether the pump or the spiller has the turn. Meanwhile the upload holds writes and stores nothing.
    pub(super) is_busy: bool,
    /// The error, once the upload has failed.
    pub(super) error: Option<Error>,
    pub(super) touched: Instant,
    /// Size that a program set with truncate: bytes missing before it become zeros.
    pub(super) promised: u64,
    /// Whether a program wanted a smaller size than was written.
    shorter: bool,
}

pub(super) struct Held {
    pub(super) data: Beside,
    pub(super) taken: usize,
    pub(super) done: WriteDone,
    pub(super) _permit: Counted,
}

/// The resources of a failed upload, to be freed outside the lock.
pub(super) struct Remains {
    error: Error,
    part: Option<Part>,
    held: VecDeque<Held>,
    multipart: Option<Arc<Multipart>>,
}

impl Upload {
    pub(super) fn new(shared: Arc<Shared>, object: NewObject, behind: Option<Behind>) -> Self {
        // Copied parts count as sealed.
        let (copied, sealed) =
            behind.as_ref().map_or((0, 0), |behind| (behind.copied(), behind.copies.len() as u32));
        let limits = behind.as_ref().map_or_else(|| shared.client.part_limits(), |behind| behind.limits);
        let state = State {
            size: copied,
            sealed,
            whole: None,
            part: None,
            multipart: None,
            held: VecDeque::new(),
            early: Early::default(),
            stage: Stage::NEW,
            is_busy: false,
            error: None,
            touched: shared.clock.now(),
            promised: 0,
            shorter: false,
        };
        let outcome = watch::Sender::new(None);
        let base = |behind: &Behind| Base { id: behind.id.clone(), meta: Some(behind.meta.clone()) };
        let ground = Arc::new(RwLock::new(behind.as_ref().map(base)));
        let (object, describe) = (Mutex::new(object), OnceLock::new());
        Self {
            shared,
            object,
            describe,
            behind,
            ground,
            limits,
            state: Mutex::new(state),
            changed: Notify::new(),
            outcome,
        }
    }

    /// Number of accepted bytes.
    pub fn size(&self) -> u64 {
        self.state.lock().size
    }

    /// The key under which the object will be stored; a rename may still change it.
    pub fn key(&self) -> ObjectKey {
        self.object.lock().key.clone()
    }

    /// Sets the function that completes the object's properties. It runs just before a request contains them; the argument says whether
    /// that request has all bytes of the file. Call it before the first write.
    pub fn described_by(&self, describe: impl Fn(&mut Properties, bool) + Send + Sync + 'static) {
        let _ = self.describe.set(Box::new(describe));
    }

    /// The object as a request would contain it now.
    pub(super) fn to_be(&self, is_whole: bool) -> NewObject {
        let mut object = self.object.lock().clone();
        if let Some(describe) = self.describe.get() {
            describe(&mut object.properties, is_whole);
        }
        object
    }

    /// Runs `rename` unless the request that makes the object has begun. Its argument says whether the key can still change; `rename`
    /// returns the new key and the version that may be replaced there, or `None` to change nothing. If the key can't change, the caller
    /// moves the object once it is stored. Returns `None` if it is too late.
    pub fn rename(&self, rename: impl FnOnce(bool) -> Option<(ObjectKey, Replaces)>) -> Option<()> {
        let state = self.state.lock();
        if !matches!(state.stage, Stage::Open { .. } | Stage::Finishing { .. }) {
            return None;
        }
        let Some((key, replaces)) = rename(state.multipart.is_none()) else { return Some(()) };
        let mut object = self.object.lock();
        match &state.multipart {
            Some(multipart) if key == object.key => multipart.replaces(replaces),
            // The file has left this key: another client's object may be there.
            Some(multipart) => multipart.replaces(Replaces::Nothing),
            None => {
                // An append keeps the type of its object.
                if self.behind.is_none() {
                    object.properties.content_type = (self.shared.config.content_type)(&key);
                }
                (object.key, object.replaces) = (key, replaces);
            }
        }
        Some(())
    }

    /// Waits until no request depends on the place of the file, and lets none begin before the guard is dropped. Writes go on, and so do
    /// parts with new bytes.
    pub async fn hold(&self) -> Hold {
        Hold::of(&self.ground).await
    }

    /// Writes the bytes at `offset`, which must be the end of the file, or a little beyond (see `early.rs`). Copies the bytes before it
    /// returns. Calls `done` at once, or later when there is room again, so a writer that waits for `done` is slowed to the pace of the
    /// network. Never blocks on network or memory; a spilled part writes its bytes to disk. Returns whether the write waits.
    ///
    /// # Errors
    /// Passed to `done`: any [`Error`]. Each fails the upload, and later calls return it again; `Finished` alone changes nothing.
    pub fn write(self: &Arc<Self>, offset: u64, data: &[u8], done: WriteDone) -> bool {
        let mut state = self.state.lock();
        let was_closed = state.stage.is_still_closed();
        if state.on(Event::Write) == Decision::Finished {
            drop(state);
            done(Err(Error::Finished));
            return false;
        }
        if was_closed {
            self.changed.notify_waiters();
        }
        let taken = match self.place_of(&state, offset, data.len()) {
            Ok(None) => self.take(&mut state, data, done, None),
            Ok(Some(permit)) => {
                // copy: nothing is known of the bytes between, and the caller's buffer is only lent
                state.early.keep(offset, Piece { data: data.to_vec(), permit });
                state.touched = self.shared.clock.now();
                Ok(Some(done))
            }
            Err(error) => Err((error, done)),
        };
        match taken.map(|done| (self.take_early(&mut state), done)) {
            Ok((Ok(()), done)) => {
                drop(state);
                let waits = done.is_none();
                if let Some(done) = done {
                    done(Ok(()));
                }
                waits
            }
            Ok((Err(error), done)) => self.refuse(state, error, done),
            Err((error, done)) => self.refuse(state, error, Some(done)),
        }
    }

    /// Fails the upload while the lock is held: a file without this write must not be stored.
    fn refuse(&self, mut state: MutexGuard<'_, State>, error: Error, done: Option<WriteDone>) -> bool {
        let remains = state.fail(error.clone());
        drop(state);
        self.clean_up(remains);
        let waits = done.is_none();
        if let Some(done) = done {
            done(Err(error));
        }
        waits
    }

    /// Checks the offset of a write. `None`: it belongs at the end of the file. Otherwise the permit to keep its early bytes.
    fn place_of(&self, state: &State, offset: u64, len: usize) -> Result<Option<Counted>, Error> {
        if let Some(error) = &state.error {
            return Err(error.clone());
        }
        let out_of_order = Error::OutOfOrder { expected: state.size };
        let end = offset.checked_add(len as u64).filter(|end| *end <= OBJECT_MAX);
        if offset < state.size {
            return Err(out_of_order);
        }
        let end = end.ok_or(Error::TooLarge)?;
        if offset == state.size {
            let overlaps = state.early.start().is_some_and(|start| start < end);
            return if overlaps { Err(out_of_order) } else { Ok(None) };
        }
        // The program may assume another size of the object to which the file appends.
        let has_room = self.behind.is_none() && state.early.has_room(state.size, offset, len);
        let permit = if has_room { self.shared.memory.early(len) } else { None };
        permit.map(Some).ok_or(out_of_order)
    }

    /// Adds bytes at the end of the file. `None`: the write is held, with `done`. `permit`: the permit of early bytes, which already covers
    /// the wait.
    fn take(
        self: &Arc<Self>,
        state: &mut State,
        data: &[u8],
        done: WriteDone,
        permit: Option<Counted>,
    ) -> Result<Option<WriteDone>, (Error, WriteDone)> {
        state.size += data.len() as u64;
        state.touched = self.shared.clock.now();
        let mut rest = data;
        let need = if state.is_busy { Ok(None) } else { self.absorb_or_spill(state, &mut rest) };
        let held = match (need, permit) {
            (Ok(None), _) if !state.is_busy => return Ok(Some(done)),
            (Ok(None), Some(permit)) => Ok((None, permit)),
            (Ok(None), None) => {
                self.permit_to_queue(state.held.len(), rest.len()).map(|permit| (None, permit))
            }
            (Ok(Some((need, permit))), _) => Ok((Some(need), permit)),
            (Err(error), _) => Err(error),
        };
        let (need, _permit) = match held {
            Ok(held) => held,
            Err(error) => return Err((error, done)),
        };
        let data = self.shared.memory.beside(rest); // copy: no memory at hand, and the caller's buffer is only lent
        state.held.push_back(Held { data, taken: 0, done, _permit });
        if let Some(need) = need {
            state.is_busy = true;
            self.shared.runtime.spawn(Box::pin(Arc::clone(self).pump(Some(need))));
        }
        Ok(None)
    }

    /// Adds the early pieces that now begin at the end of the file. Their writes have been answered.
    fn take_early(self: &Arc<Self>, state: &mut State) -> Result<(), Error> {
        while let Some(Piece { data, permit }) = state.early.take(state.size) {
            self.take(state, &data, Box::new(|_| {}), Some(permit)).map_err(|(error, _)| error)?;
        }
        Ok(())
    }

    /// The permit to hold a write behind `held` others.
    fn permit_to_queue(&self, held: usize, bytes: usize) -> Result<Counted, Error> {
        let memory = &self.shared.memory;
        match held {
            // The spiller has the turn. It works on one upload at a time, so at most one write is held past the limit.
            0 => Ok(memory.hold_anyway(bytes)),
            1..HELD_WRITES_MAX => memory.hold(bytes).ok_or_else(|| memory.too_many_held()),
            _ => Err(memory.too_many_held()),
        }
    }

    /// Stores all written bytes as an object, after all held writes. Every caller gets the same result, now and later.
    ///
    /// # Errors
    /// The first error of the upload. Nothing is visible then, unless the store's last answer was lost (`Remote` with kind `Unknown`), or
    /// the store reported other bytes only after a PUT (`Corrupt`).
    pub async fn finish(self: &Arc<Self>) -> Result<ObjectMeta, Error> {
        self.tell(Event::Sync);
        self.outcome().await
    }

    /// Applies an event, and begins to store the file if the event demands it. The caller carries out the rest of the decision.
    pub fn tell(self: &Arc<Self>, event: Event) -> Decision {
        let mut state = self.state.lock();
        let ends = matches!(
            event,
            Event::Close { completes: true } | Event::Sync | Event::Release | Event::End { .. }
        );
        let lacks = ends && state.lacks();
        // A release has no program that would get the error: the caller logs it, and aborts the upload.
        let remains = if lacks && event != Event::Release { state.fail(Error::Unmeant) } else { None };
        let decision = match state.on(event) {
            Decision::Store if lacks => Decision::GiveUp,
            decision => decision,
        };
        drop(state);
        self.clean_up(remains);
        if matches!(event, Event::Close { .. } | Event::Sync | Event::Release) {
            self.changed.notify_waiters();
        }
        if decision == Decision::Store {
            // A task of its own, so an interrupted caller does not leave the object half made.
            let (this, is_awaited) = (Arc::clone(self), event != Event::Release);
            self.shared.runtime.spawn(Box::pin(this.run_finish(is_awaited)));
        }
        decision
    }

    /// The size of the file if no more bytes come: the end of the last written byte, or the size that a program set.
    pub fn length(&self) -> u64 {
        self.state.lock().length()
    }

    /// Whether the file appends to an object.
    pub fn appends(&self) -> bool {
        self.behind.is_some()
    }

    /// The size of the file minus that of the object to which it appends.
    pub fn added(&self) -> u64 {
        self.length().saturating_sub(self.before())
    }

    /// Size of the object to which the file appends.
    pub(super) fn before(&self) -> u64 {
        self.behind.as_ref().map_or(0, |behind| behind.meta.size)
    }

    /// Sets the size for a program. Bytes that are missing before a larger size become zeros. A size below the written bytes is refused:
    /// then the file will not be stored, unless a later size fits.
    ///
    /// # Errors
    /// `Unmeant`: below the written bytes; `TooLarge`; `Finished`: the file accepts no more bytes.
    pub fn set_size(&self, size: u64) -> Result<(), Error> {
        let mut state = self.state.lock();
        if !matches!(state.stage, Stage::Open { .. }) {
            return Err(Error::Finished);
        }
        if size > OBJECT_MAX {
            return Err(Error::TooLarge);
        }
        state.shorter = size < state.size.max(state.early.end());
        if state.shorter {
            return Err(Error::Unmeant);
        }
        state.promised = if size > state.size { size } else { 0 };
        state.touched = self.shared.clock.now();
        Ok(())
    }

    /// The stage of the upload.
    pub fn stage(&self) -> Stage {
        self.state.lock().stage
    }

    /// Waits for the result. For callers with [`Decision::Store`] or [`Decision::Outcome`].
    ///
    /// # Errors
    /// The same as [`Upload::finish`].
    pub async fn outcome(&self) -> Result<ObjectMeta, Error> {
        match self.outcome.subscribe().wait_for(Option::is_some).await.as_deref() {
            Ok(Some(outcome)) => outcome.clone(),
            _ => Err(Error::Aborted),
        }
    }

    /// Repeats [`Upload::tell`] until the decision is no longer [`Decision::Moment`], for at most `limit`.
    pub async fn tell_in_a_moment(self: &Arc<Self>, event: Event, limit: Duration) -> Decision {
        let clock = &self.shared.clock;
        let end = clock.now() + limit;
        loop {
            let changed = self.changed.notified();
            let decision = self.tell(event);
            let left = end.saturating_duration_since(clock.now());
            if decision != Decision::Moment || clock.timeout(left, changed).await.is_none() {
                return decision;
            }
        }
    }

    /// The error that every call returns, if the upload has failed.
    pub fn error(&self) -> Option<Error> {
        self.state.lock().error.clone()
    }

    /// Aborts the upload. Nothing becomes visible, unless the last request of `finish` is in flight already.
    pub fn give_up(&self) {
        self.fail(Error::Aborted);
    }

    /// Aborts the upload like [`Upload::give_up`]. Returns when the store has answered.
    pub async fn abort(&self) {
        self.give_up();
        let multipart = self.state.lock().multipart.clone();
        _ = self.outcome.subscribe().wait_for(Option::is_some).await;
        if let Some(multipart) = multipart {
            multipart.settled().await;
        }
    }

    /// Fails the upload with its first error: frees memory, answers held writes, and aborts in the store. Happens once.
    pub(super) fn fail(&self, error: Error) {
        let remains = self.state.lock().fail(error);
        self.clean_up(remains);
    }

    /// A guard: a panic while it lives fails the upload, with `event`.
    pub(super) fn fails_on_panic(&self, doing: &'static str, event: Event) -> FailsOnPanic<'_> {
        FailsOnPanic { upload: self, doing, event }
    }

    /// Frees the resources of a failed upload, outside the lock.
    pub(super) fn clean_up(&self, remains: Option<Remains>) {
        let Some(Remains { error, part, held, multipart }) = remains else { return };
        drop(part);
        self.outcome.send_if_modified(|outcome| {
            let first = outcome.is_none();
            outcome.get_or_insert_with(|| Err(error.clone()));
            first
        });
        self.changed.notify_waiters();
        if let Some(multipart) = multipart {
            multipart.abort();
        }
        for held in held {
            (held.done)(Err(error.clone()));
        }
    }
}

/// A guard of a task for which others wait: the closer for the result, held writes for the turn. If the task panics, they get an error
/// instead of waiting for ever.
pub(super) struct FailsOnPanic<'a> {
    upload: &'a Upload,
    doing: &'static str,
    event: Event,
}

impl Drop for FailsOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self { upload, doing, event } = self;
            // The panic is logged already (`logging/panic.rs`).
            error!(key = %upload.key(), "{doing}: a panic ended it; writes and close of the file fail with EIO; please report this");
            let remains = upload.state.lock().fail_by(*event, Error::Panicked);
            upload.clean_up(remains);
        }
    }
}

impl State {
    /// The size of the file if no more bytes come.
    pub(super) fn length(&self) -> u64 {
        self.size.max(self.promised).max(self.early.end())
    }

    /// Whether the file accepts bytes, and a program wanted a smaller size than was written.
    fn lacks(&self) -> bool {
        self.shorter && matches!(self.stage, Stage::Open { .. })
    }

    /// Takes the turn for the pump or the spiller; false if it is taken, or the file accepts no more bytes.
    pub(super) fn take_turn(&mut self) -> bool {
        let is_free = !self.is_busy && matches!(self.stage, Stage::Open { .. });
        self.is_busy |= is_free;
        is_free
    }

    pub(super) fn on(&mut self, event: Event) -> Decision {
        let (stage, decision) = self.stage.on(event);
        self.stage = stage;
        decision
    }

    /// Fails the upload: it accepts and sends no more bytes. `None` if it has ended before, or can't be stopped any more.
    pub(super) fn fail(&mut self, error: Error) -> Option<Remains> {
        self.fail_by(Event::Fail, error)
    }

    /// Fails the upload like [`State::fail`], with this event: the last request failed or its answer was lost (`Lose`), or it was not sent
    /// (`Fail`).
    pub(super) fn fail_by(&mut self, event: Event, error: Error) -> Option<Remains> {
        if self.on(event) != Decision::Done {
            return None;
        }
        self.error = Some(error.clone());
        let (part, held) = (self.part.take(), std::mem::take(&mut self.held));
        drop(std::mem::take(&mut self.early));
        Some(Remains { error, part, held, multipart: self.multipart.clone() })
    }
}

#[cfg(test)]
impl Upload {
    /// Pretends that this many bytes and parts were written: a test can't write 5 TiB.
    pub(super) fn pretend(&self, size: u64, sealed: u32) {
        let mut state = self.state.lock();
        (state.size, state.sealed) = (size, sealed);
    }

    /// Whether the pump or the spiller has the turn.
    pub(super) fn is_busy(&self) -> bool {
        self.state.lock().is_busy
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if self.outcome.borrow().is_none()
            && let Some(multipart) = self.state.lock().multipart.take()
        {
            multipart.abort();
        }
        self.shared.open.lock().retain(|upload| !std::ptr::eq(upload.as_ptr(), self));
    }
}

impl fmt::Debug for Upload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        f.debug_struct("Upload")
            .field("key", &self.key())
            .field("size", &state.size)
            .field("parts_sealed", &state.sealed)
            .field("stage", &state.stage)
            .field("error", &state.error)
            .finish_non_exhaustive()
    }
}
