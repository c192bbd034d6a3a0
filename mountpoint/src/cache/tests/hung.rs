//! A disk that hangs: it disables the cache, and no caller waits. One kind of call after the other hangs until it is released.

use std::cell::Cell;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Condvar;
use std::sync::mpsc;
use std::time::Duration;

use testkit::until;
use tokio::sync::oneshot;

use super::super::format::Name;
use super::super::io::{FileStat, How, Kind, Waits};
use super::super::lock::Lock;
use super::super::rest::{LATE, LATE_MAX, TRIAL_EVERY};
use super::*;
use crate::buffer;
use crate::sync::atomic::Ordering::Relaxed;
use crate::testing::MemoryClient;
use crate::upload::{self, Uploader};

/// A kind of call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Call {
    Open,
    Read,
    Write,
    Punch,
    Lend,
    Unlink,
    Stat,
    /// All calls, and the trial.
    Any,
}

/// The calls that hang, and how many do now.
#[derive(Debug, Default)]
struct Gate {
    hangs: std::sync::Mutex<(Option<Call>, usize)>,
    changed: Condvar,
    /// Whether calls that hung end with an error.
    fails: AtomicBool,
}

impl Gate {
    fn set(&self, call: Option<Call>) {
        self.hangs.lock().unwrap().0 = call;
        self.changed.notify_all();
    }

    fn hung(&self) -> usize {
        self.hangs.lock().unwrap().1
    }

    fn pass(&self, call: Call) -> io::Result<()> {
        let is_shut = |hangs: &(Option<Call>, usize)| hangs.0 == Some(call) || hangs.0 == Some(Call::Any);
        let mut hangs = self.hangs.lock().unwrap();
        if is_shut(&hangs) {
            hangs.1 += 1;
            hangs = self.changed.wait_while(hangs, |hangs| is_shut(hangs)).unwrap();
            hangs.1 -= 1;
            if self.fails.load(Relaxed) {
                return Err(rustix::io::Errno::IO.into());
            }
        }
        Ok(())
    }
}

/// The real disk, behind the gate.
#[derive(Debug)]
struct HungDisk {
    disk: Box<dyn BlockIo>,
    gate: Arc<Gate>,
}

impl BlockIo for HungDisk {
    fn open(&self, name: &Name, kind: Kind, how: How) -> io::Result<OwnedFd> {
        self.gate.pass(Call::Open)?;
        self.disk.open(name, kind, how)
    }

