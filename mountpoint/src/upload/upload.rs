//! One file being written: its bytes, its [`Stage`] and its outcome.

use std::collections::VecDeque;
use std::fmt;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};
use tracing::error;

use super::append::Behind;
use super::early::{Early, Piece};
use super::memory::Counted;
use super::multipart::Multipart;
use super::part::Part;
use super::size::OBJECT_MAX;
use super::stage::{Decision, Event, Stage};
use super::{Error, Shared};
use crate::checksum::Checksum;
use crate::object::{ObjectKey, ObjectMeta};
use crate::s3::{NewObject, PartLimits, Properties, Replaces};
use crate::sync::{Arc, Mutex, MutexGuard};

/// Called for the properties of the object just before a request carries them. `is_whole`: the request carries all bytes, too.
pub(super) type Describe = Box<dyn Fn(&mut Properties, bool) + Send + Sync>;

/// Called once with the result of a write.
pub type WriteDone = Box<dyn FnOnce(Result<(), Error>) + Send>;

/// Writes of one file whose replies may be held at once. FUSE sends one write after the other, except for direct, asynchronous ones; a
/// write beyond this limit gets `NoMemory`.
const HELD_WRITES_MAX: usize = 64;

/// An object being written. A drop without [`Upload::finish`] aborts the upload in the background.
///
/// | file | methods |
/// |---|---|
/// | `upload.rs` | calls of the file system, and failures |
/// | `filling.rs` | bytes into parts: the pump, the spiller, zeros at the end |
/// | `finish.rs` | the request that makes the object |
pub struct Upload {
    pub(super) shared: Arc<Shared>,
    /// The future object; its key may change until a request carries it.
    pub(super) object: Mutex<NewObject>,
    /// The function that completes the object's properties.
    describe: OnceLock<Describe>,
    /// The object to which the file appends.
    pub(super) behind: Option<Behind>,
    /// The limits of parts at the beginning of the upload: all parts of one file follow one rule.
    pub(super) limits: PartLimits,
    pub(super) state: Mutex<State>,
    /// Rung when the turn is free again, and when an event may end the wait of a newcomer.
    pub(super) changed: Notify,
    pub(super) outcome: watch::Sender<Option<Outcome>>,
}

pub(super) type Outcome = Result<ObjectMeta, Error>;

pub(super) struct State {
    /// Bytes accepted, including held ones.
    pub(super) size: u64,
    /// Number of the last part that was sealed, and the checksum up to its end.
    pub(super) sealed: u32,
    pub(super) whole: Option<Checksum>,
    pub(super) part: Option<Part>,
    pub(super) multipart: Option<Arc<Multipart>>,
    /// Writes in order with held replies.
    pub(super) held: VecDeque<Held>,
    /// Bytes beyond `size`, whose writes have their replies.
    pub(super) early: Early,
    pub(super) stage: Stage,
    /// The pump or the spiller has the turn. Until the turn is free again, the upload holds writes and stores nothing.
    pub(super) is_busy: bool,
    /// The error, once the upload has failed.
    pub(super) error: Option<Error>,
    pub(super) touched: Instant,
    /// The size that a program set: missing bytes before this end become zeros.
    pub(super) promised: u64,
    /// A program wanted a smaller size than was written.
    shorter: bool,
}

pub(super) struct Held {
    pub(super) data: Vec<u8>,
    pub(super) taken: usize,
    pub(super) done: WriteDone,
    pub(super) _permit: Counted,
}

/// Resources that a failed upload still holds.
pub(super) struct Remains {
    error: Error,
    part: Option<Part>,
    held: VecDeque<Held>,
    multipart: Option<Arc<Multipart>>,
}

