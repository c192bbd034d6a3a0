//! Every system call of the cache fails once, at every place: the result is a miss, never wrong bytes.

use std::io::{self, IoSliceMut};
use std::os::fd::OwnedFd;

use rustix::io::Errno;

use super::super::format::Name;
use super::super::io::{FileStat, How, Kind, Waits};
use super::*;
use crate::sync::Mutex;
use crate::testing::log_of;

/// The fault of the Nth system call.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// This call fails, and later ones work.
    Once(Errno),
    /// This call and all later ones fail.
    From(Errno),
    /// The process is killed at this call: a write is done by half, and no call follows.
    Crash,
}

#[derive(Debug)]
struct Plan {
    fault: Fault,
    at: u64,
    calls: u64,
    reads: u64,
    space: Option<(u64, u64)>,
}

/// The real disk, until the plan says otherwise.
#[derive(Debug)]
struct FaultyDisk {
    disk: Box<dyn BlockIo>,
    plan: Arc<Mutex<Plan>>,
}

impl FaultyDisk {
    fn over(dir: &Path, fault: Fault, at: u64) -> (Box<dyn BlockIo>, Arc<Mutex<Plan>>) {
        let plan = Arc::new(Mutex::new(Plan { fault, at, calls: 0, reads: 0, space: None }));
        (Box::new(Self { disk: disk(dir), plan: Arc::clone(&plan) }), plan)
    }

    /// Whether this call is the one at which the process dies.
    fn call(&self) -> io::Result<bool> {
        let mut plan = self.plan.lock();
        plan.calls += 1;
        let (now, at) = (plan.calls, plan.at);
        match plan.fault {
            Fault::Once(e) if now == at => Err(e.into()),
            Fault::From(e) if now >= at => Err(e.into()),
            Fault::Crash if now > at => Err(Errno::IO.into()),
            Fault::Crash => Ok(now == at),
            _ => Ok(false),
        }
    }

    fn plain(&self) -> io::Result<()> {
        if self.call()? { Err(Errno::IO.into()) } else { Ok(()) }
    }
}

impl BlockIo for FaultyDisk {
    fn open(&self, name: &Name, kind: Kind, how: How) -> io::Result<OwnedFd> {
        self.plain()?;
        self.disk.open(name, kind, how)
    }

    fn read_at(
        &self,
        file: &OwnedFd,
        into: &mut [IoSliceMut<'_>],
        at: u64,
        waits: Waits,
    ) -> io::Result<usize> {
        self.plain()?;
        self.plan.lock().reads += 1;
        self.disk.read_at(file, into, at, waits)
    }

    fn write_at(&self, file: &OwnedFd, bytes: &[u8], at: u64) -> io::Result<usize> {
        if self.call()? {
            let _ = self.disk.write_at(file, &bytes[..bytes.len() / 2], at);
            return Err(Errno::IO.into());
        }
        self.disk.write_at(file, bytes, at)
    }

    fn punch(&self, file: &OwnedFd, at: u64, len: u64) -> io::Result<()> {
        self.plain()?;
        self.disk.punch(file, at, len)
    }

    fn lend(&self, file: &OwnedFd) -> io::Result<()> {
        self.plain()?;
        self.disk.lend(file)
    }

    fn unlink(&self, name: &Name, kind: Kind) -> io::Result<()> {
        self.plain()?;
        self.disk.unlink(name, kind)
    }

    fn stat(&self, name: &Name, kind: Kind) -> io::Result<FileStat> {
        self.plain()?;
        self.disk.stat(name, kind)
    }

    fn list(&self, prefix: u8) -> io::Result<Vec<Name>> {
        self.plain()?;
        self.disk.list(prefix)
    }

    fn space(&self) -> io::Result<(u64, u64)> {
        let set = self.plan.lock().space;
        set.map_or_else(|| self.disk.space(), Ok)
    }

    fn try_out(&self) -> io::Result<()> {
        self.disk.try_out()
    }

    fn sweep(&self) -> io::Result<()> {
        self.plain()?;
        self.disk.sweep()
    }
}

/// One whole block and the beginning of another; two and a half such objects fit the limit.
const SIZE: u64 = MIB + 100;
const LIMIT: u64 = 5 * MIB / 2;

/// A life of a cache with every kind of call in it: made, put, read, lent, evicted by block and by file. `read` asserts that returned
/// bytes are right, and that lent files keep their bytes. True if all blocks of the last object were in the cache at the end.
fn live(store: &Store) -> bool {
    let ids = ["a", "b", "c"].map(|k| id(k, "\"1\""));
    let mut lent = None;
    for id in &ids {
        lent = lent.or_else(|| Some(store.whole(&ids[1], SIZE)?.file));
        for block in [1, 0] {
            put(store, id, SIZE, block);
            read(store, id, SIZE, block * MIB + 7..block * MIB + 60);
            read_block(store, &ids[0], SIZE, 0);
        }
    }
    if let Some(file) = lent {
        let mut bytes = vec![0; SIZE as usize];
        let file = std::fs::File::from(file.try_clone().unwrap());
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0).unwrap();
        assert!(bytes == content(&ids[1], 0..SIZE), "a program that mapped it sees other bytes");
    }
    let last = &ids[2];
    (0..2).all(|block| read_block(store, last, SIZE, block))
}

