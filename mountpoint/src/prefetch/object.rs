//! One object version that is being read: its bytes in memory, and the requests for more, shared by all handles.

use std::ops::Range;
use std::time::Instant;

use super::fetch;
use super::pieces::{FetchNo, Pieces};
use super::{Error, Shared};
use crate::buffer::{Block, Use};
use crate::cache::{BlockCache, CACHE_BLOCK, SECTOR, Sectors};
use crate::object::ObjectId;
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};
use crate::sync::{Arc, Mutex};

/// With a cache that keeps what it is given, requests begin and end at multiples of this, in bytes. Doubling it doubles what a random
/// read fetches, and what is here already when its neighbours are read.
const KEPT: u64 = 64 << 10;
const _: () = assert!(KEPT.is_multiple_of(SECTOR) && CACHE_BLOCK.is_multiple_of(KEPT));

/// One version of one object, shared by all handles that read it.
pub(super) struct Object {
    pub(super) shared: Arc<Shared>,
    pub(super) id: ObjectId,
    pub(super) size: u64,
    pub(super) pieces: Mutex<Pieces>,
    fetches: Mutex<Vec<(FetchNo, tokio::task::AbortHandle)>>,
    next_fetch: AtomicU64,
    /// Open handles, and the number of the next one.
    pub(super) readers: AtomicU64,
    pub(super) next_reader: AtomicU64,
    pub(super) last_read: Mutex<Instant>,
}

impl Object {
    pub(super) fn new(shared: Arc<Shared>, id: ObjectId, size: u64) -> Self {
        let now = shared.clock.now();
        Self {
            shared,
            id,
            size,
            pieces: Mutex::default(),
            fetches: Mutex::default(),
            next_fetch: AtomicU64::new(1),
            readers: AtomicU64::new(0),
            next_reader: AtomicU64::new(1),
            last_read: Mutex::new(now),
        }
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    pub(super) fn last_read(&self) -> Instant {
        *self.last_read.lock()
    }

    /// Whether bytes are here, or on their way.
    pub(super) fn holds(&self) -> bool {
        !self.pieces.lock().is_empty()
    }

    /// Drops what is here and unread.
    pub(super) fn forget_ready(&self) {
        let dropped = self.pieces.lock().forget_ready();
        if dropped > 0 {
            self.shared.metrics.prefetch_wasted.add(dropped);
            self.shared.metrics.work.ring();
        }
    }

    /// The first bytes, which came with the object's attributes.
    pub(super) fn put_first(&self, block: Block) {
        if let Some(cache) = &self.shared.cache {
            self.shared.metrics.cache_misses.inc();
            cache.put(&self.id, self.size, 0, block.clone());
        }
        self.pieces.lock().put(0, block);
        self.shared.read.ring();
    }

    /// A piece arrived: answers the reads that waited for it, on this thread.
    pub(super) fn ready(&self, start: u64, fetch: FetchNo, block: Block) {
        let answers = self.pieces.lock().ready(start, fetch, block);
        answers.into_iter().for_each(super::pieces::Answer::give);
    }

    /// A request ended; on an error, the reads that wait for its missing bytes get the error.
    pub(super) fn ended(&self, fetch: FetchNo, error: Option<&Error>) {
        self.fetches.lock().retain(|(no, _)| *no != fetch);
        if let Some(error) = error {
            let answers = self.pieces.lock().failed(fetch, error);
            answers.into_iter().for_each(super::pieces::Answer::give);
        }
    }

    pub(super) fn forget(&self, range: &Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (dropped, unwanted) = self.pieces.lock().forget(range);
        self.shared.metrics.prefetch_wasted.add(dropped);
        self.abort(&unwanted);
    }

    fn abort(&self, unwanted: &[FetchNo]) {
        if unwanted.is_empty() {
            return;
        }
        let tasks: Vec<_> = self.fetches.lock().extract_if(.., |(no, _)| unwanted.contains(no)).collect();
        for (_, task) in tasks {
            task.abort();
        }
    }

    /// Plans requests for the missing parts of `range`. The pieces' lock is held by the caller, so
    /// that no other read requests the same bytes; the requests start after the caller releases it.
    pub(super) fn plan_fetches(
        &self,
        pieces: &mut Pieces,
        range: &Range<u64>,
        cause: Cause,
        request: u64,
        keep: bool,
    ) -> Vec<fetch::Fetch> {
        let purpose = if cause == Cause::Demand { Use::Demand } else { Use::Ahead };
        let cache = self.shared.cache.as_deref();
        let keeps = cache.is_some_and(BlockCache::keeps);
        // A fetch covers all sectors that the cache can keep; if it keeps nothing now, only the requested range.
        let range = match keeps {
            true => range.start / KEPT * KEPT..range.end.next_multiple_of(KEPT).min(self.size),
            false => range.clone(),
        };
        let mut fetches = Vec::new();
        for missing in pieces.missing(&range) {
            for (source, run) in fetch::split(&missing, request, |part| self.is_cached(&part)) {
                if source == fetch::Source::Cache && cause == Cause::AheadOfStore {
                    continue;
                }
                let cuts = fetch::cut(&run, keeps);
                // Read-ahead takes memory that is free now, or does not happen.
                let reservation = match purpose {
                    Use::Ahead => {
                        let bytes =
                            cuts.iter().map(|c| crate::buffer::charge((c.end - c.start) as usize)).sum();
                        match self.shared.pool.try_reserve(Use::Ahead, bytes) {
                            Some(reservation) => Some(reservation),
                            None => return fetches,
                        }
                    }
                    _ => None,
                };
                let no = self.next_fetch.fetch_add(1, Relaxed);
                for cut in &cuts {
                    pieces.expect(cut.clone(), no, keep);
                }
                fetches.push(fetch::Fetch { no, source, range: run, cuts, reservation });
            }
        }
        fetches
    }

    /// Whether all of a part of one block is thought to be in the cache.
    pub(super) fn is_cached(&self, part: &Range<u64>) -> bool {
        let Some(cache) = self.shared.cache.as_deref() else { return false };
        let start = part.start / CACHE_BLOCK * CACHE_BLOCK;
        let wanted = Sectors::touching(&(part.start - start..part.end - start));
        cache.present(&self.id, part.start / CACHE_BLOCK).contains(wanted)
    }

    pub(super) fn start(self: &Arc<Self>, fetches: Vec<fetch::Fetch>) {
        for fetch in fetches {
            // It may be long since the read, if that waited for a lock or a disk.
            self.shared.read.ring();
            let no = fetch.no;
            // Registered before it can end: `ended` removes it.
            let mut running = self.fetches.lock();
            let task = self.shared.runtime.spawn(fetch::run(Arc::clone(self), fetch));
            running.push((no, task.abort_handle()));
        }
    }
}

/// The purpose of a fetch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cause {
    /// A read waits for it.
    Demand,
    /// No read asked for it yet.
    Ahead,
    /// No read asked for it yet, and bytes in the cache can wait for one: they are as near as memory.
    AheadOfStore,
}

impl Drop for Object {
    fn drop(&mut self) {
        self.shared.closed(&self.id);
    }
}
