//! Memory for less than a block: tiny pieces from the heap, longer ones from mappings of their own, which are reused.
//!
//! The allocator cuts pieces of 64 to 512 KiB from pages of 4 MiB, some for each thread and each size, and gives a page back when all of it
//! is free. Measured with 32 readers and 32 writers at a target of 128 MiB: 30 MiB of its heap were pieces that nobody used any more.

use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use super::scratch::Scratch;
use crate::clock::Clock;
use crate::doorbell::{Doorbell, Next};
use crate::sync::{Arc, Mutex};

/// Longest piece from the heap, in bytes. Doubling it spares system calls where many small files are read, and lets the allocator keep
/// more memory that nobody uses.
const HEAP_MAX: usize = 64 << 10;

/// Unit of the lengths of mappings, in bytes. Doubling it lets more requests reuse a mapping, and wastes up to that much in each.
const STEP: usize = 64 << 10;

/// Part of the budget that idle mappings may have: one in this many. Beyond it the mapping that is idle for the longest goes. Halving it
/// spares page faults where more pieces come and go at once (docs/decisions/0013-blocks-in-huge-pages.md has figures), and takes twice as
/// much from idle blocks.
const IDLE_SHARE: u64 = 32;

/// Most bytes of idle mappings, however large the budget is: each request looks through them.
const IDLE_MAX: u64 = 8 << 20;

/// The shortest pause between two checks for idle mappings.
const TRIM_EVERY: Duration = Duration::from_secs(5);

/// The allocator of pieces, to which mappings return.
#[derive(Debug)]
pub(super) struct Shorts {
    clock: Clock,
    /// Most bytes of idle mappings.
    idle_max: usize,
    /// Idle mappings; the one freed last is the last one.
    idle: Mutex<Vec<Idle>>,
    /// The bell that a mapping rings when it becomes idle.
    rested: Doorbell,
}

#[derive(Debug)]
struct Idle {
    memory: Scratch,
    since: Instant,
}

/// One piece, of at least the bytes that were asked for. Their content is arbitrary.
#[derive(Debug)]
pub(super) enum Short {
    Heap(Box<[u8]>),
    Mapped(Mapped),
}

/// A mapping that returns to its `Shorts` when dropped.
#[derive(Debug)]
pub(super) struct Mapped {
    memory: Option<Scratch>,
    home: Arc<Shorts>,
}

/// A copy of bytes that wait outside the budget. The room that makes copies limits their number.
#[derive(Debug)]
pub struct Beside {
    memory: Short,
    len: usize,
}

impl Shorts {
    /// An allocator without memory, for a budget of `total` bytes. `clock` measures how long mappings are idle.
    pub(super) fn new(clock: Clock, total: u64) -> Self {
        let idle_max = (total / IDLE_SHARE).min(IDLE_MAX) as usize;
        Self { clock, idle_max, idle: Mutex::default(), rested: Doorbell::default() }
    }

    /// Most bytes of idle mappings.
    pub(super) fn idle_max(&self) -> usize {
        self.idle_max
    }

    /// Takes a piece of at least `len` bytes. If the process may have no more mappings, the heap serves it.
    pub(super) fn take(self: &Arc<Self>, len: usize) -> Short {
        let mapped = if len > HEAP_MAX { self.map(len.next_multiple_of(STEP)) } else { None };
        mapped.map_or_else(|| Short::Heap(vec![0; len].into_boxed_slice()), Short::Mapped)
    }

    /// Takes a mapping of exactly `len` bytes: an idle one, or a new one. `None`: the kernel has none.
    fn map(self: &Arc<Self>, len: usize) -> Option<Mapped> {
        let memory = match self.reuse(len) {
            Some(memory) => memory,
            None => Scratch::new(len).ok()?,
        };
        Some(Mapped { memory: Some(memory), home: Arc::clone(self) })
    }

    fn reuse(&self, len: usize) -> Option<Scratch> {
        let mut idle = self.idle.lock();
        let at = idle.iter().rposition(|idle| idle.memory.len() == len)?;
        Some(idle.remove(at).memory)
    }

    /// Copies bytes that wait outside the budget.
    pub(super) fn beside(self: &Arc<Self>, bytes: &[u8]) -> Beside {
        let mut memory = self.take(bytes.len());
        memory[..bytes.len()].copy_from_slice(bytes); // copy: the caller's buffer is only lent
        Beside { memory, len: bytes.len() }
    }

    /// Keeps a mapping for the next request of its length.
    fn keep(&self, memory: Scratch) {
        let since = self.clock.now();
        let excess: Vec<Idle> = {
            let mut idle = self.idle.lock();
            idle.push(Idle { memory, since });
            let bytes: usize = idle.iter().map(|idle| idle.memory.len()).sum();
            let mut over = bytes.saturating_sub(self.idle_max);
            let goes = |idle: &&Idle| {
                let is_over = over > 0;
                over = over.saturating_sub(idle.memory.len());
                is_over
            };
            let excess = idle.iter().take_while(goes).count();
            idle.drain(..excess).collect()
        };
        drop(excess); // unmapped without the lock
        self.rested.ring();
    }

