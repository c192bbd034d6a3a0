//! Versions that came over plain HTTP: tests of what later runs may serve.

use super::*;
use crate::buffer::{Block, Config as Memory};
use crate::checksum::{Checksum, ChecksumAlgorithm};
use crate::sync::atomic::Ordering::Relaxed;

const SIZE: u64 = 2 * MIB + 777;

fn open(dir: &Path) -> DiskCache {
    let config = Config { size_max: Some(64 * MIB), ..Config::new(dir, "http://s3.test", "bucket") };
    let cache = DiskCache::open(config, Clock::machine(), Arc::new(Metrics::default())).unwrap();
    cache.settle();
    cache
}

fn block(bytes: &[u8]) -> Block {
    let mut block =
        Pool::new(&Memory { target: 64 << 20, network: 0 }).try_take(Use::Ahead, bytes.len()).unwrap();
    block.put(bytes);
    block.freeze()
}

/// Puts all blocks. If `at` is given, its byte is changed.
fn put_all(cache: &DiskCache, id: &ObjectId, at: Option<u64>) {
    let mut bytes = content(id, 0..SIZE);
    if let Some(at) = at {
        bytes[at as usize] ^= 1;
    }
    for (n, piece) in bytes.chunks(MIB as usize).enumerate() {
        cache.put(id, SIZE, n as u64 * MIB, block(piece));
    }
    cache.settle();
}

fn sum(id: &ObjectId, algorithm: ChecksumAlgorithm) -> Checksum {
    Checksum::of(algorithm, &content(id, 0..SIZE))
}

fn has(cache: &DiskCache, id: &ObjectId) -> [bool; 3] {
    [0, 1, 2].map(|n| {
        let range = block_range(SIZE, n);
        let mut into = vec![0; (range.end - range.start) as usize];
        cache.read(id, SIZE, range, &mut into)
    })
}

#[test]
fn over_plain_http_only_compared_versions_outlive_the_mount() {
    let dir = tempfile::tempdir().unwrap();
    let (compared, unknown, part) = (id("compared", "1"), id("unknown", "1"), id("part", "1"));
    {
        let cache = open(dir.path());
        for id in [&compared, &part] {
            cache.expect(id, SIZE, sum(id, ChecksumAlgorithm::Crc64Nvme));
        }
        put_all(&cache, &compared, None);
        put_all(&cache, &unknown, None);
        cache.put(&part, SIZE, 0, block(&content(&part, 0..MIB)));
        cache.settle();
        assert_eq!((has(&cache, &compared), has(&cache, &unknown)), ([true; 3], [true; 3]));
        assert_eq!(has(&cache, &part), [true, false, false], "in this mount they serve");
    }
    let cache = open(dir.path());
    assert_eq!(has(&cache, &compared), [true; 3]);
    assert_eq!((has(&cache, &unknown), has(&cache, &part)), ([false; 3], [false; 3]));
    assert_eq!(cache.store.metrics.cache_corrupt.get(), 0, "nothing is wrong with it");
    assert_eq!(files(dir.path()).len(), 2, "it takes no space either");
}

#[test]
fn a_version_that_is_not_the_stores_leaves_the_cache_once_all_of_it_came() {
    for algorithm in ChecksumAlgorithm::ALL {
        let dir = tempfile::tempdir().unwrap();
        let cache = open(dir.path());
        let id = id("wrong", "1");
        cache.expect(&id, SIZE, sum(&id, algorithm));
        put_all(&cache, &id, Some(MIB + 5));
        assert_eq!((has(&cache, &id), cache.store.metrics.read_corrupt.get()), ([false; 3], 1));
        assert_eq!(files(dir.path()).len(), 0);
        put_all(&cache, &id, None);
        assert_eq!((has(&cache, &id), cache.store.metrics.read_corrupt.get()), ([true; 3], 1));
        drop(cache);
        assert_eq!(has(&open(dir.path()), &id), [true; 3]);
    }
}

#[test]
fn a_version_that_is_condemned_before_it_is_indexed_is_not_kept() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path());
    let (store, id) = (&cache.store, id("wrong", "1"));
    let put = store.uses.load(Relaxed);
    assert!(store.condemn(&id).is_none(), "no block of it is there yet");
    let bytes = content(&id, block_range(SIZE, 0));
    // The writer checked just before that whether the version is wrong.
    assert!(!store.write_put(&id, SIZE, 0, &bytes, put));
    assert!(!cache.contains(&id, 0) && cache.used_bytes() == 0 && files(dir.path()).is_empty());
    assert!(store.write_put(&id, SIZE, 0, &bytes, store.uses.load(Relaxed)), "a later put is another matter");
    assert!(cache.contains(&id, 0));
}

#[test]
fn a_version_that_is_dropped_is_not_written_by_what_waits_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path());
    let (wrong, right) = (id("wrong", "1"), id("right", "1"));
    for _ in 0..20 {
        for n in 0..3 {
            cache.put(&wrong, SIZE, n * MIB, block(&content(&wrong, block_range(SIZE, n))));
        }
        cache.drop_version(&wrong);
        assert!((0..3).all(|n| !cache.contains(&wrong, n)), "at once");
        cache.settle();
        assert!((0..3).all(|n| !cache.contains(&wrong, n)), "nor later");
    }
    testkit::until("the account is empty", || cache.used_bytes() == 0);
    put_all(&cache, &right, None);
    put_all(&cache, &wrong, None);
    assert_eq!((has(&cache, &right), has(&cache, &wrong)), ([true; 3], [true; 3]), "it may come again");
}

#[test]
fn a_sector_that_comes_later_to_a_proven_version_ends_the_proof() {
    let dir = tempfile::tempdir().unwrap();
    let id = id("proven", "1");
    {
        let cache = open(dir.path());
        cache.expect(&id, SIZE, sum(&id, ChecksumAlgorithm::Crc32c));
        put_all(&cache, &id, None);
        let entry = cache.store.find(&cache.store.identity(&id)).unwrap();
        cache.store.evict_blocks(&entry, &[1]);
    }
    {
        // The other blocks of a proven version are served. Blocks put now are compared with nothing.
        let cache = open(dir.path());
        assert_eq!(has(&cache, &id), [true, false, true]);
        cache.put(&id, SIZE, MIB, block(&content(&id, block_range(SIZE, 1))));
        cache.settle();
        assert_eq!(has(&cache, &id), [true; 3]);
    }
    assert_eq!(has(&open(dir.path()), &id), [false; 3]);
}
