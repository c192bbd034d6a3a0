//! The memory of the index: the share of a file, and the limit.

use super::*;
use crate::sync::atomic::Ordering::Relaxed;
use crate::testing::log_of;

const LIMIT: u64 = 512 << 10;

/// A cache of many small files whose index has a limit and whose disk has room for all of them.
fn small_files(dir: &Path, index_max: u64) -> Store {
    let config = Config { index_max, ..config(dir, Some(1 << 40)) };
    let store = Store::new(disk(dir), &config, 8, Clock::manual(), Arc::new(Metrics::default()));
    store.load_all(&AtomicBool::new(false));
    store
}

/// An object with a name of a usual length.
fn named(n: usize) -> ObjectId {
    id(&format!("data/train/images/part-0001/sample-{n:08}.jpg"), "\"9b2cf535f27731c974343645a3985328\"")
}

/// The memory of the versions in the index. It equals the account while no operation runs.
fn taken(store: &Store) -> u64 {
    let mut taken = 0;
    store.index.for_each(|entry| taken += entry.memory());
    assert_eq!(store.index_bytes.load(Relaxed), taken);
    taken
}

#[test]
fn what_the_index_takes_in_memory_has_a_limit_and_the_coldest_go_first() {
    let dir = tempfile::tempdir().unwrap();
    let ids: Vec<_> = (0..5000).map(named).collect();
    let here = |store: &Store| -> Vec<bool> { ids.iter().map(|id| store.contains(id, 0)).collect() };
    let first = small_files(dir.path(), LIMIT);
    let said = log_of(|| {
        for id in &ids {
            assert!(put(&first, id, SECTOR, 0), "{id:?}");
            assert!(read_block(&first, &ids[0], SECTOR, 0), "read every time, so never the coldest");
            assert!(first.index_bytes.load(Relaxed) <= LIMIT);
        }
    });
    assert_eq!(said.matches("raise --memory-target").count(), 1, "{said}");
    assert!(taken(&first) <= LIMIT);
    let left = here(&first);
    let count = left.iter().filter(|here| **here).count();
    assert!(count as u64 > LIMIT / 512, "{count} files");
    assert!(left[0] && left[5001 - count..].iter().all(|here| *here), "the latest");
    assert_eq!(files(dir.path()).len(), 2 * count, "what left is no longer on the disk");
    drop(first);

    let again = small_files(dir.path(), LIMIT);
    assert!(taken(&again) <= LIMIT);
    assert_eq!(here(&again), left, "a start finds room for what the last run had");
    assert_eq!(again.metrics.cache_evictions.get(), 0);
    drop(again);

    let smaller = small_files(dir.path(), LIMIT / 4);
    assert!(taken(&smaller) <= LIMIT / 4);
    let kept = here(&smaller).iter().filter(|here| **here).count();
    assert!(kept > count / 5 && files(dir.path()).len() == 2 * kept, "{kept} files");
    let rounds: u64 = smaller.metrics.cache_evict.all().map(|(_, took)| took.get().count()).sum();
    assert!(rounds > 10, "{rounds} rounds: as it loads, not once all are in memory");
    assert!(put(&smaller, &ids[1], SECTOR, 0) && read_block(&smaller, &ids[1], SECTOR, 0));
}

#[test]
fn an_object_whose_blocks_alone_are_too_many_for_the_index_is_not_loaded() {
    const BLOCKS: u64 = 300;
    let dir = tempfile::tempdir().unwrap();
    let (a, size) = (id("a", "\"1\""), BLOCKS * MIB);
    let first = small_files(dir.path(), LIMIT);
    assert!((0..BLOCKS).all(|block| {
        let at = block * MIB;
        first.write(&a, size, at, &content(&a, at..at + 3 * SECTOR))
    }));
    assert!((0..BLOCKS).all(|block| first.contains(&a, block)));
    drop(first);
    let smaller = small_files(dir.path(), 8 << 10);
    assert_eq!((taken(&smaller), smaller.used_bytes()), (0, 0));
    assert!(files(dir.path()).is_empty());
}

#[test]
fn blocks_of_one_large_object_keep_to_the_limit_of_the_index_too() {
    const BLOCKS: u64 = 2000;
    let dir = tempfile::tempdir().unwrap();
    let store = small_files(dir.path(), LIMIT / 4);
    let (a, size) = (id("a", "\"1\""), BLOCKS * MIB);
    for block in 0..BLOCKS {
        let at = block * MIB;
        assert!(store.write(&a, size, at, &content(&a, at..at + SECTOR)));
        assert!(store.index_bytes.load(Relaxed) <= LIMIT / 4);
    }
    let taken = taken(&store);
    assert!(taken > LIMIT / 5, "{taken}");
    assert!(!store.contains(&a, 0) && store.contains(&a, BLOCKS - 1));
}

/// The figures of docs/scale.md.
#[test]
fn a_small_file_takes_half_a_kilobyte_of_memory_and_a_whole_block_less() {
    let dir = tempfile::tempdir().unwrap();
    let store = small_files(dir.path(), 64 << 20);
    assert!(put(&store, &named(0), 100_000, 0));
    let small = taken(&store);
    assert!((400..=528).contains(&small), "{small} bytes for a file of 100 KB");

    let (a, size) = (id("a", "\"1\""), 200 * MIB);
    let of_blocks = |len: u64, from: u64| {
        let before = taken(&store);
        for block in from..from + 100 {
            let at = block * MIB;
            assert!(store.write(&a, size, at, &content(&a, at..at + len)));
        }
        (taken(&store) - before) / 100
    };
    let (piece, whole) = (of_blocks(64 << 10, 0), of_blocks(MIB, 100));
    assert!(piece <= 180, "{piece} bytes for 64 KiB of a block");
    assert!(whole <= 440, "{whole} bytes for a whole block");
}
