//! Measures the cost of a hit and a put: ignored, run by hand (the comment at the test has the command).

use std::time::{Duration, Instant};

use super::*;

/// CPU time of this thread.
fn cpu() -> Duration {
    let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(schedstat.split(' ').next().unwrap().parse().unwrap())
}

/// Prints what hits and puts cost on this machine, in one thread and out of the page cache:
/// `CARGO_PROFILE_DEV_OPT_LEVEL=3 cargo test -p mountpoint --lib cache::tests::measure -- --ignored --nocapture`
#[test]
#[ignore = "prints figures; nothing to pass or fail but the reads themselves"]
#[expect(clippy::print_stdout, reason = "figures for the person that runs it")]
fn cost_of_hits_and_puts() {
    const BLOCKS: u64 = 512;
    let dir = tempfile::tempdir().unwrap();
    let (a, size) = (
        id("some/prefix/like/real/ones/object-0001.bin", "\"9b2cf535f27731c974343645a3985328\""),
        BLOCKS * MIB,
    );
    let bytes = content(&a, 0..MIB);
    let mut into = vec![0; MIB as usize];
    let gib = BLOCKS as f64 / 1024.0;
    {
        let store = store(dir.path(), Some(2 * size));
        let start = cpu();
        for block in 0..BLOCKS {
            assert!(store.write(&a, size, block * MIB, &bytes));
        }
        println!("puts: {:.3} CPU-s/GiB", (cpu() - start).as_secs_f64() / gib);
    }
    let store = store(dir.path(), Some(2 * size));
    for what in ["first", "second", "third"] {
        let (start, wall) = (cpu(), Instant::now());
        for block in 0..BLOCKS {
            assert!(store.read(&a, size, &block_range(size, block), &mut into));
        }
        let per_gib = (cpu() - start).as_secs_f64() / gib;
        println!(
            "1 MiB sequential hits, {what}: {per_gib:.3} CPU-s/GiB, {:.2} GiB/s",
            gib / wall.elapsed().as_secs_f64()
        );
    }
    let count = 1_000_000u64;
    let (start, wall, mut at) = (cpu(), Instant::now(), 1u64);
    for _ in 0..count {
        at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let page = (at >> 33) % (size / 4096);
        assert!(store.read(&a, size, &(page * 4096..(page + 1) * 4096), &mut into[..4096]));
    }
    let per_hit = (cpu() - start).as_secs_f64() / count as f64 * 1e9;
    println!("4 KiB random hits: {per_hit:.0} ns CPU, {:.0}/s", count as f64 / wall.elapsed().as_secs_f64());
    let (start, mut here) = (cpu(), 0);
    for i in 0..count {
        here += u64::from(store.contains(&a, i % (2 * BLOCKS)));
    }
    println!("contains: {:.0} ns CPU", (cpu() - start).as_secs_f64() / count as f64 * 1e9);
    assert!(here > 0);
}

/// Prints what a small file takes of this process's memory, beside the estimate of it:
/// `cargo test -p mountpoint --lib cache::tests::measure -- --ignored --nocapture --test-threads 1`
#[test]
#[ignore = "prints figures; what the allocator does is its own affair"]
#[expect(clippy::print_stdout, reason = "figures for the person that runs it")]
fn memory_of_small_files_in_the_index() {
    use super::super::file::Entry;
    use super::super::file::owner::Owner;
    use super::super::format::Header;
    use super::super::sums::Sums;

    const FILES: u64 = 200_000;
    let rss = || {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
    };
    let (index, account) = (super::super::file::index::Index::new(), Arc::default());
    let scope = Arc::from("https://s3.test\nbucket");
    let before = rss();
    for n in 0..FILES {
        let id = id(
            &format!("data/train/images/part-0001/sample-{n:08}.jpg"),
            "\"9b2cf535f27731c974343645a3985328\"",
        );
        let owner = Owner::new(&scope, &id);
        let (name, identity) = (owner.identity().name(), owner.clone());
        let header =
            Header { identity: identity.identity(), object_size: 100_000, slots_at: 512, is_proven: true };
        let sums = Sums::new(Sectors::touching(&(0..100_000)), |n| n as u32);
        let entry = Arc::new(Entry::new(owner, name, &header, [(0, sums)], n, &account));
        assert!(index.insert(&entry));
    }
    let (real, estimated) = (rss() - before, account.load(crate::sync::atomic::Ordering::Relaxed));
    println!("{} bytes of RSS a file, estimated {}", real / FILES, estimated / FILES);
}
