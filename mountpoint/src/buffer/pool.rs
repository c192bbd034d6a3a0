//! The pool: allocates blocks, in turn, within the budget.

use std::future::Future;
use std::time::Duration;

use super::block::{BlockMut, charge};
use super::budget::{Pressure, Use};
use super::ledger::Ledger;
use super::page::Pages;
use super::short::{Beside, Shorts};
use super::{BLOCK, Config};
use crate::clock::Clock;
use crate::sync::Arc;

/// Idle time of a block after which its memory returns to the kernel: all memory is back within a minute.
const IDLE_FOR: Duration = Duration::from_secs(40);

/// The pool of a mount. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Pool {
    pages: Arc<Pages>,
    shorts: Arc<Shorts>,
    ledger: Arc<Ledger>,
}

impl Pool {
    /// Creates an empty pool of these sizes. A quarter is reserved for readers and three eighths for writers. So read-ahead, which may hold
    /// its memory as long as it likes, gets at most three eighths while both are busy, and the rest of their shares while they are not.
    pub fn new(config: &Config) -> Self {
        let total = config.target.saturating_sub(config.network).max(16 * BLOCK as u64);
        Self {
            pages: Arc::new(Pages::new(Clock::machine())),
            shorts: Arc::new(Shorts::new(Clock::machine(), total)),
            ledger: Arc::new(Ledger::new(total)),
        }
    }

    /// The largest single reservation, in bytes, that is certain to be granted some day.
    pub fn request_max(&self, purpose: Use) -> u64 {
        self.ledger.request_max(purpose)
    }

    /// The shortage of memory.
    pub fn pressure(&self) -> Pressure {
        self.ledger.pressure()
    }

    /// Bytes taken for this use.
    pub fn used(&self, purpose: Use) -> u64 {
        self.ledger.used(purpose)
    }

    /// Number of grants for this use so far. While it grows, a waiting request comes nearer to its turn.
    pub fn granted(&self, purpose: Use) -> u64 {
        self.ledger.granted(purpose)
    }

    /// Number of requests that wait for memory for this use.
    pub fn waiting(&self, purpose: Use) -> usize {
        self.ledger.waiting(purpose)
    }

    /// Waits until a request had to wait for memory since the last call. A room with memory that it could give up (unread read-ahead, an
    /// idle part) waits here, and gives up some.
    pub async fn contended(&self) {
        self.ledger.contended().await;
    }

    /// Ends a wait for [`Pool::contended`] without a request, so the room that waits can check whether it should end.
    pub fn look_up(&self) {
        self.ledger.look_up();
    }

    /// Reserves `bytes`, if the pool has them now.
    pub fn try_reserve(&self, purpose: Use, bytes: u64) -> Option<Reservation> {
        let granted = self.ledger.try_take(purpose, bytes);
        granted.then(|| Reservation { pool: self.clone(), purpose, bytes })
    }

    /// Reserves `bytes`, in turn, as a whole: no request keeps a part while it waits. `bytes` must not exceed [`Pool::request_max`]; a
    /// larger request is cut to it.
    pub fn reserve(&self, purpose: Use, bytes: u64) -> impl Future<Output = Reservation> + Send + use<> {
        let pool = self.clone();
        async move {
            let bytes = Arc::clone(&pool.ledger).take(purpose, bytes).await;
            Reservation { pool, purpose, bytes }
        }
    }

    /// Takes one block for `len` bytes (at most [`BLOCK`]), if the pool has the memory now.
    pub fn try_take(&self, purpose: Use, len: usize) -> Option<BlockMut> {
        self.try_reserve(purpose, charge(len))?.block(len)
    }

    /// Copies bytes that wait without a place in the budget. The caller limits how many there are.
    pub fn beside(&self, bytes: &[u8]) -> Beside {
        self.shorts.beside(bytes)
    }

    /// Returns idle memory to the kernel. Never ends; the mount runs this task beside the requests.
    pub async fn keep_trimmed(self) {
        tokio::join!(self.pages.keep_trimmed(IDLE_FOR), self.shorts.keep_trimmed(IDLE_FOR));
    }

    /// Notes that read-ahead has ended: writers may have all memory until memory is reserved for read-ahead again.
    pub fn nobody_reads(&self) {
        self.ledger.nobody_reads();
    }
}

/// Memory that is granted but not yet cut into blocks. Dropping it returns the memory.
#[derive(Debug)]
pub struct Reservation {
    pool: Pool,
    purpose: Use,
    bytes: u64,
}

