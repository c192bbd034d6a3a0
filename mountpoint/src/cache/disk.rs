//! The engine's interface to the cache on disk: opens it, reads blocks, puts blocks through a bounded queue, and closes it.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, Sender, TrySendError, bounded};
use crossbeam::sync::WaitGroup;
use rustix::fs::{FileType, Mode, OFlags, fchmod, fstat, open};
use rustix::io::Errno;
use rustix::process::{Resource, geteuid, getrlimit};

use super::bell::Bell;
use super::crew::{Crew, Work};
use super::file::Entry;
use super::io::{BlockIo, Disk, FOLDER_MODE, HOME, open_folder};
use super::later::{Job as Read, QUEUE_MAX, Queue};
use super::lock::Lock;
use super::read::Beginning;
use super::rest::LATE_MAX;
use super::store::Store;
use super::waits::{Done, Ticket};
use super::{BlockCache, BlockIndex, CACHE_BLOCK, Config, Error, Given, Later, Lend, Lent, Now, Sectors};
use super::{prove, ring};
use crate::buffer::{Block, BlockMut};
use crate::checksum::Checksum;
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::object::ObjectId;
use crate::supervise::Supervisor;
use crate::sync::atomic::{AtomicBool, Ordering::Relaxed};
use crate::sync::{Arc, Mutex};

/// The most data files kept open: a quarter of the process's limit on open files, if that is less (but at least 16). Beyond it, files that
/// were not read recently are closed.
const FILES_MAX: u64 = 1024;

/// Most writer threads; a larger configured number is lowered to it.
const WRITERS_MAX: usize = 16;

/// Reads of at least this size, in bytes, go to the crew even if there is a ring: the ring's one thread would have to compare all their
/// bytes.
const LARGE: u64 = 512 << 10;

/// Most checks, one every [`ENDED_EVERY`], whether the threads have ended. After the last one the cache logs a warning and leaves them.
/// Doubling it gives a slow disk more time for the last writes.
const ENDED_LOOKS_MAX: u32 = 800;
const ENDED_EVERY: Duration = Duration::from_millis(10);

/// Cache of blocks in files below a directory of this machine; see [`super`] for its promises.
///
/// Dropping the cache waits for blocks that are being written, but not without end if the disk hangs. It drops the blocks in the queue.
#[derive(Debug)]
pub struct DiskCache {
    pub(super) store: Arc<Store>,
    queue: Option<Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    under_way: Mutex<WaitGroup>,
    /// The queue of small reads that wait for the disk, if there is a ring.
    pub(super) reads: Option<Queue>,
    /// The threads for all other work that waits for the disk.
    crew: Option<Arc<Crew>>,
    /// The thread that answers operations which waited too long.
    watch: Option<JoinHandle<()>>,
    watch_ends: Arc<AtomicBool>,
    /// Each thread that may write holds the lock, too: a thread that hangs beyond the end of the mount keeps the directory locked.
    _lock: Arc<Lock>,
}

/// Work for the writers.
#[derive(Debug)]
enum Job {
    Put(Put),
    /// Unlinks the files of a version that was found wrong. The number is their size in bytes.
    Unlink(Arc<Entry>, u64),
}

/// A version to compare with the store's checksum.
#[derive(Debug)]
struct Prove {
    entry: Arc<Entry>,
    expected: Checksum,
    _under_way: WaitGroup,
}

#[derive(Debug)]
struct Put {
    /// Time of the put, by the cache's clock. If the version is found wrong after it, the block is not written.
    at: u64,
    id: ObjectId,
    object_size: u64,
    offset: u64,
    bytes: Block,
    /// Dropped with the job; [`settle`](DiskCache::settle) waits for all of them.
    _under_way: WaitGroup,
    _waiting: Waiting,
}

/// Counts a block in the metric of waiting puts while this value lives.
#[derive(Debug)]
struct Waiting(Arc<Metrics>);

