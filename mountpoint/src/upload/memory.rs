//! Memory for writers: first blocks, whole parts, the queue of waiting writers, and the number of parts in flight.
//!
//! No writer waits for ever: a writer in the queue has no memory, or parts in flight (sending needs no more memory), or one small first
//! block. All first blocks together have at most a quarter of the writers' guaranteed memory. A part has at most the other three quarters,
//! and at most the readers' memory, which readers lend if idle parts have all memory of the writers. So when no part is in flight and idle
//! parts are spilled, the part of the first writer in the queue fits.

use std::io;
use std::time::Duration;

use rustix::io::Errno;
use tokio::sync::Notify;
use tracing::warn;

use super::Error;
use super::reclaim::Reclaim;
use crate::buffer::{BLOCK, Beside, Pool, Reservation, Use};
use crate::clock::Clock;
use crate::sync::Arc;
use crate::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Most bytes of held writes, which wait without a reply until memory comes free. They are outside the budget, within the 64
/// MiB by which peak RSS may exceed it. Beyond this limit, writes go straight to a spill file; without a spill directory they fail.
pub(super) const HELD_MAX: u64 = 32 << 20;

/// Most early bytes of all files, on the heap and outside the budget, too. Beyond this limit an early write fails. Doubling it doubles the
/// number of files that programs can write out of order at once.
const EARLY_MAX: u64 = 16 << 20;

#[derive(Debug)]
pub(super) struct Memory {
    pool: Pool,
    clock: Clock,
    wait_max: Duration,
    spill_files_max: u64,
    reclaim: Option<Reclaim>,
    part_max: u64,
    first_max: u64,
    first: AtomicU64,
    held: AtomicU64,
    early: AtomicU64,
    spill_files: AtomicU64,
    sending: AtomicU64,
    sent: AtomicU64,
    spiller: Arc<Notify>,
}

/// A counted amount that is in use until the drop.
#[derive(Debug)]
pub(super) struct Counted {
    memory: Arc<Memory>,
    count: fn(&Memory) -> &AtomicU64,
    n: u64,
}

impl Memory {
    pub(super) fn new(
        pool: Pool,
        clock: Clock,
        wait_max: Duration,
        spill_files_max: u64,
        reclaim: Option<Reclaim>,
    ) -> Self {
        let sure = pool.request_max(Use::Write);
        let first_max = sure / 4;
        Self {
            part_max: (sure - first_max).min(pool.request_max(Use::Demand)) / BLOCK as u64 * BLOCK as u64,
            first_max,
            pool,
            clock,
            wait_max,
            spill_files_max,
            reclaim,
            first: AtomicU64::new(0),
            held: AtomicU64::new(0),
            early: AtomicU64::new(0),
            spill_files: AtomicU64::new(0),
            sending: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            spiller: Arc::new(Notify::new()),
        }
    }

    /// Size of the largest part whose memory is sure to come free, in bytes.
    pub(super) fn part_max(&self) -> u64 {
        self.part_max
    }

    /// The writers' guaranteed memory, in bytes.
    pub(super) fn sure(&self) -> u64 {
        self.pool.request_max(Use::Write)
    }

    /// Reserves `bytes`, if the pool has them now.
    pub(super) fn try_reserve(&self, bytes: u64) -> Option<Reservation> {
        self.pool.try_reserve(Use::Write, bytes)
    }

    /// The permit for a first block of `bytes`, before the memory for the whole part is reserved.
    pub(super) fn first(self: &Arc<Self>, bytes: u64) -> Option<Counted> {
        self.count(|m| &m.first, bytes, self.first_max)
    }

    /// The permit to hold a copy of a write; see [`Memory::beside`].
    pub(super) fn hold(self: &Arc<Self>, bytes: usize) -> Option<Counted> {
        self.count(|m| &m.held, bytes as u64, HELD_MAX)
    }

    /// Copies a write to hold it.
    pub(super) fn beside(&self, data: &[u8]) -> Beside {
        self.pool.beside(data)
    }

    /// The permit to keep early bytes.
    pub(super) fn early(self: &Arc<Self>, bytes: usize) -> Option<Counted> {
        self.count(|m| &m.early, bytes as u64, EARLY_MAX)
    }

    /// The permit for one more part on disk.
    ///
    /// # Errors
    /// "Too many open files", as from the kernel, if the limit is reached.
    pub(super) fn spill_file(self: &Arc<Self>) -> io::Result<Counted> {
        self.count(|m| &m.spill_files, 1, self.spill_files_max).ok_or_else(|| Errno::MFILE.into())
    }

    /// The function that frees space when the disk of the spill files is full.
    pub(super) fn reclaim(&self) -> Option<Reclaim> {
        self.reclaim.clone()
    }