impl Upload {
    pub(super) fn new(shared: Arc<Shared>, object: NewObject, behind: Option<Behind>) -> Self {
        // Parts that the store copies count as sealed.
        let copied = behind.as_ref().filter(|behind| behind.copies > 0);
        let state = State {
            size: copied.map_or(0, |behind| behind.meta.size),
            sealed: copied.map_or(0, |behind| behind.copies),
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
        let limits = shared.client.part_limits();
        let (object, describe) = (Mutex::new(object), OnceLock::new());
        Self {
            shared,
            object,
            describe,
            behind,
            limits,
            state: Mutex::new(state),
            changed: Notify::new(),
            outcome,
        }
    }

    /// Bytes accepted so far.
    pub fn size(&self) -> u64 {
        self.state.lock().size
    }

    /// The key of the object, now or when it is stored.
    pub fn key(&self) -> ObjectKey {
        self.object.lock().key.clone()
    }

    /// Sets the function that completes the object's properties. It runs just before a request carries them, and learns whether that
    /// request has all bytes of the file. Call it before the first write.
    pub fn described_by(&self, describe: impl Fn(&mut Properties, bool) + Send + Sync + 'static) {
        let _ = self.describe.set(Box::new(describe));
    }

    /// The object as a request would carry it now.
    pub(super) fn to_be(&self, is_whole: bool) -> NewObject {
        let mut object = self.object.lock().clone();
        if let Some(describe) = self.describe.get() {
            describe(&mut object.properties, is_whole);
        }
        object
    }

    /// Runs `rename` while the file accepts bytes, so that no outcome is known before the rename ends. `rename` learns whether the key
    /// can still change; if so, it returns the new key and the version that the new key may replace. `None`: the file accepts no more
    /// bytes.
    pub fn rename(&self, rename: impl FnOnce(bool) -> Option<(ObjectKey, Replaces)>) -> Option<()> {
        let state = self.state.lock();
        if !matches!(state.stage, Stage::Open { .. }) {
            return None;
        }
        if let Some((key, replaces)) = rename(state.multipart.is_none()) {
            let content_type = (self.shared.config.content_type)(&key);
            let mut object = self.object.lock();
            object.properties.content_type = content_type;
            (object.key, object.replaces) = (key, replaces);
        }
        Some(())
    }

    /// Takes the bytes at `offset`, which must be where the write before ended, or a little beyond: see `early.rs`. The call copies the
    /// bytes before it returns. It calls `done` at once, or later when there is room again: a writer that waits for `done` is slowed to
    /// the pace of the network. Never blocks on network or memory; a part that was spilled takes its bytes on disk. True: the write
    /// waits.
    ///
    /// # Errors To `done`: any [`Error`]. Each gives the upload up, and later calls get it again; `Finished` alone changes nothing.
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

    /// Fails the upload while the write holds the lock: a file that lacks this write must not be stored.
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

    /// Whether a write belongs at the end, or is kept beyond it under a permit.
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
        // The program may know another size of the object to which the file appends.
        let has_room = self.behind.is_none() && state.early.has_room(state.size, offset, len);
        let permit = if has_room { self.shared.memory.early(len) } else { None };
        permit.map(Some).ok_or(out_of_order)
    }

