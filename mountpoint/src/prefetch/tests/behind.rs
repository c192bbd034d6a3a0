//! Blocks that sequential runs leave behind, and reads that come late.

use super::*;

#[test]
fn a_handle_that_skips_or_jumps_leaves_read_ahead_to_others() {
    const LEN: usize = 128 * MIB;
    const OTHERS: usize = 32 * MIB;
    const STEP: usize = 128 << 10;
    // The window on this link, what a run holds behind its front, and a few blocks.
    const HELD: u64 = (16 + 4 + 4) << 20;
    let ms = Duration::from_millis;
    for cache in [None, Some(Arc::new(MemoryCache::new()) as Arc<dyn BlockCache>)] {
        let with = if cache.is_some() { "with a cache" } else { "without a cache" };
        let b = bench_by(Clock::manual(), buffer::Config::TARGET_MIN, cache);
        b.prefetcher.0.link.lock().learn(MIB as u64, ms(1), 7 * MIB as u64, ms(4));
        let open = |key: &str, len: usize| {
            let (id, data) = b.object(key, len);
            (b.prefetcher.open(id, len as u64, None), data)
        };
        let read_beside = |beside: &str| {
            let others = format!("beside {beside}");
            let (reader, data) = open(&others, OTHERS);
            for at in (0..OTHERS).step_by(STEP) {
                assert!(read(&reader, at as u64, STEP).unwrap() == data[at..at + STEP], "at {at}");
            }
            let requests = b.client.log().iter().filter(|call| call.key == others).count();
            assert!(requests <= 12, "{requests} requests for 32 MiB beside one that {beside} {with}");
            until("the other holds little", || b.pool.used(Use::Ahead) <= HELD);
        };

        let (skips, data) = open("skips", LEN);
        for at in (0..LEN).step_by(640 << 10) {
            assert!(read(&skips, at as u64, 64 << 10).unwrap() == data[at..at + (64 << 10)], "at {at}");
        }
        read_beside("skips");
        drop(skips);

        let (jumps, data) = open("jumps", LEN);
        for run in 0..500 {
            let start = run * 0x9e37_79b1 % (LEN - MIB) / 4096 * 4096;
            for at in (start..).step_by(STEP).take(3) {
                assert!(read(&jumps, at as u64, STEP).unwrap() == data[at..at + STEP], "at {at}");
            }
        }
        read_beside("jumps");
    }
}

#[test]
fn a_read_that_comes_late_finds_its_bytes_although_the_run_went_on() {
    let b = bench_by(Clock::manual(), buffer::Config::TARGET_MIN, None);
    let (id, data) = b.object("o", 64 * MIB);
    let reader = b.prefetcher.open(id, data.len() as u64, None);
    let step = |at: usize| assert!(read(&reader, at as u64, MIB).unwrap() == data[at..at + MIB], "at {at}");
    (0..16).for_each(|n| step(n * MIB));
    // The kernel's requests of one large read, by several threads.
    [16, 17, 19, 20, 21, 18].into_iter().for_each(|n| step(n * MIB));
    (22..64).for_each(|n| step(n * MIB));
    assert_eq!(b.fetched(), data.len() as u64, "each byte once");
}
