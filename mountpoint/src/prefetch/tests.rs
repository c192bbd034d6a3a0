//! Readers over a bucket in memory: right bytes, few requests, one reason for each failure, memory that is given back.

mod behind;
mod cached;
mod copies;
#[cfg(feature = "shuttle")]
mod model;
mod tables;
mod tails;
mod together;
mod wholes;
mod wrong;

use std::sync::mpsc;
use std::time::Duration;

use testkit::until;

use super::*;
use crate::buffer::{self, BLOCK, Use};
use crate::cache::MemoryCache;
use crate::first::{self, Asker, Cause, Known};
use crate::s3::ErrorKind;
use crate::testing::{FaultPlan, MemoryClient, Op};

const MIB: usize = 1 << 20;

struct Bench {
    client: MemoryClient,
    pool: Pool,
    prefetcher: Prefetcher,
    runtime: tokio::runtime::Runtime,
}

fn bench(target: u64) -> Bench {
    bench_with(target, None)
}

fn bench_with(target: u64, cache: Option<Arc<dyn BlockCache>>) -> Bench {
    bench_by(Clock::machine(), target, cache)
}

fn bench_by(clock: Clock, target: u64, cache: Option<Arc<dyn BlockCache>>) -> Bench {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let client = MemoryClient::new();
    let pool = Pool::new(&buffer::Config { target, network: 0 });
    let metrics = Arc::new(Metrics::default());
    let config = Config { wait_max: Duration::from_secs(20), ..Config::default() };
    let prefetcher =
        Prefetcher::new(client.arc(), cache, pool.clone(), config, clock, metrics, runtime.handle().clone());
    Bench { client, pool, prefetcher, runtime }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

impl Bench {
    fn object(&self, key: &str, len: usize) -> (ObjectId, Vec<u8>) {
        let data = pattern(len);
        let etag = self.client.insert(key, data.clone());
        (ObjectId::by_etag(key.into(), etag), data)
    }
}

fn read(reader: &Reader, offset: u64, len: usize) -> Result<Vec<u8>, Error> {
    let (send, receive) = mpsc::channel();
    reader.read(offset, len, move |result| send.send(result.map(|b| b.to_vec())).unwrap());
    receive.recv_timeout(Duration::from_secs(60)).expect("a read was never answered")
}

#[test]
fn a_file_read_from_start_to_end_is_right_and_takes_few_requests() {
    // Time stands still, so that the link is what we say it is, however busy this machine.
    let b = bench_by(Clock::manual(), 256 << 20, None);
    let (id, data) = b.object("big", 40 * MIB + 12_345);
    let read_all = |id: ObjectId| {
        let reader = b.prefetcher.open(id, data.len() as u64, None);
        let mut at = 0;
        while at < data.len() {
            let got = read(&reader, at as u64, 128 << 10).unwrap();
            assert_eq!(got, data[at..(at + (128 << 10)).min(data.len())], "at {at}");
            at += got.len();
        }
        assert_eq!(read(&reader, data.len() as u64, 4096).unwrap(), b"");
        assert_eq!(read(&reader, u64::MAX, 4096).unwrap(), b"");
        reader
    };
    drop(read_all(id.clone()));
    let first = b.client.calls(Op::GetObject);
    assert!(first <= 30, "{first} requests while the link is not known");
    let ms = Duration::from_millis;
    b.prefetcher.0.link.lock().learn(MIB as u64, ms(1), 7 * MIB as u64, ms(4));
    let reader = read_all(id);
    let second = b.client.calls(Op::GetObject) - first;
    assert!(second <= 14, "{second} requests on a fast link");
    drop(reader);
    until("the pool is whole again", || b.pool.used(Use::Ahead) + b.pool.used(Use::Demand) == 0);
}

#[test]
fn reads_of_any_size_at_any_place_are_right() {
    let b = bench(128 << 20);
    let (id, data) = b.object("o", 9 * MIB + 77);
    let reader = b.prefetcher.open(id, data.len() as u64, None);
    let mut seed = 12_345u64;
    let mut random = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as usize % below
    };
    for _ in 0..400 {
        let (offset, len) = (random(data.len()), 1 + random(MIB));
        let end = (offset + len).min(data.len());
        assert_eq!(read(&reader, offset as u64, len).unwrap(), data[offset..end], "{len} bytes at {offset}");
    }
}

