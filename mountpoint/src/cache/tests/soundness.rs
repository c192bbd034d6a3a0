//! Whatever the files on the disk contain, a read returns the right bytes or a miss.

use super::*;

#[test]
fn what_was_put_is_read_back_in_any_part() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path(), Some(64 * MIB));
    let (a, size) = (id("a", "\"1\""), 2 * MIB + 777);
    for block in [2, 0] {
        assert!(put(&store, &a, size, block));
        assert!(!put(&store, &a, size, block), "it is here already");
    }
    assert!(store.contains(&a, 0) && !store.contains(&a, 1) && store.contains(&a, 2));
    assert!(!read_block(&store, &a, size, 1));
    let ranges = [
        MIB - 1..MIB,
        4096..8192,
        0..MIB,
        131_000..400_000,
        0..1,
        2 * MIB..2 * MIB + 777,
        2 * MIB + 5..2 * MIB + 6,
    ];
    for range in ranges {
        assert!(read(&store, &a, size, range.clone()), "{range:?}");
    }
    assert_eq!(store.metrics.cache_corrupt.get(), 0);
}

/// Whether the file system of this directory can read without waiting.
fn reads_at_once(dir: &Path) -> bool {
    use rustix::io::{Errno, ReadWriteFlags, preadv2};
    let path = dir.join("probe");
    std::fs::write(&path, "x").unwrap();
    let mut byte = [0];
    let file = std::fs::File::open(path).unwrap();
    let read = preadv2(&file, &mut [std::io::IoSliceMut::new(&mut byte)], 0, ReadWriteFlags::NOWAIT);
    read != Err(Errno::OPNOTSUPP)
}

#[test]
fn bytes_in_the_kernels_memory_are_read_at_once_and_still_compared() {
    let dir = tempfile::tempdir().unwrap();
    let at_once = reads_at_once(dir.path());
    let store = store(dir.path(), Some(64 * MIB));
    let (a, size) = (id("a", "\"1\""), MIB + 777);
    assert!(put(&store, &a, size, 0) && put(&store, &a, size, 1));
    let mut into = vec![0; 5000];
    let range = 30_000..35_000;
    assert_eq!(store.read_now(&a, size, &range, &mut into), Now::OnDisk, "its file is not open");
    assert!(store.read(&a, size, &range, &mut into));
    into.fill(0);
    // The pages were just written. The kernel may drop them, but does not write and drop them for nothing.
    assert_eq!(store.read_now(&a, size, &range, &mut into) == Now::Here, at_once);
    assert!(!at_once || into == content(&a, range.clone()));
    assert_eq!(store.read_now(&a, size, &(2 * MIB..2 * MIB + 1), &mut into[..1]), Now::Absent);

    // A byte of the first sector that the range touches, before the range.
    let data = files(dir.path()).into_iter().find(|path| path.extension().unwrap() == "data").unwrap();
    let file = std::fs::File::options().write(true).open(data).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0], SECTOR).unwrap();
    assert_eq!(store.read_now(&a, size, &range, &mut into), Now::OnDisk, "to drop it, the disk is needed");
    assert!(store.contains(&a, 0) && !store.read(&a, size, &range, &mut into));
    assert_eq!(store.metrics.cache_corrupt.get(), 1);
    assert!(!store.contains(&a, 0), "and dropped");
}

#[test]
fn blocks_survive_a_restart_and_are_served_while_the_index_loads() {
    let dir = tempfile::tempdir().unwrap();
    let (a, size) = (id("a", "\"1\""), 3 * MIB);
    let before = store(dir.path(), Some(64 * MIB));
    for block in 0..3 {
        assert!(put(&before, &a, size, block));
    }
    let used = before.used_bytes();
    drop(before);
    let loading = store_with(disk(dir.path()), dir.path(), Some(64 * MIB));
    assert!(loading.contains(&a, 1), "perhaps");
    assert!(read(&loading, &a, size, MIB + 5..MIB + 10));
    assert!(!read_block(&loading, &id("b", "1"), size, 0));
    loading.load_all(&AtomicBool::new(false));
    assert!(!loading.contains(&id("b", "1"), 0));
    assert_eq!(loading.used_bytes(), used, "found by a read and by the loader, counted once");
    for block in 0..3 {
        assert!(read_block(&loading, &a, size, block));
    }
    assert_eq!(loading.metrics.cache_corrupt.get(), 0);
}

