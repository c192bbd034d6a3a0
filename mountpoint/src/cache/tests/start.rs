//! Starts of the cache on directories of all kinds, some of them in use by other processes, and directories that disappear while it runs.

use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;

fn open(config: Config) -> Result<DiskCache, Error> {
    DiskCache::open(config, Clock::manual(), Arc::new(Metrics::default()))
}

fn block(pool: &Pool, id: &ObjectId, size: u64, index: u64) -> Block {
    let bytes = content(id, block_range(size, index));
    let mut block = pool.try_take(Use::Demand, bytes.len()).unwrap();
    block.put(&bytes);
    block.freeze()
}

#[test]
fn blocks_put_through_the_queue_are_there_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let pool = Pool::new(&crate::buffer::Config::default());
    let (a, size) = (id("a", "\"1\""), 5 * MIB + 1);
    let cache = open(config(dir.path(), Some(64 * MIB))).unwrap();
    for index in 0..6 {
        cache.put(&a, size, index * MIB, block(&pool, &a, size, index));
    }
    cache.settle();
    assert_eq!(pool.used(Use::Demand), 0, "the memory is back");
    drop(cache);
    let metrics = Arc::new(Metrics::default());
    let cache =
        DiskCache::open(config(dir.path(), Some(64 * MIB)), Clock::manual(), Arc::clone(&metrics)).unwrap();
    for index in 0..6 {
        assert!(cache.contains(&a, index));
        let range = block_range(size, index);
        let mut into = vec![0; (range.end - range.start) as usize];
        assert!(cache.read(&a, size, range.clone(), &mut into));
        assert!(into == content(&a, range));
    }
    cache.settle();
    assert!(!cache.contains(&a, 6));
    assert_eq!((metrics.cache_hits.get(), metrics.cache_misses.get()), (6, 0));
    assert!(cache.used_bytes() > size);
}

#[test]
fn a_queue_that_is_full_drops_and_holds_no_memory() {
    let dir = tempfile::tempdir().unwrap();
    let pool = Pool::new(&crate::buffer::Config::default());
    let metrics = Arc::new(Metrics::default());
    let config = Config { queue_max: 2, writers: 1, ..config(dir.path(), Some(256 * MIB)) };
    let cache = DiskCache::open(config, Clock::manual(), Arc::clone(&metrics)).unwrap();
    let (a, size) = (id("a", "\"1\""), 100 * MIB);
    let one = block(&pool, &a, size, 0);
    for index in 0..100 {
        cache.put(&a, size, index * MIB, one.clone());
    }
    drop(one);
    cache.settle();
    assert_eq!(metrics.cache_puts.get() + metrics.cache_puts_dropped.get(), 100);
    assert_eq!(pool.used(Use::Demand), 0);
}

#[test]
fn a_second_cache_on_the_directory_is_refused_by_name_of_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let first = open(config(dir.path(), None)).unwrap();
    let refused = open(Config { bucket: "other".to_owned(), ..config(dir.path(), None) }).unwrap_err();
    assert!(matches!(refused, Error::Locked { pid: Some(pid), .. } if pid == std::process::id()));
    assert!(refused.to_string().contains(&format!("in use by process {}", std::process::id())), "{refused}");
    drop(first);
    open(config(dir.path(), None)).unwrap();
}

#[test]
fn what_the_user_must_mend_is_said_at_start() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing");
    assert!(matches!(open(config(&missing, None)), Err(Error::Missing(_))));
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    assert!(matches!(open(config(&file, None)), Err(Error::NotADirectory(_))));
    let elsewhere = tempfile::tempdir().unwrap();
    symlink(elsewhere.path(), dir.path().join("mount-s3-cache")).unwrap();
    let error = open(config(dir.path(), None)).unwrap_err();
    assert!(matches!(error, Error::NotOurs { .. }), "{error}");
    assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 0);
}

#[test]
fn nobody_else_can_look_into_the_cache() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("mount-s3-cache");
    std::fs::create_dir(&home).unwrap();
    std::fs::set_permissions(&home, std::fs::Permissions::from_mode(0o777)).unwrap();
    let _cache = open(config(dir.path(), None)).unwrap();
    let mode = |p: &Path| std::fs::metadata(p).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&home), 0o700);
    assert_eq!((mode(&home.join("v2")), mode(&home.join("lock"))), (0o700, 0o600));
}

#[test]
fn a_directory_removed_while_running_is_a_cache_that_is_off() {
    let dir = tempfile::tempdir().unwrap();
    let inside = dir.path().join("cache");
    std::fs::create_dir(&inside).unwrap();
    let pool = Pool::new(&crate::buffer::Config::default());
    let cache = open(config(&inside, Some(64 * MIB))).unwrap();
    cache.settle();
    let (a, b) = (id("a", "\"1\""), id("b", "\"1\""));
    cache.put(&a, MIB, 0, block(&pool, &a, MIB, 0));
    cache.settle();
    let mut into = vec![0; MIB as usize];
    assert!(cache.read(&a, MIB, 0..MIB, &mut into));
    std::fs::remove_dir_all(&inside).unwrap();
    cache.put(&b, MIB, 0, block(&pool, &b, MIB, 0));
    cache.settle();
    assert!(!cache.contains(&b, 0) && !cache.contains(&a, 0));
    assert!(!cache.read(&a, MIB, 0..MIB, &mut into) && !cache.read(&b, MIB, 0..MIB, &mut into));
}

#[test]
fn the_twin_in_memory_answers_alike() {
    let pool = Pool::new(&crate::buffer::Config::default());
    let cache = MemoryCache::new();
    let (a, size) = (id("a", "\"1\""), MIB + 10);
    cache.put(&a, size, MIB, block(&pool, &a, size, 1));
    assert!(cache.contains(&a, 1) && !cache.contains(&a, 0));
    let mut into = vec![0; 4];
    assert!(cache.read(&a, size, MIB + 2..MIB + 6, &mut into));
    assert_eq!(into, content(&a, MIB + 2..MIB + 6));
    assert_eq!(cache.present(&a, 1), Sectors::touching(&(0..1)));
    assert!(!cache.read(&a, size + 1, MIB + 2..MIB + 6, &mut into));
    assert!(cache.forget(&a, 1) && !cache.read(&a, size, MIB + 2..MIB + 6, &mut into));
}