#[test]
fn random_reads_fetch_no_more_than_their_pages() {
    let b = bench(128 << 20);
    let (id, data) = b.object("o", 64 * MIB);
    let reader = b.prefetcher.open(id, data.len() as u64, None);
    for i in 1..200u64 {
        // Squares: no two distances are alike.
        let offset = i * i * 7_919 * 4096 % (63 << 20);
        read(&reader, offset + 10, 100).unwrap();
    }
    let fetched: u64 = b.client.log().iter().filter_map(|c| c.range.as_ref()).map(|r| r.end - r.start).sum();
    assert_eq!(fetched, 199 * 4096);
    assert_eq!(b.pool.used(Use::Ahead), 0, "nothing is kept of a random read");
}

#[test]
fn a_random_read_across_the_border_of_a_part_is_one_request() {
    let b = bench(128 << 20);
    let (id, data) = b.object("o", 64 * MIB);
    let reader = b.prefetcher.open(id, data.len() as u64, None);
    for (offset, len) in [(24 * MIB - 4096, 8192), (40 * MIB - 512 * 1024, MIB)] {
        b.client.reset_log();
        assert_eq!(read(&reader, offset as u64, len).unwrap(), data[offset..offset + len]);
        assert_eq!(b.client.calls(Op::GetObject), 1, "{len} bytes at {offset}");
    }
}

#[test]
fn one_request_serves_all_who_want_the_same_bytes_at_once() {
    let b = bench(128 << 20);
    let (id, data) = b.object("o", 8 * MIB);
    let gate = b.client.hold(FaultPlan::on(Op::GetObject).always());
    let readers: Vec<_> = (0..4).map(|_| b.prefetcher.open(id.clone(), data.len() as u64, None)).collect();
    let (send, receive) = mpsc::channel();
    for reader in &readers {
        let send = send.clone();
        reader.read(4 << 20, 4096, move |r| {
            send.send(r.map(|b| b.to_vec()).map_err(|e| e.to_string())).unwrap()
        });
    }
    b.runtime.block_on(gate.arrived(1));
    gate.release();
    for _ in 0..4 {
        assert_eq!(
            receive.recv_timeout(Duration::from_secs(30)).unwrap().unwrap(),
            data[4 << 20..(4 << 20) + 4096]
        );
    }
    assert_eq!(b.client.calls(Op::GetObject), 1);
}

#[test]
fn several_reads_of_one_handle_are_under_way_at_once() {
    let b = bench(128 << 20);
    let (id, data) = b.object("o", 64 * MIB);
    let reader = b.prefetcher.open(id, data.len() as u64, None);
    let gate = b.client.hold(FaultPlan::on(Op::GetObject).always());
    let (send, receive) = mpsc::channel();
    for i in 1..=8u64 {
        let send = send.clone();
        reader.read(i * 7 * (1 << 20), 4096, move |r| send.send(r.is_ok()).unwrap());
    }
    b.runtime.block_on(gate.arrived(8));
    gate.release();
    assert_eq!(receive.iter().take(8).filter(|ok| *ok).count(), 8);
}

#[test]
fn a_changed_object_is_an_error_and_never_other_bytes() {
    let b = bench(128 << 20);
    let (id, data) = b.object("o", 4 * MIB);
    let reader = b.prefetcher.open(id, data.len() as u64, None);
    read(&reader, 2 << 20, 4096).unwrap();
    b.client.insert("o", vec![0; 4 * MIB]);
    let error = read(&reader, 3 << 20, 4096).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Changed);
}