    /// Logs that [`Memory::hold`] gave no permit, and returns the error.
    pub(super) fn too_many_held(&self) -> Error {
        warn!(
            held = self.held.load(SeqCst),
            "too many writes wait for memory at once: raise --memory-target, or name a --spill-dir"
        );
        Error::NoMemory
    }

    /// Logs that neither [`Memory::hold`] nor [`Memory::spill_file`] gave a permit, and returns the error.
    pub(super) fn too_many_spilled(&self) -> Error {
        warn!(
            spilled = self.spill_files.load(SeqCst),
            "too many parts are on disk at once: raise the limit of open files (ulimit -n), or --memory-target"
        );
        Error::NoMemory
    }

    /// Holds a write like [`Memory::hold`], but without the limit.
    pub(super) fn hold_anyway(self: &Arc<Self>, bytes: usize) -> Counted {
        self.held.fetch_add(bytes as u64, SeqCst);
        Counted { memory: Arc::clone(self), count: |m| &m.held, n: bytes as u64 }
    }

    /// Counts a part in flight until the guard is dropped.
    pub(super) fn sending(self: &Arc<Self>) -> Counted {
        self.sending.fetch_add(1, SeqCst);
        Counted { memory: Arc::clone(self), count: |m| &m.sending, n: 1 }
    }

    /// Waits in the queue for a reservation of `bytes`.
    ///
    /// # Errors
    /// `NoMemory` if no memory came free within `wait_max` and no part was in flight during that time. (A request in flight ends by its own
    /// time limits, however slow the line is, and then frees its memory.)
    pub(super) async fn wait(&self, bytes: u64) -> Result<Reservation, Error> {
        let mut turn = std::pin::pin!(self.pool.reserve(Use::Write, bytes));
        loop {
            let sent = self.sent.load(SeqCst);
            let patience = async {
                // The spiller sees this writer from here on, because the poll of `turn` has put it into the queue.
                self.spiller.notify_one();
                self.clock.sleep(self.wait_max).await;
            };
            tokio::select! {
                biased;
                reservation = &mut turn => return Ok(reservation),
                () = patience => {}
            }
            // The order matters: a part that ends in between counts as sent before it leaves `sending`.
            if self.sending.load(SeqCst) == 0 && self.sent.load(SeqCst) == sent {
                warn!(
                    bytes,
                    waited_s = self.wait_max.as_secs(),
                    "no memory to write with: raise --memory-target, write fewer files at once, or name a --spill-dir"
                );
                return Err(Error::NoMemory);
            }
        }
    }

    /// Reserves memory like [`Memory::wait`] to send a part that is on disk, but never fails, because the file is safe on disk. If idle
    /// parts have all memory of writers and can't be spilled, the part takes readers' memory, which always comes free.
    pub(super) async fn wait_to_send(&self, bytes: u64) -> Reservation {
        match self.wait(bytes).await {
            Ok(reservation) => reservation,
            // The part fits, because no part is larger than the readers' memory.
            Err(_) => self.pool.reserve(Use::Demand, bytes).await,
        }
    }

    /// Waits in the readers' queue for a reservation of `bytes`, for data of the store. Readers' memory always comes free.
    pub(super) async fn wait_to_read(&self, bytes: u64) -> Reservation {
        self.pool.reserve(Use::Demand, bytes).await
    }

    /// Whether writers wait although no part is in flight, whose end would free memory.
    pub(super) fn starved(&self) -> bool {
        self.pool.waiting(Use::Write) > 0 && self.sending.load(SeqCst) == 0
    }

    /// Wakes the spiller to check again.
    pub(super) fn wake_spiller(&self) {
        self.spiller.notify_one();
    }

    /// The notification on which the spiller waits, sent by [`Memory::wake_spiller`].
    pub(super) fn spiller(&self) -> Arc<Notify> {
        Arc::clone(&self.spiller)
    }

    fn count(self: &Arc<Self>, count: fn(&Self) -> &AtomicU64, n: u64, most: u64) -> Option<Counted> {
        let add = |now: u64| now.checked_add(n).filter(|sum| *sum <= most);
        count(self).fetch_update(SeqCst, SeqCst, add).ok()?;
        Some(Counted { memory: Arc::clone(self), count, n })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let memory = &self.memory;
        let count = (self.count)(memory);
        let was_sent = std::ptr::eq(count, &memory.sending);
        if was_sent {
            memory.sent.fetch_add(1, SeqCst);
        }
        count.fetch_sub(self.n, SeqCst);
        if was_sent {
            memory.wake_spiller();
        }
    }
}