impl Waiting {
    fn new(metrics: &Arc<Metrics>) -> Self {
        metrics.cache_puts_waiting.more();
        Self(Arc::clone(metrics))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.cache_puts_waiting.less();
    }
}

impl DiskCache {
    /// Opens the cache of a bucket. Returns at once, whatever the directory contains.
    ///
    /// # Errors
    /// A problem that the user must fix: the directory is missing or can't be written, another process uses it, or no thread could start.
    pub fn open(config: Config, clock: Clock, metrics: Arc<Metrics>) -> Result<Self, Error> {
        let home = open_home(&config)?;
        let lock = Lock::take(home.as_fd(), &config.dir)?;
        let disk =
            Disk::new(home).map_err(|source| Error::NotWritable { dir: config.dir.clone(), source })?;
        Self::start(Box::new(disk), lock, &config, clock, metrics).map_err(|source| Error::Io {
            dir: config.dir,
            what: "start its threads",
            source,
        })
    }

    pub(super) fn start(
        io: Box<dyn BlockIo>,
        lock: Lock,
        config: &Config,
        clock: Clock,
        metrics: Arc<Metrics>,
    ) -> io::Result<Self> {
        let files = getrlimit(Resource::Nofile).current.map_or(FILES_MAX, |n| (n / 4).clamp(16, FILES_MAX));
        let store = Arc::new(Store::new(io, config, files as usize, clock.clone(), metrics));
        let (send, receive) = bounded(config.queue_max.max(1));
        let under_way = WaitGroup::new();
        let lock = Arc::new(lock);
        let supervisor = Supervisor { metrics: Arc::clone(&store.metrics), clock };
        let mut cache = Self {
            store: Arc::clone(&store),
            queue: Some(send),
            threads: Vec::new(),
            stop: Arc::new(AtomicBool::new(false)),
            under_way: Mutex::new(under_way.clone()),
            reads: None,
            crew: None,
            watch: None,
            watch_ends: Arc::new(AtomicBool::new(false)),
            _lock: Arc::clone(&lock),
        };
        cache.start_watch(&supervisor)?;
        let in_ring = if config.ring { ring::DEPTH as usize } else { 0 };
        let crew = Arc::new(Crew::start(&store, &lock, &supervisor, LATE_MAX - in_ring)?);
        if config.ring {
            cache.start_ring(&supervisor, &crew)?;
        }
        cache.crew = Some(crew);
        let (index, stop, mut under_way) = (Arc::clone(&store), Arc::clone(&cache.stop), Some(under_way));
        let held = Arc::clone(&lock);
        cache.threads.push(supervisor.thread("cache-index".to_owned(), move || {
            let _held = &held;
            index.load_all(&stop);
            drop(under_way.take());
        })?);
        let (prove, to_prove) = bounded(prove::QUEUE_MAX);
        for i in 0..config.writers.clamp(1, WRITERS_MAX) {
            let (store, receive, stop) = (Arc::clone(&store), receive.clone(), Arc::clone(&cache.stop));
            let (prove, held) = (prove.clone(), Arc::clone(&lock));
            let write = move || {
                let _held = &held;
                write_jobs(&store, &receive, &stop, &prove);
            };
            cache.threads.push(supervisor.thread(format!("cache-write-{i}"), write)?);
        }
        if store.needs_proof {
            let (store, stop) = (Arc::clone(&store), Arc::clone(&cache.stop));
            // This thread is dropped after the writers, and ends after they have ended.
            let prove = move || {
                let _held = &lock;
                prove_jobs(&store, &to_prove, &stop);
            };
            cache.threads.push(supervisor.thread("cache-prove".to_owned(), prove)?);
        }
        Ok(cache)
    }

    /// Starts the thread that answers operations which waited too long.
    fn start_watch(&mut self, supervisor: &Supervisor) -> io::Result<()> {
        let (store, ends, of_trial) =
            (Arc::clone(&self.store), Arc::clone(&self.watch_ends), supervisor.clone());
        self.watch = Some(supervisor.thread("cache-watch".to_owned(), move || {
            store.waits.watch(&ends, || try_disk(&store, &of_trial));
        })?);
        Ok(())
    }

