//! The operations that wait for the disk, and the answers to operations that waited too long.
//!
//! Enters: a read or open with the callback of the caller, or a write. Leaves: the answer, in time, whatever the disk does. One thread
//! watches all open operations, and makes no disk access itself. An operation that the disk has keeps its memory until it ends, because the
//! kernel may write there. A late operation that is still queued frees its memory.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, bounded};

use super::rest::{LATE, Rest};
use super::{Given, Later, Lent};
use crate::buffer::BlockMut;
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::sync::atomic::{AtomicBool, Ordering::Relaxed};
use crate::sync::{Arc, Mutex};

/// Interval between checks of the open operations. Doubling it answers late operations up to that much later.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The caller's callback.
pub(super) enum Done {
    Read(Later),
    Whole(Lent),
    /// A write, for which no caller waits.
    Nobody,
}

impl Done {
    /// Answers that the operation was late. A panic of the callback does not stop the other operations.
    fn missed(self) {
        match self {
            Self::Read(later) => answer(later, Given::Late),
            Self::Whole(lent) => _ = catch_unwind(AssertUnwindSafe(|| lent(None))),
            Self::Nobody => {}
        }
    }
}

fn answer(later: Later, given: Given) {
    // A panic is in the log already, and the dropped request answers EIO.
    let _ = catch_unwind(AssertUnwindSafe(|| later(given)));
}

/// The state of one operation.
enum State {
    /// The operation is queued: the disk does not have it yet.
    Queued(Option<BlockMut>, Done),
    /// The disk has the operation.
    Begun(Done),
    /// The caller was answered, but the disk still has the operation.
    Late,
    /// The caller was answered.
    Over,
}

struct Wait {
    since: Instant,
    state: Mutex<State>,
}

/// All open operations.
pub(super) struct Waits {
    clock: Clock,
    metrics: Arc<Metrics>,
    pub(super) rest: Rest,
    open: Mutex<Open>,
    wakes: Sender<()>,
    woken: Receiver<()>,
}

#[derive(Default)]
struct Open {
    next: u64,
    waits: HashMap<u64, Arc<Wait>>,
    /// Whether the watching thread sleeps until it is woken.
    sleeps: bool,
}

impl std::fmt::Debug for Waits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waits").field("rest", &self.rest).finish_non_exhaustive()
    }
}

impl Waits {
    /// Creates an empty list.
    pub(super) fn new(rest: Rest, clock: Clock, metrics: Arc<Metrics>) -> Self {
        let (wakes, woken) = bounded(1);
        Self { clock, metrics, rest, open: Mutex::default(), wakes, woken }
    }

    /// Adds a queued operation. `into` is the memory for the bytes of a read.
    pub(super) fn queue(self: &Arc<Self>, into: Option<BlockMut>, done: Done) -> Ticket {
        self.add(State::Queued(into, done))
    }

    /// Adds a write that begins now.
    pub(super) fn write(self: &Arc<Self>) -> Ticket {
        self.add(State::Begun(Done::Nobody))
    }

    fn add(self: &Arc<Self>, state: State) -> Ticket {
        let wait = Arc::new(Wait { since: self.clock.now(), state: Mutex::new(state) });
        let (no, wakes) = {
            let mut open = self.open.lock();
            open.next += 1;
            let no = open.next;
            open.waits.insert(no, Arc::clone(&wait));
            (no, std::mem::take(&mut open.sleeps))
        };
        if wakes {
            self.wake();
        }
        Ticket { waits: Arc::clone(self), no, wait }
    }

    /// Wakes the watching thread for another check.
    pub(super) fn wake(&self) {
        // A full channel wakes the thread already.
        let _ = self.wakes.try_send(());
    }

    /// Answers late operations until `stop`, and then all open ones. Calls `tries` when a trial of the disk is due.
    pub(super) fn watch(&self, stop: &AtomicBool, tries: impl Fn()) {
        loop {
            let is_last = stop.load(Relaxed);
            let now = self.clock.now();
            let (overdue, is_idle) = {
                let mut open = self.open.lock();
                let is_late = |wait: &Wait| is_last || now.saturating_duration_since(wait.since) >= LATE;
                let overdue: Vec<_> = open.waits.values().filter(|wait| is_late(wait)).cloned().collect();
                open.sleeps = open.waits.is_empty() && !self.rest.is_resting();
                (overdue, open.sleeps)
            };
            overdue.iter().for_each(|wait| self.give_up(wait, now));
            if is_last {
                return;
            }
            if self.rest.is_trial_due(now) {
                tries();
            }
            let woken = match is_idle {
                true => self.woken.recv().map_err(|_| RecvTimeoutError::Disconnected),
                false => self.woken.recv_timeout(LOOK_EVERY),
            };
            if woken == Err(RecvTimeoutError::Disconnected) {
                return;
            }
        }
    }

    fn give_up(&self, wait: &Wait, now: Instant) {
        // The memory of a queued read is freed before the answer.
        let done = {
            let mut state = wait.state.lock();
            match std::mem::replace(&mut *state, State::Over) {
                State::Queued(_, done) => done,
                State::Begun(done) => {
                    *state = State::Late;
                    // Under the lock, because the operation could otherwise end before it.
                    self.rest.late(now);
                    done
                }
                other => {
                    *state = other;
                    return;
                }
            }
        };
        self.metrics.cache_late.inc();
        done.missed();
    }
}

/// An operation, from the queue to its end. If the ticket is dropped earlier, the caller gets the answer "late".
pub(super) struct Ticket {
    waits: Arc<Waits>,
    no: u64,
    wait: Arc<Wait>,
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Ticket").field(&self.no).finish()
    }
}

