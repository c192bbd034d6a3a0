//! The reads of one handle.

use std::fmt;
use std::ops::Range;

use super::cached::{self, Cached};
use super::fetch::Cause;
use super::object::Object;
use super::pieces::ReaderNo;
use super::window::{Plan, Window};
use super::{Bytes, Error, ReadDone};
use crate::buffer::Pressure;
use crate::first::First;
use crate::object::ObjectId;
use crate::sync::atomic::{AtomicBool, Ordering::Relaxed};
use crate::sync::{Arc, Mutex};

/// Longest random read that is one request: the kernel's longest, from the middle of a page. Doubling it changes nothing for programs.
const MOST_AT_ONCE: u64 = (1 << 20) + 4096;

/// One open handle. Reads of it may run at once, from any thread.
pub struct Reader {
    object: Arc<Object>,
    no: ReaderNo,
    progress: Mutex<Progress>,
    /// Counted among the mount's streams.
    streams: AtomicBool,
}

struct Progress {
    window: Window,
    /// The first bytes that came with the file's attributes; the first read shows whether they were of use.
    first: Option<First>,
}

#[cfg(test)]
impl Reader {
    /// Ranges neither in memory nor in flight.
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
    pub(super) fn new(object: Arc<Object>, window: Window, first: Option<First>) -> Self {
        // Bytes that the cache has did not need this request.
        let is_needed = |first: &First| !object.is_cached(&first.part());
        let mut first = first.filter(|first| first.is_of(&object.id, object.size) && is_needed(first));
        if let Some(first) = &mut first
            && let Some((start, block)) = first.take_bytes()
        {
            object.put_first(start, block);
        }
        object.readers.fetch_add(1, Relaxed);
        let no = object.next_reader.fetch_add(1, Relaxed);
        object.pieces.lock().enter(no);
        let progress = Mutex::new(Progress { window, first });
        Self { object, no, progress, streams: AtomicBool::new(false) }
    }

    /// The version that this handle reads.
    pub fn id(&self) -> &ObjectId {
        &self.object.id
    }

    /// Bytes of the object.
    pub fn size(&self) -> u64 {
        self.object.size
    }

    /// Reads up to `len` bytes at `offset`; fewer at the end of the object, none behind it.
    ///
    /// Calls `done` with the bytes: now if memory has them, otherwise later on the thread that receives them. Never blocks.
    pub fn read<F>(&self, offset: u64, len: usize, done: F)
    where
        F: FnOnce(Result<Bytes, Error>) + Send + 'static,
    {
        let object = &self.object;
        let range = offset..offset.saturating_add(len as u64).min(object.size);
        if range.is_empty() {
            return done(Ok(Bytes::default()));
        }
        if let Some(error) = object.wrong.get() {
            return done(Err(Error::clone(error)));
        }
        *object.last_read.lock() = object.shared.clock.now();
        object.shared.read.ring();
        let limit = object.shared.window_limit();
        let is_shared = object.readers.load(Relaxed) > 1;
        let others = is_shared.then(|| object.pieces.lock().reached_by_others(self.no, offset)).flatten();
        let (plan, first) = {
            let mut progress = self.progress.lock();
            if let Some(front) = others {
                progress.window.others_reached(front);
            }
            let plan = progress.window.on_read(&range, object.shared.pool.pressure(), limit);
            (plan, progress.first.take())
        };
        // An open that made a request teaches the opens after it (`first/`), and the second one of a table brings these bytes itself.
        let next = object.learn(&range, &plan.demand).filter(|_| first.is_none());
        if let Some(first) = first {
            first.began(&range);
        }
        self.count_stream(plan.sequential && !plan.ahead.is_empty());
        let metrics = &object.shared.metrics;
        if plan.jumped {
            metrics.prefetch_resets.inc();
        }

        // `take` before anything else: the common case is one lock and one answer.
        let (taken, is_beside) = {
            let mut pieces = object.pieces.lock();
            pieces.reads(self.no, plan.reads_up_to(range.end));
            (pieces.take(self.no, &range), plan.jumped && pieces.is_awaited_by(self.no))
        };
        if is_beside {
            self.progress.lock().window.began_beside_another(&range);
        }
        if let Some(bytes) = taken {
            metrics.fuse_reads_ready.inc();
            self.fetch_ahead(&plan, Cause::Ahead);
            return done(Ok(bytes));
        }
        // Even if the cache has the bytes, the planned fetches must start: where the cache ends, the store's part must be in flight.
        match object.cached(&range) {
            Cached::Here(bytes) => {
                metrics.fuse_reads_ready.inc();
                metrics.fuse_cache_hit.inc();
                self.fetch_ahead(&plan, Cause::AheadOfStore);
                done(Ok(bytes));
            }
            Cached::OnDisk(parts) => {
                self.fetch_ahead(&plan, Cause::AheadOfStore);
                let (object, done) = (Arc::clone(object), Box::new(done));
                cached::Read { object, reader: self.no, plan, range, done }.start(parts);
            }
            Cached::Absent => {
                metrics.fuse_reads_waited.inc();
                self.fetch(&plan, range, Box::new(done));
                if let Some(next) = next {
                    self.fetch_beside(&next);
                }
            }
        }
    }