    /// Returns mappings to the kernel after they were idle for `idle_for`. Never ends; sleeps while nothing is idle.
    pub(super) async fn keep_trimmed(&self, idle_for: Duration) {
        let look = |_| {
            self.trim(idle_for);
            let due = self.due(idle_for);
            due.map_or(Next::Rest, |due| Next::Look(due.max(TRIM_EVERY)))
        };
        self.rested.keep_house(&self.clock, look).await;
    }

    fn trim(&self, idle_for: Duration) {
        let now = self.clock.now();
        let is_due = |idle: &mut Idle| now.saturating_duration_since(idle.since) >= idle_for;
        let due: Vec<Idle> = self.idle.lock().extract_if(.., is_due).collect();
        drop(due); // unmapped without the lock
    }

    /// Time until the next mapping has been idle for `idle_for`; `None` if nothing is idle.
    fn due(&self, idle_for: Duration) -> Option<Duration> {
        let since = self.idle.lock().first()?.since;
        Some(idle_for.saturating_sub(self.clock.now().saturating_duration_since(since)))
    }
}

impl Deref for Short {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Mapped(mapped) => mapped.memory.as_deref().unwrap_or_default(),
        }
    }
}

impl DerefMut for Short {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Mapped(mapped) => mapped.memory.as_deref_mut().unwrap_or_default(),
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.home.keep(memory);
        }
    }
}

impl Deref for Beside {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOTAL: u64 = 64 << 20;

    fn idle(shorts: &Shorts) -> Vec<usize> {
        shorts.idle.lock().iter().map(|idle| idle.memory.len()).collect()
    }

    #[test]
    fn a_piece_that_comes_back_serves_the_next_request_of_about_its_length() {
        let shorts = Arc::new(Shorts::new(Clock::machine(), TOTAL));
        let mut piece = shorts.take(HEAP_MAX + 1);
        piece.fill(7);
        let address = piece.as_ptr();
        drop(piece);
        let other = shorts.take(2 * STEP + 1);
        assert_ne!(other.as_ptr(), address, "it would be too short");
        let again = shorts.take(2 * STEP);
        assert_eq!((again.as_ptr(), again.len()), (address, 2 * STEP));
        assert_eq!(again[HEAP_MAX], 7, "nothing is zeroed");
        assert!(idle(&shorts).is_empty());
    }

    #[test]
    fn tiny_pieces_come_from_the_heap_and_longer_ones_from_mappings() {
        let shorts = Arc::new(Shorts::new(Clock::machine(), TOTAL));
        assert!(matches!(shorts.take(0), Short::Heap(_)));
        assert!(matches!(shorts.take(HEAP_MAX), Short::Heap(_)));
        assert!(matches!(shorts.take(HEAP_MAX + 1), Short::Mapped(_)));
        assert_eq!(idle(&shorts), [2 * STEP], "what the heap served is not kept");
    }

    #[test]
    fn idle_pieces_never_take_more_than_their_limit_and_the_oldest_goes() {
        let shorts = Arc::new(Shorts::new(Clock::machine(), TOTAL));
        let lens = [128, 192, 256, 320, 384, 448, 512].map(|kib| kib << 10);
        let pieces: Vec<_> = lens.map(|len| shorts.take(len)).into();
        assert!(idle(&shorts).is_empty());
        drop(pieces);
        assert_eq!(idle(&shorts), lens[2..], "2,240 KiB: two go, and 1,920 stay");
        drop(shorts.take(128 << 10));
        assert_eq!(idle(&shorts).iter().sum::<usize>(), shorts.idle_max(), "as much as may stay");
    }

    #[test]
    fn a_copy_beside_the_budget_has_the_bytes_and_no_more() {
        let shorts = Arc::new(Shorts::new(Clock::machine(), TOTAL));
        for len in [0, 1, HEAP_MAX, HEAP_MAX + 1, 1 << 20] {
            let bytes: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
            assert!(*shorts.beside(&bytes) == *bytes, "{len}");
        }
    }

    #[tokio::test]
    async fn pieces_go_back_to_the_kernel_when_they_are_due() {
        let clock = Clock::manual();
        let shorts = Arc::new(Shorts::new(clock.clone(), TOTAL));
        let (minute, house) = (Duration::from_secs(60), Arc::clone(&shorts));
        let _house = tokio::spawn(async move { house.keep_trimmed(Duration::from_secs(60)).await });
        let left = async || {
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            idle(&shorts).len()
        };
        // Twice: the second time it comes from its rest.
        for _ in 0..2 {
            let [first, second] = [128, 256].map(|kib| shorts.take(kib << 10));
            drop(first);
            assert_eq!((left().await, shorts.due(minute)), (1, Some(minute)));
            clock.advance(TRIM_EVERY);
            drop(second);
            assert_eq!((left().await, shorts.due(minute)), (2, Some(minute - TRIM_EVERY)));
            clock.advance(minute - TRIM_EVERY);
            assert_eq!((left().await, shorts.due(minute)), (1, Some(TRIM_EVERY)));
            clock.advance(TRIM_EVERY);
            assert_eq!((left().await, shorts.due(minute)), (0, None));
        }
    }
}