impl Ticket {
    /// The time of the request.
    pub(super) fn since(&self) -> Instant {
        self.wait.since
    }

    /// Marks the operation as given to the disk, and returns the memory of a read. `None`: the operation waited too long for its turn, and
    /// its caller has an answer already.
    pub(super) fn begin(&self) -> Option<Option<BlockMut>> {
        let mut state = self.wait.state.lock();
        match std::mem::replace(&mut *state, State::Over) {
            State::Queued(into, done) => {
                *state = State::Begun(done);
                Some(into)
            }
            other => {
                *state = other;
                None
            }
        }
    }

    /// Ends a read, with or without its bytes. A late read drops its memory now.
    pub(super) fn read(self, into: BlockMut, is_here: bool) {
        if let Some(Done::Read(later)) = self.end() {
            answer(later, if is_here { Given::Here(into) } else { Given::Absent(into) });
        }
    }

    /// Ends a search for a whole file. Returns the callback, unless the search was late.
    pub(super) fn found(self) -> Option<Lent> {
        match self.end() {
            Some(Done::Whole(lent)) => Some(lent),
            _ => None,
        }
    }

    /// Answers the caller as late, because the disk will not report the operation's end.
    pub(super) fn give_up(&self) {
        if let Some(done) = self.end() {
            done.missed();
        }
    }

    /// Ends the operation. Returns the callback, unless the caller was answered already.
    fn end(&self) -> Option<Done> {
        self.waits.open.lock().waits.remove(&self.no);
        let state = std::mem::replace(&mut *self.wait.state.lock(), State::Over);
        match state {
            State::Begun(done) => {
                self.waits.rest.on_time();
                Some(done)
            }
            State::Queued(into, done) => {
                drop(into);
                done.missed();
                None
            }
            State::Late => {
                self.waits.rest.landed();
                None
            }
            State::Over => None,
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.give_up();
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::mpsc;

    use super::*;
    use crate::buffer::{self, Pool, Use};

    struct Bench {
        waits: Arc<Waits>,
        pool: Pool,
        clock: Clock,
    }

    impl Bench {
        fn new() -> Self {
            let clock = Clock::manual();
            let waits = Waits::new(Rest::new(Path::new("dir")), clock.clone(), Arc::default());
            Self { waits: Arc::new(waits), pool: Pool::new(&buffer::Config::default()), clock }
        }

        fn ask(&self) -> (Ticket, mpsc::Receiver<Given>) {
            let (send, given) = mpsc::channel();
            let into = self.pool.try_take(Use::Demand, 100).unwrap();
            let done: Later = Box::new(move |given| _ = send.send(given));
            (self.waits.queue(Some(into), Done::Read(done)), given)
        }

        /// Checks the open operations once.
        fn look(&self) {
            let now = self.clock.now();
            let open: Vec<_> = self.waits.open.lock().waits.values().cloned().collect();
            let late = |wait: &&Arc<Wait>| now.saturating_duration_since(wait.since) >= LATE;
            open.iter().filter(late).for_each(|wait| self.waits.give_up(wait, now));
        }
    }

    #[test]
    fn a_read_that_the_disk_has_too_long_is_answered_and_keeps_its_memory() {
        let b = Bench::new();
        let (ticket, given) = b.ask();
        let into = ticket.begin().unwrap().unwrap();
        b.clock.advance(LATE - Duration::from_millis(1));
        b.look();
        assert!(given.try_recv().is_err());
        b.clock.advance(Duration::from_millis(1));
        b.look();
        assert!(matches!(given.try_recv(), Ok(Given::Late)));
        assert!(b.pool.used(Use::Demand) > 0, "the kernel may still write there");
        ticket.read(into, true);
        assert!(given.try_recv().is_err(), "answered once");
        assert_eq!(b.pool.used(Use::Demand), 0);
        assert_eq!(b.waits.metrics.cache_late.get(), 1);
    }

    #[test]
    fn a_read_that_waits_too_long_for_its_turn_gives_its_memory_back() {
        let b = Bench::new();
        let (ticket, given) = b.ask();
        b.clock.advance(LATE);
        b.look();
        assert!(matches!(given.try_recv(), Ok(Given::Late)));
        assert!(ticket.begin().is_none(), "the disk is not asked any more");
        assert_eq!(b.pool.used(Use::Demand), 0);
        assert!(!b.waits.rest.is_resting());
    }

    #[test]
    fn every_read_that_is_dropped_on_the_way_is_answered() {
        let b = Bench::new();
        let (queued, given) = b.ask();
        drop(queued);
        assert!(matches!(given.try_recv(), Ok(Given::Late)));
        let (begun, given) = b.ask();
        let into = begun.begin().unwrap();
        drop(begun);
        assert!(matches!(given.try_recv(), Ok(Given::Late)));
        drop(into);
        assert!(b.waits.open.lock().waits.is_empty());
    }

    #[test]
    fn the_thread_answers_what_is_late_and_at_its_end_all_that_is_open() {
        let b = Bench::new();
        let (stop, waits) = (Arc::new(AtomicBool::new(false)), Arc::clone(&b.waits));
        let of_thread = Arc::clone(&stop);
        let thread = std::thread::spawn(move || waits.watch(&of_thread, || {}));
        let (late, given) = b.ask();
        let into = late.begin().unwrap();
        b.clock.advance(LATE);
        assert!(matches!(given.recv_timeout(Duration::from_secs(60)), Ok(Given::Late)));
        let (open, given) = b.ask();
        stop.store(true, Relaxed);
        b.waits.wake();
        thread.join().unwrap();
        assert!(matches!(given.try_recv(), Ok(Given::Late)));
        drop((late, into, open));
    }
}
