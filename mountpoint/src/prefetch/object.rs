//! One object version that is being read: its bytes in memory, and the requests under way, shared by all handles. What the store sends is
//! summed as it comes; once all of it came, the sum is compared with the store's.

use std::ops::Range;
use std::sync::OnceLock;
use std::time::Instant;

use super::pieces::{FetchNo, Pieces};
use super::proof::{Proof, Verdict};
use super::{Error, Shared};
use crate::buffer::{Block, Use};
use crate::cache::{CACHE_BLOCK, Sectors};
use crate::checksum::Checksum;
use crate::object::ObjectId;
use crate::s3;
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};
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
    /// `None` until the store says the checksum of the whole version.
    proof: Mutex<Option<Proof>>,
    /// All bytes came, and they were not those of the store: for the handles of now, no read is right any more.
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

    /// The bytes that came with the object's attributes.
    pub(super) fn put_first(&self, start: u64, block: Block) {
        if !self.compare(start, &block) {
            return;
        }
        self.keep_first(start, &block);
        self.pieces.lock().put(start, block);
        self.shared.read.ring();
    }

    /// Offers the cache bytes that may lie in two of its blocks: it takes pieces of one block alone. Without memory it does without.
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

    /// A piece came from the store: the cache and the reads that wait for it get it, unless it completes a version that is wrong.
    pub(super) fn came(&self, start: u64, fetch: FetchNo, block: Block) {
        if self.compare(start, &block) {
            self.keep(start, &block);
            self.ready(start, fetch, block);
        }
    }

    /// Offers the cache what the store sent.
    pub(super) fn keep(&self, start: u64, block: &Block) {
        if let Some(cache) = &self.shared.cache {
            self.shared.metrics.cache_misses.inc();
            cache.put(&self.id, self.size, start, block.clone());
            // Found wrong meanwhile, by another thread: what came behind that drop goes, too.
            if self.wrong.get().is_some() {
                cache.drop_version(&self.id);
            }
        }
    }

    /// The store's checksum of the whole version, once it has said one.
    pub(super) fn expected(&self) -> Option<Checksum> {
        let mut proof = self.proof.lock();
        if proof.is_none() {
            let sum = self.shared.client.checksum(&self.id)?;
            *proof = Some(Proof::new(sum, self.size));
            if let Some(cache) = &self.shared.cache {
                cache.expect(&self.id, self.size, sum);
            }
        }
        proof.as_ref().map(Proof::expected)
    }

    /// Sums a piece that the store sent. False: the version is wrong, whether that was found just now or before.
    fn compare(&self, start: u64, bytes: &[u8]) -> bool {
        let Some(expected) = self.expected().filter(|_| !bytes.is_empty()) else { return true };
        // Without the lock: it takes as long as the bytes are many.
        let sum = Checksum::of(expected.algorithm, bytes);
        let piece = start..start + bytes.len() as u64;
        let verdict = self.proof.lock().as_mut().map(|proof| proof.came(&piece, sum));
        if let Some(Verdict::Wrong(ours)) = verdict {
            self.condemn(ours, expected);
        }
        self.wrong.get().is_none()
    }

    /// All bytes came, and their checksum is not the store's. Which of them are wrong is not known, and some were given to programs: reads
    /// of the handles of now fail, memory and cache forget the version, and the next open begins anew.
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

    /// The number of the next request.
    pub(super) fn next_fetch(&self) -> FetchNo {
        self.next_fetch.fetch_add(1, Relaxed)
    }

    /// Runs a request until it ends, or nobody wants its bytes any more.
    pub(super) fn spawn(&self, no: FetchNo, request: impl Future<Output = ()> + Send + 'static) {
        // Registered before it can end: `ended` removes it.
        let mut running = self.fetches.lock();
        let task = self.shared.runtime.spawn(request);
        running.push((no, task.abort_handle()));
    }

    /// Whether all of a part is thought to be in the cache.
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
