//! The reads of one handle, and the bytes in memory of the object version that it reads.

use std::fmt;
use std::ops::Range;
use std::time::Instant;

use super::fetch;
use super::pieces::{FetchNo, Pieces, ReaderNo};
use super::window::{Plan, Window};
use super::{Bytes, Error, ReadDone, Shared};
use crate::buffer::{Block, Use};
use crate::cache::{BlockCache, CACHE_BLOCK, SECTOR, Sectors};
use crate::object::ObjectId;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use crate::sync::{Arc, Mutex};

/// With a cache that keeps what it is given, requests begin and end at multiples of this, in bytes. Doubling it doubles what a random
/// read fetches, and what is here already when its neighbours are read.
const KEPT: u64 = 64 << 10;
const _: () = assert!(KEPT.is_multiple_of(SECTOR) && CACHE_BLOCK.is_multiple_of(KEPT));

/// One version of one object, shared by all handles that read it.
pub(super) struct Object {
    pub(super) shared: Arc<Shared>,
    pub(super) id: ObjectId,
    size: u64,
    pieces: Mutex<Pieces>,
    fetches: Mutex<Vec<(FetchNo, tokio::task::AbortHandle)>>,
    next_fetch: AtomicU64,
    /// Open handles, and the number of the next one.
    readers: AtomicU64,
    next_reader: AtomicU64,
    last_read: Mutex<Instant>,
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

