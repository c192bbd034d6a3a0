//! Open files being read.
//!
//! Enters: "these bytes of this object version, for this handle". Leaves: the bytes, in blocks of memory. If memory has them, the
//! caller's thread gets them at once; otherwise the thread that receives them calls the caller's callback. For each block this room looks
//! in memory, then in the disk cache, then asks S3. It never blocks a caller, and knows nothing of names or of FUSE.

mod cached;
mod carry;
mod fetch;
mod link;
mod moved;
mod object;
mod pieces;
mod proof;
mod reader;
mod table;
mod window;

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot};

#[cfg(test)]
mod tests;

pub use reader::Reader;
pub use window::{Plan, Window, WindowConfig};

use crate::buffer::{Block, Pool, Pressure, Use};
use crate::cache::BlockCache;
pub use crate::cache::{Hold, Lend, Whole};
use crate::clock::Clock;
use crate::doorbell::{Doorbell, Next};
use crate::first::{First, Nexts};
use crate::metrics::Metrics;
use crate::object::{ObjectId, ObjectKey};
use crate::s3::ObjectClient;
use crate::supervise::Supervisor;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use crate::sync::{Arc, Mutex, Weak};
use link::Link;
use moved::Moved;
use object::Object;

/// The reason for which bytes could not be read. Shared: several reads may fail for one reason.
pub type Error = Arc<crate::s3::Error>;

/// Called once with the bytes or the error; on the reading thread, or on the thread that receives the bytes.
pub type ReadDone = Box<dyn FnOnce(Result<Bytes, Error>) + Send>;

/// Settings of read-ahead.
#[derive(Clone, Debug)]
pub struct Config {
    /// The window's sizes.
    pub window: WindowConfig,
    /// Throughput to aim for, in bytes per second: with the link's latency and rate it determines how much is fetched ahead. Doubling it
    /// doubles the memory of a reader on slow connections.
    pub throughput_target: u64,
    /// Longest wait of a read for memory, while no read gets any and no request is in flight (the network has limits of its own).
    /// Doubling it lets programs hold memory longer, and reports a lasting shortage later.
    pub wait_max: Duration,
    /// Time without a read after which a handle's unread bytes are dropped. Doubling it helps a reader that pauses, and costs memory that
    /// others could use.
    pub idle: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            window: WindowConfig::default(),
            throughput_target: 2_000_000_000,
            wait_max: Duration::from_secs(70),
            idle: Duration::from_secs(10),
        }
    }
}

/// A file without a read for this long is not being read: its unread bytes may give way to writers that are at their limit.
const READING: Duration = Duration::from_secs(1);

/// Makes readers. One per mount.
#[derive(Clone, Debug)]
pub struct Prefetcher(Arc<Shared>);

/// Renames under way, until this is dropped.
#[derive(Debug)]
pub struct Moving {
    prefetcher: Prefetcher,
    keys: Vec<ObjectKey>,
}

impl Drop for Moving {
    fn drop(&mut self) {
        let mut moved = self.prefetcher.0.moved.lock();
        self.keys.iter().for_each(|key| moved.ended(key));
    }
}

struct Shared {
    client: Arc<dyn ObjectClient>,
    cache: Option<Arc<dyn BlockCache>>,
    pool: Pool,
    config: Config,
    clock: Clock,
    metrics: Arc<Metrics>,
    runtime: tokio::runtime::Handle,
    objects: Mutex<HashMap<ObjectId, Weak<Object>>>,
    moved: Mutex<Moved>,
    /// Permits to copy cached blocks to another key.
    carries: Semaphore,
    link: Mutex<Link>,
    /// The bytes that handles of tables read after the tail.
    nexts: Mutex<Nexts>,
    /// The number of handles that read in sequence, and so share the link.
    streams: AtomicU64,
    /// Requests that have their memory.
    under_way: AtomicUsize,
    /// Rung by a read, and by bytes that come before a read: unread bytes have to be dropped some day.
    read: Arc<Doorbell>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prefetcher").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Prefetcher {
    /// A prefetcher over this client, cache and memory; requests run on `runtime`.
    pub fn new(
        client: Arc<dyn ObjectClient>,
        cache: Option<Arc<dyn BlockCache>>,
        pool: Pool,
        config: Config,
        clock: Clock,
        metrics: Arc<Metrics>,
        runtime: tokio::runtime::Handle,
    ) -> Self {
        let objects = Mutex::new(HashMap::new());
        let (link, streams) = (Mutex::default(), AtomicU64::new(0));
        let read = Arc::new(Doorbell::default());
        let (time, of_house, of_pool) = (clock.clone(), Arc::clone(&read), pool.clone());
        let shared = Arc::new(Shared {
            client,
            cache,
            pool,
            config,
            clock,
            metrics,
            runtime,
            objects,
            moved: Mutex::default(),
            carries: Semaphore::new(1),
            link,
            nexts: Mutex::default(),
            streams,
            under_way: AtomicUsize::new(0),
            read,
        });
        let supervisor = Supervisor { metrics: Arc::clone(&shared.metrics), clock: shared.clock.clone() };
        let weak = Arc::downgrade(&shared);
        supervisor.task(&shared.runtime, "giving unread bytes back", move || {
            keep_house(weak.clone(), time.clone(), Arc::clone(&of_house))
        });
        let weak = Arc::downgrade(&shared);
        supervisor.task(&shared.runtime, "giving unread bytes to others", move || {
            heed_contention(weak.clone(), of_pool.clone())
        });
        Self(shared)
    }