#[test]
fn a_failed_request_fails_its_reads_and_the_next_read_tries_again() {
    let b = bench(128 << 20);
    let (id, data) = b.object("o", 4 * MIB);
    let reader = b.prefetcher.open(id, data.len() as u64, None);
    b.client.inject(FaultPlan::on(Op::GetObject).nth(1).fail(ErrorKind::ServerError));
    assert_eq!(*read(&reader, 1 << 20, 4096).unwrap_err().kind(), ErrorKind::ServerError);
    assert_eq!(read(&reader, 1 << 20, 4096).unwrap(), data[MIB..MIB + 4096]);
}

#[test]
fn what_came_before_a_break_is_served_and_only_the_rest_fails() {
    let b = bench(128 << 20);
    let (id, data) = b.object("o", 512 << 10);
    let reader = b.prefetcher.open(id, data.len() as u64, None);
    b.client.inject(FaultPlan::on(Op::GetObject).nth(1).break_after(200 << 10));
    // The first request covers all of it; its first 128 KiB piece comes, the second breaks.
    assert_eq!(read(&reader, 0, 4096).unwrap(), data[..4096]);
    // The memory is free before it has ended: a read in between would join it and fail with it.
    until("the request ended", || reader.missing().iter().any(|range| range.contains(&(300 << 10))));
    assert_eq!(read(&reader, 300 << 10, 4096).unwrap(), data[300 << 10..(300 << 10) + 4096]);
}

#[test]
fn many_readers_finish_in_the_smallest_memory_and_give_it_back() {
    let b = bench(buffer::Config::TARGET_MIN);
    let objects: Vec<_> = (0..32).map(|i| b.object(&format!("o{i}"), 12 * MIB)).collect();
    std::thread::scope(|scope| {
        for (id, data) in &objects {
            let reader = b.prefetcher.open(id.clone(), data.len() as u64, None);
            scope.spawn(move || {
                for at in (0..data.len()).step_by(MIB) {
                    assert_eq!(read(&reader, at as u64, MIB).unwrap(), data[at..at + MIB]);
                }
            });
        }
    });
    until("the pool is whole again", || b.pool.used(Use::Ahead) + b.pool.used(Use::Demand) == 0);
}

#[test]
fn idle_handles_that_read_ahead_make_room_for_one_that_needs_it() {
    let b = bench(buffer::Config::TARGET_MIN);
    // Many handles, each read a little and left alone with what it fetched ahead.
    let objects: Vec<_> = (0..40).map(|i| b.object(&format!("o{i}"), 16 * MIB)).collect();
    let readers: Vec<_> = objects
        .iter()
        .map(|(id, data)| {
            let reader = b.prefetcher.open(id.clone(), data.len() as u64, None);
            for at in (0..4 * MIB).step_by(MIB) {
                read(&reader, at as u64, MIB).unwrap();
            }
            reader
        })
        .collect();
    // A writer's part waits until somebody gives way.
    let part = b.pool.request_max(Use::Write);
    let rest = b.pool.try_reserve(Use::Write, part).expect("the writers' share is theirs");
    let more = b.runtime.block_on(async {
        tokio::time::timeout(Duration::from_secs(30), b.pool.reserve(Use::Write, 8 * BLOCK as u64)).await
    });
    assert!(more.is_ok(), "read-ahead that nobody reads gave way to a writer");
    drop((rest, more, readers));
}

#[test]
fn unread_bytes_of_an_idle_handle_return_also_after_a_time_without_any() {
    let clock = Clock::manual();
    let b = bench_by(clock.clone(), 128 << 20, None);
    let (id, data) = b.object("o", 64 * MIB);
    let reader = b.prefetcher.open(id, data.len() as u64, None);
    let held = || b.pool.used(Use::Ahead) + b.pool.used(Use::Demand);
    for from in [0, 16 * MIB, 32 * MIB] {
        for at in (from..from + MIB).step_by(128 << 10) {
            assert_eq!(read(&reader, at as u64, 128 << 10).unwrap(), data[at..at + (128 << 10)]);
        }
        assert!(held() > 0 && b.prefetcher.0.tidy(), "more was fetched than was read");
        until("the pool is whole again", || {
            clock.advance(Duration::from_secs(1));
            held() == 0
        });
        until("nothing is left to do", || !b.prefetcher.0.tidy());
        clock.advance(Duration::from_secs(3600));
    }
}