    fn read_at(
        &self,
        file: &OwnedFd,
        into: &mut [IoSliceMut<'_>],
        at: u64,
        waits: Waits,
    ) -> io::Result<usize> {
        if waits == Waits::No {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.gate.pass(Call::Read)?;
        self.disk.read_at(file, into, at, waits)
    }

    fn write_at(&self, file: &OwnedFd, bytes: &[u8], at: u64) -> io::Result<usize> {
        self.gate.pass(Call::Write)?;
        self.disk.write_at(file, bytes, at)
    }

    fn punch(&self, file: &OwnedFd, at: u64, len: u64) -> io::Result<()> {
        self.gate.pass(Call::Punch)?;
        self.disk.punch(file, at, len)
    }

    fn lend(&self, file: &OwnedFd) -> io::Result<()> {
        self.gate.pass(Call::Lend)?;
        self.disk.lend(file)
    }

    fn unlink(&self, name: &Name, kind: Kind) -> io::Result<()> {
        self.gate.pass(Call::Unlink)?;
        self.disk.unlink(name, kind)
    }

    fn stat(&self, name: &Name, kind: Kind) -> io::Result<FileStat> {
        self.gate.pass(Call::Stat)?;
        self.disk.stat(name, kind)
    }

    fn list(&self, prefix: u8) -> io::Result<Vec<Name>> {
        self.disk.list(prefix)
    }

    fn space(&self) -> io::Result<(u64, u64)> {
        self.disk.space()
    }

    fn try_out(&self) -> io::Result<()> {
        self.gate.pass(Call::Any)?;
        self.disk.try_out()
    }

    fn sweep(&self) -> io::Result<()> {
        self.disk.sweep()
    }
}

const SIZE: u64 = 2 * MIB + 777;

struct Bench {
    // Dropped first: the open gate lets the threads of the cache end.
    _gate: LetGo,
    cache: DiskCache,
    gate: Arc<Gate>,
    pool: Pool,
    clock: Clock,
    metrics: Arc<Metrics>,
    dir: tempfile::TempDir,
}

struct LetGo(Arc<Gate>);

impl Drop for LetGo {
    fn drop(&mut self) {
        self.0.set(None);
    }
}

impl Bench {
    /// A cache that has all of "a", without a ring: the gate is not in the ring's way.
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (gate, clock, metrics) =
            (Arc::new(Gate::default()), Clock::manual(), Arc::new(Metrics::default()));
        let io = Box::new(HungDisk { disk: disk(dir.path()), gate: Arc::clone(&gate) });
        let home = std::fs::File::open(dir.path()).unwrap();
        let lock = Lock::take(home.as_fd(), dir.path()).unwrap();
        let config = Config { ring: false, ..config(dir.path(), Some(64 * MIB)) };
        let cache = DiskCache::start(io, lock, &config, clock.clone(), Arc::clone(&metrics)).unwrap();
        let pool = Pool::new(&buffer::Config { target: 512 << 20, network: 0 });
        let bench = Self { _gate: LetGo(Arc::clone(&gate)), cache, gate, pool, clock, metrics, dir };
        bench.keep(&id("a", "1"));
        bench.cache.settle();
        bench
    }

    fn keep(&self, id: &ObjectId) {
        for block in 0..SIZE.div_ceil(CACHE_BLOCK) {
            let range = block_range(SIZE, block);
            let mut into = self.pool.try_take(Use::Ahead, (range.end - range.start) as usize).unwrap();
            into.put(&content(id, range.clone()));
            self.cache.put(id, SIZE, range.start, into.freeze());
        }
    }

    fn ask(&self, at: u64) -> mpsc::Receiver<Given> {
        let (send, given) = mpsc::channel();
        let into = self.pool.try_take(Use::Demand, 1000).unwrap();
        let done: Later = Box::new(move |given| _ = send.send(given));
        self.cache.read_later(&id("a", "1"), SIZE, at..at + 1000, into, done);
        given
    }

    /// Whether the disk returned the bytes. Asserts that they are right.
    fn is_here(&self, at: u64) -> bool {
        match given(&self.ask(at)) {
            Given::Here(mut block) => {
                assert!(block.spare() == content(&id("a", "1"), at..at + 1000));
                true
            }
            Given::Absent(_) | Given::Late => false,
        }
    }

    fn is_resting(&self) -> bool {
        self.cache.store.waits.rest.is_resting()
    }
}

fn given(given: &mpsc::Receiver<Given>) -> Given {
    given.recv_timeout(Duration::from_secs(120)).expect("a read was never answered")
}

#[test]
fn whatever_call_of_the_disk_hangs_no_caller_waits_for_it() {
    for call in
        [Call::Open, Call::Read, Call::Write, Call::Punch, Call::Lend, Call::Unlink, Call::Stat, Call::Any]
    {
        let b = Bench::new();
        let (a, other) = (id("a", "1"), id("b", "1"));
        assert!(call == Call::Open || b.is_here(0));
        b.gate.set(Some(call));
        // Each of these returns, on this thread, while the disk hangs.
        b.keep(&other);
        let asked: Vec<_> = (0..4).map(|n| b.ask(n * 5000)).collect();
        let (send, lent) = mpsc::channel();
        b.cache.whole(&a, SIZE, Box::new(move |whole| send.send(whole.is_some()).unwrap()));
        let _ = (b.cache.lends(&a, SIZE), b.cache.present(&a, 0), b.cache.keeps());
        let mut into = vec![0; 1000];
        assert_eq!(b.cache.read_now(&a, SIZE, 0..1000, &mut into), Now::OnDisk);
        b.cache.drop_version(&other);
        let answered = Cell::new(0);
        until("each of them is answered", || {
            b.clock.advance(LATE);
            while answered.get() < asked.len() {
                let Ok(given) = asked[answered.get()].try_recv() else { return false };
                let hangs = matches!(call, Call::Open | Call::Read | Call::Any);
                assert!(!hangs || matches!(given, Given::Late | Given::Absent(_)), "{call:?}");
                answered.set(answered.get() + 1);
            }
            lent.try_recv().is_ok()
        });
        b.gate.set(None);
        until("the memory is back", || b.pool.used(Use::Demand) == 0 && b.gate.hung() == 0);
        until("the cache is back", || {
            b.clock.advance(TRIAL_EVERY);
            !b.is_resting()
        });
        assert!(b.is_here(MIB + 7), "{call:?}");
    }
}

#[test]
fn a_disk_that_hangs_rests_the_cache_and_it_is_back_with_its_bytes() {
    let b = Bench::new();
    assert!(b.is_here(0));
    b.gate.set(Some(Call::Any));
    let asked: Vec<_> = (0..2 * LATE_MAX as u64).map(|n| b.ask(n * 5000)).collect();
    until("the disk has as many as it may", || b.gate.hung() == LATE_MAX);
    let used = b.pool.used(Use::Demand);
    b.clock.advance(LATE);
    let late = asked.iter().filter(|asked| matches!(given(asked), Given::Late)).count();
    assert_eq!(late, asked.len(), "those that still waited for their turn, too");
    assert!(b.is_resting());
    assert_eq!(b.metrics.cache_late.get(), asked.len() as u64);
    until("memory that the disk does not have is back", || b.pool.used(Use::Demand) <= used / 2);
    assert!(b.pool.used(Use::Demand) > 0, "the disk may still write there");
    // It rests: nothing is there, nothing is kept, and no call is added.
    let a = id("a", "1");
    assert!(b.cache.present(&a, 0).is_empty() && !b.cache.keeps() && !b.is_here(0));
    assert_eq!(b.gate.hung(), LATE_MAX);
    b.clock.advance(TRIAL_EVERY);
    until("the disk is tried", || b.gate.hung() == LATE_MAX + 1);
    b.clock.advance(LATE);
    b.gate.set(None);
    until("all memory is back", || b.pool.used(Use::Demand) == 0);
    until("the cache is back", || {
        b.clock.advance(TRIAL_EVERY);
        !b.is_resting()
    });
    assert!((0..20).all(|n| b.is_here(n * 5000)), "what it had is there still");
    assert_eq!(b.metrics.cache_corrupt.get(), 0);
}

#[test]
fn a_read_that_hangs_and_then_fails_costs_its_block_alone() {
    let b = Bench::new();
    assert!(b.is_here(0) && b.is_here(MIB));
    b.gate.set(Some(Call::Read));
    let asked = b.ask(5000);
    until("the disk has it", || b.gate.hung() == 1);
    b.clock.advance(LATE);
    assert!(matches!(given(&asked), Given::Late));
    b.gate.fails.store(true, Relaxed);
    b.gate.set(None);
    until("its memory is back", || b.pool.used(Use::Demand) == 0 && b.gate.hung() == 0);
    until("its block is gone", || b.cache.present(&id("a", "1"), 0).is_empty());
    assert!(!b.is_here(0) && b.is_here(MIB), "the others are there");
    b.keep(&id("a", "1"));
    b.cache.settle();
    assert!(b.is_here(0), "it was put anew");
}

/// Goal: spilled parts are written and read back on threads of the runtime, and the cache takes none of those: here there is one.
#[test]
fn parts_are_spilled_and_sent_while_the_disk_of_the_cache_hangs() {
    const FILES: usize = 10;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .max_blocking_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let b = Bench::new();
    assert!(b.is_here(0));
    b.gate.set(Some(Call::Any));
    let asked: Vec<_> = {
        let _entered = runtime.enter();
        (0..2 * LATE_MAX as u64).map(|n| b.ask(n * 5000)).collect()
    };
    until("the disk has as many as it may", || b.gate.hung() == LATE_MAX);
    let (spilled, client) = (tempfile::tempdir().unwrap(), MemoryClient::new());
    let spill_dir = Some(spilled.path().to_owned());
    let config = upload::Config { part_size: 4 << 20, spill_dir, ..upload::Config::default() };
    let pool = Pool::new(&buffer::Config { target: 32 << 20, network: 0 });
    let metrics = Arc::clone(&b.metrics);
    let uploader =
        Uploader::new(client.arc(), pool, config, Clock::machine(), metrics, runtime.handle().clone());
    let piece = content(&id("piece", "1"), 0..MIB);
    let keys: Vec<_> = (0..FILES).map(|n| n.to_string()).collect();
    let uploads: Vec<_> = keys.iter().map(|key| uploader.create(ObjectKey::new(key), false)).collect();
    let stored = async {
        for at in 0..3 {
            for upload in &uploads {
                let (send, written) = oneshot::channel();
                upload.write(at * MIB, &piece, Box::new(move |result| _ = send.send(result)));
                written.await.unwrap().unwrap();
            }
        }
        for upload in &uploads {
            upload.finish().await.unwrap();
        }
    };
    let in_time = async { tokio::time::timeout(Duration::from_secs(120), stored).await };
    runtime.block_on(in_time).expect("parts wait for the disk of the cache");
    let expected = piece.repeat(3);
    assert!(keys.iter().all(|key| client.object(key).unwrap() == expected));
    assert!(b.metrics.uploads_spilled.get() > 0, "{FILES} parts of 4 MiB don't fit into 24");
    assert_eq!((b.gate.hung(), asked.len()), (LATE_MAX, 2 * LATE_MAX), "it hangs all the while");
}

/// Goal: the end of a mount does not wait for a hanging disk, but waits some seconds for a slow one.
#[test]
fn a_cache_whose_disk_hangs_closes_all_the_same() {
    let b = Bench::new();
    assert!(b.is_here(0));
    b.gate.set(Some(Call::Any));
    let asked = b.ask(5000);
    until("the disk has it", || b.gate.hung() == 1);
    let Bench { _gate: let_go, cache, .. } = b;
    // The clock stands still: the read is answered because the cache ends.
    drop(cache);
    assert!(matches!(given(&asked), Given::Late));
    drop(let_go);
}

/// The case: two reads of one block run side by side. The first finds the rot, and the disk takes its time to drop the block; meanwhile
/// the second has fetched the block anew. A version of one block leaves as a whole.
#[test]
fn a_block_that_comes_anew_while_its_rotten_bytes_are_dropped_is_kept() {
    for (size, call) in [(SIZE, Call::Punch), (1000, Call::Unlink)] {
        let b = Bench::new();
        let small = id("small", "1");
        let (id, block) = if size == SIZE { (id("a", "1"), 1) } else { (small, 0) };
        let range = block_range(size, block);
        let put = || {
            let mut into = b.pool.try_take(Use::Ahead, (range.end - range.start) as usize).unwrap();
            into.put(&content(&id, range.clone()));
            b.cache.put(&id, size, range.start, into.freeze());
        };
        let ask = || {
            let (send, answer) = mpsc::channel();
            let into = b.pool.try_take(Use::Demand, 1000).unwrap();
            let done: Later = Box::new(move |given| _ = send.send(given));
            let (id, at) = (id.clone(), range.start);
            b.cache.read_later(&id, size, at..at + 1000, into, done);
            answer
        };
        put();
        b.cache.settle();
        for file in files(b.dir.path()).iter().filter(|file| file.extension().unwrap() == "data") {
            let mut bytes = std::fs::read(file).unwrap();
            if bytes.len() as u64 == size {
                bytes[range.start as usize + 5] ^= 1;
                std::fs::write(file, bytes).unwrap();
            }
        }
        b.gate.set(Some(call));
        let first = ask();
        until("the disk is asked to drop it", || b.gate.hung() == 1);
        put();
        // The writers take what waits in turn: this one comes behind that put.
        let other = super::id("other", "1");
        b.keep(&other);
        until("the other one is kept", || b.cache.contains(&other, 0));
        b.gate.set(None);
        assert!(matches!(given(&first), Given::Absent(_)), "{call:?}");
        b.cache.settle();
        assert!(matches!(given(&ask()), Given::Here(_)), "{call:?}");
    }
}
