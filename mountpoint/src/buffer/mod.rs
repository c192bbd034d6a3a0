//! Memory: blocks to receive into and answer from, under one budget.
//!
//! Enters: "a block of so many bytes, for a reader / a writer / read-ahead". Leaves: a [`BlockMut`] to fill, frozen to a
//! [`Block`] that many may read; its bytes return to the budget when the last holder drops it. This room knows
//! nothing of S3, files or FUSE, and never calls another room: a caller short of memory waits, and a caller that grows checks
//! [`Pool::pressure`] first.

mod budget;
mod fill;
mod page;
mod scratch;

use std::fmt;
use std::future::Future;
use std::ops::{Deref, Range};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;

pub use budget::{Pressure, Use};
pub use fill::Fill;
pub use scratch::Scratch;

use crate::clock::Clock;
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};
use crate::sync::{Arc, Mutex};
use budget::{BudgetState, Ticket};
use page::{PageBlock, Pages};

/// Bytes of a block: the largest FUSE read (1 MiB), so that an aligned read never straddles two.
pub const BLOCK: usize = 1 << 20;

/// Requests up to this many bytes are served from the heap, exact to the page; larger ones take a whole block.
const HEAP_MAX: usize = BLOCK / 2;

/// Small requests are charged in pages.
const PAGE: usize = 4096;

/// How long a block lies idle before its huge page goes back to the kernel: all is back within a minute.
const IDLE_FOR: Duration = Duration::from_secs(40);

/// The sizes of one budget.
#[derive(Clone, Debug)]
pub struct Config {
    /// All memory the engine's data may use, in bytes (`--memory-target`). Doubling it lets more readers and writers run at
    /// full speed at once; nothing fails when it is small, down to [`Config::TARGET_MIN`].
    pub target: u64,
    /// The part of `target` that the network's own buffers hold: connections times what each may hold.
    pub network: u64,
}

impl Config {
    /// The smallest target that always makes progress, in bytes.
    pub const TARGET_MIN: u64 = 128 << 20;
}

impl Default for Config {
    fn default() -> Self {
        Self { target: 1 << 30, network: 8 << 20 }
    }
}