    /// Counts the handle as a stream from its first fetch ahead until its close.
    fn count_stream(&self, fetches_ahead: bool) {
        if fetches_ahead && !self.streams.load(Relaxed) && !self.streams.swap(true, Relaxed) {
            self.object.shared.streams.fetch_add(1, Relaxed);
        }
    }

    fn fetch_ahead(&self, plan: &Plan, cause: Cause) {
        self.object.forget(&plan.forget);
        if plan.ahead.is_empty() && plan.stride.is_empty() {
            return;
        }
        let mut pieces = self.object.pieces.lock();
        let mut fetches = Vec::new();
        for range in std::iter::once(&plan.ahead).chain(&plan.stride).filter(|range| !range.is_empty()) {
            let (request, from_end) = (plan.request, plan.descending);
            fetches.extend(self.object.plan_fetches(&mut pieces, range, cause, request, true, from_end));
        }
        drop(pieces);
        self.object.start(fetches);
    }

    /// Requests bytes that are probably read next, while the tail is on its way. If memory is short, they come when a read asks for them.
    fn fetch_beside(&self, next: &Range<u64>) {
        let object = &self.object;
        if object.shared.pool.pressure() > Pressure::Low {
            return;
        }
        let mut pieces = object.pieces.lock();
        let fetches = object.plan_fetches(&mut pieces, next, Cause::AheadOfStore, u64::MAX, true, false);
        drop(pieces);
        object.start(fetches);
    }

    /// Requests the bytes of a read that has to wait, together with those to fetch ahead.
    fn fetch(&self, plan: &Plan, range: Range<u64>, done: ReadDone) {
        let object = &self.object;
        let (fetches, dropped_before) = {
            let mut pieces = object.pieces.lock();
            // The bytes may have come since we looked.
            if let Some(bytes) = pieces.take(self.no, &range) {
                drop(pieces);
                self.fetch_ahead(plan, Cause::Ahead);
                return done(Ok(bytes));
            }
            let (ahead, demand) = (&plan.ahead, &plan.demand);
            let planned_before = ahead.is_empty() || ahead.start >= demand.end || ahead.end <= demand.start;
            let missing = pieces.missing(&plan.demand);
            let lost = plan.sequential && planned_before && !missing.is_empty();
            // One request for the demand and the bytes behind it, if memory allows; else for the demand alone, which waits for memory.
            let mut fetches = Vec::new();
            let follows = !plan.descending && !ahead.is_empty() && ahead.start <= demand.end;
            if plan.sequential && follows {
                let both = plan.demand.start..plan.ahead.end.max(plan.demand.end);
                fetches = object.plan_fetches(&mut pieces, &both, Cause::Ahead, plan.request, true, false);
            }
            // A random read is one request, also across the border of a part.
            let is_one = !plan.sequential && demand.end - demand.start <= MOST_AT_ONCE;
            let of_one = if is_one { u64::MAX } else { plan.request };
            fetches.extend(object.plan_fetches(
                &mut pieces,
                &plan.demand,
                Cause::Demand,
                of_one,
                plan.keep,
                false,
            ));
            pieces.wait(self.no, range.clone(), done);
            (fetches, lost)
        };
        object.start(fetches);
        if dropped_before {
            self.progress.lock().window.lost(&range);
        }
        self.fetch_ahead(plan, Cause::Ahead);
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if self.streams.load(Relaxed) {
            self.object.shared.streams.fetch_sub(1, Relaxed);
        }
        self.object.pieces.lock().leave(self.no);
        // The last handle leaves: no byte in flight is wanted any more.
        if self.object.readers.fetch_sub(1, Relaxed) == 1 {
            self.object.forget(&(0..u64::MAX));
            self.object.all_closed();
        }
    }
}