fn read_all(store: &Store) {
    for key in ["a", "b", "c"] {
        for block in 0..2 {
            read_block(store, &id(key, "\"1\""), SIZE, block);
        }
    }
}

/// Goal: no single failing system call, no lasting one, and no death of the process at any of them gives wrong bytes, an
/// error or a broken account, then or after the next start. Method: the same life again and again, the fault one
/// call later each time, until a run sees none.
fn fail_each_call(fault: Fault, stride: u64) {
    let mut at = 1;
    loop {
        let dir = tempfile::tempdir().unwrap();
        let (io, plan) = FaultyDisk::over(dir.path(), fault, at);
        let faulty = store_with(io, dir.path(), Some(LIMIT));
        faulty.load_all(&AtomicBool::new(false));
        let all = live(&faulty);
        assert!(faulty.used_bytes() <= LIMIT, "{fault:?} at {at}");
        let unharmed = plan.lock().calls < at;
        assert!(!unharmed || all, "without a fault all is there");
        assert!(!unharmed || faulty.metrics.cache_evictions.get() > 2);
        drop(faulty);

        let next = store(dir.path(), Some(LIMIT));
        read_all(&next);
        assert!(live(&next), "{fault:?} at {at}: the next run can use the cache");
        assert!(next.used_bytes() <= LIMIT);
        assert!(on_disk(dir.path()) <= LIMIT, "{fault:?} at {at}: {} on disk", on_disk(dir.path()));
        if unharmed {
            assert!(at > 256, "the life has calls in it");
            return;
        }
        // The loader's calls, one per folder and all alike, are passed over.
        at += if (3..250).contains(&at) { 50 } else { stride };
    }
}

#[test]
fn any_one_call_that_fails_costs_at_most_a_miss() {
    fail_each_call(Fault::Once(Errno::IO), 1);
}

/// The case: when descriptors run out for a moment, a file that could not be examined does not count as missing.
#[test]
fn a_start_at_which_one_call_fails_removes_no_version() {
    let dir = tempfile::tempdir().unwrap();
    let ids = ["a", "b"].map(|key| id(key, "\"1\""));
    let first = store(dir.path(), Some(64 * MIB));
    assert!(ids.iter().all(|id| put(&first, id, SIZE, 0)));
    drop(first);
    let mut all = files(dir.path());
    all.sort();
    for at in 1.. {
        let (io, plan) = FaultyDisk::over(dir.path(), Fault::Once(Errno::MFILE), at);
        store_with(io, dir.path(), Some(64 * MIB)).load_all(&AtomicBool::new(false));
        let mut left = files(dir.path());
        left.sort();
        assert_eq!(left, all, "call {at}");
        if plan.lock().calls < at {
            assert!(at > 256, "the start has calls in it");
            return;
        }
    }
}

#[test]
fn a_disk_that_is_full_once_costs_at_most_a_miss() {
    fail_each_call(Fault::Once(Errno::NOSPC), 3);
}

#[test]
fn a_disk_that_fails_for_good_costs_the_cache_only() {
    fail_each_call(Fault::From(Errno::IO), 5);
}

#[test]
fn a_death_at_any_call_leaves_a_sound_cache() {
    fail_each_call(Fault::Crash, 1);
}

#[test]
fn a_dead_disk_is_left_alone_after_a_few_failures() {
    let dir = tempfile::tempdir().unwrap();
    let (io, plan) = FaultyDisk::over(dir.path(), Fault::From(Errno::IO), u64::MAX);
    let store = store_with(io, dir.path(), Some(64 * MIB));
    store.load_all(&AtomicBool::new(false));
    let ids: Vec<_> = (0..40).map(|i| id(&format!("k{i}"), "\"1\"")).collect();
    assert!(ids.iter().all(|id| put(&store, id, 100, 0)));
    let before = plan.lock().calls;
    plan.lock().at = 1;
    assert!(!ids.iter().any(|id| read_block(&store, id, 100, 0)));
    assert!(store.health.is_off() && !store.contains(&ids[39], 0));
    let calls = plan.lock().calls;
    assert!(calls - before <= 24, "{} calls: given up after a few files", calls - before);
    assert!(!put(&store, &ids[0], 100, 0) && !read_block(&store, &ids[39], 100, 0));
    assert_eq!(plan.lock().calls, calls, "no more calls");
}

#[test]
fn a_hit_is_one_read_and_no_other_call() {
    let dir = tempfile::tempdir().unwrap();
    let (io, plan) = FaultyDisk::over(dir.path(), Fault::Once(Errno::IO), u64::MAX);
    let store = store_with(io, dir.path(), Some(64 * MIB));
    store.load_all(&AtomicBool::new(false));
    let a = id("a", "\"1\"");
    let mut into = vec![0; 4096];
    let mut hit = |page: u64| store.read(&a, MIB, &(page * 4096..(page + 1) * 4096), &mut into);
    assert!(put(&store, &a, MIB, 0) && hit(0));
    let counts = || {
        let plan = plan.lock();
        (plan.calls, plan.reads)
    };
    let before = counts();
    assert!((0..10).all(&mut hit));
    assert_eq!(counts(), (before.0 + 10, before.1 + 10));
}

