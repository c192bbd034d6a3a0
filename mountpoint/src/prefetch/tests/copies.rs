//! Copies out of a mapping, reads downwards, and reads at one distance.

use super::*;

const STEP: usize = 512 << 10;

fn part(reader: &Reader, data: &[u8], at: usize, len: usize) {
    let end = (at + len).min(data.len());
    assert!(read(reader, at as u64, len).unwrap() == data[at..end], "at {at}");
}

#[test]
fn a_copy_fetches_what_lies_between_its_ends_and_each_byte_once() {
    for (down, full) in [(false, false), (true, false), (false, true), (true, true)] {
        // A cache that is full keeps nothing of it.
        let cache = Arc::new(MemoryCache::new());
        cache.fill_up();
        let b = bench_with(256 << 20, full.then(|| Arc::clone(&cache) as Arc<dyn BlockCache>));
        let (id, data) = b.object("model", 64 * MIB);
        let reader = b.prefetcher.open(id, data.len() as u64, None);
        for n in 1..4 {
            let (from, to) = (n * 15 * MIB, (n * 15 + 12) * MIB);
            let mut steps: Vec<_> = (from..to).step_by(STEP).collect();
            if down {
                steps.reverse();
            }
            let last = steps.pop().unwrap();
            part(&reader, &data, last, STEP);
            steps.into_iter().for_each(|at| part(&reader, &data, at, STEP));
        }
        assert_eq!(b.fetched(), 36 << 20, "down: {down}, full cache: {full}");
        drop(reader);
        until("the pool is whole again", || b.pool.used(Use::Ahead) + b.pool.used(Use::Demand) == 0);
    }
}

#[test]
fn what_lies_between_the_ends_of_a_copy_is_asked_for_at_once() {
    for down in [false, true] {
        let b = bench_by(Clock::manual(), 256 << 20, None);
        let (id, data) = b.object("model", 64 * MIB);
        let reader = b.prefetcher.open(id, data.len() as u64, None);
        let (first, last) = (5 * MIB, 37 * MIB - STEP);
        let (ends, next) = if down { ([first, last], last - STEP) } else { ([last, first], first + STEP) };
        ends.into_iter().for_each(|at| part(&reader, &data, at, STEP));
        let gate = b.client.hold(FaultPlan::on(Op::GetObject).always());
        let (send, receive) = mpsc::channel();
        reader.read(next as u64, STEP, move |result| send.send(result.map(|b| b.to_vec())).unwrap());
        b.runtime.block_on(gate.arrived(3));
        gate.release();
        let bytes = receive.recv_timeout(Duration::from_secs(60)).expect("an answer").unwrap();
        assert!(bytes == data[next..next + STEP], "down: {down}");
        until("all of it was asked for", || b.fetched() >= 32 << 20);
        assert_eq!(b.fetched(), 32 << 20, "down: {down}");
    }
}

#[test]
fn columns_that_two_threads_read_at_once_are_no_copy() {
    const APART: usize = 24;
    let b = bench(256 << 20);
    let data = pattern(MIB).repeat(6 * APART);
    let id = ObjectId::by_etag("table".into(), b.client.insert("table", data.clone()));
    let reader = b.prefetcher.open(id, data.len() as u64, None);
    let ask = |at: usize| {
        let (send, receive) = mpsc::channel();
        reader.read(at as u64, MIB, move |result| send.send(result.map(|b| b.to_vec())).unwrap());
        (at, receive)
    };
    for n in 0..12 {
        let (column, half) = (n / 2 % 3, n % 2);
        let gate = b.client.hold(FaultPlan::on(Op::GetObject).always());
        let asked = [0, 1].map(|thread| ask(((2 * column + thread) * APART + 2 + 3 * (n / 6) + half) * MIB));
        gate.release();
        b.client.clear_faults();
        for (at, receive) in asked {
            let bytes = receive.recv_timeout(Duration::from_secs(60)).expect("an answer").unwrap();
            assert!(bytes == data[at..at + MIB], "at {at}");
        }
    }
    let fetched = b.fetched();
    assert!(fetched <= 64 << 20, "{} MiB for 24", fetched >> 20);
}

