//! Identical lookups in flight share one request. After a local change of the name, no lookup uses the answer of an earlier request.

use std::fmt;

use foldhash::HashMap;
use futures_util::FutureExt;
use futures_util::future::{Shared, WeakShared};

use super::InodeNo;
use super::error::Result;
use super::remote::{Ask, Remote, Slot};
use crate::first::First;
use crate::s3::BoxFuture;
use crate::sync::Arc;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Lookups under way, by directory and name.
#[derive(Default)]
pub(super) struct Flights(HashMap<(InodeNo, Box<str>), Vec<Entry>>);

struct Entry {
    flight: Arc<Flight>,
    answer: WeakShared<BoxFuture<'static, Result<Remote>>>,
}

/// One question on its way.
#[derive(Debug)]
pub(super) struct Flight {
    ask: Ask,
    /// The event at which it was asked.
    pub(super) asked: u64,
    /// Whether something happened to the name since. Read and set under the tree's lock.
    overtaken: AtomicBool,
    /// The lookups that wait for it.
    takers: AtomicU64,
    /// What came with the attributes, for one lookup.
    first: Slot,
}

/// A place in a flight.
pub(super) struct Seat {
    pub(super) flight: Arc<Flight>,
    pub(super) answer: Shared<BoxFuture<'static, Result<Remote>>>,
}

impl Flight {
    pub(super) fn is_overtaken(&self) -> bool {
        self.overtaken.load(Relaxed)
    }

    /// Whether the answer was asked for one lookup alone.
    pub(super) fn is_alone(&self) -> bool {
        self.takers.load(Relaxed) == 1
    }

    /// What came with the attributes, once.
    pub(super) fn first(&self) -> Option<First> {
        self.first.lock().take()
    }
}

impl Flights {
    /// A seat in a flight that asks the same.
    pub(super) fn join(&self, parent: InodeNo, name: &str, ask: Ask) -> Option<Seat> {
        let entries = self.0.get(&(parent, name.into()))?;
        let entry = entries.iter().find(|entry| entry.flight.ask == ask)?;
        let answer = entry.answer.upgrade()?;
        entry.flight.takers.fetch_add(1, Relaxed);
        Some(Seat { flight: entry.flight.clone(), answer })
    }

    /// Starts a flight; `landed` runs once, when it has its answer or no lookup waits any more. `question` is asked with a slot for what
    /// comes with the attributes.
    pub(super) fn start(
        &mut self,
        parent: InodeNo,
        name: &str,
        ask: Ask,
        asked: u64,
        question: impl FnOnce(Slot) -> BoxFuture<'static, Result<Remote>>,
        landed: impl FnOnce(Arc<Flight>) + Send + 'static,
    ) -> Seat {
        let first = Slot::default();
        let question = question(Arc::clone(&first));
        let (overtaken, takers) = (AtomicBool::new(false), AtomicU64::new(1));
        let flight = Arc::new(Flight { ask, asked, overtaken, takers, first });
        let guard = Landing(Some((flight.clone(), Box::new(landed))));
        let answer: BoxFuture<'static, _> = Box::pin(async move {
            let _guard = guard;
            question.await
        });
        let answer = answer.shared();
        let weak = answer.downgrade().expect("not polled yet");
        let entry = Entry { flight: flight.clone(), answer: weak };
        self.0.entry((parent, name.into())).or_default().push(entry);
        Seat { flight, answer }
    }

    /// Takes a flight that has landed off the board.
    pub(super) fn land(&mut self, parent: InodeNo, name: &str, flight: &Arc<Flight>) {
        let key = (parent, name.into());
        if let Some(entries) = self.0.get_mut(&key) {
            entries.retain(|entry| !Arc::ptr_eq(&entry.flight, flight));
            if entries.is_empty() {
                self.0.remove(&key);
            }
        }
    }

    /// Something happened to the name: what is under way was asked too early.
    pub(super) fn overtake(&mut self, parent: InodeNo, name: &str) {
        if self.0.is_empty() {
            return;
        }
        for entry in self.0.remove(&(parent, name.into())).unwrap_or_default() {
            entry.flight.overtaken.store(true, Relaxed);
        }
    }
}

#[cfg(test)]
impl Flights {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

type Landed = Box<dyn FnOnce(Arc<Flight>) + Send>;

/// Runs its closure when the flight's future is done with, however that came about.
struct Landing(Option<(Arc<Flight>, Landed)>);

impl Drop for Landing {
    fn drop(&mut self) {
        if let Some((flight, landed)) = self.0.take() {
            landed(flight);
        }
    }
}

impl fmt::Debug for Flights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.0.keys().map(|name| (name, "on its way"))).finish()
    }
}