#[test]
fn closing_a_handle_stops_what_it_had_under_way() {
    let b = bench(128 << 20);
    let (id, data) = b.object("o", 64 * MIB);
    let gate = b.client.hold(FaultPlan::on(Op::GetObject).nth(2));
    let reader = b.prefetcher.open(id, data.len() as u64, None);
    for at in (0..512 << 10).step_by(128 << 10) {
        read(&reader, at, 128 << 10).unwrap();
    }
    b.runtime.block_on(gate.arrived(1));
    assert!(b.pool.used(Use::Ahead) > 0);
    drop(reader);
    until("memory of the abandoned request is back", || b.pool.used(Use::Ahead) == 0);
    gate.release();
}

#[test]
fn one_block_that_the_cache_lost_is_one_request_for_exactly_that_block() {
    let cache = Arc::new(MemoryCache::new());
    let b = bench_with(256 << 20, Some(cache.clone()));
    let (id, data) = b.object("o", 6 * MIB + 77);
    let closed = || b.prefetcher.0.objects.lock().values().all(|object| object.strong_count() == 0);
    let read_all = || {
        let reader = b.prefetcher.open(id.clone(), data.len() as u64, None);
        for at in (0..data.len()).step_by(128 << 10) {
            let end = (at + (128 << 10)).min(data.len());
            assert_eq!(read(&reader, at as u64, 128 << 10).unwrap(), data[at..end], "at {at}");
        }
        drop(reader);
        until("memory holds nothing of it", closed);
    };
    read_all();
    assert_eq!(cache.len(), 7, "all of it is kept");
    let cold = b.client.log().len();
    read_all();
    assert_eq!(b.client.log().len(), cold, "nothing is asked for that is here");
    assert!(cache.forget(&id, 3));
    read_all();
    let asked: Vec<_> = b.client.log()[cold..].iter().map(|call| call.range.clone()).collect();
    assert_eq!(asked, [Some(3 * MIB as u64..4 * MIB as u64)]);
}

#[test]
fn keeping_house_goes_on_while_files_are_read_under_its_eyes() {
    use crate::sync::atomic::AtomicBool;
    const FILES: usize = 64;
    let b = bench(256 << 20);
    let readers: Vec<_> =
        (0..FILES).map(|i| b.prefetcher.open(b.object(&format!("f{i}"), 4096).0, 4096, None)).collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let keeper = scope.spawn(|| {
            let tidied = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                (0..5000).for_each(|_| _ = b.prefetcher.0.tidy());
            }));
            done.store(true, Relaxed);
            tidied.is_ok()
        });
        for i in (0..FILES).map(|i| i * 37 % FILES).cycle().take_while(|_| !done.load(Relaxed)) {
            readers[i].read(0, 16, |_| ());
        }
        assert!(keeper.join().unwrap(), "the order of reads changed while files were sorted by it");
    });
}

impl Bench {
    /// Number of bytes requested from the store.
    fn fetched(&self) -> u64 {
        self.client.log().iter().filter_map(|c| c.range.as_ref()).map(|r| r.end - r.start).sum()
    }
}

