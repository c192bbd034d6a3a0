//! The budget behind its lock: memory in use, and waiting requests. `budget.rs` decides; this file wakes the requests that it grants.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use super::budget::{BudgetState, Pressure, Ticket, Use};
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};
use crate::sync::{Arc, Mutex};

/// The account of memory in use, by purpose, and of waiting requests; one per mount.
#[derive(Debug)]
pub(super) struct Ledger {
    queue: Mutex<Queue>,
    /// Total bytes of the budget.
    total: u64,
    /// Bytes of short blocks, which are beside the pages.
    short: AtomicU64,
    contended: tokio::sync::Notify,
}

#[derive(Debug)]
struct Queue {
    state: BudgetState,
    wakers: Vec<(Ticket, Arc<Slot>)>,
}

#[derive(Debug, Default)]
struct Slot(Mutex<SlotState>);

#[derive(Debug, Default)]
struct SlotState {
    granted: bool,
    waker: Option<Waker>,
}

impl Ledger {
    /// Creates the account. A quarter of `total` is reserved for readers, and three eighths for writers.
    pub(super) fn new(total: u64) -> Self {
        let state = BudgetState::new(total, total / 4, total * 3 / 8);
        Self {
            queue: Mutex::new(Queue { state, wakers: Vec::new() }),
            total,
            short: AtomicU64::new(0),
            contended: tokio::sync::Notify::new(),
        }
    }

    /// Most bytes of one request; see [`super::Pool::request_max`].
    pub(super) fn request_max(&self, purpose: Use) -> u64 {
        self.queue.lock().state.request_max(purpose)
    }

    /// The shortage of memory.
    pub(super) fn pressure(&self) -> Pressure {
        self.queue.lock().state.pressure()
    }

    /// Bytes taken for this use.
    pub(super) fn used(&self, purpose: Use) -> u64 {
        self.queue.lock().state.used(purpose)
    }

    /// Number of grants for this use.
    pub(super) fn granted(&self, purpose: Use) -> u64 {
        self.queue.lock().state.granted(purpose)
    }

    /// Number of requests that wait for memory for this use.
    pub(super) fn waiting(&self, purpose: Use) -> usize {
        self.queue.lock().state.waiting(purpose)
    }

    /// Waits until a request has to wait for memory; see [`super::Pool::contended`].
    pub(super) async fn contended(&self) {
        self.contended.notified().await;
    }

    /// Ends a wait for [`Ledger::contended`].
    pub(super) fn look_up(&self) {
        self.contended.notify_one();
    }

    /// Takes `bytes`, if the budget has them now.
    pub(super) fn try_take(&self, purpose: Use, bytes: u64) -> bool {
        self.queue.lock().state.try_take(purpose, bytes)
    }

    /// Takes `bytes` in turn, at most [`Ledger::request_max`]; returns the number taken.
    pub(super) async fn take(self: Arc<Self>, purpose: Use, bytes: u64) -> u64 {
        let (bytes, waiting) = {
            let mut queue = self.queue.lock();
            let bytes = bytes.min(queue.state.request_max(purpose));
            if queue.state.try_take(purpose, bytes) {
                (bytes, None)
            } else {
                let ticket = queue.state.enqueue(purpose, bytes);
                let slot = Arc::new(Slot::default());
                queue.wakers.push((ticket, Arc::clone(&slot)));
                (bytes, Some((ticket, slot)))
            }
        };
        if let Some((ticket, slot)) = waiting {
            self.contended.notify_one();
            Waiting { ledger: Arc::clone(&self), ticket, slot, purpose, bytes, done: false }.await;
        }
        bytes
    }

    /// Returns `bytes` of this use to the budget.
    pub(super) fn give_back(&self, purpose: Use, bytes: u64) {
        self.change(|state| state.give_back(purpose, bytes));
    }

    /// Charges `bytes` to another use, if that use could take them now.
    pub(super) fn try_convert(&self, from: Use, to: Use, bytes: u64) -> bool {
        self.change(|state| state.try_convert(from, to, bytes))
    }

    /// Notes that read-ahead has ended; see [`super::Pool::nobody_reads`].
    pub(super) fn nobody_reads(&self) {
        self.change(BudgetState::nobody_reads);
    }

    /// Adds `bytes` to the memory of short blocks. Returns the bytes that the budget leaves to pages.
    pub(super) fn add_short(&self, bytes: u64) -> u64 {
        let short = self.short.fetch_add(bytes, Relaxed) + bytes;
        self.total.saturating_sub(short)
    }

    /// Subtracts `bytes` from the memory of short blocks.
    pub(super) fn sub_short(&self, bytes: u64) {
        self.short.fetch_sub(bytes, Relaxed);
    }

    /// Changes the state, and wakes the requests that the change grants.
    fn change<T>(&self, change: impl FnOnce(&mut BudgetState) -> T) -> T {
        let (done, granted) = {
            let mut queue = self.queue.lock();
            (change(&mut queue.state), queue.grant())
        };
        wake(granted);
        done
    }
}

impl Queue {
    fn grant(&mut self) -> Vec<Arc<Slot>> {
        if self.wakers.is_empty() {
            return Vec::new();
        }
        let tickets = self.state.grant();
        self.wakers.extract_if(.., |(t, _)| tickets.contains(t)).map(|(_, slot)| slot).collect()
    }
}

fn wake(slots: Vec<Arc<Slot>>) {
    for slot in slots {
        let waker = {
            let mut state = slot.0.lock();
            state.granted = true;
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// A request in the queue. Dropping it before its grant cancels it.
struct Waiting {
    ledger: Arc<Ledger>,
    ticket: Ticket,
    slot: Arc<Slot>,
    purpose: Use,
    bytes: u64,
    done: bool,
}

impl Future for Waiting {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let granted = {
            let mut state = self.slot.0.lock();
            if !state.granted {
                state.waker = Some(cx.waker().clone());
            }
            state.granted
        };
        self.done = granted;
        if granted { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        // The request was dropped early: remove it from the queue, or return the memory that was granted meanwhile.
        let granted = {
            let mut queue = self.ledger.queue.lock();
            let waiting = queue.wakers.iter().any(|(t, _)| *t == self.ticket);
            if waiting {
                queue.state.cancel(self.ticket);
                queue.wakers.retain(|(t, _)| *t != self.ticket);
            } else {
                queue.state.give_back(self.purpose, self.bytes);
            }
            queue.grant()
        };
        wake(granted);
    }
}