#[test]
fn another_key_version_bucket_endpoint_or_size_is_a_miss() {
    let dir = tempfile::tempdir().unwrap();
    let first = store(dir.path(), Some(64 * MIB));
    let a = id("a", "\"1\"");
    assert!(put(&first, &a, 100, 0));
    for other in [id("b", "\"1\""), id("a", "\"2\""), id("a\"1", "")] {
        assert!(!first.contains(&other, 0));
        assert!(!read_block(&first, &other, 100, 0));
    }
    drop(first);
    for (endpoint, bucket) in [("https://s3.test", "other"), ("https://else.test", "bucket")] {
        let config = Config { size_max: Some(64 * MIB), ..Config::new(dir.path(), endpoint, bucket) };
        let other = Store::new(disk(dir.path()), &config, 8, Clock::manual(), Arc::new(Metrics::default()));
        assert!(!read_block(&other, &a, 100, 0));
        other.load_all(&AtomicBool::new(false));
        assert!(!read_block(&other, &a, 100, 0));
        assert!(other.used_bytes() > 0, "it counts all the same");
    }
    let again = store(dir.path(), Some(64 * MIB));
    assert!(!read_block(&again, &a, 101, 0), "the object never had this size");
    assert_eq!(again.metrics.cache_corrupt.get(), 1);
    assert!(!read_block(&again, &a, 100, 0), "so the file is not to be believed");
    assert!(files(dir.path()).is_empty());
    assert_eq!(again.used_bytes(), 0);
}

#[test]
fn an_etag_with_and_without_quotes_is_one_version() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path(), Some(64 * MIB));
    assert!(put(&store, &id("a", "\"1\""), 100, 0));
    assert!(store.contains(&id("a", "1"), 0));
}

/// Flips every bit of both files, and cuts both at every length. Each time a cache opens them as after a restart, and the object is read:
/// it may be missing, never wrong (`read` asserts it).
#[test]
fn every_flipped_bit_and_every_truncation_is_a_miss_or_harmless() {
    let dir = tempfile::tempdir().unwrap();
    let (a, size) = (id("k", "\"e\""), 40);
    assert!(put(&store(dir.path(), Some(MIB)), &a, size, 0));
    let paths = files(dir.path());
    let whole: Vec<Vec<u8>> = paths.iter().map(|p| std::fs::read(p).unwrap()).collect();
    assert_eq!((paths.len(), whole[0].len()), (2, 40));
    let restore = || paths.iter().zip(&whole).for_each(|(p, b)| std::fs::write(p, b).unwrap());
    let mut hits = 0;
    for (path, bytes) in paths.iter().zip(&whole) {
        for change in 0..bytes.len() * 9 {
            restore();
            let mut bad = bytes.clone();
            if change < bytes.len() {
                bad.truncate(change);
            } else {
                let bit = change - bytes.len();
                bad[bit / 8] ^= 1 << (bit % 8);
            }
            std::fs::write(path, &bad).unwrap();
            // By probing, as a read does before the index is loaded: it is the shorter way to the same code.
            let opened = store_with(disk(dir.path()), dir.path(), Some(MIB));
            let hit = read(&opened, &a, size, 8..20);
            hits += usize::from(hit);
            assert!(
                hit || opened.metrics.cache_corrupt.get() == 1 || bad.len() < bytes.len(),
                "change {change}"
            );
        }
    }
    assert_eq!(hits, 0, "each change is seen");
    restore();
    assert!(read_block(&store(dir.path(), Some(MIB)), &a, size, 0));
}