#[test]
fn a_random_read_fetches_64_kib_for_a_cache_and_a_page_without_one() {
    const READS: u64 = 20;
    let cache = Arc::new(MemoryCache::new());
    let b = bench_with(128 << 20, Some(cache.clone()));
    let (id, data) = b.object("o", 64 * MIB);
    let reader = b.prefetcher.open(id, data.len() as u64, None);
    let read_at = |i: u64| {
        // Squares: no two distances are alike.
        let at = (i * i * 131_072 + i * 40_960) as usize + 4096;
        assert_eq!(read(&reader, at as u64, 4096).unwrap(), data[at..at + 4096]);
    };
    (1..=READS).for_each(read_at);
    assert_eq!(b.fetched(), READS * (64 << 10));
    (1..=READS).for_each(read_at);
    assert_eq!(b.fetched(), READS * (64 << 10), "the cache has it");
    cache.fill_up();
    b.client.reset_log();
    (1..=READS).for_each(|i| {
        let at = i * i * 131_072 + i * 40_960 / 4096 * 4096 + (64 << 10);
        assert_eq!(read(&reader, at, 4096).unwrap(), data[at as usize..at as usize + 4096]);
    });
    assert_eq!(b.fetched(), READS * 4096, "nothing is fetched to be thrown away");
    (1..=READS).for_each(read_at);
    assert_eq!(b.fetched(), READS * 4096, "what it has it gives");
}

#[test]
fn two_handles_in_lockstep_fetch_each_byte_once() {
    for turn in [128 << 10, 100_000, 3 << 20] {
        let b = bench_by(Clock::manual(), 256 << 20, None);
        let (id, data) = b.object("o", 24 * MIB + 5);
        let readers = [0, 1].map(|_| b.prefetcher.open(id.clone(), data.len() as u64, None));
        for start in (0..data.len()).step_by(turn) {
            let turn_ends = data.len().min(start + turn);
            for reader in &readers {
                for at in (start..turn_ends).step_by(128 << 10) {
                    let end = turn_ends.min(at + (128 << 10));
                    assert_eq!(read(reader, at as u64, end - at).unwrap(), data[at..end]);
                }
            }
        }
        assert_eq!(b.fetched(), data.len() as u64, "in turns of {turn} bytes");
        until("both have read it all: nothing is held", || {
            b.pool.used(Use::Ahead) + b.pool.used(Use::Demand) == 0
        });
    }
}

#[test]
fn the_stores_part_behind_a_cached_part_is_fetched_ahead_of_its_read() {
    let cache = Arc::new(MemoryCache::new());
    let b = bench_with(256 << 20, Some(cache.clone()));
    let (id, data) = b.object("o", 24 * MIB);
    let step = |reader: &Reader, range: Range<usize>| {
        for at in range.step_by(128 << 10) {
            assert_eq!(read(reader, at as u64, 128 << 10).unwrap(), data[at..at + (128 << 10)], "at {at}");
        }
    };
    step(&b.prefetcher.open(id.clone(), data.len() as u64, None), 0..data.len());
    until("memory holds nothing of it", || b.prefetcher.0.objects.lock().is_empty());
    (4..24).for_each(|block| assert!(cache.forget(&id, block)));
    b.client.reset_log();
    let reader = b.prefetcher.open(id, data.len() as u64, None);
    step(&reader, 0..3 * MIB);
    let first = || b.client.log().into_iter().filter_map(|call| call.range).map(|range| range.start).min();
    until("block 4 is asked for", || first().is_some_and(|start| start <= 4 * MIB as u64));
    assert_eq!(first(), Some(4 * MIB as u64), "and nothing that is here");
    step(&reader, 3 * MIB..data.len());
    assert_eq!(b.fetched(), 20 * MIB as u64, "each byte once");
}

