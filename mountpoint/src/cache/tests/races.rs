//! Puts, reads and evictions in parallel.

use super::*;

/// Goal: readers never see bytes that are not the object's while others put and evict the same blocks, and the account
/// ends where the disk is. Method: two objects of more blocks than the limit holds, so that each put evicts;
/// three threads put a bounded number of times, three read as fast as they can until those are done.
#[test]
fn readers_putters_and_evictions_of_the_same_blocks_never_mix_bytes() {
    const BLOCKS: u64 = 4;
    let dir = tempfile::tempdir().unwrap();
    let limit = 4 * MIB;
    let store = store(dir.path(), Some(limit));
    let size = (BLOCKS - 1) * MIB + 5000;
    let ids = [id("a", "\"1\""), id("a", "\"2\"")];
    let blocks: Vec<Vec<Vec<u8>>> =
        ids.iter().map(|id| (0..BLOCKS).map(|b| content(id, block_range(size, b))).collect()).collect();
    let writers = std::sync::atomic::AtomicU64::new(3);
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let (store, ids, blocks, writers) = (&store, &ids, &blocks, &writers);
            scope.spawn(move || {
                for i in 0..200 {
                    let (o, b) = ((i % 2) as usize, (i * 7 + thread) / 2 % BLOCKS);
                    store.write(&ids[o], size, b * MIB, &blocks[o][b as usize]);
                }
                writers.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
            });
            scope.spawn(move || {
                let mut into = vec![0; MIB as usize];
                for i in 0u64.. {
                    let (o, b) = ((i % 2) as usize, (i + thread) / 2 % BLOCKS);
                    let whole = &blocks[o][b as usize];
                    let from = (i * 37 % 5000) as usize;
                    let part = if i % 16 == 0 { 0..whole.len() } else { from..whole.len().min(from + 4096) };
                    let range = b * MIB + part.start as u64..b * MIB + part.end as u64;
                    let into = &mut into[..part.len()];
                    if store.read(&ids[o], size, &range, into) {
                        assert!(into == &whole[part], "wrong bytes of object {o} block {b}");
                    }
                    if i % 1024 == 0 && writers.load(std::sync::atomic::Ordering::Relaxed) == 0 {
                        break;
                    }
                }
            });
        }
    });
    assert!(store.metrics.cache_evictions.get() > 0);
    assert!(store.used_bytes() <= limit && on_disk(dir.path()) <= limit);
    let mut charged = 0;
    store.index.for_each(|entry| charged += entry.charge_all());
    assert_eq!(store.used_bytes(), charged);
    assert!(ids.iter().any(|id| (0..BLOCKS).any(|b| read_block(&store, id, size, b))));
    drop(store);
    let next = super::store(dir.path(), Some(limit));
    for id in &ids {
        (0..BLOCKS).for_each(|b| assert_eq!(read_block(&next, id, size, b), next.contains(id, b)));
    }
    assert_eq!(next.metrics.cache_corrupt.get(), 0, "no race left a broken block behind");
}