    /// The answer of memory about a file of the disk cache with the whole object version, for readers that need no reader of ours; see
    /// [`BlockCache::lends`].
    pub fn lends(&self, id: &ObjectId, size: u64) -> Lend {
        self.0.cache.as_ref().map_or(Lend::No, |cache| cache.lends(id, size))
    }

    /// Finds the file of [`Prefetcher::lends`] by asking the disk.
    pub async fn whole(&self, id: &ObjectId, size: u64) -> Option<Whole> {
        let (give, given) = oneshot::channel();
        self.0.cache.as_ref()?.whole(id, size, Box::new(move |whole| _ = give.send(whole)));
        given.await.ok().flatten()
    }

    /// Notes that the bytes of `from` are under another key from now on, and that `from` will be gone: handles that have it open read from
    /// `to`.
    pub fn moved(&self, from: &ObjectId, to: &ObjectId) {
        // The order matters: it is that of `closed`.
        let mut moved = self.0.moved.lock();
        let objects = self.0.objects.lock();
        let open = objects.iter().filter(|(_, object)| object.strong_count() > 0);
        moved.note(from, to, open.map(|(id, _)| id));
    }

    /// Notes the same of versions that are being renamed. Until the guard is dropped, handles that are opened under the old key read from
    /// the new one, too.
    pub fn moving<'a>(&self, renamed: impl IntoIterator<Item = (&'a ObjectId, &'a ObjectId)>) -> Moving {
        let mut keys = Vec::new();
        for (from, to) in renamed {
            // A handle that is opened in between is found by the second call.
            self.0.moved.lock().began(from, to);
            self.moved(from, to);
            keys.push(from.key.clone());
        }
        Moving { prefetcher: self.clone(), keys }
    }

    /// Runs `work` where requests run.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.0.runtime.spawn(work);
    }

    /// A reader of one object version of `size` bytes. The first read begins the fetching. `first` may have bytes of that version.
    pub fn open(&self, id: ObjectId, size: u64, first: Option<First>) -> Reader {
        // This outlives the lock: an object of another size may lose its last handle meanwhile, and its drop takes the lock.
        let known;
        let object = {
            let mut objects = self.0.objects.lock();
            known = objects.get(&id).and_then(Weak::upgrade);
            if let Some(object) = known.as_ref().filter(|object| object.size() == size) {
                Arc::clone(object)
            } else {
                let object = Arc::new(Object::new(Arc::clone(&self.0), id.clone(), size));
                objects.insert(id, Arc::downgrade(&object));
                object
            }
        };
        self.0.moved.lock().opened(&object.id);
        Reader::new(object, Window::new(self.0.config.window.clone(), size), first)
    }
}

impl Shared {
    /// Removes a version whose last handle was closed, and the note of its new key.
    fn closed(&self, id: &ObjectId) {
        // Both locks at once, in the order of `moved`: the version may be opened again and get another key meanwhile, and that note stays.
        let (mut moved, mut objects) = (self.moved.lock(), self.objects.lock());
        // A version that was found wrong is not among the objects any more.
        if objects.get(id).is_none_or(|object| object.strong_count() == 0) {
            objects.remove(id);
            moved.closed(id);
        }
    }

