//! Files that the kernel may read by itself: all of an object version, verified, and kept as long as a reader has it open.

use super::*;

#[test]
fn a_version_is_lent_once_all_sectors_are_sound_and_stays_until_returned() {
    let dir = tempfile::tempdir().unwrap();
    let (a, size) = (id("a", "\"1\""), 2 * MIB + 777);
    {
        let store = store(dir.path(), Some(64 * MIB));
        assert!(store.whole(&a, size).is_none(), "nothing is here");
        assert!(put(&store, &a, size, 0) && put(&store, &a, size, 2));
        assert!(store.whole(&a, size).is_none(), "a block is missing");
        assert!(put(&store, &a, size, 1));
        assert!(store.whole(&a, size + 1).is_none(), "another size");
        let whole = store.whole(&a, size).expect("this run wrote all of it");
        let mut bytes = vec![0; size as usize];
        std::os::unix::fs::FileExt::read_exact_at(
            &std::fs::File::from(whole.file.try_clone().unwrap()),
            &mut bytes,
            0,
        )
        .unwrap();
        assert!(bytes == content(&a, 0..size));
    }
    let store = store(dir.path(), Some(4 * MIB));
    assert!(store.whole(&a, size).is_none(), "an earlier run wrote it");
    assert!(read(&store, &a, size, 0..MIB) && read(&store, &a, size, MIB..2 * MIB - 1));
    assert!(store.whole(&a, size).is_none(), "the last sectors were not compared");
    // A byte compares its sector.
    assert!(read(&store, &a, size, 2 * MIB - 1..2 * MIB) && read(&store, &a, size, 2 * MIB..2 * MIB + 1));
    let (one, two) = (store.whole(&a, size).unwrap(), store.whole(&a, size).unwrap());

    let b = id("b", "\"1\"");
    drop(one);
    for block in 0..4 {
        put(&store, &b, 4 * MIB, block);
    }
    assert!((0..3).all(|block| read_block(&store, &a, size, block)), "held: none of it leaves");
    drop(two);
    for block in 0..4 {
        put(&store, &b, 4 * MIB, block);
    }
    assert!(!(0..3).all(|block| store.contains(&a, block)), "let go: it makes room");
    assert!(store.whole(&a, size).is_none());
}

/// A program's mapping of the lent file. Once the program's descriptor is closed, the cache has no sign of the mapping.
fn mapping(store: &Store, id: &ObjectId, size: u64) -> std::fs::File {
    std::fs::File::from(store.whole(id, size).expect("all of it is here").file.try_clone().unwrap())
}

fn bytes_of(file: &std::fs::File, size: u64) -> Vec<u8> {
    let mut bytes = vec![0; size as usize];
    std::os::unix::fs::FileExt::read_exact_at(file, &mut bytes, 0).unwrap();
    bytes
}

/// The charge of the versions in the index.
fn charged(store: &Store) -> u64 {
    let mut charged = 0;
    store.index.for_each(|entry| charged += entry.charge_all());
    charged
}

#[test]
fn a_mapping_keeps_its_bytes_when_its_file_closes_and_the_cache_evicts() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path(), Some(6 * MIB));
    let (a, b, size) = (id("a", "\"1\""), id("b", "\"1\""), 2 * MIB + 777);
    assert!((0..3).all(|block| put(&store, &a, size, block)));
    let mapping = mapping(&store, &a, size);
    for block in 0..5 {
        assert!(put(&store, &b, 5 * MIB, block));
        assert!(bytes_of(&mapping, size) == content(&a, 0..size), "{block}");
    }
    assert!(!(0..3).any(|block| store.contains(&a, block)), "it left as a whole");
    assert_eq!((store.metrics.cache_evictions.get(), store.used_bytes()), (3, charged(&store)));
    assert!(on_disk(dir.path()) <= 6 * MIB);

    assert!((0..3).all(|block| put(&store, &a, size, block)), "it comes anew, in a file of its own");
    assert!(bytes_of(&mapping, size) == content(&a, 0..size));
}

#[test]
fn readers_of_a_killed_engines_cache_keep_bytes_when_the_next_evicts() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b, size) = (id("a", "\"1\""), id("b", "\"1\""), 3 * MIB);
    let first = store(dir.path(), Some(64 * MIB));
    assert!((0..3).all(|block| put(&first, &a, size, block) && put(&first, &b, size, block)));
    let mapping = mapping(&first, &a, size);
    mapping.set_modified(std::time::UNIX_EPOCH).unwrap();
    drop(first);
    // Room for two of the six blocks: `a` is older and is evicted as a whole; `b`, which was never lent, loses only one block.
    let second = store(dir.path(), Some(5 * MIB / 2));
    assert!(bytes_of(&mapping, size) == content(&a, 0..size));
    assert!(!(0..3).any(|block| second.contains(&a, block)));
    assert_eq!((0..3).filter(|&block| second.contains(&b, block)).count(), 2);
    assert_eq!(second.used_bytes(), charged(&second));
}