impl Reservation {
    /// Number of bytes not yet cut.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Cuts a block for `len` bytes (at most [`BLOCK`]); `None` if too little is left, or the kernel has no memory.
    pub fn block(&mut self, len: usize) -> Option<BlockMut> {
        let bytes = charge(len);
        if len > BLOCK || self.bytes < bytes {
            return None;
        }
        let Pool { pages, shorts, ledger } = &self.pool;
        let block = BlockMut::new(ledger, pages, shorts, self.purpose, len)?;
        self.bytes -= bytes;
        Some(block)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.pool.ledger.give_back(self.purpose, self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    #[cfg(feature = "shuttle")]
    use std::task::{Context, Waker};

    use super::super::fill::Fill;
    use super::*;

    fn small_pool() -> Pool {
        Pool::new(&Config { target: 16 * BLOCK as u64, network: 0 })
    }

    #[test]
    fn a_block_is_filled_frozen_sliced_and_returned() {
        let pool = small_pool();
        let mut block = pool.try_take(Use::Demand, BLOCK).unwrap();
        assert_eq!(block.put(b"hello"), 5);
        let block = block.freeze();
        let tail = block.slice(1..5);
        drop(block);
        assert_eq!(&tail[..], b"ello");
        assert_eq!(pool.used(Use::Demand), BLOCK as u64);
        drop(tail);
        assert_eq!(pool.used(Use::Demand), 0);
    }

    #[test]
    fn small_requests_are_charged_in_pages() {
        let pool = small_pool();
        let block = pool.try_take(Use::Demand, 5000).unwrap();
        assert_eq!(pool.used(Use::Demand), 8192);
        assert_eq!(block.limit(), 5000);
    }

    #[tokio::test]
    async fn who_waits_is_served_when_memory_returns_and_who_gives_up_harms_nobody() {
        let pool = small_pool();
        let max = pool.request_max(Use::Write);
        let mut held = Vec::new();
        while let Some(r) = pool.try_reserve(Use::Write, max) {
            held.push(r);
        }
        let given_up = tokio::spawn(pool.reserve(Use::Write, max));
        let served = tokio::spawn(pool.reserve(Use::Write, max));
        while pool.waiting(Use::Write) < 2 {
            tokio::task::yield_now().await;
        }
        given_up.abort();
        let _ = given_up.await;
        held.clear();
        let reservation = served.await.unwrap();
        assert_eq!(reservation.bytes(), max);
        drop(reservation);
        assert_eq!(pool.used(Use::Write), 0);
        assert_eq!(pool.waiting(Use::Write), 0);
    }

    #[cfg(feature = "shuttle")]
    #[test]
    fn shuttle_a_waiting_reader_is_served_whoever_gives_back() {
        use shuttle::{future::block_on, thread::spawn};
        // A waiter that nobody wakes is a deadlock, which shuttle reports with its schedule.
        crate::testing::model::check(|| {
            let pool = small_pool();
            let max = pool.request_max(Use::Demand);
            let mut held: Vec<_> = std::iter::from_fn(|| pool.try_reserve(Use::Demand, max)).collect();
            let gives_up = pool.reserve(Use::Demand, max);
            let mut threads = vec![spawn(move || {
                let mut waiting = Box::pin(gives_up);
                drop(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())));
            })];
            for waiting in [pool.reserve(Use::Demand, max), pool.reserve(Use::Demand, max)] {
                threads.push(spawn(move || assert_eq!(block_on(waiting).bytes(), max)));
            }
            // One block comes back, and no other while a request waits: it must reach both, in whichever order.
            let one = held.pop();
            threads.push(spawn(move || drop(one)));
            for thread in threads {
                thread.join().unwrap();
            }
            drop(held);
            assert_eq!((pool.used(Use::Demand), pool.waiting(Use::Demand)), (0, 0));
        });
    }

    #[cfg(feature = "shuttle")]
    #[test]
    fn shuttle_writers_and_readers_in_one_line_all_have_their_turn() {
        use shuttle::{future::block_on, thread::spawn};
        crate::testing::model::check(|| {
            let pool = small_pool();
            let uses = [Use::Write, Use::Demand, Use::Write, Use::Demand];
            let threads: Vec<_> = uses
                .into_iter()
                .map(|purpose| {
                    let pool = pool.clone();
                    spawn(move || {
                        let max = pool.request_max(purpose);
                        for _ in 0..2 {
                            drop(pool.try_reserve(Use::Ahead, pool.request_max(Use::Ahead)));
                            assert_eq!(block_on(pool.reserve(purpose, max)).bytes(), max);
                        }
                    })
                })
                .collect();
            for thread in threads {
                thread.join().unwrap();
            }
            for purpose in [Use::Write, Use::Demand, Use::Ahead] {
                assert_eq!((pool.used(purpose), pool.waiting(purpose)), (0, 0), "{purpose:?}");
            }
        });
    }

    #[test]
    fn a_fill_hands_out_each_block_as_it_gets_full() {
        let pool = small_pool();
        let blocks = [3, 4096, 5].map(|n| pool.try_take(Use::Demand, n).unwrap());
        let (send, receive) = std::sync::mpsc::channel();
        let mut fill = Fill::new(blocks, move |b| send.send(b.len()).unwrap());
        let data = vec![1; 5000];
        assert_eq!(fill.put(&data[..10]), 10);
        assert_eq!(receive.try_iter().collect::<Vec<_>>(), [3]);
        assert_eq!(fill.put(&data), 4096 + 5 - 7, "what does not fit is not taken");
        assert_eq!(receive.try_iter().collect::<Vec<_>>(), [4096, 5]);
        assert_eq!(fill.remaining(), 0);
    }
}
