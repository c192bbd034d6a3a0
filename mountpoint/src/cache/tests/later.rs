//! Reads that wait for the disk: by io_uring where the system has it, otherwise by the calling thread.

use std::sync::mpsc;
use std::time::Duration;

use super::super::bell::Bell;
use super::super::later::{self, Job};
use super::super::ring;
use super::*;
use crate::buffer;
use crate::testing::log_of;

/// More reads than a ring carries out at once.
const MANY: u64 = 300;

struct Bench {
    cache: DiskCache,
    pool: Pool,
    metrics: Arc<Metrics>,
}

type Given = mpsc::Receiver<Option<Vec<u8>>>;

/// Runs a test both ways.
fn both(body: fn(&Path, Bench)) {
    for ring in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let (config, metrics) = (config(dir.path(), Some(64 * MIB)), Arc::new(Metrics::default()));
        let cache =
            DiskCache::open(Config { ring, ..config }, Clock::machine(), Arc::clone(&metrics)).unwrap();
        let pool = Pool::new(&buffer::Config { target: 512 << 20, network: 0 });
        body(dir.path(), Bench { cache, pool, metrics });
    }
}

impl Bench {
    fn block(&self, len: usize) -> buffer::BlockMut {
        self.pool.try_take(Use::Demand, len).unwrap()
    }

    fn keep(&self, id: &ObjectId, size: u64) {
        for block in 0..size.div_ceil(CACHE_BLOCK) {
            let range = block_range(size, block);
            let mut into = self.block((range.end - range.start) as usize);
            into.put(&content(id, range.clone()));
            self.cache.put(id, size, range.start, into.freeze());
        }
        self.cache.settle();
    }

    /// Begins a read.
    fn ask(&self, id: &ObjectId, size: u64, range: Range<u64>) -> Given {
        let (send, given) = mpsc::channel();
        let into = self.block((range.end - range.start) as usize);
        let done: Later = Box::new(move |read| {
            let _ = send.send(read.map(|mut block| block.spare().to_vec()));
        });
        if let Err((mut into, done)) = self.cache.read_later(id, size, range.clone(), into, done) {
            assert!(self.cache.reads.is_none(), "the queue has room");
            let is_here = self.cache.read(id, size, range, into.spare());
            done(is_here.then_some(into));
        }
        given
    }

    fn read(&self, id: &ObjectId, size: u64, range: Range<u64>) -> Option<Vec<u8>> {
        given(&self.ask(id, size, range))
    }
}

fn given(given: &Given) -> Option<Vec<u8>> {
    given.recv_timeout(Duration::from_secs(120)).expect("a read was never answered")
}

#[test]
fn there_is_a_ring_where_the_system_has_one_and_it_is_wanted() {
    let has = ring::set_up().is_ok();
    for ring in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let config = Config { ring, ..config(dir.path(), Some(64 * MIB)) };
        let cache = DiskCache::open(config, Clock::machine(), Arc::new(Metrics::default())).unwrap();
        assert_eq!(cache.reads.is_some(), ring && has);
    }
}

#[test]
fn any_range_that_is_here_is_given_and_many_are_at_once() {
    both(|_, b| {
        let (a, size) = (id("a", "\"1\""), 2 * MIB + 777);
        b.keep(&a, size);
        for range in [0..MIB, MIB - 1..MIB, 4096..8192, 131_000..400_000, 0..1, 2 * MIB..size, size - 1..size]
        {
            assert_eq!(
                b.read(&a, size, range.clone()).as_deref(),
                Some(&*content(&a, range.clone())),
                "{range:?}"
            );
        }
        let whole = content(&a, 0..size);
        let range = |i: u64| {
            let start = i * 1_000_003 % (2 * MIB);
            start..(start + 4096).min((start / MIB + 1) * MIB)
        };
        let asked: Vec<_> = (0..MANY).map(|i| b.ask(&a, size, range(i))).collect();
        for (i, asked) in (0..MANY).zip(&asked) {
            let range = range(i);
            let bytes = &whole[range.start as usize..range.end as usize];
            assert_eq!(given(asked).as_deref(), Some(bytes), "{range:?}");
        }
        assert_eq!(b.metrics.cache_corrupt.get(), 0);
        assert_eq!(b.metrics.cache_hits.get(), 7 + MANY);
        assert_eq!(b.pool.used(Use::Demand), 0, "every block came back");
    });
}