#[test]
fn a_block_that_was_cut_off_is_not_taken_for_present_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (a, size) = (id("a", "\"1\""), 3 * MIB);
    let first = store(dir.path(), Some(64 * MIB));
    for block in 0..3 {
        assert!(put(&first, &a, size, block));
    }
    drop(first);
    std::fs::File::options().write(true).open(&files(dir.path())[0]).unwrap().set_len(3 * MIB - 1).unwrap();
    let second = store(dir.path(), Some(64 * MIB));
    assert_eq!([0, 1, 2].map(|block| second.contains(&a, block)), [true, true, false]);
    assert_eq!(second.metrics.cache_corrupt.get(), 1);
    assert!(read_block(&second, &a, size, 1));
}

#[test]
fn a_block_that_rotted_is_dropped_alone_and_can_be_put_anew() {
    let dir = tempfile::tempdir().unwrap();
    let (a, size) = (id("a", "\"1\""), 3 * MIB);
    let first = store(dir.path(), Some(64 * MIB));
    for block in 0..3 {
        assert!(put(&first, &a, size, block));
    }
    let used = first.used_bytes();
    drop(first);
    let data = &files(dir.path())[0];
    let mut bytes = std::fs::read(data).unwrap();
    bytes[MIB as usize + 70_000] ^= 4;
    std::fs::write(data, bytes).unwrap();
    let store = store(dir.path(), Some(64 * MIB));
    assert!(read(&store, &a, size, MIB..MIB + 10), "a sector that did not rot, of a block that did");
    assert!(!read(&store, &a, size, MIB + 66_000..MIB + 66_010), "the sector that did");
    assert_eq!(store.metrics.cache_corrupt.get(), 1);
    assert!(!store.contains(&a, 1));
    assert!(read_block(&store, &a, size, 0) && read_block(&store, &a, size, 2));
    assert!(put(&store, &a, size, 1) && read_block(&store, &a, size, 1));
    assert_eq!(store.used_bytes(), used);
}

#[test]
fn files_swapped_between_keys_are_not_believed() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (id("a", "\"1\""), id("b", "\"1\""));
    let first = store(dir.path(), Some(64 * MIB));
    assert!(put(&first, &a, 5000, 0) && put(&first, &b, 5000, 0));
    drop(first);
    let paths = files(dir.path());
    let swap = |x: &Path, y: &Path| {
        let (bx, by) = (std::fs::read(x).unwrap(), std::fs::read(y).unwrap());
        std::fs::write(x, by).unwrap();
        std::fs::write(y, bx).unwrap();
    };
    swap(&paths[0], &paths[1]);
    let data_swapped = store(dir.path(), Some(64 * MIB));
    assert!(!read_block(&data_swapped, &a, 5000, 0) && !read_block(&data_swapped, &b, 5000, 0));
    assert_eq!(data_swapped.metrics.cache_corrupt.get(), 2);

    assert!(put(&data_swapped, &a, 5000, 0) && put(&data_swapped, &b, 5000, 0));
    drop(data_swapped);
    swap(&paths[0], &paths[1]);
    swap(&paths[2], &paths[3]);
    let all_swapped = store(dir.path(), Some(64 * MIB));
    assert!(!read_block(&all_swapped, &a, 5000, 0) && !read_block(&all_swapped, &b, 5000, 0));
    assert!(files(dir.path()).is_empty(), "and they are removed");
}

#[test]
fn the_limit_holds_on_disk_and_the_coldest_go_first() {
    let dir = tempfile::tempdir().unwrap();
    let limit = 8 * MIB;
    let store = store(dir.path(), Some(limit));
    let (hot, size) = (id("hot", "\"1\""), 4 * MIB);
    assert!(put(&store, &hot, size, 0));
    for round in 0..30 {
        let cold = id(&format!("cold{round}"), "\"1\"");
        for block in 0..3 {
            assert!(put(&store, &cold, size, block));
            assert!(read_block(&store, &hot, size, 0), "read every time, so never the coldest");
            assert!(store.used_bytes() <= limit);
        }
        assert!(on_disk(dir.path()) <= limit, "{} on disk", on_disk(dir.path()));
        assert!(read_block(&store, &cold, size, 2), "the last put stays");
    }
    assert!(!store.contains(&id("cold0", "\"1\""), 0));
    assert!(store.metrics.cache_evictions.get() >= 30 * 3 - 8);
    let rounds: u64 = store.metrics.cache_evict.all().map(|(_, took)| took.get().count()).sum();
    assert!(rounds > 0, "each round is timed");
    assert!(!store.write(&hot, 64 * MIB, 9 * MIB, &[]), "nothing is not a block");
}

