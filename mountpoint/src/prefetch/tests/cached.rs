//! Reads that wait for the disk of the cache.

use super::*;
use crate::buffer::{Block, BlockMut, Reservation};
use crate::cache::{BlockIndex, Given, Later, Now, Sectors};
use crate::sync::atomic::AtomicBool;

/// A cache whose disk gives no byte until the test allows it.
#[derive(Debug)]
struct SlowCache {
    cache: Arc<MemoryCache>,
    /// A message lets one read end.
    gate: Arc<Mutex<mpsc::Receiver<()>>>,
    /// Whether reads are answered too late.
    late: AtomicBool,
    /// The pool of which a late read takes all memory, as other programs may.
    pool: Mutex<Option<Pool>>,
    taken: Mutex<Vec<Reservation>>,
    /// Number of reads that may wait for the disk.
    asked: AtomicU64,
    /// Number of reads that may not wait.
    probes: AtomicU64,
}

impl SlowCache {
    fn new() -> (Arc<Self>, mpsc::Sender<()>) {
        let (open, gate) = mpsc::channel();
        (
            Arc::new(Self {
                cache: Arc::default(),
                gate: Arc::new(Mutex::new(gate)),
                late: AtomicBool::new(false),
                pool: Mutex::default(),
                taken: Mutex::default(),
                asked: AtomicU64::new(0),
                probes: AtomicU64::new(0),
            }),
            open,
        )
    }
}

impl BlockCache for SlowCache {
    fn present(&self, id: &ObjectId, block: BlockIndex) -> Sectors {
        self.cache.present(id, block)
    }

    fn keeps(&self) -> bool {
        self.cache.keeps()
    }

    fn read(&self, id: &ObjectId, object_size: u64, range: Range<u64>, into: &mut [u8]) -> bool {
        self.gate.lock().recv().unwrap();
        self.cache.read(id, object_size, range, into)
    }

    fn read_now(&self, _: &ObjectId, _: u64, _: Range<u64>, _: &mut [u8]) -> Now {
        self.probes.fetch_add(1, Relaxed);
        Now::OnDisk
    }

    fn read_later(
        &self,
        id: &ObjectId,
        object_size: u64,
        range: Range<u64>,
        mut into: BlockMut,
        done: Later,
    ) {
        self.asked.fetch_add(1, Relaxed);
        if self.late.load(Relaxed) {
            drop(into);
            if let Some(pool) = self.pool.lock().take() {
                let taken = std::iter::from_fn(|| pool.try_reserve(Use::Demand, 4096));
                self.taken.lock().extend(taken);
            }
            return done(Given::Late);
        }
        let (cache, gate, id) = (Arc::clone(&self.cache), Arc::clone(&self.gate), id.clone());
        std::thread::spawn(move || {
            gate.lock().recv().unwrap();
            let is_here = cache.read(&id, object_size, range, into.spare());
            done(if is_here { Given::Here(into) } else { Given::Absent(into) });
        });
    }

    fn drop_version(&self, id: &ObjectId) {
        self.cache.drop_version(id);
    }

    fn put(&self, id: &ObjectId, object_size: u64, offset: u64, bytes: Block) {
        self.cache.put(id, object_size, offset, bytes);
    }
}

/// An object all of which a cache has.
fn kept(b: &Bench, cache: &MemoryCache, len: usize) -> (ObjectId, Vec<u8>) {
    let (id, data) = b.object("o", len);
    for (index, part) in data.chunks(MIB).enumerate() {
        let mut block = b.pool.try_take(Use::Demand, part.len()).unwrap();
        block.put(part);
        cache.put(&id, len as u64, (index * MIB) as u64, block.freeze());
    }
    (id, data)
}

impl Bench {
    /// Reads that did not wait for the network, that did, and that the disk cache alone answered.
    fn counted(&self) -> (u64, u64, u64) {
        let metrics = &self.prefetcher.0.metrics;
        (metrics.fuse_reads_ready.get(), metrics.fuse_reads_waited.get(), metrics.fuse_cache_hit.get())
    }
}

#[test]
fn a_read_that_waits_for_the_disk_does_not_hold_its_thread() {
    let (cache, open) = SlowCache::new();
    let b = bench_with(256 << 20, Some(cache.clone()));
    let (id, data) = kept(&b, &cache.cache, 3 * MIB);
    let reader = b.prefetcher.open(id, data.len() as u64, None);
    let (send, receive) = mpsc::channel();
    // The second lies in two blocks, each of which waits.
    for (at, len) in [(5000, 4096), (MIB - 10, 20)] {
        let send = send.clone();
        reader.read(at as u64, len, move |read| send.send((at, read.map(|bytes| bytes.to_vec()))).unwrap());
    }
    // This thread came back from both, and the disk has given nothing yet.
    assert_eq!(cache.probes.load(Relaxed), 3, "the disk was asked for all of it");
    assert!(receive.try_recv().is_err());
    (0..3).for_each(|_| open.send(()).unwrap());
    for _ in 0..2 {
        let (at, read) = receive.recv_timeout(Duration::from_secs(60)).unwrap();
        let read = read.unwrap();
        assert_eq!(read, data[at..at + read.len()], "at {at}");
    }
    assert!(b.client.log().is_empty(), "nothing is asked of the store");
    assert_eq!(b.counted(), (2, 0, 2));
    drop(reader);
    until("the pool is whole again", || b.pool.used(Use::Ahead) + b.pool.used(Use::Demand) == 0);
}