#[test]
fn a_writer_that_always_waits_leaves_read_ahead_on() {
    let b = bench(buffer::Config::TARGET_MIN);
    let (id, data) = b.object("o", 64 * MIB);
    let reader = b.prefetcher.open(id, data.len() as u64, None);
    let step = |range: Range<usize>| {
        for at in range.step_by(128 << 10) {
            assert_eq!(read(&reader, at as u64, 128 << 10).unwrap(), data[at..at + (128 << 10)]);
        }
    };
    step(0..MIB);
    // A writer whose store is slow: it holds all it can get, and stands in line for more.
    let part = 4 * MIB as u64;
    let parts: Vec<_> = std::iter::from_fn(|| b.pool.try_reserve(Use::Write, part)).collect();
    let waiting = b.runtime.spawn(b.pool.reserve(Use::Write, part));
    until("it waits", || b.pool.waiting(Use::Write) == 1);
    assert!(b.pool.pressure() < Pressure::High);
    b.client.reset_log();
    step(MIB..data.len());
    let asked = b.client.calls(Op::GetObject);
    assert!(asked <= 63, "{asked} requests for 63 MiB: without read-ahead there are 504");
    drop(parts);
    assert!(b.runtime.block_on(waiting).is_ok());
}

/// The gift of an open of this object: its first bytes, after a guess.
fn first_of(b: &Bench, asker: &Asker, id: &ObjectId, len: usize) -> Option<First> {
    let known = Known { id: id.clone(), size: len as u64, is_pinned: true };
    let (_, first) = b.runtime.block_on(asker.ask(&id.key, Cause::Open, Some(&known))).unwrap();
    assert!(first.has_bytes());
    Some(first)
}

#[test]
fn first_bytes_of_the_open_answer_the_first_read_and_are_asked_for_once() {
    for cache in [None, Some(Arc::new(MemoryCache::new()) as Arc<dyn BlockCache>)] {
        let b = bench_with(256 << 20, cache.clone());
        let metrics = Arc::new(Metrics::default());
        let asker = Asker::new(b.client.arc(), b.pool.clone(), None, Arc::clone(&metrics));
        for len in [1, 100 << 10, first::LEN, MIB + 5] {
            let (id, data) = b.object(&format!("o{len}"), len);
            let part = len.min(first::LEN);
            b.client.reset_log();
            let reader = b.prefetcher.open(id.clone(), len as u64, first_of(&b, &asker, &id, len));
            assert_eq!(read(&reader, 0, part).unwrap(), data[..part]);
            let asked: Vec<_> = b.client.log().into_iter().filter_map(|call| call.range).collect();
            assert!(asked.iter().skip(1).all(|range| range.start >= part as u64), "{asked:?}");
            assert_eq!(read(&reader, part as u64, len).unwrap(), data[part..], "the rest");
        }
        assert_eq!((metrics.first_asked.get(), metrics.first_wasted.get()), (4, 0));
        until("the pool is whole again", || b.pool.used(Use::Ahead) + b.pool.used(Use::Demand) == 0);
    }
}

#[test]
fn first_bytes_of_which_the_reader_has_no_use_count_as_wasted() {
    let cache: Arc<dyn BlockCache> = Arc::new(MemoryCache::new());
    let b = bench_with(256 << 20, Some(cache));
    let metrics = Arc::new(Metrics::default());
    let asker = Asker::new(b.client.arc(), b.pool.clone(), None, Arc::clone(&metrics));
    let len = MIB;
    let (id, data) = b.object("o", len);
    let open = || b.prefetcher.open(id.clone(), len as u64, first_of(&b, &asker, &id, len));
    // Closed unread, read elsewhere, and read out of the cache.
    drop(open());
    assert_eq!(metrics.first_wasted.get(), 1);
    let reader = open();
    assert_eq!(read(&reader, 500_000, 10).unwrap(), data[500_000..500_010]);
    assert_eq!(metrics.first_wasted.get(), 2);
    drop(reader);
    let reader = open();
    assert_eq!(read(&reader, 0, 10).unwrap(), data[..10]);
    assert_eq!(metrics.first_wasted.get(), 3);
    // Another version than is opened: not a byte of it is taken.
    let old = first_of(&b, &asker, &id, len);
    let newer = b.client.insert("o", vec![7; len]);
    let reader = b.prefetcher.open(ObjectId { etag: newer, ..id }, len as u64, old);
    assert_eq!(read(&reader, 0, 10).unwrap(), [7; 10]);
    assert_eq!(metrics.first_wasted.get(), 4);
}

