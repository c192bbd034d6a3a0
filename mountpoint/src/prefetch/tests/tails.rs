//! Files whose open brings the tail instead of the head.

use super::*;

#[test]
fn the_open_brings_the_tail_of_files_that_are_read_from_there() {
    for cache in [None, Some(Arc::new(MemoryCache::new()) as Arc<dyn BlockCache>)] {
        let b = bench_with(256 << 20, cache);
        let metrics = Arc::new(Metrics::default());
        let asker = Asker::new(b.client.arc(), b.pool.clone(), None, Arc::clone(&metrics));
        // Reads as of a footer. The third open of an ending that nothing is known of brings it, whichever block borders lie in it.
        for (n, len) in [3 * MIB, 2 * MIB + 777, 2 * MIB + 50_000, 5 * MIB + 1, MIB].into_iter().enumerate() {
            let (id, data) = b.object(&format!("o{n}.tbl"), len);
            b.client.reset_log();
            let reader = b.prefetcher.open(id.clone(), len as u64, first_of(&b, &asker, &id, len));
            assert_eq!(read(&reader, len as u64 - 8, 8).unwrap(), data[len - 8..]);
            assert_eq!(read(&reader, len as u64 - 60_000, 60_000).unwrap(), data[len - 60_000..]);
            let gets = b.client.calls(Op::GetObject);
            assert_eq!(gets == 1, n >= 2, "{n}: {gets} requests");
            assert_eq!(read(&reader, 0, len).unwrap(), data, "{n}: all of it");
        }
        assert_eq!(metrics.first_wasted.get(), 2);
        // One from the head: the next open brings that.
        for n in 5..7 {
            let (id, data) = b.object(&format!("o{n}.tbl"), MIB);
            let reader = b.prefetcher.open(id.clone(), MIB as u64, first_of(&b, &asker, &id, MIB));
            assert_eq!(read(&reader, 0, 100).unwrap(), data[..100]);
            assert_eq!(metrics.first_wasted.get(), 3, "{n}");
        }
    }
}

/// Opens this object. Returns the reader, and whether bytes came along.
fn open(b: &Bench, asker: &Asker, id: &ObjectId, len: usize) -> (Reader, bool) {
    let known = Known { id: id.clone(), size: len as u64, is_pinned: true };
    let (_, first) = b.runtime.block_on(asker.ask(&id.key, Cause::Open, Some(&known))).unwrap();
    let has_bytes = first.has_bytes();
    (b.prefetcher.open(id.clone(), len as u64, Some(first)), has_bytes)
}

#[test]
fn a_tail_of_two_blocks_is_kept_for_a_later_mount() {
    let cache: Arc<dyn BlockCache> = Arc::new(MemoryCache::new());
    let b = bench_with(256 << 20, Some(Arc::clone(&cache)));
    let len = 5 * MIB + 20_000;
    let (id, data) = b.object("table.parquet", len);
    for mount in 0..2 {
        b.client.reset_log();
        let asker = Asker::new(b.client.arc(), b.pool.clone(), Some(Arc::clone(&cache)), Arc::default());
        let (reader, has_bytes) = open(&b, &asker, &id, len);
        assert_eq!(has_bytes, mount == 0);
        assert_eq!(read(&reader, len as u64 - 60_000, 60_000).unwrap(), data[len - 60_000..]);
        assert_eq!(read(&reader, len as u64 - 8, 8).unwrap(), data[len - 8..]);
        assert_eq!(b.client.calls(Op::GetObject), usize::from(mount == 0), "mount {mount}");
    }
}

#[test]
fn a_second_open_of_a_table_does_not_bring_its_tail_again() {
    let b = bench(256 << 20);
    let asker = Asker::new(b.client.arc(), b.pool.clone(), None, Arc::default());
    let len = 3 * MIB;
    let (id, data) = b.object("table.parquet", len);
    let tail = |reader: &Reader| {
        assert_eq!(read(reader, len as u64 - 60_000, 60_000).unwrap(), data[len - 60_000..]);
    };
    let (reader, has_bytes) = open(&b, &asker, &id, len);
    tail(&reader);
    assert!(has_bytes);
    // The kernel has it. A read of the first column does not say that tables are read from their head.
    let (reader, has_bytes) = open(&b, &asker, &id, len);
    assert_eq!(read(&reader, 4, 1000).unwrap(), data[4..1004]);
    assert!(!has_bytes);
    let (other, _) = b.object("other.parquet", len);
    assert!(open(&b, &asker, &other, len).1);
    // The kernel does not have it any more.
    let (reader, has_bytes) = open(&b, &asker, &id, len);
    tail(&reader);
    assert!(!has_bytes);
    assert!(open(&b, &asker, &id, len).1);
}

#[test]
fn an_object_replaced_after_its_tail_came_is_never_read_as_two_versions() {
    let b = bench(256 << 20);
    let asker = Asker::new(b.client.arc(), b.pool.clone(), None, Arc::default());
    let len = 3 * MIB;
    let (id, data) = b.object("table.parquet", len);
    let (reader, has_bytes) = open(&b, &asker, &id, len);
    assert!(has_bytes);
    b.client.insert("table.parquet", vec![0; len]);
    assert_eq!(read(&reader, len as u64 - 60_000, 60_000).unwrap(), data[len - 60_000..], "as it was opened");
    assert_eq!(*read(&reader, 0, 4096).unwrap_err().kind(), ErrorKind::Changed);
}
