use super::*;

/// Goal: readers never see bytes that are not the object's while others put and evict the same blocks, and the account
/// ends where the disk is. Method: two objects of more blocks than the limit holds, so that each put evicts;
/// three threads put, three read, as fast as they can, a bounded number of times.
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
    let hits = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let (store, ids, blocks, hits) = (&store, &ids, &blocks, &hits);
            scope.spawn(move || {
                for i in 0..150 {
                    let (o, b) = ((i % 2) as usize, (i * 7 + thread) / 2 % BLOCKS);
                    store.write(&ids[o], size, b, &blocks[o][b as usize]);
                }
            });
            scope.spawn(move || {
                let mut into = vec![0; MIB as usize];
                for i in 0..3000u64 {
                    let (o, b) = ((i % 2) as usize, (i + thread) / 2 % BLOCKS);
                    let whole = &blocks[o][b as usize];
                    let from = (i * 37 % 5000) as usize;
                    let part = if i % 16 == 0 { 0..whole.len() } else { from..whole.len().min(from + 4096) };
                    let range = b * MIB + part.start as u64..b * MIB + part.end as u64;
                    if part.is_empty() {
                        continue;
                    }
                    let into = &mut into[..part.len()];
                    if store.read(&ids[o], size, &range, into) {
                        hits.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        assert!(into == &whole[part], "wrong bytes of object {o} block {b}");
                    }
                }
            });
        }
    });
    assert!(hits.into_inner() > 0);
    assert!(store.metrics.cache_evictions.get() > 0);
    assert!(store.used_bytes() <= limit && on_disk(dir.path()) <= limit);
    let mut charged = 0;
    store.index.for_each(|entry| charged += entry.charge_all());
    assert_eq!(store.used_bytes(), charged);
    drop(store);
    let next = super::store(dir.path(), Some(limit));
    for id in &ids {
        (0..BLOCKS).for_each(|b| assert_eq!(read_block(&next, id, size, b), next.contains(id, b)));
    }
    assert_eq!(next.metrics.cache_corrupt.get(), 0, "no race left a broken block behind");
}