    /// Adds bytes at the end of the file. `None`: the bytes wait, and `done` with them. `permit`: the bytes' permission to wait, if they
    /// have one.
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
        let data = rest.to_vec(); // copy: no memory at hand, and the caller's buffer is only lent
        state.held.push_back(Held { data, taken: 0, done, _permit });
        if let Some(need) = need {
            state.is_busy = true;
            self.shared.runtime.spawn(Box::pin(Arc::clone(self).pump(Some(need))));
        }
        Ok(None)
    }

    /// Adds the early pieces whose place has come. Their writers have their replies already.
    fn take_early(self: &Arc<Self>, state: &mut State) -> Result<(), Error> {
        while let Some(Piece { data, permit }) = state.early.take(state.size) {
            self.take(state, &data, Box::new(|_| {}), Some(permit)).map_err(|(error, _)| error)?;
        }
        Ok(())
    }

    /// Permission to hold a write behind `held` others.
    fn permit_to_queue(&self, held: usize, bytes: usize) -> Result<Counted, Error> {
        let memory = &self.shared.memory;
        match held {
            // The spiller has the turn. It works on one upload at a time, so at most one write gets here.
            0 => Ok(memory.hold_anyway(bytes)),
            1..HELD_WRITES_MAX => memory.hold(bytes).ok_or_else(|| memory.too_many_held()),
            _ => Err(memory.too_many_held()),
        }
    }

    /// Makes the object of all written bytes, after all held writes. Every caller gets the same outcome, now and later.
    ///
    /// # Errors The first error of the upload. Nothing is visible then, unless a store lost its last answer (`Remote` with kind
    /// `Unknown`), or stored other bytes in one PUT and reported that only afterwards (`Corrupt`).
    pub async fn finish(self: &Arc<Self>) -> Result<ObjectMeta, Error> {
        self.tell(Event::Sync);
        self.outcome().await
    }

    /// Takes an event, and begins to store the file if the event demands it. The caller carries out the rest of the decision.
    pub fn tell(self: &Arc<Self>, event: Event) -> Decision {
        let mut state = self.state.lock();
        let ends = matches!(
            event,
            Event::Close { completes: true } | Event::Sync | Event::Release | Event::End { .. }
        );
        let lacks = ends && state.lacks();
        // At a release no program receives the error any more: the caller says so, and gives the file up.
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
            // This is a task of its own: an interrupted caller must not leave the object half made.
            let (this, is_awaited) = (Arc::clone(self), event != Event::Release);
            self.shared.runtime.spawn(Box::pin(this.run_finish(is_awaited)));
        }
        decision
    }

    /// The size of the file if no more bytes come: the accepted bytes, or the size that a program set.
    pub fn length(&self) -> u64 {
        self.state.lock().length()
    }

    /// The size of the file without the bytes of the object to which it appends.
    pub fn added(&self) -> u64 {
        self.length().saturating_sub(self.before())
    }

    /// Bytes of the object to which the file appends.
    pub(super) fn before(&self) -> u64 {
        self.behind.as_ref().map_or(0, |behind| behind.meta.size)
    }

    /// Sets the size, for a program. A larger size is a promise: bytes that are not written before the end become zeros. A size below the
    /// written bytes is impossible: the file will not be stored, unless a later size fits.
    ///
    /// # Errors `Unmeant`: shorter; `TooLarge`; `Finished`: the file accepts no more bytes.
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

    /// The outcome, once it is known. For callers with [`Decision::Store`] or [`Decision::Outcome`].
    ///
    /// # Errors The same as [`Upload::finish`].
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

    /// The error that every call gets from now on, if the upload has failed.
    pub fn error(&self) -> Option<Error> {
        self.state.lock().error.clone()
    }

    /// Gives the upload up; nothing becomes visible, unless `finish` came first and its last request is already on
    /// its way.
    pub fn give_up(&self) {
        self.fail(Error::Aborted);
    }

    /// Gives the upload up as [`Upload::give_up`] does. Returns when the store has answered.
    pub async fn abort(&self) {
        self.give_up();
        let multipart = self.state.lock().multipart.clone();
        _ = self.outcome.subscribe().wait_for(Option::is_some).await;
        if let Some(multipart) = multipart {
            multipart.settled().await;
        }
    }

    /// Gives the upload up with its first error: memory returns, held writes are answered, the store aborts. Once.
    pub(super) fn fail(&self, error: Error) {
        let remains = self.state.lock().fail(error);
        self.clean_up(remains);
    }

    /// A guard: while it lives, a panic fails the upload, by `event`.
    pub(super) fn fails_on_panic(&self, doing: &'static str, event: Event) -> FailsOnPanic<'_> {
        FailsOnPanic { upload: self, doing, event }
    }

    /// Completes a failure, outside the lock.
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

/// A guard of a task for which others wait: the closer for the outcome, held writes for the turn. If the task panics, they get an error
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
            // The panic has its line already (`logging/panic.rs`).
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

    /// Whether the file takes bytes, has some, and does not fit the size that a program wanted.
    fn lacks(&self) -> bool {
        self.shorter && matches!(self.stage, Stage::Open { .. })
    }

    /// Gives the turn to the pump or the spiller; false if one of them has it, or no more bytes come.
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

    /// Ends the upload: from here on it takes and sends no byte. `None` if the upload had ended before, or is too late to stop.
    pub(super) fn fail(&mut self, error: Error) -> Option<Remains> {
        self.fail_by(Event::Fail, error)
    }

    /// Fails as [`State::fail`] does, by this event: the last request got no good answer (`Lose`), or was not sent yet (`Fail`).
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
