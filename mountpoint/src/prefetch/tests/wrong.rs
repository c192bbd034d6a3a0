//! Bytes that are not the store's: a bit flips on the way.

use super::*;
use crate::checksum::ChecksumAlgorithm;

fn all(reader: &Reader, len: usize) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    while bytes.len() < len {
        bytes.extend(read(reader, bytes.len() as u64, 128 << 10)?);
    }
    Ok(bytes)
}

fn corrupt(b: &Bench) -> u64 {
    b.prefetcher.0.metrics.read_corrupt.get()
}

#[test]
fn an_answer_with_a_whole_object_is_compared_before_a_byte_is_given() {
    for algorithm in ChecksumAlgorithm::ALL {
        let cache = Arc::new(MemoryCache::new());
        let b = bench_with(128 << 20, Some(Arc::clone(&cache) as _));
        b.client.say_checksums(algorithm);
        let (id, data) = b.object("small", 70_000);
        b.client.inject(FaultPlan::on(Op::GetObject).flip(66_000));
        let reader = b.prefetcher.open(id.clone(), 70_000, None);
        assert_eq!(read(&reader, 0, 4096).unwrap(), data[..4096], "asked for again");
        assert_eq!(all(&reader, 70_000).unwrap(), data);
        assert_eq!((corrupt(&b), b.client.calls(Op::GetObject)), (1, 2));
        drop(reader);

        b.client.inject(FaultPlan::on(Op::GetObject).nth(1).times(2).flip(1));
        cache.drop_version(&id);
        let reader = b.prefetcher.open(id.clone(), 70_000, None);
        let error = read(&reader, 0, 4096).unwrap_err();
        assert!(error.is_corrupt(), "{error}");
        let mut kept = vec![0; 70_000];
        assert!(!cache.read(&id, 70_000, 0..70_000, &mut kept) || kept == data, "no wrong byte is kept");
        assert_eq!(all(&reader, 70_000).unwrap(), data, "a later read asks anew");
        assert_eq!(corrupt(&b), 3);
    }
}

#[test]
fn a_long_object_is_compared_when_its_last_byte_comes() {
    let cache = Arc::new(MemoryCache::new());
    let b = bench_with(128 << 20, Some(Arc::clone(&cache) as _));
    b.client.say_checksums(ChecksumAlgorithm::Crc64Nvme);
    let len = 40 * MIB + 77;
    let (id, data) = b.object("long", len);
    b.client.inject(FaultPlan::on(Op::GetObject).nth(1).flip(9));
    let (reader, other) =
        (b.prefetcher.open(id.clone(), len as u64, None), b.prefetcher.open(id.clone(), len as u64, None));
    let error = all(&reader, len).unwrap_err();
    assert!(error.is_corrupt(), "{error}");
    assert!(read(&other, 5 << 20, 10).unwrap_err().is_corrupt(), "it may have been given wrong bytes");
    until("the cache forgot it", || cache.is_empty());
    assert_eq!(corrupt(&b), 1);
    let again = b.prefetcher.open(id, len as u64, None);
    assert!(all(&again, len).unwrap() == data, "an open after that begins anew");
    assert_eq!(corrupt(&b), 1);
    drop((reader, other, again));
    until("the pool is whole again", || b.pool.used(Use::Ahead) + b.pool.used(Use::Demand) == 0);
}

#[test]
fn a_store_that_says_no_checksum_is_read_as_before() {
    let b = bench(128 << 20);
    let (id, data) = b.object("o", 3 * MIB);
    b.client.inject(FaultPlan::on(Op::GetObject).nth(1).flip(9));
    let reader = b.prefetcher.open(id, 3 << 20, None);
    let read = all(&reader, 3 * MIB).unwrap();
    assert_eq!((0..3 * MIB).filter(|&at| read[at] != data[at]).collect::<Vec<_>>(), [9]);
    assert_eq!(corrupt(&b), 0);
}