#[test]
fn a_smaller_limit_at_the_next_start_is_kept_before_the_first_put() {
    let dir = tempfile::tempdir().unwrap();
    let (a, size) = (id("a", "\"1\""), 6 * MIB);
    let first = store(dir.path(), Some(64 * MIB));
    assert!((0..6).all(|block| put(&first, &a, size, block)));
    drop(first);
    let store = store(dir.path(), Some(3 * MIB));
    assert!(store.used_bytes() <= 3 * MIB && on_disk(dir.path()) <= 3 * MIB);
    let left = (0..6).filter(|&block| read_block(&store, &a, size, block)).count();
    assert_eq!(left, 2);
}

#[test]
fn evicted_blocks_of_a_file_leave_the_others_after_a_restart_too() {
    let dir = tempfile::tempdir().unwrap();
    let (a, size) = (id("a", "\"1\""), 16 * MIB);
    let first = store(dir.path(), Some(5 * MIB));
    for block in 0..16 {
        assert!(put(&first, &a, size, block));
    }
    let here: Vec<u64> = (0..16).filter(|&b| first.contains(&a, b)).collect();
    assert!(here.len() >= 3 && here[0] > 0, "{here:?}");
    drop(first);
    let store = store(dir.path(), Some(5 * MIB));
    for block in 0..16 {
        assert_eq!(read_block(&store, &a, size, block), here.contains(&block), "block {block}");
    }
    assert_eq!(store.metrics.cache_corrupt.get(), 0);
}

#[test]
fn few_files_stay_open_however_many_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path(), Some(64 * MIB));
    let ids: Vec<_> = (0..50).map(|i| id(&format!("k{i}"), "\"1\"")).collect();
    for id in &ids {
        assert!(put(&store, id, 100, 0) && read_block(&store, id, 100, 0));
    }
    let mut open = 0;
    store.index.for_each(|entry| open += usize::from(entry.file().is_some()));
    assert!(open <= 8, "{open} are open");
    assert!(ids.iter().all(|id| read_block(&store, id, 100, 0)));
}

#[test]
fn an_object_too_large_or_with_too_long_a_name_is_not_kept() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path(), Some(64 * MIB));
    let block = vec![1; MIB as usize];
    assert!(!store.write(&id("a", "1"), u64::MAX, 0, &block));
    assert!(!store.write(&id("a", "1"), u64::MAX, u64::MAX / MIB * MIB, &block));
    assert!(!store.write(&id("a", &"x".repeat(2000)), 10 * MIB, 0, &block));
    assert!(!store.write(&id("a", "1"), 10 * MIB, 0, &block[..SECTOR as usize - 1]), "not a whole sector");
    assert!(!store.contains(&id("a", "1"), u64::MAX));
    assert!(files(dir.path()).is_empty());
}