#[test]
fn what_is_not_here_or_rotted_or_was_cut_off_is_not_given_and_dropped() {
    both(|dir, b| {
        let (a, size) = (id("a", "\"1\""), 3 * MIB);
        assert_eq!(b.read(&a, size, 0..10), None, "never kept");
        b.keep(&a, size);
        let data = files(dir).into_iter().find(|path| path.extension().unwrap() == "data").unwrap();
        let file = std::fs::File::options().write(true).open(data).unwrap();
        // In the sector that the range touches, not in the range.
        std::os::unix::fs::FileExt::write_all_at(&file, &[0], MIB + SECTOR + 5).unwrap();
        file.set_len(2 * MIB + 100).unwrap();
        assert_eq!(b.read(&a, size, MIB + SECTOR + 6..MIB + SECTOR + 10), None, "rotted");
        assert_eq!(b.read(&a, size, 2 * MIB..2 * MIB + 10), None, "cut off");
        assert_eq!(b.read(&a, size, 7..10).as_deref(), Some(&*content(&a, 7..10)), "the others are sound");
        assert_eq!([0, 1, 2].map(|block| b.cache.contains(&a, block)), [true, false, false]);
        assert_eq!(b.metrics.cache_corrupt.get(), 2);
        assert_eq!(b.read(&a, size + 1, 7..10), None, "of another size");
    });
}

#[test]
fn a_cache_that_is_closed_answers_what_was_asked_before() {
    both(|_, b| {
        let (a, size) = (id("a", "\"1\""), MIB);
        b.keep(&a, size);
        let asked: Vec<_> = (0..MANY).map(|i| (i, b.ask(&a, size, i * 1000..i * 1000 + 3000))).collect();
        drop(b.cache);
        for (i, asked) in asked {
            let bytes = content(&a, i * 1000..i * 1000 + 3000);
            assert_eq!(asked.try_recv().expect("closed before it was answered"), Some(bytes));
        }
    });
}

#[test]
fn a_panic_of_one_who_asked_is_not_the_end_of_the_others() {
    both(|_, b| {
        let (a, size) = (id("a", "\"1\""), MIB);
        b.keep(&a, size);
        for _ in 0..3 {
            let _ = b.cache.read_later(&a, size, 0..10, b.block(10), Box::new(|_| panic!("as in a request")));
            assert_eq!(b.read(&a, size, 5..9).as_deref(), Some(&*content(&a, 5..9)));
        }
        assert_eq!(b.metrics.tasks_restarted.get(), 0);
    });
}

#[test]
fn a_failed_ring_gives_nothing_and_leaves_its_reads_to_a_thread() {
    let Some(broken) = ring::broken() else { return };
    let dir = tempfile::tempdir().unwrap();
    let (store, pool) = (store(dir.path(), Some(64 * MIB)), Pool::new(&buffer::Config::default()));
    let (a, size, began) = (id("a", "\"1\""), MIB, ring::DEPTH as usize);
    assert!(put(&store, &a, size, 0));
    let (send_job, jobs) = crossbeam::channel::bounded(began + 3);
    let (send, given) = mpsc::channel();
    for i in 0..began + 3 {
        let range = i as u64 * 100..i as u64 * 100 + 50;
        let (reading, send) = (store.begin(&a, size, &range).unwrap(), send.clone());
        let done: Later = Box::new(move |read| {
            let _ = send.send((range, read.map(|mut block| block.spare().to_vec())));
        });
        let into = pool.try_take(Use::Demand, 50).unwrap();
        send_job.send(Job { reading, into, started: store.clock.now(), done }).unwrap();
    }
    drop((send_job, send));
    let log = log_of(|| ring::run(broken, &store, &jobs, &Bell::new().unwrap()));
    assert!(log.contains("io_uring failed"), "{log}");
    let answers: Vec<_> = given.try_iter().collect();
    assert_eq!(answers.len(), began);
    assert!(answers.iter().all(|(_, read)| read.is_none()), "the kernel may still write there");
    later::run(&store, &jobs);
    let answers: Vec<_> = given.iter().collect();
    assert_eq!(answers.len(), 3);
    for (range, read) in answers {
        assert_eq!(read, Some(content(&a, range)));
    }
}
