//! One object version that is being read: its bytes in memory, and the requests under way, shared by all handles. The object computes the
//! checksum of the store's bytes as they come, and compares it with the store's checksum after the last byte.

use std::ops::Range;
use std::sync::OnceLock;
use std::time::Instant;

use super::pieces::{FetchNo, Pieces};
use super::proof::{Proof, Verdict};
use super::table::{self, Step, Table};
use super::{Error, Shared};
use crate::buffer::{Block, Use};
use crate::cache::{CACHE_BLOCK, Sectors};
use crate::checksum::Checksum;
use crate::object::ObjectId;
use crate::s3;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use crate::sync::{Arc, Mutex};

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
    /// The first reads, by all handles.
    table: Mutex<Table>,
    /// Whether further reads teach nothing, so that they need no lock.
    is_taught: AtomicBool,
    /// `None` until the store says the checksum of the whole version.
    proof: Mutex<Option<Proof>>,
    /// Set once all bytes came and differed from the store's checksum: every read of the present handles fails.
    pub(super) wrong: OnceLock<Error>,
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
            table: Mutex::default(),
            is_taught: AtomicBool::new(false),
            proof: Mutex::default(),
            wrong: OnceLock::new(),
        }
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    pub(super) fn last_read(&self) -> Instant {
        *self.last_read.lock()
    }

    /// Notes a read, and learns what is read after the tail. `demand`: the read's whole pages. For a first read of the tail, returns the
    /// bytes that are probably read next.
    pub(super) fn learn(&self, range: &Range<u64>, demand: &Range<u64>) -> Option<Range<u64>> {
        if self.is_taught.load(Relaxed) {
            return None;
        }
        let step = {
            let mut table = self.table.lock();
            let step = table.on_read(range, self.size);
            self.is_taught.store(*table == Table::Known, Relaxed);
            step
        };
        let key = self.id.key.as_str();
        match step {
            Step::Tail => {
                let next = self.shared.nexts.lock().likely(key);
                next.filter(|next| table::fits(next, self.size))
            }
            Step::Next => {
                self.shared.nexts.lock().began(key, demand);
                None
            }
            Step::Other => None,
        }
    }

    /// Notes that the last handle is closed: nothing more is read after the tail.
    pub(super) fn all_closed(&self) {
        let is_unread = self.table.lock().close();
        if is_unread {
            self.shared.nexts.lock().unread(self.id.key.as_str());
        }
    }

    /// Whether bytes are in memory or in flight.
    pub(super) fn holds(&self) -> bool {
        !self.pieces.lock().is_empty()
    }

    /// Drops the unread bytes in memory.
    pub(super) fn forget_ready(&self) {
        let dropped = self.pieces.lock().forget_ready();
        if dropped > 0 {
            self.shared.metrics.prefetch_wasted.add(dropped);
            self.shared.metrics.work.ring();
        }
    }

    /// Adds the bytes that came with the object's attributes.
    pub(super) fn put_first(&self, start: u64, block: Block) {
        if !self.compare(start, &block) {
            return;
        }
        self.keep_first(start, &block);
        self.pieces.lock().put(start, block);
        self.shared.read.ring();
    }

    /// Offers the cache bytes that may lie in two of its blocks, as one piece for each block. Without memory for that, the cache gets
    /// nothing.
    fn keep_first(&self, start: u64, block: &Block) {
        let border = CACHE_BLOCK - start % CACHE_BLOCK;
        if block.len() as u64 <= border || self.shared.cache.is_none() {
            return self.keep(start, block);
        }
        let (before, behind) = block.split_at(border as usize);
        for (start, bytes) in [(start, before), (start + border, behind)] {
            let Some(mut part) = self.shared.pool.try_take(Use::Ahead, bytes.len()) else { return };
            part.put(bytes); // copy: into a block of its own, at most 128 KiB
            self.keep(start, &part.freeze());
        }
    }

    /// Hands a piece from the store to the cache and to the waiting reads, unless it completes a wrong version.
    pub(super) fn came(&self, start: u64, fetch: FetchNo, block: Block) {
        if self.compare(start, &block) {
            self.keep(start, &block);
            self.ready(start, fetch, block);
        }
    }

    /// Offers the cache bytes that the store sent.
    pub(super) fn keep(&self, start: u64, block: &Block) {
        if let Some(cache) = &self.shared.cache {
            self.shared.metrics.cache_misses.inc();
            cache.put(&self.id, self.size, start, block.clone());
            // Another thread found the version wrong meanwhile: bytes that came after its drop are dropped, too.
            if self.wrong.get().is_some() {
                cache.drop_version(&self.id);
            }
        }
    }

    /// The store's checksum of the whole version, once it is known.
    pub(super) fn expected(&self) -> Option<Checksum> {
        let mut proof = self.proof.lock();
        if proof.is_none() {
            let sum = self.shared.client.checksum(&self.id, self.size)?;
            *proof = Some(Proof::new(sum, self.size));
            if let Some(cache) = &self.shared.cache {
                cache.expect(&self.id, self.size, sum);
            }
        }
        proof.as_ref().map(Proof::expected)
    }

    /// Takes a piece from the store into the checksum. False: the version is wrong, as was found just now or before.
    fn compare(&self, start: u64, bytes: &[u8]) -> bool {
        let Some(expected) = self.expected().filter(|_| !bytes.is_empty()) else { return true };
        // This needs no lock, since it takes long for many bytes.
        let sum = Checksum::of(expected.algorithm, bytes);
        let piece = start..start + bytes.len() as u64;
        let verdict = self.proof.lock().as_mut().map(|proof| proof.came(&piece, sum));
        if let Some(Verdict::Wrong(ours)) = verdict {
            self.condemn(ours, expected);
        }
        self.wrong.get().is_none()
    }

    /// Condemns a version whose checksum differs from the store's. The wrong bytes among all bytes are unknown, and programs have read
    /// some: reads of the present handles fail, memory and cache forget the version, and the next open begins anew.
    fn condemn(&self, ours: Checksum, expected: Checksum) {
        self.shared.metrics.read_corrupt.inc();
        let error = s3::Error::corrupt(&self.id.key, ours, expected, "the file must be opened again");
        let error = self.wrong.get_or_init(|| Error::new(error.said()));
        self.shared.forget(self);
        if let Some(cache) = &self.shared.cache {
            cache.drop_version(&self.id);
        }
        let answers = self.pieces.lock().fail_all(error);
        answers.into_iter().for_each(super::pieces::Answer::give);
    }

    /// Adds a piece, and answers the reads that waited for it, on this thread.
    pub(super) fn ready(&self, start: u64, fetch: FetchNo, block: Block) {
        let answers = self.pieces.lock().ready(start, fetch, block);
        answers.into_iter().for_each(super::pieces::Answer::give);
    }

    /// Notes the end of a request; after an error, the reads that wait for its missing bytes get the error.
    pub(super) fn ended(&self, fetch: FetchNo, error: Option<&Error>) {
        self.fetches.lock().retain(|(no, _)| *no != fetch);
        // Pieces of a version that was found wrong meanwhile were dropped.
        if let Some(error) = error.or_else(|| self.wrong.get()) {
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

    /// The number of the next request.
    pub(super) fn next_fetch(&self) -> FetchNo {
        self.next_fetch.fetch_add(1, Relaxed)
    }

    /// Runs a request until it ends, or no reader wants its bytes any more.
    pub(super) fn spawn(&self, no: FetchNo, request: impl Future<Output = ()> + Send + 'static) {
        // The request is registered before it can end: `ended` removes it.
        let mut running = self.fetches.lock();
        let task = self.shared.runtime.spawn(request);
        running.push((no, task.abort_handle()));
    }

    /// Whether the cache seems to have all of a part.
    pub(super) fn is_cached(&self, part: &Range<u64>) -> bool {
        let Some(cache) = self.shared.cache.as_deref() else { return false };
        (part.start / CACHE_BLOCK..part.end.div_ceil(CACHE_BLOCK)).all(|index| {
            let start = index * CACHE_BLOCK;
            let within = part.start.max(start) - start..part.end.min(start + CACHE_BLOCK) - start;
            cache.present(&self.id, index).contains(Sectors::touching(&within))
        })
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        self.shared.closed(&self.id);
    }
}