#[test]
fn a_read_waits_for_memory_as_long_as_the_reads_before_it_get_theirs() {
    let clock = Clock::manual();
    let b = bench_by(clock.clone(), 16 << 20, None);
    let (id, data) = b.object("o", MIB);
    let most = b.pool.request_max(Use::Demand);
    let mut held: Vec<_> = std::iter::from_fn(|| b.pool.try_reserve(Use::Demand, most)).collect();
    // In this order, each behind the one before it.
    let in_line = |n| {
        let waiting = b.runtime.spawn(b.pool.reserve(Use::Demand, most));
        until("it waits", || b.pool.waiting(Use::Demand) == n);
        waiting
    };
    let before: Vec<_> = (1..held.len()).map(in_line).collect();
    let reader = b.prefetcher.open(id, data.len() as u64, None);
    let (send, receive) = mpsc::channel();
    reader.read(0, 4096, move |result| send.send(result.map(|bytes| bytes.to_vec())).unwrap());
    until("it waits behind them", || b.pool.waiting(Use::Demand) > before.len());
    // Each of them takes less than the 20 s of this bench, and all together take longer.
    let mut served = Vec::new();
    for waiting in before {
        clock.advance(Duration::from_secs(15));
        drop(held.pop());
        served.push(b.runtime.block_on(waiting).unwrap());
    }
    drop(held);
    let read = receive.recv_timeout(Duration::from_secs(60)).expect("a read was never answered");
    assert_eq!(read.unwrap(), data[..4096]);
}

#[test]
fn a_read_waits_for_memory_while_requests_that_hold_it_are_under_way() {
    let clock = Clock::manual();
    let b = bench_by(clock.clone(), 16 << 20, None);
    let (id, data) = b.object("o", 64 * MIB);
    let gate = b.client.hold(FaultPlan::on(Op::GetObject).always());
    let readers: Vec<_> = (0..32).map(|_| b.prefetcher.open(id.clone(), data.len() as u64, None)).collect();
    let (send, receive) = mpsc::channel();
    for (i, reader) in readers.iter().enumerate() {
        let send = send.clone();
        reader.read((2 * i * MIB) as u64, MIB, move |read| send.send((i, read.map(|b| b.to_vec()))).unwrap());
    }
    until("some have memory, and others wait", || b.pool.waiting(Use::Demand) > 0);
    // A task that has memory and has not begun is not under way yet.
    b.runtime.block_on(gate.arrived(1));
    // The line is so slow that none of them ends meanwhile.
    for _ in 0..4 {
        clock.advance(Duration::from_secs(20));
        b.runtime.block_on(async {
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
        });
    }
    gate.release();
    for _ in &readers {
        let (i, read) = receive.recv_timeout(Duration::from_secs(60)).expect("a read was never answered");
        assert_eq!(read.unwrap(), data[2 * i * MIB..][..MIB], "{i}");
    }
}

#[test]
fn a_read_that_gets_no_memory_while_no_other_read_gets_any_is_an_error() {
    let clock = Clock::manual();
    let b = bench_by(clock.clone(), 16 << 20, None);
    let (id, data) = b.object("o", MIB);
    let most = b.pool.request_max(Use::Demand);
    let _held: Vec<_> = std::iter::from_fn(|| b.pool.try_reserve(Use::Demand, most)).collect();
    let reader = b.prefetcher.open(id, data.len() as u64, None);
    let (send, receive) = mpsc::channel();
    reader.read(0, 4096, move |result| send.send(result.map(|bytes| bytes.to_vec())).unwrap());
    until("it waits", || b.pool.waiting(Use::Demand) > 0);
    let mut read = None;
    until("it is answered", || {
        clock.advance(Duration::from_secs(20));
        read = receive.try_recv().ok();
        read.is_some()
    });
    let error = read.unwrap().unwrap_err();
    assert!(error.to_string().contains("no memory"), "{error}");
}