    /// Removes a version, so that later opens do not find it.
    fn forget(&self, wrong: &Object) {
        let mut objects = self.objects.lock();
        if objects.get(&wrong.id).is_some_and(|object| std::ptr::eq(object.as_ptr(), wrong)) {
            objects.remove(&wrong.id);
        }
    }

    /// The key under which the store has a version's bytes now.
    fn where_is(&self, id: &ObjectId) -> ObjectId {
        self.moved.lock().where_is(id)
    }

    /// The bytes worth fetching ahead for one stream.
    fn window_limit(&self) -> u64 {
        let whole = self.link.lock().window(self.config.throughput_target, self.config.window.part);
        whole / self.streams.load(Relaxed).max(1)
    }

    /// Drops unread bytes: those of idle handles; and, while a request waits for memory that it is entitled to, the longest unread bytes
    /// first, until no request waits. Writers at their limit get the memory of handles that are not read at present.
    ///
    /// Returns whether more work will come although no file is read and no request waits: bytes are in memory or in flight, or a file was
    /// read just now.
    fn tidy(&self) -> bool {
        let mut objects: Vec<Arc<Object>> = self.objects.lock().values().filter_map(Weak::upgrade).collect();
        // The keys are cached: if each comparison read them anew, they would change meanwhile, and the sort would panic.
        objects.sort_by_cached_key(|o| o.last_read());
        let now = self.clock.now();
        let rests = |o: &Object, long: Duration| now.saturating_duration_since(o.last_read()) >= long;
        let idle =
            if self.pool.waiting(Use::Write) > 0 { READING.min(self.config.idle) } else { self.config.idle };
        for object in &objects {
            if self.pool.pressure() == Pressure::High || rests(object, idle) {
                object.forget_ready();
            }
        }
        let is_read = !objects.iter().all(|o| rests(o, READING));
        if !is_read {
            self.pool.nobody_reads();
        }
        is_read || objects.iter().any(|o| o.holds())
    }

    /// The time until the next tidying, if a request waits now.
    fn tidy_again(&self) -> Option<Duration> {
        if self.pool.pressure() == Pressure::High {
            // It may wait for memory that is about to come free: look soon, but not in a busy loop.
            return Some(Duration::from_millis(5));
        }
        (self.pool.waiting(Use::Write) > 0).then_some(READING / 4)
    }
}

/// Runs beside the readers as long as the mount does: looks every few seconds while a handle has unread bytes, or may get some.
async fn keep_house(shared: Weak<Shared>, clock: Clock, read: Arc<Doorbell>) {
    let look = |_| match shared.upgrade() {
        None => Next::Leave,
        Some(shared) if shared.tidy() => Next::Look(shared.config.idle / 2),
        Some(_) => Next::Rest,
    };
    read.keep_house(&clock, look).await;
}

/// Tidies whenever requests wait for memory.
async fn heed_contention(shared: Weak<Shared>, pool: Pool) {
    loop {
        pool.contended().await;
        let Some(shared) = shared.upgrade() else { return };
        shared.tidy();
        while let Some(pause) = shared.tidy_again() {
            shared.clock.sleep(pause).await;
            shared.tidy();
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.read.ring();
        self.pool.look_up();
    }
}

/// The bytes of one read: slices of blocks, in order. Nothing is copied until a caller wants one slice.
#[derive(Clone, Debug, Default)]
pub struct Bytes {
    first: Option<(Block, Range<usize>)>,
    rest: Vec<(Block, Range<usize>)>,
}

impl Bytes {
    /// Appends this part of a block.
    pub fn push(&mut self, block: Block, range: Range<usize>) {
        match self.first {
            None => self.first = Some((block, range)),
            Some(_) => self.rest.push((block, range)),
        }
    }

    /// The slices, for a vectored reply.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        self.first.iter().chain(&self.rest).map(|(block, range)| &block[range.clone()])
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.slices().map(<[u8]>::len).sum()
    }

    /// Whether there are no bytes (a read at or behind the end).
    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// The bytes as one slice if they lie in one block, as after aligned reads.
    pub fn as_single(&self) -> Option<&[u8]> {
        match (&self.first, self.rest.is_empty()) {
            (None, _) => Some(&[]),
            (Some((block, range)), true) => Some(&block[range.clone()]),
            _ => None,
        }
    }

    /// All bytes in one buffer.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut joined = Vec::with_capacity(self.len());
        self.slices().for_each(|s| joined.extend_from_slice(s)); // copy: a read that straddles blocks
        joined
    }
}