    /// Starts the ring's thread, which waits for many reads at once, if the system allows a ring.
    fn start_ring(&mut self, supervisor: &Supervisor, crew: &Arc<Crew>) -> io::Result<()> {
        let (send, jobs) = bounded(QUEUE_MAX);
        let (say, hear) = bounded(1);
        let bell = Arc::new(Bell::new()?);
        let (store, of_thread) = (Arc::clone(&self.store), Arc::clone(&bell));
        // The closure ends with its thread: a crew whose owner is gone takes no more work.
        let mut crew = Some(Arc::clone(crew));
        // A ring belongs to the thread that makes it.
        let thread = supervisor.thread("cache-read".to_owned(), move || {
            let ring = ring::set_up();
            let _ = say.try_send(ring.as_ref().map(|_| ()).map_err(|why| *why));
            let Some(crew) = crew.take() else { return };
            if let Ok(ring) = ring {
                ring::run(ring, &store, &crew, &jobs, &of_thread);
            }
            crew.serve(&jobs);
        })?;
        self.threads.push(thread);
        match hear.recv().unwrap_or(Err("its thread ended")) {
            Ok(()) => self.reads = Some(Queue::new(send, bell)),
            Err(why) => tracing::info!(
                "cache: no io_uring ({why}): reads that wait for the disk take a thread each, which is slower"
            ),
        }
        Ok(())
    }

    /// Waits until all earlier puts are written or dropped and the files of earlier runs are indexed.
    pub fn settle(&self) {
        let before = std::mem::take(&mut *self.under_way.lock());
        before.wait();
    }

    /// Evicts about `bytes` for another user of the same disk that found it full. Returns the number of freed bytes. The cache then writes
    /// no new blocks for a while.
    pub fn give_room(&self, bytes: u64) -> u64 {
        self.store.give_room(bytes)
    }

    /// Queues work for the crew. Returns the work if the queue is full or the crew has ended.
    fn wait_for_disk(&self, work: Work) -> Option<Work> {
        match &self.crew {
            Some(crew) => crew.put(work).err(),
            None => Some(work),
        }
    }

    /// Disk space of the indexed files, in bytes.
    pub fn used_bytes(&self) -> u64 {
        self.store.used_bytes()
    }
}

/// Whether a range may be read: it lies within one block and the object, and has `len` bytes.
fn is_sound(object_size: u64, range: &Range<u64>, len: usize) -> bool {
    let sound = range.start < range.end
        && range.end <= object_size
        && range.start / CACHE_BLOCK == (range.end - 1) / CACHE_BLOCK
        && range.end - range.start == len as u64;
    debug_assert!(sound, "{range:?} of {object_size} bytes into {len}");
    sound
}

impl BlockCache for DiskCache {
    fn present(&self, id: &ObjectId, block: BlockIndex) -> Sectors {
        self.store.present(id, block)
    }

    fn keeps(&self) -> bool {
        self.store.keeps()
    }

    fn read(&self, id: &ObjectId, object_size: u64, range: Range<u64>, into: &mut [u8]) -> bool {
        let started = self.store.clock.now();
        let hit = is_sound(object_size, &range, into.len()) && self.store.read(id, object_size, &range, into);
        self.store.count_get(started, hit);
        hit
    }

    fn read_now(&self, id: &ObjectId, object_size: u64, range: Range<u64>, into: &mut [u8]) -> Now {
        if !is_sound(object_size, &range, into.len()) {
            return Now::Absent;
        }
        let started = self.store.clock.now();
        let now = self.store.read_now(id, object_size, &range, into);
        if now != Now::OnDisk {
            self.store.count_get(started, now == Now::Here);
        }
        now
    }