#[test]
fn sectors_are_kept_one_by_one_and_what_lies_between_is_a_miss() {
    let dir = tempfile::tempdir().unwrap();
    let (a, size) = (id("a", "\"1\""), MIB + 3 * SECTOR + 5);
    let first = store(dir.path(), Some(64 * MIB));
    let piece = |range: Range<u64>| first.write(&a, size, range.start, &content(&a, range));
    assert!(piece(4 * SECTOR..8 * SECTOR));
    assert!(!piece(5 * SECTOR..7 * SECTOR), "they are here already");
    assert!(piece(SECTOR - 5..2 * SECTOR + 5), "what is whole of it: one sector");
    assert!(piece(6 * SECTOR..10 * SECTOR), "two are here, two are new");
    assert!(piece(MIB + 2 * SECTOR..size), "the object's last one is short");
    let check = |store: &Store| {
        for n in 0..MIB / SECTOR {
            let here = n == 1 || (4..10).contains(&n);
            assert_eq!(read(store, &a, size, n * SECTOR + 7..n * SECTOR + 9), here, "sector {n}");
        }
        assert!(read(store, &a, size, 4 * SECTOR + 1..10 * SECTOR - 1));
        assert!(!read(store, &a, size, 4 * SECTOR..10 * SECTOR + 1));
        assert!(!read(store, &a, size, MIB..MIB + 1) && read(store, &a, size, size - 7..size));
        assert!(store.used_bytes() >= on_disk(dir.path()));
        assert_eq!(store.metrics.cache_corrupt.get(), 0);
    };
    check(&first);
    let used = first.used_bytes();
    drop(first);
    let again = store(dir.path(), Some(64 * MIB));
    check(&again);
    assert_eq!(again.used_bytes(), used);
    again.evict_blocks(&again.find(&again.identity(&a)).unwrap(), &[0]);
    assert!(!again.contains(&a, 0) && again.contains(&a, 1));
    assert!(put(&again, &a, size, 0) && read_block(&again, &a, size, 0), "the whole block after its parts");
}

/// Regression: bytes that were right once may rot. The bytes on the disk are changed under a cache that has read and compared them.
#[test]
fn what_rots_or_is_cut_off_after_a_first_read_is_a_miss_at_the_next() {
    type Damage = fn(&Path);
    let damage: [(&str, Damage); 3] = [
        ("a flipped bit", |path| {
            let mut bytes = std::fs::read(path).unwrap();
            bytes[MIB as usize + 70_000] ^= 1;
            std::fs::write(path, bytes).unwrap();
        }),
        ("cut off", |path| std::fs::File::options().write(true).open(path).unwrap().set_len(MIB).unwrap()),
        ("cut off, and zeros where it was", |path| {
            let file = std::fs::File::options().write(true).open(path).unwrap();
            file.set_len(MIB).and_then(|()| file.set_len(2 * MIB)).unwrap();
        }),
    ];
    for (what, damage) in damage {
        let dir = tempfile::tempdir().unwrap();
        let (a, size) = (id("a", "\"1\""), 2 * MIB);
        let store = store(dir.path(), Some(64 * MIB));
        assert!(put(&store, &a, size, 0) && put(&store, &a, size, 1));
        let part = MIB + 69_000..MIB + 71_000;
        for _ in 0..2 {
            assert!(read_block(&store, &a, size, 1) && read(&store, &a, size, part.clone()));
        }
        damage(&files(dir.path())[0]);
        assert!(!read(&store, &a, size, part.clone()), "{what}");
        assert_eq!(store.metrics.cache_corrupt.get(), 1, "{what}");
        assert!(!read_block(&store, &a, size, 1) && read_block(&store, &a, size, 0), "{what}");
        assert!(
            put(&store, &a, size, 1) && read_block(&store, &a, size, 1),
            "{what}: mended by the next put"
        );
    }
}

#[test]
fn disk_room_that_others_need_is_evicted_and_not_taken_again_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path(), Some(64 * MIB));
    let id = id("a", "1");
    assert!((0..8).all(|block| put(&store, &id, 8 * MIB, block)));
    let before = store.used_bytes();
    let gave = store.give_room(3 * MIB);
    assert!(gave >= 3 * MIB && store.used_bytes() == before - gave, "{gave} of {before}");
    assert_eq!(
        (0..8).map(|block| store.contains(&id, block)).filter(|here| *here).count(),
        5,
        "the coldest go"
    );
    assert!(!put(&store, &id, 8 * MIB, 0), "the room is not for the cache");
    assert!(store.give_room(64 * MIB) > 0);
    assert_eq!(store.give_room(64 * MIB), 0, "nothing is left to give");
}