/// The pool: cheap to clone, one per mount.
#[derive(Clone, Debug)]
pub struct Pool(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    pages: Arc<Pages>,
    queue: Mutex<Queue>,
    /// All bytes there may be.
    total: u64,
    /// Bytes of small requests, which stand beside the pages in the heap.
    heap: AtomicU64,
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

impl Pool {
    /// An empty pool of these sizes. A quarter is kept for readers and three eighths for writers, so that read-ahead,
    /// which may hold its memory as long as it likes, gets at most three eighths when both are busy and that
    /// plus whatever they leave when they are not.
    pub fn new(config: &Config) -> Self {
        let total = config.target.saturating_sub(config.network).max(16 * BLOCK as u64);
        let state = BudgetState::new(total, total / 4, total * 3 / 8);
        Self(Arc::new(Shared {
            pages: Arc::new(Pages::new(Clock::machine())),
            queue: Mutex::new(Queue { state, wakers: Vec::new() }),
            total,
            heap: AtomicU64::new(0),
            contended: tokio::sync::Notify::new(),
        }))
    }

    /// The largest single reservation that is sure to be granted some day, in bytes.
    pub fn request_max(&self, purpose: Use) -> u64 {
        self.0.queue.lock().state.request_max(purpose)
    }

    /// How short memory is.
    pub fn pressure(&self) -> Pressure {
        self.0.queue.lock().state.pressure()
    }

    /// Bytes that are out for this use.
    pub fn used(&self, purpose: Use) -> u64 {
        self.0.queue.lock().state.used(purpose)
    }

    /// How many wait for memory for this use.
    pub fn waiting(&self, purpose: Use) -> usize {
        self.0.queue.lock().state.waiting(purpose)
    }

    /// Returns when a request had to wait since the last call: a room that holds memory it could give
    /// up (unread read-ahead, an idle part) looks here, and gives up some.
    pub async fn contended(&self) {
        self.0.contended.notified().await;
    }

    /// Ends a wait for [`Pool::contended`] without a reason: its room may be gone.
    pub fn look_up(&self) {
        self.0.contended.notify_one();
    }

    /// Memory for `bytes`, if it is there now.
    pub fn try_reserve(&self, purpose: Use, bytes: u64) -> Option<Reservation> {
        let granted = self.0.queue.lock().state.try_take(purpose, bytes);
        granted.then(|| Reservation { pool: self.clone(), purpose, bytes })
    }

    /// Memory for `bytes`, in turn. All of it or none: no request waits while it holds a part. `bytes` must not pass
    /// [`Pool::request_max`]; a larger request is cut to it.
    pub fn reserve(&self, purpose: Use, bytes: u64) -> impl Future<Output = Reservation> + Send + use<> {
        let pool = self.clone();
        async move {
            let (bytes, waiting) = {
                let mut queue = pool.0.queue.lock();
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
                pool.0.contended.notify_one();
                Waiting { pool: pool.clone(), ticket, slot, purpose, bytes, done: false }.await;
            }
            Reservation { pool, purpose, bytes }
        }
    }

    /// One block for `len` bytes (at most [`BLOCK`]), if the memory is there now.
    pub fn try_take(&self, purpose: Use, len: usize) -> Option<BlockMut> {
        self.try_reserve(purpose, charge(len))?.block(len)
    }

    /// Gives idle memory back to the kernel, for ever. The mount runs it beside the requests.
    pub async fn keep_trimmed(self) {
        self.0.pages.keep_trimmed(IDLE_FOR).await;
    }

    /// Says that read-ahead has ended, until memory is reserved for it again: writers may have all memory meanwhile.
    pub fn nobody_reads(&self) {
        let granted = {
            let mut queue = self.0.queue.lock();
            queue.state.nobody_reads();
            queue.grant()
        };
        wake(granted);
    }

    fn give_back(&self, purpose: Use, bytes: u64) {
        let granted = {
            let mut queue = self.0.queue.lock();
            queue.state.give_back(purpose, bytes);
            queue.grant()
        };
        wake(granted);
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

/// The charge of a request for `len` bytes.
pub fn charge(len: usize) -> u64 {
    if len > HEAP_MAX { BLOCK as u64 } else { len.next_multiple_of(PAGE) as u64 }
}

struct Waiting {
    pool: Pool,
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
        // Given up: leave the queue, or hand back what was granted meanwhile.
        let granted = {
            let mut queue = self.pool.0.queue.lock();
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

/// Memory that is promised but not yet cut into blocks. Dropped, it returns.
#[derive(Debug)]
pub struct Reservation {
    pool: Pool,
    purpose: Use,
    bytes: u64,
}

impl Reservation {
    /// Bytes not yet cut.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Cuts a block for `len` bytes (at most [`BLOCK`]); `None` when too little is left, or the kernel
    /// has no memory.
    pub fn block(&mut self, len: usize) -> Option<BlockMut> {
        let bytes = charge(len);
        if len > BLOCK || self.bytes < bytes {
            return None;
        }
        let in_heap = len <= HEAP_MAX;
        let storage = if in_heap {
            // The budget counts what is in use. Idle pages make room for the heap, or both would stay resident.
            let heap = self.pool.0.heap.fetch_add(bytes, Relaxed) + bytes;
            self.pool.0.pages.shrink(self.pool.0.total.saturating_sub(heap) as usize);
            Storage::Heap(vec![0; len].into_boxed_slice())
        } else {
            Storage::Page(self.pool.0.pages.take().ok()?)
        };
        self.bytes -= bytes;
        let charge = Charge { pool: self.pool.clone(), purpose: Mutex::new(self.purpose), bytes, in_heap };
        Some(BlockMut { storage, filled: 0, limit: len, charge })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.pool.give_back(self.purpose, self.bytes);
        }
    }
}

#[derive(Debug)]
enum Storage {
    Page(PageBlock),
    Heap(Box<[u8]>),
}

#[derive(Debug)]
struct Charge {
    pool: Pool,
    purpose: Mutex<Use>,
    bytes: u64,
    in_heap: bool,
}

impl Drop for Charge {
    fn drop(&mut self) {
        if self.in_heap {
            self.pool.0.heap.fetch_sub(self.bytes, Relaxed);
        }
        let purpose = *self.purpose.lock();
        self.pool.give_back(purpose, self.bytes);
    }
}

/// A block being filled; only its holder sees it.
// The storage stands before the charge: memory is back in the free list before the budget grants it to the next.
#[derive(Debug)]
pub struct BlockMut {
    storage: Storage,
    filled: usize,
    limit: usize,
    charge: Charge,
}

impl BlockMut {
    /// How many bytes it is for.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Lowers its limit to `len` bytes, but not below the bytes that it holds.
    pub fn shorten(&mut self, len: usize) {
        self.limit = self.limit.min(len).max(self.filled);
    }

    /// How many bytes it holds.
    pub fn filled(&self) -> usize {
        self.filled
    }

    /// The bytes it holds.
    pub fn bytes(&self) -> &[u8] {
        &self.storage.as_slice()[..self.filled]
    }

    /// Room for the next bytes.
    pub fn spare(&mut self) -> &mut [u8] {
        let (filled, limit) = (self.filled, self.limit);
        match &mut self.storage {
            Storage::Page(page) => &mut page.as_mut_slice()[filled..limit],
            Storage::Heap(heap) => &mut heap[filled..limit],
        }
    }

    /// Says that the first `n` bytes of [`BlockMut::spare`] were written.
    pub fn advance(&mut self, n: usize) {
        assert!(n <= self.limit - self.filled, "more bytes than the block has room for");
        self.filled += n;
    }

    /// Appends what fits of `bytes`; returns how many did.
    pub fn put(&mut self, bytes: &[u8]) -> usize {
        let spare = self.spare();
        let n = spare.len().min(bytes.len());
        spare[..n].copy_from_slice(&bytes[..n]); // copy: into the block, the one copy of a written byte
        self.advance(n);
        n
    }

    /// No more bytes: from here on it is shared and read.
    pub fn freeze(self) -> Block {
        Block(Arc::new(self))
    }
}

impl Storage {
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Page(page) => page.as_slice(),
            Self::Heap(heap) => heap,
        }
    }
}

/// A block that is full (or as full as it will be). Clones share the memory; the last one gives it back.
#[derive(Clone)]
pub struct Block(Arc<BlockMut>);

impl Block {
    /// A part of it as `Bytes`, for libraries that want that; shares the memory.
    pub fn slice(&self, range: Range<usize>) -> Bytes {
        Bytes::from_owner(self.clone()).slice(range)
    }

    /// Charges it to another use, if that use could take it now; else nothing changes and the answer is false.
    pub fn try_convert(&self, to: Use) -> bool {
        let charge = &self.0.charge;
        let mut purpose = charge.purpose.lock();
        if *purpose == to {
            return true;
        }
        let (converted, granted) = {
            let mut queue = charge.pool.0.queue.lock();
            (queue.state.try_convert(*purpose, to, charge.bytes), queue.grant())
        };
        if converted {
            *purpose = to;
        }
        wake(granted);
        converted
    }
}

impl Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl AsRef<[u8]> for Block {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
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
            // One comes back, and no other will while anybody waits: it must reach both, whoever has it first.
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