    fn read_later(&self, id: &ObjectId, object_size: u64, range: Range<u64>, into: BlockMut, done: Later) {
        let is_sound = is_sound(object_size, &range, into.limit() - into.filled());
        let beginning = match is_sound {
            true => self.store.begin_now(id, object_size, &range),
            false => Beginning::Absent,
        };
        if matches!(beginning, Beginning::Absent) {
            self.store.count_get(self.store.clock.now(), false);
            return done(Given::Absent(into));
        }
        let ticket = self.store.waits.queue(Some(into), Done::Read(done));
        let ticket = match (beginning, &self.reads) {
            (Beginning::Reads(reading), Some(reads)) if range.end - range.start < LARGE => {
                match reads.put(Read { reading, ticket }) {
                    Ok(()) => return,
                    Err(job) => job.ticket,
                }
            }
            _ => ticket,
        };
        // A full queue returns the work. Dropping its ticket ends the read as late.
        self.wait_for_disk(Work::Read { id: id.clone(), object_size, range, ticket });
    }

    fn lends(&self, id: &ObjectId, object_size: u64) -> Lend {
        self.store.lends(id, object_size)
    }

    fn whole(&self, id: &ObjectId, object_size: u64, done: Lent) {
        let ticket: Ticket = self.store.waits.queue(None, Done::Whole(done));
        self.wait_for_disk(Work::Whole { id: id.clone(), object_size, ticket });
    }

    fn expect(&self, id: &ObjectId, _object_size: u64, sum: Checksum) {
        if self.store.needs_proof {
            self.store.proofs.expect(id, sum);
        }
    }

    fn drop_version(&self, id: &ObjectId) {
        let Some((entry, bytes)) = self.store.condemn(id) else { return };
        let job = Job::Unlink(entry, bytes);
        let unqueued = match &self.queue {
            Some(queue) => queue.try_send(job).err().map(TrySendError::into_inner),
            None => Some(job),
        };
        if let Some(Job::Unlink(entry, bytes)) = unqueued
            && let Some(Work::Unlink(entry, bytes)) = self.wait_for_disk(Work::Unlink(entry, bytes))
        {
            // Both queues are full, which is rare: unlink on this thread, with two system calls. If the file stayed, the next run would
            // serve it.
            self.store.unlink_removed(&entry, bytes);
        }
    }

    fn put(&self, id: &ObjectId, object_size: u64, offset: u64, bytes: Block) {
        let Some(queue) = &self.queue else { return };
        if queue.is_full() {
            self.store.metrics.cache_puts_dropped.inc();
            return;
        }
        let under_way = self.under_way.lock().clone();
        let waiting = Waiting::new(&self.store.metrics);
        let (id, at) = (id.clone(), self.store.uses.load(Relaxed));
        let job =
            Job::Put(Put { at, id, object_size, offset, bytes, _under_way: under_way, _waiting: waiting });
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = queue.try_send(job) {
            self.store.metrics.cache_puts_dropped.inc();
        }
    }
}

impl Drop for DiskCache {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        let crew = self.crew.take().map(|crew| crew.threads());
        (self.queue, self.reads) = (None, None);
        let mut threads = std::mem::take(&mut self.threads);
        threads.extend(crew.into_iter().flat_map(|threads| std::mem::take(&mut *threads.lock())));
        let this = std::thread::current().id();
        // This may be one of these threads: a read that the cache answers can own the cache's last reference.
        threads.retain(|thread| thread.thread().id() != this);
        for _ in 0..ENDED_LOOKS_MAX {
            if threads.iter().all(JoinHandle::is_finished) {
                break;
            }
            std::thread::sleep(ENDED_EVERY);
        }
        let (ended, hang): (Vec<_>, Vec<_>) = threads.into_iter().partition(JoinHandle::is_finished);
        ended.into_iter().for_each(|thread| _ = thread.join());
        if !hang.is_empty() {
            tracing::warn!(
                "cache {}: {} threads still wait for its disk and are left; check the disk",
                self.store.waits.rest.dir().display(),
                hang.len()
            );
        }
        self.watch_ends.store(true, Relaxed);
        self.store.waits.wake();
        if let Some(watch) = self.watch.take().filter(|watch| watch.thread().id() != this) {
            let _ = watch.join();
        }
    }
}