#[test]
fn without_a_limit_the_share_of_the_file_system_stays_free() {
    let dir = tempfile::tempdir().unwrap();
    let (io, plan) = FaultyDisk::over(dir.path(), Fault::Once(Errno::IO), u64::MAX);
    // 100 MiB in all, 15 free: 10 may be used.
    plan.lock().space = Some((15 * MIB, 100 * MIB));
    let store = store_with(io, dir.path(), None);
    store.load_all(&AtomicBool::new(false));
    let a = id("a", "\"1\"");
    for block in 0..20 {
        assert!(put(&store, &a, 20 * MIB, block));
        assert!(store.used_bytes() <= 10 * MIB);
    }
    assert!(store.used_bytes() >= 8 * MIB);
    // Somebody else filled the disk: the cache gives way.
    plan.lock().space = Some((2 * MIB, 100 * MIB));
    store.look_at_space();
    let before = store.used_bytes();
    store.shrink();
    assert!(store.used_bytes() <= before - 3 * MIB);
    assert!(read_block(&store, &a, 20 * MIB, 19));
}

#[test]
fn a_cache_that_may_hold_nothing_says_so_once() {
    for (limit, way_out) in [(None, "free disk space"), (Some(4096), "raise --max-cache-size")] {
        let dir = tempfile::tempdir().unwrap();
        let (io, plan) = FaultyDisk::over(dir.path(), Fault::Once(Errno::IO), u64::MAX);
        plan.lock().space = Some((5 * MIB, 100 * MIB));
        let store = store_with(io, dir.path(), limit);
        store.load_all(&AtomicBool::new(false));
        let said = log_of(|| {
            for block in 0..3 {
                assert!(!put(&store, &id("a", "\"1\""), 3 * MIB, block));
            }
        });
        assert_eq!(said.matches("keeps nothing").count(), 1, "{said}");
        assert!(said.contains(way_out) && said.contains(dir.path().to_str().unwrap()), "{said}");
    }
}

#[test]
fn a_full_disk_stops_writing_for_a_while_and_never_reading() {
    let dir = tempfile::tempdir().unwrap();
    let (io, plan) = FaultyDisk::over(dir.path(), Fault::Once(Errno::NOSPC), u64::MAX);
    let clock = Clock::manual();
    let store =
        Store::new(io, &config(dir.path(), Some(64 * MIB)), 8, clock.clone(), Arc::new(Metrics::default()));
    store.load_all(&AtomicBool::new(false));
    let a = id("a", "\"1\"");
    assert!(put(&store, &a, 3 * MIB, 0));
    // Opened, then no room for the data.
    let next = plan.lock().calls + 2;
    plan.lock().at = next;
    assert!(!put(&store, &a, 3 * MIB, 1));
    let calls = plan.lock().calls;
    assert!(!put(&store, &a, 3 * MIB, 2));
    assert_eq!(plan.lock().calls, calls, "not even tried");
    assert!(read_block(&store, &a, 3 * MIB, 0));
    clock.advance(std::time::Duration::from_secs(60));
    assert!(put(&store, &a, 3 * MIB, 1));
    assert!(!store.health.is_off());
}

/// The case: the kernel reads a lent file by itself, so an error of the disk would reach the program, and not the engine.
#[test]
fn after_a_read_error_no_file_is_lent_any_more() {
    let dir = tempfile::tempdir().unwrap();
    let (io, plan) = FaultyDisk::over(dir.path(), Fault::Once(Errno::IO), u64::MAX);
    let store = store_with(io, dir.path(), Some(64 * MIB));
    store.load_all(&AtomicBool::new(false));
    let (a, b) = (id("a", "\"1\""), id("b", "\"1\""));
    let put_all = |id: &ObjectId| (0..2).all(|block| put(&store, id, SIZE, block));
    assert!(put_all(&a) && put_all(&b));
    assert!(store.whole(&a, SIZE).is_some() && store.whole(&b, SIZE).is_some());
    // Both are open: the next call is the read.
    let next = plan.lock().calls + 1;
    plan.lock().at = next;
    let said = log_of(|| assert!(!store.read(&a, SIZE, &(0..10), &mut [0; 10])));
    assert!(said.contains("reading failed") && said.contains(dir.path().to_str().unwrap()), "{said}");
    assert!(store.whole(&b, SIZE).is_none());
    assert!((0..2).all(|block| read_block(&store, &b, SIZE, block)), "the engine reads it");
    assert!(put_all(&a) && (0..2).all(|block| read_block(&store, &a, SIZE, block)), "fetched anew");
    assert!(store.whole(&a, SIZE).is_none());
    assert!(!store.health.is_off());
}
