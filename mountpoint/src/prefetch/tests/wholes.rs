//! Files whose open brings all of them, because files of that ending are read whole.

use super::*;

/// The lengths of first reads. A file of the first length does not teach: its head is all of it.
const LENGTHS: [usize; 4] = [first::LEN, first::LEN + 1, 700_000, MIB];

#[test]
fn the_open_brings_all_of_files_that_are_read_whole() {
    for cache in [None, Some(Arc::new(MemoryCache::new()) as Arc<dyn BlockCache>)] {
        let b = bench_with(256 << 20, cache.clone());
        let metrics = Arc::new(Metrics::default());
        let asker = Asker::new(b.client.arc(), b.pool.clone(), cache, Arc::clone(&metrics));
        let mut opened = 0;
        let mut open = |len: usize| {
            opened += 1;
            let (id, data) = b.object(&format!("c/0/{opened}"), len);
            b.client.reset_log();
            (b.prefetcher.open(id.clone(), len as u64, first_of(&b, &asker, &id, len)), data)
        };
        let read_whole = |(reader, data): (Reader, Vec<u8>)| {
            assert!(read(&reader, 0, data.len()).unwrap() == data);
            b.client.calls(Op::GetObject)
        };
        assert_eq!(LENGTHS.map(|len| read_whole(open(len))), [1; 4], "without a lesson");
        assert_eq!(read_whole(open(MIB + 1)), 2, "too long for the first bytes");
        // The program wants the head of one: the next open brings a head again, until two in a row are read whole.
        for sent in [MIB, first::LEN] {
            let (reader, data) = open(MIB);
            assert!(read(&reader, 0, 4096).unwrap() == data[..4096]);
            let range = b.client.log().iter().find_map(|call| call.range.clone()).unwrap();
            assert_eq!(range.end - range.start, sent as u64);
        }
        assert_eq!(LENGTHS.map(|len| read_whole(open(len))), [1, 2, 2, 1], "two lessons");
        assert_eq!(metrics.first_wasted.get(), 0);
        until("the pool is whole again", || b.pool.used(Use::Ahead) + b.pool.used(Use::Demand) == 0);
    }
}

#[test]
fn opens_of_whole_files_at_once_take_no_more_memory_than_those_of_heads() {
    let b = bench(256 << 20);
    let asker = Asker::new(b.client.arc(), b.pool.clone(), None, Arc::default());
    let known = |n: usize| {
        let (id, _) = b.object(&format!("{n}"), MIB);
        Known { id, size: MIB as u64, is_pinned: true }
    };
    let ask =
        |known: &Known| b.runtime.block_on(asker.ask(&known.id.key, Cause::Open, Some(known))).unwrap().1;
    let firsts: Vec<_> = (2..40).map(|n| ask(&known(n))).collect();
    assert_eq!(firsts.iter().filter(|first| first.has_bytes()).count(), 8);
    assert_eq!(b.pool.used(Use::Ahead), 8 << 20);
    firsts.into_iter().for_each(|first| first.began(&(0..MIB as u64)));
    assert!(ask(&known(40)).has_bytes());
}

#[test]
fn files_opened_and_not_read_bring_eight_wholes_and_then_heads() {
    let b = bench(256 << 20);
    let asker = Asker::new(b.client.arc(), b.pool.clone(), None, Arc::default());
    let open = |n: usize| {
        let (id, _) = b.object(&format!("{n}"), MIB);
        b.client.reset_log();
        let reader = b.prefetcher.open(id.clone(), MIB as u64, first_of(&b, &asker, &id, MIB));
        let range = b.client.log().iter().find_map(|call| call.range.clone()).unwrap();
        (reader, (range.end - range.start) as usize)
    };
    let opened: Vec<_> = (0..10).map(open).collect();
    let lengths: Vec<_> = opened.iter().map(|(_, len)| *len).collect();
    assert_eq!(lengths, [vec![MIB; 8], vec![first::LEN; 2]].concat());
    assert_eq!(read(&opened[0].0, 0, MIB).unwrap().len(), MIB);
    assert_eq!(open(10).1, MIB, "one was read");
}