/// Starts a thread that tries the disk and reports how long the disk took.
fn try_disk(store: &Arc<Store>, supervisor: &Supervisor) {
    let of_trial = Arc::clone(store);
    let tried = supervisor.thread("cache-trial".to_owned(), move || {
        let started = of_trial.clock.now();
        let _ = of_trial.io.try_out();
        let now = of_trial.clock.now();
        of_trial.waits.rest.tried(Some(now.saturating_duration_since(started)), now);
    });
    if tried.is_err() {
        store.waits.rest.tried(None, store.clock.now());
    }
}

fn write_jobs(store: &Store, queue: &Receiver<Job>, stop: &AtomicBool, prove: &Sender<Prove>) {
    for job in queue {
        let job = match job {
            Job::Put(job) => job,
            Job::Unlink(entry, bytes) => {
                store.unlink_removed(&entry, bytes);
                continue;
            }
        };
        // The ticket counts this write as late if the disk takes too long.
        let _ticket = store.waits.write();
        let started = store.clock.now();
        let is_wanted = !stop.load(Relaxed) && !store.proofs.is_wrong(&job.id, job.at);
        let kept = is_wanted && store.write_put(&job.id, job.object_size, job.offset, &job.bytes, job.at);
        let start = job.offset % CACHE_BLOCK;
        let sectors = Sectors::touching(&(start..start + job.bytes.len() as u64));
        if kept {
            store.metrics.cache_puts.inc();
            store.metrics.cache_put.of("disk").took(store.clock.now().saturating_duration_since(started));
            if let Some((entry, expected)) = store.to_prove(&job.id) {
                // On a full queue the version stays unproven, so later runs do not serve it.
                let _ = prove.try_send(Prove { entry, expected, _under_way: job._under_way.clone() });
            }
        } else if !store.present(&job.id, job.offset / CACHE_BLOCK).contains(sectors) {
            store.metrics.cache_puts_dropped.inc();
        }
    }
}

fn prove_jobs(store: &Store, queue: &Receiver<Prove>, stop: &AtomicBool) {
    // The deadline of proofs, set once the mount ends: waiting versions are proven until then.
    let mut until: Option<Instant> = None;
    for job in queue {
        let now = store.clock.now();
        if stop.load(Relaxed) && now > *until.get_or_insert(now + prove::AFTER_END) {
            continue;
        }
        store.prove(&job.entry, job.expected, stop, until.unwrap_or(now + prove::AFTER_END));
    }
}

/// The cache's folder in the user's directory, created if missing; only the mounting user may read it.
fn open_home(config: &Config) -> Result<OwnedFd, Error> {
    let dir = &config.dir;
    let user_dir = open(dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let user_dir = user_dir.map_err(|e| match e {
        Errno::NOENT => Error::Missing(dir.clone()),
        Errno::NOTDIR => Error::NotADirectory(dir.clone()),
        e => Error::Io { dir: dir.clone(), what: "open", source: e.into() },
    })?;
    let path = dir.join(HOME.to_string_lossy().as_ref());
    let home = open_folder(user_dir.as_fd(), HOME).map_err(|source| match Errno::from_io_error(&source) {
        Some(Errno::NOTDIR | Errno::LOOP) => Error::NotOurs { path: path.clone(), why: "not a folder" },
        _ => Error::NotWritable { dir: dir.clone(), source },
    })?;
    let stat = fstat(&home).map_err(|e| Error::Io {
        dir: dir.clone(),
        what: "look at its folder",
        source: e.into(),
    })?;
    debug_assert_eq!(FileType::from_raw_mode(stat.st_mode), FileType::Directory);
    if stat.st_uid != geteuid().as_raw() {
        return Err(Error::NotOurs { path, why: "belongs to another user" });
    }
    fchmod(&home, FOLDER_MODE).map_err(|e| Error::NotWritable { dir: dir.clone(), source: e.into() })?;
    Ok(home)
}
