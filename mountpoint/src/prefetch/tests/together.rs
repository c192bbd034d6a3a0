//! Handles that share the reads of one file, and reads of one handle that are parts of longer ones.

use super::*;

/// The reads of several programs that map one file: the kernel has what one has read, for all.
fn shared(data: &[u8], readers: &[Reader], of: impl Fn(usize) -> usize) {
    for (n, at) in (0..data.len()).step_by(MIB).enumerate() {
        let end = data.len().min(at + MIB);
        assert!(read(&readers[of(n)], at as u64, end - at).unwrap() == data[at..end], "at {at}");
    }
}

#[test]
fn handles_that_share_the_reads_of_a_file_fetch_it_in_parts() {
    for handles in [1, 2, 8] {
        // Time stands still, so that the link is what we say it is, however busy this machine.
        let b = bench_by(Clock::manual(), 256 << 20, None);
        let ms = Duration::from_millis;
        b.prefetcher.0.link.lock().learn(MIB as u64, ms(1), 7 * MIB as u64, ms(4));
        let (id, data) = b.object("model", 96 * MIB + 777);
        let open = || b.prefetcher.open(id.clone(), data.len() as u64, None);
        let readers: Vec<_> = (0..handles).map(|_| open()).collect();
        shared(&data, &readers, |n| n * n * 7_919 / 5 % handles);
        let requests = b.client.calls(Op::GetObject);
        assert!(requests <= 32, "{requests} requests by {handles} handles");
        assert_eq!(b.fetched(), data.len() as u64, "each byte once");
        drop(readers);
        until("the pool is whole again", || b.pool.used(Use::Ahead) + b.pool.used(Use::Demand) == 0);
    }
}

#[test]
fn a_handle_that_reads_elsewhere_is_not_taken_along() {
    let b = bench_by(Clock::manual(), 256 << 20, None);
    let (id, data) = b.object("o", 64 * MIB);
    let readers = [0, 1].map(|_| b.prefetcher.open(id.clone(), data.len() as u64, None));
    for n in 0..8 {
        let at = n * MIB;
        assert!(read(&readers[0], at as u64, MIB).unwrap() == data[at..at + MIB]);
    }
    // Squares, behind all that the first handle has fetched ahead: no two distances are alike.
    let elsewhere = 45 * MIB;
    for n in 1..20 {
        let at = elsewhere + n * n * 4096 * 9;
        assert!(read(&readers[1], at as u64, 4096).unwrap() == data[at..at + 4096]);
    }
    let log = b.client.log();
    let ranges = log.iter().filter_map(|call| call.range.as_ref());
    let fetched: u64 = ranges.filter(|r| r.start >= elsewhere as u64).map(|r| r.end - r.start).sum();
    assert_eq!(fetched, 19 * 4096);
}

#[test]
fn what_follows_long_reads_at_once_is_fetched_with_them() {
    const APART: usize = 7 * MIB;
    let b = bench(256 << 20);
    let (id, data) = b.object("table", 64 * MIB);
    let reader = b.prefetcher.open(id, data.len() as u64, None);
    let gate = b.client.hold(FaultPlan::on(Op::GetObject).always());
    // No two distances are alike.
    let starts: Vec<_> = (1..7).map(|n| n * APART + n * n * 4096).collect();
    let asked: Vec<_> = starts
        .iter()
        .map(|&at| {
            let (send, receive) = mpsc::channel();
            reader.read(at as u64, MIB, move |result| send.send(result.map(|b| b.to_vec())).unwrap());
            (at, receive)
        })
        .collect();
    gate.release();
    b.client.clear_faults();
    for (at, receive) in asked {
        let bytes = receive.recv_timeout(Duration::from_secs(60)).expect("an answer").unwrap();
        assert!(bytes == data[at..at + MIB], "at {at}");
    }
    until("what follows is asked for", || b.fetched() == 12 << 20);
    b.client.reset_log();
    for &at in &starts {
        assert!(read(&reader, (at + MIB) as u64, 4096).unwrap() == data[at + MIB..at + MIB + 4096]);
    }
    let again =
        |r: &Range<u64>| starts.iter().any(|at| r.start < (at + 2 * MIB) as u64 && r.end > *at as u64);
    assert!(!b.client.log().iter().filter_map(|call| call.range.as_ref()).any(again), "nothing twice");
}