#[test]
fn bytes_evicted_while_a_read_waits_for_the_disk_come_from_the_store() {
    let (cache, open) = SlowCache::new();
    let b = bench_with(256 << 20, Some(cache.clone()));
    let (id, data) = kept(&b, &cache.cache, 2 * MIB);
    let reader = b.prefetcher.open(id.clone(), data.len() as u64, None);
    let (send, receive) = mpsc::channel();
    reader.read(MIB as u64 + 7, 4096, move |read| send.send(read.map(|bytes| bytes.to_vec())).unwrap());
    assert!(cache.cache.forget(&id, 1));
    open.send(()).unwrap();
    let read = receive.recv_timeout(Duration::from_secs(60)).unwrap().unwrap();
    assert_eq!(read, data[MIB + 7..MIB + 7 + 4096]);
    assert!(!b.client.log().is_empty(), "the store was asked");
    assert_eq!(b.counted(), (0, 1, 0));
    drop(reader);
    until("the pool is whole again", || b.pool.used(Use::Ahead) + b.pool.used(Use::Demand) == 0);
}

#[test]
fn a_read_whose_disk_is_late_comes_from_the_store_without_another_wait() {
    let (cache, _open) = SlowCache::new();
    let b = bench_with(256 << 20, Some(cache.clone()));
    let (id, data) = kept(&b, &cache.cache, 2 * MIB);
    cache.late.store(true, Relaxed);
    let reader = b.prefetcher.open(id, data.len() as u64, None);
    assert_eq!(read(&reader, 5000, 4096).unwrap(), data[5000..5000 + 4096]);
    assert_eq!(cache.asked.load(Relaxed), 1, "the cache is not asked again for this read");
    assert!(!b.client.log().is_empty(), "the store was asked");
    drop(reader);
    until("the pool is whole again", || b.pool.used(Use::Ahead) + b.pool.used(Use::Demand) == 0);
}

#[test]
fn a_request_that_begins_in_a_late_cache_ends_in_the_store() {
    let (cache, _open) = SlowCache::new();
    let b = bench_with(256 << 20, Some(cache.clone()));
    let (id, data) = kept(&b, &cache.cache, 3 * MIB);
    // The last block must be fetched, and what is before it is thought to be near.
    assert!(cache.cache.forget(&id, 2));
    cache.late.store(true, Relaxed);
    let reader = b.prefetcher.open(id, data.len() as u64, None);
    let (at, len) = (2 * MIB - 1000, 2000);
    assert_eq!(read(&reader, at as u64, len).unwrap(), data[at..at + len]);
    assert!(cache.asked.load(Relaxed) > 0);
    drop(reader);
    until("the pool is whole again", || b.pool.used(Use::Ahead) + b.pool.used(Use::Demand) == 0);
}

#[test]
fn a_request_behind_a_late_disk_does_not_wait_for_memory_for_ever() {
    let (cache, _open) = SlowCache::new();
    let clock = Clock::manual();
    let b = bench_by(clock.clone(), 16 << 20, Some(cache.clone()));
    let (id, data) = kept(&b, &cache.cache, 3 * MIB);
    // The read's first bytes are thought to be near, and the last block must be fetched.
    assert!(cache.cache.forget(&id, 2));
    cache.late.store(true, Relaxed);
    *cache.pool.lock() = Some(b.pool.clone());
    let reader = b.prefetcher.open(id, data.len() as u64, None);
    let (send, receive) = mpsc::channel();
    let at = 2 * MIB as u64 - 1000;
    reader.read(at, 2000, move |result| send.send(result.map(|bytes| bytes.to_vec())).unwrap());
    until("it waits", || b.pool.waiting(Use::Demand) > 0);
    let mut read = None;
    until("it is answered", || {
        clock.advance(Duration::from_secs(20));
        read = receive.try_recv().ok();
        read.is_some()
    });
    let error = read.unwrap().unwrap_err();
    assert!(error.to_string().contains("no memory"), "{error}");
}

#[test]
fn cached_blocks_of_a_version_with_another_key_go_along() {
    let cache = Arc::new(MemoryCache::new());
    let b = bench_with(256 << 20, Some(cache.clone()));
    let len = 3 * MIB + 77;
    let (from, data) = kept(&b, &cache, len);
    assert!(cache.forget(&from, 1), "one was never read");
    let to = ObjectId::by_etag("new".into(), b.client.insert("new", data.clone()));
    b.client.remove("o");
    b.prefetcher.moved(&from, &to);
    b.prefetcher.carry(&from, &to, len as u64);
    until("the old version leaves the cache", || cache.present(&from, 0).is_empty());
    let reader = b.prefetcher.open(to, len as u64, None);
    for at in [5, 2 * MIB + 1, 3 * MIB] {
        assert_eq!(read(&reader, at as u64, 70).unwrap(), data[at..at + 70]);
    }
    assert!(b.client.log().is_empty(), "nothing is asked of the store");
    assert_eq!(read(&reader, MIB as u64 + 5, 70).unwrap(), data[MIB + 5..MIB + 75]);
    assert!(!b.client.log().is_empty(), "the block that was not here is fetched");
    drop(reader);
    until("the pool is whole again", || b.pool.used(Use::Ahead) + b.pool.used(Use::Demand) == 0);
}
