//! Reads from the disk cache, without the store: at once if the kernel has the bytes in memory, otherwise by a thread of the cache that waits for
//! the disk. If the disk takes too long, the store answers.

use std::ops::Range;

use super::fetch::Cause;
use super::object::Object;
use super::pieces::ReaderNo;
use super::window::Plan;
use super::{Bytes, ReadDone};
use crate::buffer::{BlockMut, Use};
use crate::cache::{CACHE_BLOCK, Given, Later, Now};
use crate::sync::Arc;

/// The disk cache's answer to a read.
pub(super) enum Cached {
    /// All bytes of the read.
    Here(Bytes),
    /// Perhaps all bytes, once the disk has given them.
    OnDisk(Vec<Part>),
    /// The cache lacks some of the bytes.
    Absent,
}

/// The part of a read that lies in one block.
pub(super) struct Part {
    range: Range<u64>,
    /// The block; `None` while the cache fills it.
    into: Option<BlockMut>,
    /// Whether the bytes are there.
    here: bool,
}

/// A read that waits for the disk.
pub(super) struct Read {
    pub(super) object: Arc<Object>,
    pub(super) reader: ReaderNo,
    pub(super) plan: Plan,
    pub(super) range: Range<u64>,
    pub(super) done: ReadDone,
}

impl Object {
    /// Reads the whole range out of the disk cache, on this thread and without waiting for the disk.
    pub(super) fn cached(&self, range: &Range<u64>) -> Cached {
        let Some(cache) = self.shared.cache.as_deref() else { return Cached::Absent };
        let blocks = range.start / CACHE_BLOCK..=(range.end - 1) / CACHE_BLOCK;
        let part_of = |index| range.start.max(index * CACHE_BLOCK)..range.end.min((index + 1) * CACHE_BLOCK);
        if !blocks.clone().all(|index| self.is_cached(&part_of(index))) {
            return Cached::Absent;
        }
        let mut parts = Vec::new();
        for range in blocks.map(part_of) {
            let Some(mut into) = self.shared.pool.try_take(Use::Demand, len(&range)) else {
                return Cached::Absent;
            };
            // All parts are requested from the disk before the first wait.
            let here = match cache.read_now(&self.id, self.size(), range.clone(), into.spare()) {
                Now::Here => true,
                Now::OnDisk => false,
                Now::Absent => return Cached::Absent,
            };
            parts.push(Part { range, into: Some(into), here });
        }
        if parts.iter().all(|part| part.here) {
            return Cached::Here(joined(parts));
        }
        Cached::OnDisk(parts)
    }
}

impl Read {
    /// Has threads of the cache read the missing parts. Those may wait; this call never does.
    pub(super) fn start(self, mut parts: Vec<Part>) {
        let object = Arc::clone(&self.object);
        let missing = parts.iter_mut().find(|part| !part.here);
        let (Some(cache), Some((range, into))) = (
            object.shared.cache.clone(),
            missing.and_then(|part| Some((part.range.clone(), part.into.take()?))),
        ) else {
            return self.answer(parts);
        };
        let of_read = range.clone();
        let later: Later = Box::new(move |given| {
            let into = match given {
                Given::Here(into) => into,
                Given::Absent(_) => return self.fetch(Cause::Demand),
                Given::Late => return self.fetch(Cause::DemandOfStore),
            };
            if let Some(part) = parts.iter_mut().find(|part| part.range == range) {
                (part.into, part.here) = (Some(into), true);
            }
            self.start(parts);
        });
        cache.read_later(&object.id, object.size(), of_read, into, later);
    }

    fn answer(self, parts: Vec<Part>) {
        let metrics = &self.object.shared.metrics;
        metrics.fuse_reads_ready.inc();
        metrics.fuse_cache_hit.inc();
        (self.done)(Ok(joined(parts)));
    }

    /// Serves the read as if the cache did not have the bytes: they were evicted or unsound since we asked, or the disk is late.
    fn fetch(self, cause: Cause) {
        let Self { object, reader, plan, range, done } = self;
        object.shared.metrics.fuse_reads_waited.inc();
        let mut pieces = object.pieces.lock();
        if let Some(bytes) = pieces.take(reader, &range) {
            drop(pieces);
            return done(Ok(bytes));
        }
        let (demand, keep) = (&plan.demand, plan.keep);
        let fetches = object.plan_fetches(&mut pieces, demand, cause, plan.request, keep, false);
        pieces.wait(reader, range, done);
        drop(pieces);
        object.start(fetches);
    }
}

fn joined(parts: Vec<Part>) -> Bytes {
    let mut bytes = Bytes::default();
    for (range, mut into) in parts.into_iter().filter_map(|part| Some((part.range, part.into?))) {
        into.advance(len(&range));
        bytes.push(into.freeze(), 0..len(&range));
    }
    bytes
}

fn len(range: &Range<u64>) -> usize {
    (range.end - range.start) as usize
}
