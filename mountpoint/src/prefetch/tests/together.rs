//! Handles that share the reads of one file.

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