#[test]
fn a_version_that_was_lent_and_lost_a_part_goes_whole_at_the_next_start() {
    let dir = tempfile::tempdir().unwrap();
    let (a, size) = (id("a", "\"1\""), 3 * MIB);
    let first = store(dir.path(), Some(64 * MIB));
    assert!((0..3).all(|block| put(&first, &a, size, block)));
    let mapping = mapping(&first, &a, size);
    drop(first);
    let sidecar = std::fs::File::options().write(true).open(&files(dir.path())[1]).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sidecar, b"x", super::super::format::SLOT as u64 + 5).unwrap();
    let second = store(dir.path(), Some(64 * MIB));
    assert!(files(dir.path()).is_empty() && !second.contains(&a, 1));
    assert!(put(&second, &a, size, 0), "it can come anew");
    assert!(bytes_of(&mapping, size) == content(&a, 0..size));
}

#[test]
fn a_mapping_keeps_the_sound_bytes_of_a_version_of_which_a_part_rots() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path(), Some(64 * MIB));
    let (a, size) = (id("a", "\"1\""), 2 * MIB);
    assert!(put(&store, &a, size, 0) && put(&store, &a, size, 1));
    let mapping = mapping(&store, &a, size);
    let file = std::fs::File::options().write(true).open(&files(dir.path())[0]).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0], SECTOR).unwrap();
    assert!(!read_block(&store, &a, size, 0));
    let mut expected = content(&a, 0..size);
    expected[SECTOR as usize] = 0;
    assert!(bytes_of(&mapping, size) == expected);
    assert!(!store.contains(&a, 1) && files(dir.path()).is_empty());
    assert_eq!(store.used_bytes(), 0);
}

#[test]
fn a_file_that_was_just_closed_is_not_the_first_to_be_evicted() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path(), Some(5 * MIB));
    let (a, b, c) = (id("a", "\"1\""), id("b", "\"1\""), id("c", "\"1\""));
    assert!((0..2).all(|block| put(&store, &a, 2 * MIB, block)));
    let whole = store.whole(&a, 2 * MIB).unwrap();
    assert!((0..2).all(|block| put(&store, &b, 2 * MIB, block)));
    // The kernel read it meanwhile, which the cache does not see.
    drop(whole);
    assert!(put(&store, &c, MIB, 0));
    assert!((0..2).all(|block| read_block(&store, &a, 2 * MIB, block)));
    assert!(!store.contains(&b, 0));
}

#[test]
fn a_held_version_that_rots_is_served_to_nobody_new() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path(), Some(64 * MIB));
    let (a, size) = (id("a", "\"1\""), 2 * MIB);
    assert!(put(&store, &a, size, 0) && put(&store, &a, size, 1));
    let whole = store.whole(&a, size).unwrap();
    let data = files(dir.path()).into_iter().find(|path| path.extension().unwrap() == "data").unwrap();
    let file = std::fs::File::options().write(true).open(data).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0], SECTOR).unwrap();
    assert!(!read_block(&store, &a, size, 0));
    assert_eq!(store.metrics.cache_corrupt.get(), 1);
    assert!(store.whole(&a, size).is_none() && !store.contains(&a, 1));
    // A process that has it open keeps a file of that size: nothing was cut off or punched.
    assert_eq!(rustix::fs::fstat(&whole.file).unwrap().st_size as u64, size);
    drop(whole);
    assert!(put(&store, &a, size, 0) && put(&store, &a, size, 1));
    assert!(store.whole(&a, size).is_some(), "fetched anew");
}

#[test]
fn a_lent_file_that_rots_is_compared_anew_at_an_open_a_minute_later() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path(), Some(64 * MIB));
    let (a, size) = (id("a", "\"1\""), 2 * MIB + 777);
    let opens = |expected: bool, why: &str| assert_eq!(store.whole(&a, size).is_some(), expected, "{why}");
    let second = std::time::Duration::from_secs(1);
    assert!((0..3).all(|block| put(&store, &a, size, block)));
    opens(true, "just written");
    store.clock.advance(61 * second);
    opens(true, "compared anew");
    let file = std::fs::File::options().write(true).open(&files(dir.path())[0]).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0], MIB + SECTOR).unwrap();
    store.clock.advance(59 * second);
    opens(true, "compared less than a minute ago");
    store.clock.advance(2 * second);
    opens(false, "it rotted");
    assert_eq!(store.metrics.cache_corrupt.get(), 1);
    assert!(!(0..3).any(|block| store.contains(&a, block)), "all of it left");
    assert!((0..3).all(|block| put(&store, &a, size, block)));
    opens(true, "fetched anew");
}
