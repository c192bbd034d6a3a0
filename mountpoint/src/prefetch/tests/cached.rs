//! Reads that wait for the disk of the cache.

use super::*;
use crate::buffer::{Block, BlockMut};
use crate::cache::{BlockIndex, Later, Now, Sectors};

/// A cache whose bytes are on a disk that gives nothing until the test allows it.
#[derive(Debug)]
struct SlowCache {
    cache: MemoryCache,
    /// Each lets one read end.
    gate: Mutex<mpsc::Receiver<()>>,
    /// Reads that did not wait.
    probes: AtomicU64,
}

impl SlowCache {
    fn new() -> (Arc<Self>, mpsc::Sender<()>) {
        let (open, gate) = mpsc::channel();
        (
            Arc::new(Self { cache: MemoryCache::new(), gate: Mutex::new(gate), probes: AtomicU64::new(0) }),
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
        _: &ObjectId,
        _: u64,
        _: Range<u64>,
        into: BlockMut,
        done: Later,
    ) -> Result<(), (BlockMut, Later)> {
        Err((into, done))
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
