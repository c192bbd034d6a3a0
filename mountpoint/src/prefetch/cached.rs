//! Reads out of the disk cache, without the store: at once where the kernel has the bytes in memory, else by a thread that may wait for
//! the disk.

use std::ops::Range;

use super::object::{Cause, Object};
use super::pieces::ReaderNo;
use super::window::Plan;
use super::{Bytes, ReadDone};
use crate::buffer::{BlockMut, Use};
use crate::cache::{BlockCache, CACHE_BLOCK, Now};
use crate::sync::Arc;

/// What the disk cache says to a read.
pub(super) enum Cached {
    /// All of it.
    Here(Bytes),
    /// Perhaps all of it, once the disk has given it.
    OnDisk(Vec<Part>),
    /// Not all of it.
    Absent,
}

/// The part of a read that lies in one block.
pub(super) struct Part {
    range: Range<u64>,
    into: BlockMut,
    /// Its bytes are there.
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
    /// The whole range out of the disk cache, on this thread and without waiting for the disk.
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
            // All of them are asked for before the first is waited for.
            let here = match cache.read_now(&self.id, self.size(), range.clone(), into.spare()) {
                Now::Here => true,
                Now::OnDisk => false,
                Now::Absent => return Cached::Absent,
            };
            parts.push(Part { range, into, here });
        }
        if parts.iter().all(|part| part.here) {
            return Cached::Here(joined(parts));
        }
        Cached::OnDisk(parts)
    }
}

impl Read {
    /// Reads what is missing on a thread that may wait.
    pub(super) fn start(self, parts: Vec<Part>) {
        let runtime = self.object.shared.runtime.clone();
        runtime.spawn_blocking(move || self.wait(parts));
    }

    fn wait(self, mut parts: Vec<Part>) {
        let object = &self.object;
        let is_here = |part: &mut Part| {
            let read = |cache: &dyn BlockCache| {
                cache.read(&object.id, object.size(), part.range.clone(), part.into.spare())
            };
            part.here || object.shared.cache.as_deref().is_some_and(read)
        };
        if parts.iter_mut().all(is_here) {
            object.shared.metrics.fuse_cache_hit.inc();
            (self.done)(Ok(joined(parts)));
        } else {
            // Evicted or unsound since we asked.
            drop(parts);
            self.fetch();
        }
    }

    /// The read is served as if the cache did not have it.
    fn fetch(self) {
        let Self { object, reader, plan, range, done } = self;
        let mut pieces = object.pieces.lock();
        if let Some(bytes) = pieces.take(reader, &range) {
            drop(pieces);
            return done(Ok(bytes));
        }
        let fetches =
            object.plan_fetches(&mut pieces, &plan.demand, Cause::Demand, plan.request, plan.sequential);
        pieces.wait(reader, range, done);
        drop(pieces);
        object.start(fetches);
    }
}

fn joined(parts: Vec<Part>) -> Bytes {
    let mut bytes = Bytes::default();
    for Part { range, mut into, .. } in parts {
        into.advance(len(&range));
        bytes.push(into.freeze(), 0..len(&range));
    }
    bytes
}

fn len(range: &Range<u64>) -> usize {
    (range.end - range.start) as usize
}
