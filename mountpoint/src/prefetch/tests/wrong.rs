//! Bytes that are not the store's: a bit flips on the way.

use super::*;
use crate::buffer::{Block, BlockMut};
use crate::cache::{BlockIndex, Given, Later, Now, Sectors};
use crate::checksum::ChecksumAlgorithm;

fn all(reader: &Reader, len: usize) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    while bytes.len() < len {
        bytes.extend(read(reader, bytes.len() as u64, 128 << 10)?);
    }
    Ok(bytes)
}

fn corrupt(b: &Bench) -> u64 {
    b.prefetcher.0.metrics.read_corrupt.get()
}

#[test]
fn an_answer_with_a_whole_object_is_compared_before_a_byte_is_given() {
    for algorithm in ChecksumAlgorithm::ALL {
        let cache = Arc::new(MemoryCache::new());
        let b = bench_with(128 << 20, Some(Arc::clone(&cache) as _));
        b.client.say_checksums(algorithm);
        let (id, data) = b.object("small", 70_000);
        b.client.inject(FaultPlan::on(Op::GetObject).flip(66_000));
        let reader = b.prefetcher.open(id.clone(), 70_000, None);
        assert_eq!(read(&reader, 0, 4096).unwrap(), data[..4096], "asked for again");
        assert_eq!(all(&reader, 70_000).unwrap(), data);
        assert_eq!((corrupt(&b), b.client.calls(Op::GetObject)), (1, 2));
        drop(reader);

        // A request of the first reading may still be under way, and what it brings is right.
        until("the first reading is over", || b.pool.used(Use::Ahead) + b.pool.used(Use::Demand) == 0);
        b.client.inject(FaultPlan::on(Op::GetObject).nth(1).times(2).flip(1));
        cache.drop_version(&id);
        let reader = b.prefetcher.open(id.clone(), 70_000, None);
        let error = read(&reader, 0, 4096).unwrap_err();
        assert!(error.is_corrupt(), "{error}");
        // Read-ahead may ask a third time meanwhile: what it brings is compared by itself, and kept.
        let mut kept = vec![0; 70_000];
        let is_kept = cache.read(&id, 70_000, 0..70_000, &mut kept);
        assert!(!is_kept || kept == data, "no wrong byte is kept");
        assert!(!is_kept || b.client.calls(Op::GetObject) == 5, "nothing of the two answers is kept");
        assert_eq!(all(&reader, 70_000).unwrap(), data, "a later read asks anew");
        assert_eq!(corrupt(&b), 3);
    }
}

#[test]
fn a_long_object_is_compared_when_its_last_byte_comes() {
    let cache = Arc::new(MemoryCache::new());
    let b = bench_with(128 << 20, Some(Arc::clone(&cache) as _));
    b.client.say_checksums(ChecksumAlgorithm::Crc64Nvme);
    let len = 40 * MIB + 77;
    let (id, data) = b.object("long", len);
    b.client.inject(FaultPlan::on(Op::GetObject).nth(1).flip(9));
    let (reader, other) =
        (b.prefetcher.open(id.clone(), len as u64, None), b.prefetcher.open(id.clone(), len as u64, None));
    let error = all(&reader, len).unwrap_err();
    assert!(error.is_corrupt(), "{error}");
    assert!(read(&other, 5 << 20, 10).unwrap_err().is_corrupt(), "it may have been given wrong bytes");
    until("the cache forgot it", || cache.is_empty());
    assert_eq!(corrupt(&b), 1);
    let again = b.prefetcher.open(id, len as u64, None);
    assert!(all(&again, len).unwrap() == data, "an open after that begins anew");
    assert_eq!(corrupt(&b), 1);
    drop((reader, other, again));
    until("the pool is whole again", || b.pool.used(Use::Ahead) + b.pool.used(Use::Demand) == 0);
}

#[test]
fn a_store_that_says_no_checksum_is_read_as_before() {
    let b = bench(128 << 20);
    let (id, data) = b.object("o", 3 * MIB);
    b.client.inject(FaultPlan::on(Op::GetObject).nth(1).flip(9));
    let reader = b.prefetcher.open(id, 3 << 20, None);
    let read = all(&reader, 3 * MIB).unwrap();
    assert_eq!((0..3 * MIB).filter(|&at| read[at] != data[at]).collect::<Vec<_>>(), [9]);
    assert_eq!(corrupt(&b), 0);
}

#[test]
fn a_wrong_version_that_got_another_key_leaves_nothing_when_it_is_closed() {
    let b = bench(128 << 20);
    b.client.say_checksums(ChecksumAlgorithm::Crc32c);
    let len = 40 * MIB + 77;
    let (id, data) = b.object("old", len);
    let to = ObjectId::by_etag("new".into(), b.client.insert("new", data));
    let reader = b.prefetcher.open(id.clone(), len as u64, None);
    b.prefetcher.moved(&id, &to);
    b.client.inject(FaultPlan::on(Op::GetObject).nth(1).flip(9));
    assert!(all(&reader, len).unwrap_err().is_corrupt());
    drop(reader);
    // A file that is stored under the old key later, with the same bytes, must be read there.
    until("the old key is the file's own again", || b.prefetcher.0.where_is(&id) == id);
}

/// An empty cache that calls the test when it is asked for the first time.
struct Interrupts(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl fmt::Debug for Interrupts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Interrupts")
    }
}

impl BlockCache for Interrupts {
    fn present(&self, _: &ObjectId, _: BlockIndex) -> Sectors {
        let act = self.0.lock().take();
        if let Some(act) = act {
            act();
        }
        Sectors::NONE
    }

    fn keeps(&self) -> bool {
        false
    }

    fn read(&self, _: &ObjectId, _: u64, _: Range<u64>, _: &mut [u8]) -> bool {
        false
    }

    fn read_now(&self, _: &ObjectId, _: u64, _: Range<u64>, _: &mut [u8]) -> Now {
        Now::Absent
    }

    fn read_later(&self, _: &ObjectId, _: u64, _: Range<u64>, into: BlockMut, done: Later) {
        done(Given::Absent(into));
    }

    fn drop_version(&self, _: &ObjectId) {}

    fn put(&self, _: &ObjectId, _: u64, _: u64, _: Block) {}
}

#[test]
fn a_read_that_begins_while_its_version_is_found_wrong_is_answered() {
    let cache = Arc::new(Interrupts(Mutex::default()));
    let b = bench_with(buffer::Config::TARGET_MIN, Some(Arc::clone(&cache) as _));
    b.client.say_checksums(ChecksumAlgorithm::Crc32c);
    let (id, data) = b.object("o", 3 * MIB);
    // Without read-ahead, the last bytes come when they are asked for.
    let held: Vec<_> = std::iter::from_fn(|| b.pool.try_take(Use::Ahead, MIB)).collect();
    b.client.inject(FaultPlan::on(Op::GetObject).nth(1).flip(9));
    let open = || b.prefetcher.open(id.clone(), data.len() as u64, None);
    let first = Arc::new(open());
    (0..2).for_each(|n| assert!(read(&first, n << 20, MIB).is_ok()));
    let second = open();
    let (send, found) = mpsc::channel();
    let last = Arc::clone(&first);
    *cache.0.lock() = Some(Box::new(move || send.send(read(&last, 2 << 20, MIB)).unwrap()));
    let error = read(&second, 0, 4096).unwrap_err();
    assert!(error.is_corrupt(), "{error}");
    assert!(found.try_recv().unwrap().unwrap_err().is_corrupt(), "it was found wrong in between");
    drop(held);
}
