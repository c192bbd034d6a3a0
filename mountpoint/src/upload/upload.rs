//! One file being written: the state machine between `write`, `finish` and `abort`.

use std::collections::VecDeque;
use std::fmt;
use std::time::Instant;

use tokio::sync::{Notify, watch};

use super::memory::Counted;
use super::multipart::{Multipart, agrees, pieces};
use super::part::{Part, Want};
use super::size::{OBJECT_MAX, PARTS_MAX};
use super::{Error, Shared};
use crate::checksum::Checksum;
use crate::object::ObjectMeta;
use crate::s3::{NewObject, PutObject, Stored};
use crate::sync::{Arc, Mutex};

/// Told once what became of a write.
pub type WriteDone = Box<dyn FnOnce(Result<(), Error>) + Send>;

/// Writes of one file whose replies may be held at once. FUSE sends one after the other except for direct, asynchronous
/// ones; whoever sends more than this gets `NoMemory`.
const HELD_WRITES_MAX: usize = 64;

/// An object being written. Dropped without [`Upload::finish`], it is aborted in the background.
pub struct Upload {
    shared: Arc<Shared>,
    object: NewObject,
    state: Mutex<State>,
    /// Rung when the turn is free again, and when the upload has failed.
    turn: Notify,
    outcome: watch::Sender<Option<Outcome>>,
}

type Outcome = Result<ObjectMeta, Error>;

struct State {
    /// Bytes accepted, held ones included.
    size: u64,
    /// Number of the last part that was sealed, and the checksum up to its end.
    sealed: u32,
    whole: Option<Checksum>,
    part: Option<Part>,
    multipart: Option<Arc<Multipart>>,
    /// Writes in order whose replies are held.
    held: VecDeque<Held>,
    /// Somebody has the turn: the pump, the spiller or `finish`. Until it is free, writes are held.
    busy: bool,
    finishing: bool,
    /// The request that makes the object visible is on its way: too late to fail or to abort.
    committing: bool,
    error: Option<Error>,
    touched: Instant,
}

struct Held {
    data: Vec<u8>,
    taken: usize,
    done: WriteDone,
    _leave: Counted,
}

/// What the next byte waits for.
enum Need {
    /// A part in flight to be stored.
    Slot(Arc<Multipart>),
    Memory(Want),
}

impl Upload {
    pub(super) fn new(shared: Arc<Shared>, object: NewObject) -> Self {
        let state = State {
            size: 0,
            sealed: 0,
            whole: None,
            part: None,
            multipart: None,
            held: VecDeque::new(),
            busy: false,
            finishing: false,
            committing: false,
            error: None,
            touched: shared.clock.now(),
        };
        let outcome = watch::Sender::new(None);
        Self { shared, object, state: Mutex::new(state), turn: Notify::new(), outcome }
    }

    /// Bytes accepted so far.
    pub fn size(&self) -> u64 {
        self.state.lock().size
    }

    /// Takes the bytes at `offset`, which must be where the write before ended. They are copied before this returns;
    /// `done` is called at once, or later when there is room again: whoever waits for it is slowed to the
    /// pace of the network. Never blocks on network or memory; a part that was spilled takes its bytes on disk.
    ///
    /// # Errors
    /// To `done`: any [`Error`]. Each gives the upload up, and later calls get it again; `Finished` alone changes nothing.
    pub fn write(self: &Arc<Self>, offset: u64, data: &[u8], done: WriteDone) {
        let mut state = self.state.lock();
        let refused = match &state.error {
            Some(error) => Err(error.clone()),
            None if state.finishing => {
                drop(state);
                return done(Err(Error::Finished));
            }
            None if offset != state.size => Err(Error::OutOfOrder { expected: state.size }),
            None if OBJECT_MAX - state.size < data.len() as u64 => Err(Error::TooLarge),
            None => Ok(()),
        };
        let mut rest = data;
        let need = refused.and_then(|()| {
            state.size += data.len() as u64;
            state.touched = self.shared.clock.now();
            if state.busy { Ok(None) } else { self.absorb_or_spill(&mut state, &mut rest) }
        });
        let held = match need {
            Ok(None) if !state.busy => {
                drop(state);
                return done(Ok(()));
            }
            Ok(need) => {
                let memory = &self.shared.memory;
                let leave = match state.held.len() {
                    // Only the spiller has the turn and holds no write, and it takes one upload at a time.
                    0 if need.is_none() => Some(memory.hold_anyway(rest.len())),
                    0..HELD_WRITES_MAX => memory.hold(rest.len()),
                    _ => None,
                };
                match leave {
                    Some(leave) => Ok((need, leave)),
                    None => Err(Error::NoMemory),
                }
            }
            Err(error) => Err(error),
        };
        match held {
            Ok((need, _leave)) => {
                let data = rest.to_vec(); // copy: no memory at hand, and the caller's buffer is only lent
                state.held.push_back(Held { data, taken: 0, done, _leave });
                if let Some(need) = need {
                    state.busy = true;
                    drop(state);
                    self.shared.runtime.spawn(Box::pin(Arc::clone(self).pump(Some(need))));
                }
            }
            Err(error) => {
                drop(state);
                self.fail(error.clone());
                done(Err(error));
            }
        }
    }