    /// Drops what is here and unread.
    pub(super) fn forget_ready(&self) {
        let dropped = self.pieces.lock().forget_ready();
        self.shared.metrics.prefetch_wasted.add(dropped);
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

    fn forget(&self, range: &Range<u64>) {
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

    /// Sees to it that the missing parts of `range` are on their way. The pieces' lock is held by the caller, so
    /// that no other read requests the same bytes; the requests start after the caller releases it.
    fn plan_fetches(
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
        // What is fetched is what can be kept; by a cache that keeps nothing now, no more than was asked for.
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
    fn is_cached(&self, part: &Range<u64>) -> bool {
        let Some(cache) = self.shared.cache.as_deref() else { return false };
        let start = part.start / CACHE_BLOCK * CACHE_BLOCK;
        let wanted = Sectors::touching(&(part.start - start..part.end - start));
        cache.present(&self.id, part.start / CACHE_BLOCK).contains(wanted)
    }

    fn start(self: &Arc<Self>, fetches: Vec<fetch::Fetch>) {
        for fetch in fetches {
            let no = fetch.no;
            // Registered before it can end: `ended` removes it.
            let mut running = self.fetches.lock();
            let task = self.shared.runtime.spawn(fetch::run(Arc::clone(self), fetch));
            running.push((no, task.abort_handle()));
        }
    }
}

/// What a fetch is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cause {
    /// A read waits for it.
    Demand,
    /// Nobody asked yet.
    Ahead,
    /// Nobody asked yet, and what the cache has can wait until somebody does: it is as near as memory.
    AheadOfStore,
}

impl Drop for Object {
    fn drop(&mut self) {
        self.shared.closed(&self.id);
    }
}

/// One open handle. Reads of it may run at once, from any thread.
pub struct Reader {
    object: Arc<Object>,
    no: ReaderNo,
    window: Mutex<Window>,
    /// Counted among the mount's streams.
    streams: AtomicBool,
}

#[cfg(test)]
impl Reader {
    /// What is neither here nor on its way.
    pub(super) fn missing(&self) -> Vec<Range<u64>> {
        self.object.pieces.lock().missing(&(0..self.object.size))
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader")
            .field("id", &self.object.id)
            .field("size", &self.object.size)
            .finish_non_exhaustive()
    }
}

impl Reader {
    pub(super) fn new(object: Arc<Object>, window: Window) -> Self {
        object.readers.fetch_add(1, Relaxed);
        let no = object.next_reader.fetch_add(1, Relaxed);
        object.pieces.lock().enter(no);
        Self { object, no, window: Mutex::new(window), streams: AtomicBool::new(false) }
    }

    /// Which version it reads.
    pub fn id(&self) -> &ObjectId {
        &self.object.id
    }

    /// Bytes of the object.
    pub fn size(&self) -> u64 {
        self.object.size
    }

    /// Reads up to `len` bytes at `offset`; fewer at the end of the object, none behind it.
    ///
    /// `done` is called with them, now if they are here, else later by the thread that receives them. Never blocks.
    pub fn read<F>(&self, offset: u64, len: usize, done: F)
    where
        F: FnOnce(Result<Bytes, Error>) + Send + 'static,
    {
        let object = &self.object;
        let range = offset..offset.saturating_add(len as u64).min(object.size);
        if range.is_empty() {
            return done(Ok(Bytes::default()));
        }
        *object.last_read.lock() = object.shared.clock.now();
        let limit = object.shared.window_limit();
        let plan = self.window.lock().on_read(&range, object.shared.pool.pressure(), limit);
        self.count_stream(plan.sequential && !plan.ahead.is_empty());
        let metrics = &object.shared.metrics;

        // `take` before anything else: the common case is one lock and one answer.
        let taken = {
            let mut pieces = object.pieces.lock();
            pieces.reads(self.no, plan.sequential.then_some(range.end));
            pieces.take(self.no, &range)
        };
        if let Some(bytes) = taken {
            metrics.fuse_reads_ready.inc();
            self.fetch_ahead(&plan, Cause::Ahead);
            return done(Ok(bytes));
        }
        if let Some(bytes) = self.read_cache(&range) {
            metrics.fuse_reads_ready.inc();
            // The window counts on what it planned: where the cache ends, the store's part must be on its way.
            self.fetch_ahead(&plan, Cause::AheadOfStore);
            return done(Ok(bytes));
        }
        metrics.fuse_reads_waited.inc();
        self.fetch(&plan, range, Box::new(done));
    }

    /// A handle that fetches ahead is a stream from then on, until it is closed.
    fn count_stream(&self, fetches_ahead: bool) {
        if fetches_ahead && !self.streams.load(Relaxed) && !self.streams.swap(true, Relaxed) {
            self.object.shared.streams.fetch_add(1, Relaxed);
        }
    }

    fn fetch_ahead(&self, plan: &Plan, cause: Cause) {
        self.object.forget(&plan.forget);
        if plan.ahead.is_empty() {
            return;
        }
        let mut pieces = self.object.pieces.lock();
        let fetches = self.object.plan_fetches(&mut pieces, &plan.ahead, cause, plan.request, true);
        drop(pieces);
        self.object.start(fetches);
    }

    /// The read has to wait: demand and what goes with it are requested in one breath.
    fn fetch(&self, plan: &Plan, range: Range<u64>, done: ReadDone) {
        let object = &self.object;
        let (fetches, dropped_before) = {
            let mut pieces = object.pieces.lock();
            // It may have come since we looked.
            if let Some(bytes) = pieces.take(self.no, &range) {
                drop(pieces);
                self.fetch_ahead(plan, Cause::Ahead);
                return done(Ok(bytes));
            }
            let planned_before = plan.ahead.start >= plan.demand.end || plan.ahead.is_empty();
            let missing = pieces.missing(&plan.demand);
            let lost = plan.sequential && planned_before && !missing.is_empty();
            // A request for the demand and what follows it, if memory allows; else the demand alone, which waits for memory.
            let mut fetches = Vec::new();
            if plan.sequential && !plan.ahead.is_empty() && plan.ahead.start <= plan.demand.end {
                let both = plan.demand.start..plan.ahead.end.max(plan.demand.end);
                fetches = object.plan_fetches(&mut pieces, &both, Cause::Ahead, plan.request, true);
            }
            fetches.extend(object.plan_fetches(
                &mut pieces,
                &plan.demand,
                Cause::Demand,
                plan.request,
                plan.sequential,
            ));
            pieces.wait(self.no, range.clone(), done);
            (fetches, lost)
        };
        object.start(fetches);
        if dropped_before {
            self.window.lock().lost(&range);
        }
        self.fetch_ahead(plan, Cause::Ahead);
    }

    /// The whole range out of the disk cache, on this thread; `None` if any of it is not there.
    fn read_cache(&self, range: &Range<u64>) -> Option<Bytes> {
        let object = &self.object;
        let cache = object.shared.cache.as_deref()?;
        let blocks = range.start / CACHE_BLOCK..=(range.end - 1) / CACHE_BLOCK;
        let part_of = |index| range.start.max(index * CACHE_BLOCK)..range.end.min((index + 1) * CACHE_BLOCK);
        if !blocks.clone().all(|index| object.is_cached(&part_of(index))) {
            return None;
        }
        let mut bytes = Bytes::default();
        for index in blocks {
            let part = part_of(index);
            let len = (part.end - part.start) as usize;
            let mut block = object.shared.pool.try_take(Use::Demand, len)?;
            if !cache.read(&object.id, object.size, part, block.spare()) {
                return None;
            }
            block.advance(len);
            bytes.push(block.freeze(), 0..len);
        }
        Some(bytes)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if self.streams.load(Relaxed) {
            self.object.shared.streams.fetch_sub(1, Relaxed);
        }
        self.object.pieces.lock().leave(self.no);
        // The last handle leaves: nothing that is on its way is wanted any more.
        if self.object.readers.fetch_sub(1, Relaxed) == 1 {
            self.object.forget(&(0..u64::MAX));
        }
    }
}
