//! Puts written bytes into parts: at once if there is room, in the pump if the bytes must wait, on disk if the spiller moved the part
//! there.

use std::time::Instant;

use super::Error;
use super::append::{self, Behind};
use super::early::Piece;
use super::memory::Counted;
use super::multipart::{Copies, Multipart};
use super::part::{Part, Want};
use super::spill;
use super::stage::{Event, Stage};
use super::upload::{State, Upload, WriteDone};
use crate::buffer::Reservation;
use crate::sync::Arc;

/// A slice of zeros; parts are padded with it piece by piece.
static ZEROS: [u8; 256 << 10] = [0; 256 << 10];

/// The resource that the next byte waits for.
pub(super) enum Need {
    /// A place for a part in flight: one of this upload's parts must be stored first.
    Slot(Arc<Multipart>),
    Memory(Want),
}

/// The granted memory, with the request for it.
type Granted = Option<(Want, Reservation)>;

impl Upload {
    /// Time of the last write, if the upload has memory that spilling would free.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let state = self.state.lock();
        let is_free = !state.is_busy && matches!(state.stage, Stage::Open { .. });
        let holds = is_free && state.part.as_ref().is_some_and(Part::in_memory);
        holds.then_some(state.touched)
    }

    /// Moves the unsealed part to disk; if it has no bytes yet, only returns its reserved memory.
    ///
    /// # Errors
    /// An error of the disk; the part then stays in memory.
    pub(super) async fn spill(self: Arc<Self>) -> std::io::Result<()> {
        let Some(dir) = self.shared.config.spill_dir.clone() else { return Ok(()) };
        let taken = {
            let mut state = self.state.lock();
            let holds = state.part.as_ref().is_some_and(Part::in_memory);
            if holds && state.take_turn() { state.part.take() } else { None }
        };
        let Some(mut part) = taken else { return Ok(()) };
        let _fails = self.fails_on_panic("spilling a part", Event::Fail);
        if part.is_empty() {
            drop(part);
            Arc::clone(&self).pump(None).await;
            return Ok(());
        }
        let memory = Arc::clone(&self.shared.memory);
        let spilled = self.shared.runtime.spawn_blocking(move || {
            let result = part.spill(&dir, &memory);
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
        // Takes the writes that were held meanwhile.
        Box::pin(Arc::clone(&self).pump(None)).await;
        result
    }

    /// Puts held writes into parts as memory comes free, and releases the turn when no held write is left. The caller has the turn.
    pub(super) async fn pump(self: Arc<Self>, mut need: Option<Need>) {
        let _fails = self.fails_on_panic("taking the bytes of a file", Event::Fail);
        loop {
            let granted = match need.take() {
                Some(need) => self.obtain(need).await,
                None => Ok(None),
            };
            let mut ready = Vec::new();
            let (next, remains) = {
                let mut state = self.state.lock();
                match self.drain(&mut state, granted, &mut ready) {
                    Ok(next) => (next, None),
                    Err(error) => (None, state.fail(error)),
                }
            };
            ready.into_iter().for_each(|done| done(Ok(())));
            self.clean_up(remains);
            match next {
                Some(next) => need = Some(next),
                None => break,
            }
        }
        self.changed.notify_waiters();
        self.shared.memory.wake_spiller();
    }

    fn drain(
        self: &Arc<Self>,
        state: &mut State,
        granted: Result<Granted, Error>,
        ready: &mut Vec<WriteDone>,
    ) -> Result<Option<Need>, Error> {
        if state.error.is_some() {
            state.part = None;
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
        state.is_busy = false;
        Ok(None)
    }

    async fn obtain(&self, need: Need) -> Result<Granted, Error> {
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

    /// Adds the early pieces, and zeros in the gaps and at the end, once the turn is free. Called when no more bytes come.
    ///
    /// # Errors
    /// The errors of `absorb`, and `Aborted`.
    pub(super) async fn pad(self: &Arc<Self>) -> Result<(), Error> {
        loop {
            let changed = self.changed.notified();
            {
                let state = self.state.lock();
                if state.size >= state.length() || matches!(state.stage, Stage::Failed { .. }) {
                    return Ok(());
                }
                if !state.is_busy {
                    break;
                }
            }
            changed.await;
        }
        let mut granted: Granted = None;
        loop {
            let need = {
                let mut state = self.state.lock();
                if !matches!(state.stage, Stage::Finishing { .. }) {
                    return Ok(());
                }
                if let (Some((want, reservation)), Some(part)) = (granted.take(), &mut state.part) {
                    part.grant(want, reservation)?;
                }
                let need = self.pad_once(&mut state)?;
                match need {
                    None if state.size >= state.length() => return Ok(()),
                    need => need,
                }
            };
            if let Some(need) = need {
                granted = self.obtain(need).await?;
            }
        }
    }

    /// Adds one early piece, or a slice of zeros, at the end of the file.
    fn pad_once(self: &Arc<Self>, state: &mut State) -> Result<Option<Need>, Error> {
        let at = state.size;
        if let Some(Piece { data, permit }) = state.early.take(at) {
            let mut rest = data.as_slice();
            let need = self.absorb(state, &mut rest)?;
            state.size += (data.len() - rest.len()) as u64;
            if !rest.is_empty() {
                let (at, data) = (state.size, rest.to_vec()); // copy: rare, no memory at hand
                state.early.keep(at, Piece { data, permit });
            }
            return Ok(need);
        }
        let missing = state.early.start().unwrap_or(state.promised).saturating_sub(at);
        let len = missing.min(ZEROS.len() as u64) as usize;
        let mut rest = &ZEROS[..len];
        let need = if len > 0 { self.absorb(state, &mut rest)? } else { None };
        state.size += (len - rest.len()) as u64;
        Ok(need)
    }

    /// Takes bytes into parts like `absorb`. Bytes that must wait are held. If too many writes are held already, the part goes
    /// to disk right away, and full parts wait on disk for a place in flight.
    ///
    /// # Errors
    /// The errors of `absorb`; `NoMemory` if too many writes are held and there is no directory to spill to, or no file descriptor for it.
    pub(super) fn absorb_or_spill(
        self: &Arc<Self>,
        state: &mut State,
        data: &mut &[u8],
    ) -> Result<Option<(Need, Counted)>, Error> {
        loop {
            let Some(need) = self.absorb(state, data)? else { return Ok(None) };
            if let Some(permit) = self.shared.memory.hold(data.len()) {
                return Ok(Some((need, permit)));
            }
            let Some(dir) = &self.shared.config.spill_dir else {
                return Err(self.shared.memory.too_many_held());
            };
            // The part has one block in memory at most.
            let next = state.sealed + 1;
            let part = state.part.get_or_insert_with(|| self.new_part(next));
            part.spill(dir, &self.shared.memory).map_err(|error| match spill::is_out_of_files(&error) {
                true => self.shared.memory.too_many_spilled(),
                false => Error::from(error),
            })?;
            self.shared.metrics.uploads_spilled.inc();
        }
    }

    /// Takes bytes into parts, and sends each full part. Returns what the next bytes wait for. `None`: all bytes are taken, and there is
    /// room for more, or memory is better requested later.
    fn absorb(self: &Arc<Self>, state: &mut State, data: &mut &[u8]) -> Result<Option<Need>, Error> {
        loop {
            // Part 1 is sent only when more bytes follow: a file of one part is one PutObject.
            if let Some(full) = state.part.take_if(|p| p.is_full() && (p.number() > 1 || !data.is_empty())) {
                self.submit(state, full);
            }
            let number = state.sealed + 1;
            if data.is_empty() && (state.part.is_some() || number == 1 || number > self.limits.parts_max) {
                return Ok(None);
            }
            if state.part.is_none() {
                if number > self.limits.parts_max {
                    return Err(Error::TooLarge);
                }
                if let Some(multipart) = &state.multipart
                    && multipart.in_flight() >= self.shared.config.parts_in_flight_max
                {
                    return Ok(Some(Need::Slot(Arc::clone(multipart))));
                }
                state.part = Some(self.new_part(number));
            }
            let Some(part) = &mut state.part else { continue };
            if let Some(want) = part.want(data.len(), &self.shared.memory)? {
                return Ok(Some(Need::Memory(want)));
            }
            let taken = part.put(data)?;
            *data = &data[taken..];
        }
    }

    fn new_part(&self, number: u32) -> Part {
        Part::new(number, self.shared.part_size(number, self.limits), self.shared.algorithm())
    }

    /// Creates the multipart upload, and starts the store's copies of the object to which the file appends.
    fn begin(self: &Arc<Self>) -> Arc<Multipart> {
        let (shared, object) = (Arc::clone(&self.shared), self.to_be(false));
        let of = |behind: &Behind| Copies { source: Arc::clone(&self.ground), parts: behind.parts() };
        let copies = self.behind.as_ref().map(of);
        let multipart = Multipart::new(shared, object, copies);
        let upload = Arc::downgrade(self);
        multipart.copy_parts(move |error| {
            if let Some(upload) = upload.upgrade() {
                append::learn(&upload.shared, &error);
                upload.fail(error);
            }
        });
        multipart
    }

    /// Seals and sends a part. The first one creates the multipart upload.
    pub(super) fn submit(self: &Arc<Self>, state: &mut State, part: Part) {
        let part = part.seal();
        state.sealed = part.number;
        state.whole = Some(match state.whole {
            Some(before) => before.combine(part.checksum, part.len),
            None => part.checksum,
        });
        let multipart = state.multipart.get_or_insert_with(|| self.begin());
        let upload = Arc::downgrade(self);
        multipart.submit(part, move |error| {
            if let Some(upload) = upload.upgrade() {
                upload.fail(error);
            }
        });
    }
}