    /// Makes the object of everything written, after all held writes. One outcome for every caller, now and later.
    ///
    /// # Errors
    /// The first error of the upload. Nothing is visible then, unless a store lost its last answer (`Remote` with
    /// kind `Unknown`) or stored other bytes in one PUT and said so only after (`Corrupt`).
    pub async fn finish(self: &Arc<Self>) -> Result<ObjectMeta, Error> {
        let mut outcome = self.outcome.subscribe();
        let first = {
            let mut state = self.state.lock();
            let first = !state.finishing && state.error.is_none();
            state.finishing |= first;
            first
        };
        if first {
            // A task of its own: a caller that is interrupted must not leave the object half made.
            let this = Arc::clone(self);
            self.shared.runtime.spawn(Box::pin(this.run_finish()));
        }
        match outcome.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(outcome)) => outcome.clone(),
            _ => Err(Error::Aborted),
        }
    }

    /// Gives the upload up; nothing becomes visible, unless `finish` came first and its last request is already on
    /// its way. Returns when the store has answered.
    pub async fn abort(&self) {
        self.fail(Error::Aborted);
        let multipart = self.state.lock().multipart.clone();
        _ = self.outcome.subscribe().wait_for(Option::is_some).await;
        if let Some(multipart) = multipart {
            multipart.settled().await;
        }
    }

    /// Since when nothing was added, if there is memory here that spilling would free.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let state = self.state.lock();
        let holds = !state.busy && state.part.as_ref().is_some_and(Part::in_memory);
        holds.then_some(state.touched)
    }

    /// Moves the part being filled to disk; one that is only reserved is given back.
    ///
    /// # Errors
    /// The disk's; then the part is where it was.
    pub(super) async fn spill(self: Arc<Self>) -> std::io::Result<()> {
        let Some(dir) = self.shared.config.spill_dir.clone() else { return Ok(()) };
        let taken = {
            let mut state = self.state.lock();
            let taken = if state.busy { None } else { state.part.take_if(|part| part.in_memory()) };
            state.busy |= taken.is_some();
            taken
        };
        let Some(mut part) = taken else { return Ok(()) };
        if part.is_empty() {
            drop(part);
            self.pump(None).await;
            return Ok(());
        }
        let spilled = self.shared.runtime.spawn_blocking(move || {
            let result = part.spill(&dir);
            (part, result)
        });
        let result = match spilled.await {
            Ok((part, result)) => {
                self.state.lock().part = Some(part);
                result
            }
            Err(panicked) => {
                let error = std::io::Error::other(panicked);
                self.fail(Error::from(std::io::Error::other("the spill task died")));
                Err(error)
            }
        };
        if result.is_ok() {
            self.shared.metrics.uploads_spilled.inc();
        }
        // Writes that came meanwhile.
        Box::pin(self.pump(None)).await;
        result
    }

    /// Puts held writes where they belong as memory comes, and frees the turn when none is left. The caller has the turn.
    async fn pump(self: Arc<Self>, mut need: Option<Need>) {
        loop {
            let granted = match need.take() {
                Some(need) => self.obtain(need).await,
                None => Ok(None),
            };
            let mut ready = Vec::new();
            let step = {
                let mut state = self.state.lock();
                self.drain(&mut state, granted, &mut ready)
            };
            ready.into_iter().for_each(|done| done(Ok(())));
            match step {
                Ok(Some(next)) => need = Some(next),
                Ok(None) => break,
                Err(error) => {
                    self.state.lock().busy = false;
                    self.fail(error);
                    break;
                }
            }
        }
        self.turn.notify_waiters();
        self.shared.memory.kick();
    }

    fn drain(
        self: &Arc<Self>,
        state: &mut State,
        granted: Result<Option<(Want, crate::buffer::Reservation)>, Error>,
        ready: &mut Vec<WriteDone>,
    ) -> Result<Option<Need>, Error> {
        if state.error.is_some() {
            state.part = None;
            state.busy = false;
            return Ok(None);
        }
        if let (Some((want, reservation)), Some(part)) = (granted?, &mut state.part) {
            part.grant(want, reservation)?;
        }
        while let Some(mut held) = state.held.pop_front() {
            let mut rest = &held.data[held.taken..];
            let need = self.absorb(state, &mut rest);
            held.taken = held.data.len() - rest.len();
            match need {
                Ok(None) => ready.push(held.done),
                other => {
                    state.held.push_front(held);
                    return other;
                }
            }
        }
        state.touched = self.shared.clock.now();
        state.busy = false;
        Ok(None)
    }

    async fn obtain(&self, need: Need) -> Result<Option<(Want, crate::buffer::Reservation)>, Error> {
        let mut outcome = self.outcome.subscribe();
        let granted = async {
            match need {
                Need::Slot(multipart) => {
                    multipart.fewer_than(self.shared.config.parts_in_flight_max).await;
                    Ok(None)
                }
                Need::Memory(want) => {
                    let reservation = self.shared.memory.wait(want.bytes).await?;
                    Ok(Some((want, reservation)))
                }
            }
        };
        tokio::select! {
            biased;
            _ = outcome.wait_for(Option::is_some) => Err(Error::Aborted),
            granted = granted => granted,
        }
    }

    /// As [`Upload::absorb`]; when too many writes lie on the heap already, what has no memory goes to disk right away.
    fn absorb_or_spill(self: &Arc<Self>, state: &mut State, data: &mut &[u8]) -> Result<Option<Need>, Error> {
        loop {
            let need = self.absorb(state, data)?;
            let (Some(Need::Memory(_)), Some(dir), Some(part)) =
                (&need, &self.shared.config.spill_dir, &mut state.part)
            else {
                return Ok(need);
            };
            if self.shared.memory.hold(data.len()).is_some() {
                return Ok(need);
            }
            // At most a first block is there yet.
            part.spill(dir)?;
            self.shared.metrics.uploads_spilled.inc();
        }
    }

    /// Takes bytes into parts, sending each that is full; stops where something must be waited for. `None`: all are
    /// taken, and there is room for more (or it is better to ask when more comes).
    fn absorb(self: &Arc<Self>, state: &mut State, data: &mut &[u8]) -> Result<Option<Need>, Error> {
        loop {
            // Part 1 stays until more follows: a file of one part is one PutObject.
            if let Some(full) = state.part.take_if(|p| p.is_full() && (p.number() > 1 || !data.is_empty())) {
                self.submit(state, full);
            }
            let number = state.sealed + 1;
            if data.is_empty() && (state.part.is_some() || number == 1 || number > PARTS_MAX) {
                return Ok(None);
            }
            if state.part.is_none() {
                if number > PARTS_MAX {
                    return Err(Error::TooLarge);
                }
                if let Some(multipart) = &state.multipart
                    && multipart.in_flight() >= self.shared.config.parts_in_flight_max
                {
                    return Ok(Some(Need::Slot(Arc::clone(multipart))));
                }
                let size = self.shared.part_size(number);
                state.part = Some(Part::new(number, size, self.shared.algorithm()));
            }
            let Some(part) = &mut state.part else { continue };
            if let Some(want) = part.want(data.len(), &self.shared.memory)? {
                return Ok(Some(Need::Memory(want)));
            }
            let taken = part.put(data)?;
            *data = &data[taken..];
        }
    }

    /// Sends a part that takes no more bytes; the first one opens the multipart upload.
    fn submit(self: &Arc<Self>, state: &mut State, part: Part) {
        let part = part.seal();
        state.sealed = part.number;
        state.whole = Some(match state.whole {
            Some(before) => before.combine(part.checksum, part.len),
            None => part.checksum,
        });
        let multipart = state
            .multipart
            .get_or_insert_with(|| Multipart::new(Arc::clone(&self.shared), self.object.clone()));
        let upload = Arc::downgrade(self);
        multipart.submit(part, move |error| {
            if let Some(upload) = upload.upgrade() {
                upload.fail(error);
            }
        });
    }

    async fn run_finish(self: Arc<Self>) {
        if !self.take_turn().await {
            return;
        }
        let (part, multipart, size) = {
            let mut state = self.state.lock();
            let part = state.part.take();
            match (part, state.multipart.is_some()) {
                (Some(part), true) if !part.is_empty() => {
                    self.submit(&mut state, part);
                    (None, state.multipart.clone(), state.size)
                }
                (part, _) => (part, state.multipart.clone(), state.size),
            }
        };
        let made = match multipart {
            Some(multipart) => self.complete(&multipart, size).await,
            None => self.put(part).await,
        };
        match made {
            Ok(stored) => {
                let meta = ObjectMeta {
                    size,
                    etag: stored.etag,
                    last_modified: self.shared.clock.wall(),
                    readable: true,
                };
                self.outcome.send_if_modified(|outcome| outcome.replace(Ok(meta)).is_none());
            }
            Err(error) => {
                self.state.lock().committing = false;
                self.fail(error);
            }
        }
    }

    /// Waits for the turn; false when the upload has failed meanwhile.
    async fn take_turn(&self) -> bool {
        loop {
            let turn = self.turn.notified();
            {
                let mut state = self.state.lock();
                if state.error.is_some() {
                    return false;
                }
                if !state.busy {
                    state.busy = true;
                    return true;
                }
            }
            turn.await;
        }
    }

    async fn complete(&self, multipart: &Arc<Multipart>, size: u64) -> Result<Stored, Error> {
        multipart.fewer_than(1).await;
        let whole = self.commit()?.unwrap_or_else(|| Checksum::of(self.shared.algorithm(), &[]));
        multipart.complete(size, whole).await
    }

    async fn put(&self, part: Option<Part>) -> Result<Stored, Error> {
        let empty = || Part::new(1, 0, self.shared.algorithm());
        let part = part.unwrap_or_else(empty).seal();
        let mut outcome = self.outcome.subscribe();
        let (blocks, _sending) = tokio::select! {
            biased;
            _ = outcome.wait_for(Option::is_some) => return Err(Error::Aborted),
            loaded = self.shared.load(part.body, part.len, part.checksum) => loaded?,
        };
        self.commit()?;
        let algorithm = self.object.checksum;
        let checksum = algorithm.map(|_| part.checksum);
        let request = PutObject { object: self.object.clone(), body: pieces(blocks), checksum };
        let answer = self.shared.client.put_object(&request).await;
        drop(request);
        let answer = answer?;
        if !agrees(answer.checksum.as_deref(), algorithm, part.checksum, &[part.checksum]) {
            let key = &self.object.key;
            tracing::error!(%key, answer = answer.checksum, "the store's checksum of the object is not ours");
            return Err(Error::Corrupt);
        }
        Ok(answer)
    }

    /// From here on the object may become visible: nothing but the store's answer decides. Gives the whole checksum.
    fn commit(&self) -> Result<Option<Checksum>, Error> {
        let mut state = self.state.lock();
        match &state.error {
            Some(error) => Err(error.clone()),
            None => {
                state.committing = true;
                Ok(state.whole)
            }
        }
    }

    /// Gives the upload up with its first error: memory returns, held writes are answered, the store is told. Once.
    fn fail(&self, error: Error) {
        let (part, held, multipart) = {
            let mut state = self.state.lock();
            if state.error.is_some() || state.committing {
                return;
            }
            state.error = Some(error.clone());
            (state.part.take(), std::mem::take(&mut state.held), state.multipart.clone())
        };
        drop(part);
        self.outcome.send_if_modified(|outcome| {
            let first = outcome.is_none();
            outcome.get_or_insert_with(|| Err(error.clone()));
            first
        });
        self.turn.notify_waiters();
        if let Some(multipart) = multipart {
            multipart.abort();
        }
        for held in held {
            (held.done)(Err(error.clone()));
        }
    }
}

#[cfg(test)]
impl Upload {
    /// Pretends that so much was written: nobody writes 5 TiB in a test.
    pub(super) fn pretend_size(&self, size: u64) {
        self.state.lock().size = size;
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
            .field("key", &self.object.key)
            .field("size", &state.size)
            .field("parts_sealed", &state.sealed)
            .field("finishing", &state.finishing)
            .field("error", &state.error)
            .finish_non_exhaustive()
    }
}