#[test]
fn a_file_read_downwards_is_right_and_takes_few_requests() {
    let b = bench_by(Clock::manual(), 256 << 20, None);
    let ms = Duration::from_millis;
    b.prefetcher.0.link.lock().learn(MIB as u64, ms(1), 7 * MIB as u64, ms(4));
    let (id, data) = b.object("big", 40 * MIB + 12_345);
    let reader = b.prefetcher.open(id, data.len() as u64, None);
    for at in (0..data.len()).step_by(4096).collect::<Vec<_>>().chunks(STEP / 4096).rev() {
        part(&reader, &data, at[0], at.len() * 4096);
    }
    let requests = b.client.calls(Op::GetObject);
    assert!(requests <= 20, "{requests} requests");
    assert_eq!(b.fetched(), data.len() as u64, "each byte once");
}

#[test]
fn without_memory_a_run_downwards_still_gets_what_it_asks_for() {
    let b = bench(buffer::Config::TARGET_MIN);
    let (id, data) = b.object("big", 96 * MIB);
    let held: Vec<_> = std::iter::from_fn(|| b.pool.try_take(Use::Ahead, MIB)).collect();
    let reader = b.prefetcher.open(id, data.len() as u64, None);
    (0..data.len() / STEP).rev().for_each(|n| part(&reader, &data, n * STEP, STEP));
    assert_eq!(b.fetched(), data.len() as u64, "nothing is dropped and fetched again");
    drop(held);
}

#[test]
fn without_memory_a_copy_and_a_stride_fetch_what_is_read_alone() {
    const PART: usize = 100 * 4096;
    let b = bench(buffer::Config::TARGET_MIN);
    let (id, data) = b.object("model", 96 * MIB);
    let held: Vec<_> = std::iter::from_fn(|| b.pool.try_take(Use::Ahead, MIB)).collect();
    let reader = b.prefetcher.open(id, data.len() as u64, None);
    for from in [5 * MIB, 25 * MIB] {
        let to = from + 12 * MIB;
        part(&reader, &data, to - STEP, STEP);
        (from..to - STEP).step_by(STEP).for_each(|at| part(&reader, &data, at, STEP));
    }
    (0..6).for_each(|n| part(&reader, &data, (50 + 7 * n) * MIB, PART));
    let (fetched, asked) = (b.fetched(), (24 * MIB + 6 * PART) as u64);
    assert!((asked..=asked + (1 << 20)).contains(&fetched), "{fetched} for {asked}");
    drop(held);
}

#[test]
fn two_threads_of_one_handle_read_upwards_and_downwards_at_once() {
    let b = bench(256 << 20);
    let (id, data) = b.object("o", 64 * MIB);
    let reader = b.prefetcher.open(id, data.len() as u64, None);
    let steps = data.len() / STEP;
    std::thread::scope(|scope| {
        scope.spawn(|| (0..steps / 2).for_each(|n| part(&reader, &data, n * STEP, STEP)));
        scope.spawn(|| (steps / 2..steps).rev().for_each(|n| part(&reader, &data, n * STEP, STEP)));
    });
    let fetched = b.fetched();
    assert!(fetched <= 2 * data.len() as u64, "{} MiB for 64", fetched >> 20);
    drop(reader);
    until("the pool is whole again", || b.pool.used(Use::Ahead) + b.pool.used(Use::Demand) == 0);
}

#[test]
fn reads_at_one_distance_are_here_before_they_are_asked_for() {
    const LEN: usize = 500_000;
    const DISTANCE: usize = 3_000_000;
    let b = bench(256 << 20);
    let (id, data) = b.object("planes", 64 * MIB);
    let reader = b.prefetcher.open(id, data.len() as u64, None);
    for n in 1..20 {
        let (from, to) = (n * DISTANCE / 4096 * 4096, (n * DISTANCE + LEN).next_multiple_of(4096));
        if n > 3 {
            let range = from as u64..to as u64;
            until("the next read is here", || {
                reader.missing().iter().all(|m| m.end <= range.start || m.start >= range.end)
            });
        }
        part(&reader, &data, from, to - from);
    }
    assert!(b.fetched() < 29 * 540_000, "{}", b.fetched());
}
