//! Tables of one make that are opened without a request: the bytes that are read after the tail come beside it.

use super::*;

const LEN: usize = 3 * MIB;
const COLUMN: usize = MIB;
const COLUMN_LEN: usize = 32_843;
const TAIL_LEN: usize = 128 << 10;

/// A table, opened without a request.
fn table(b: &Bench, name: &str) -> (Reader, Vec<u8>) {
    let (id, data) = b.object(name, LEN);
    b.client.reset_log();
    (b.prefetcher.open(id, LEN as u64, None), data)
}

/// Reads the trailer, and the table of contents before it.
fn tail(reader: &Reader, data: &[u8]) {
    for back in [8, 60_000] {
        assert!(read(reader, (LEN - back) as u64, back).unwrap() == data[LEN - back..]);
    }
}

fn column(reader: &Reader, data: &[u8]) {
    let bytes = read(reader, COLUMN as u64, COLUMN_LEN).unwrap();
    assert!(bytes == data[COLUMN..COLUMN + COLUMN_LEN]);
}

/// Reads tail and column of a table by one handle each.
fn query(b: &Bench, name: &str) {
    let (reader, data) = table(b, name);
    tail(&reader, &data);
    column(&b.prefetcher.open(reader.id().clone(), LEN as u64, None), &data);
    assert_eq!(b.client.calls(Op::GetObject), 2, "{name}");
}

/// Two tables whose columns were read.
fn teach(b: &Bench) {
    ["a.tbl", "b.tbl"].iter().for_each(|name| query(b, name));
}

/// Whether the column is in memory or in flight.
fn is_asked_for(reader: &Reader) -> bool {
    !reader.missing().iter().any(|range| range.contains(&(COLUMN as u64)))
}

#[test]
fn the_column_of_two_tables_is_asked_for_beside_the_tail_of_the_third() {
    // A cache keeps 64 KiB of what it gets.
    for (cached, unit) in [(false, 4096), (true, 64 << 10)] {
        let cache = cached.then(|| Arc::new(MemoryCache::new()) as Arc<dyn BlockCache>);
        let b = bench_with(256 << 20, cache);
        teach(&b);
        let (reader, data) = table(&b, "c.tbl");
        let gate = b.client.hold(FaultPlan::on(Op::GetObject).always());
        let (send, receive) = mpsc::channel();
        reader.read(LEN as u64 - 8, 8, move |result| send.send(result.map(|b| b.to_vec())).unwrap());
        b.runtime.block_on(gate.arrived(2));
        gate.release();
        b.client.clear_faults();
        let bytes = receive.recv_timeout(Duration::from_secs(60)).expect("an answer").unwrap();
        assert_eq!(bytes, data[LEN - 8..]);
        tail(&reader, &data);
        column(&b.prefetcher.open(reader.id().clone(), LEN as u64, None), &data);
        assert_eq!(b.client.calls(Op::GetObject), 2);
        assert_eq!(b.fetched(), (TAIL_LEN + COLUMN_LEN.next_multiple_of(unit)) as u64, "each byte once");
        drop(reader);
        // A program may read both by one handle, too.
        let (reader, data) = table(&b, "d.tbl");
        tail(&reader, &data);
        assert!(is_asked_for(&reader));
        column(&reader, &data);
        assert_eq!(b.client.calls(Op::GetObject), 2);
        drop(reader);
        until("the pool is whole again", || b.pool.used(Use::Ahead) + b.pool.used(Use::Demand) == 0);
    }
}

#[test]
fn one_column_elsewhere_or_two_tables_without_any_end_the_guess() {
    let b = bench(256 << 20);
    teach(&b);
    let (reader, data) = table(&b, "elsewhere.tbl");
    tail(&reader, &data);
    assert!(is_asked_for(&reader));
    assert!(read(&reader, 2 * MIB as u64, 4096).unwrap() == data[2 * MIB..2 * MIB + 4096]);
    let (reader, data) = table(&b, "next.tbl");
    tail(&reader, &data);
    assert!(!is_asked_for(&reader));

    let b = bench(256 << 20);
    teach(&b);
    for n in 0..4 {
        let (reader, data) = table(&b, &format!("{n}.tbl"));
        tail(&reader, &data);
        assert_eq!(is_asked_for(&reader), n < 2, "{n}");
    }
    until("the pool is whole again", || b.pool.used(Use::Ahead) + b.pool.used(Use::Demand) == 0);
}

#[test]
fn without_memory_a_tail_comes_alone() {
    let b = bench(buffer::Config::TARGET_MIN);
    teach(&b);
    let held: Vec<_> = std::iter::from_fn(|| b.pool.try_take(Use::Ahead, MIB)).collect();
    let (reader, data) = table(&b, "c.tbl");
    tail(&reader, &data);
    assert!(!is_asked_for(&reader));
    column(&reader, &data);
    drop(held);
}

#[test]
fn a_table_of_another_ending_or_none_brings_its_tail_alone() {
    let b = bench(256 << 20);
    teach(&b);
    for name in ["c.orc", "c", "tbl"] {
        let (reader, data) = table(&b, name);
        tail(&reader, &data);
        assert!(!is_asked_for(&reader), "{name}");
    }
}

#[test]
fn a_column_of_a_replaced_table_is_an_error_and_never_other_bytes() {
    let b = bench(256 << 20);
    teach(&b);
    let (reader, _) = table(&b, "c.tbl");
    let gate = b.client.hold(FaultPlan::on(Op::GetObject).always());
    let (send, receive) = mpsc::channel();
    reader.read(LEN as u64 - 8, 8, move |result| send.send(result.map(|b| b.to_vec())).unwrap());
    b.runtime.block_on(gate.arrived(2));
    let etag = b.client.insert("c.tbl", vec![7; LEN]);
    gate.release();
    b.client.clear_faults();
    let error = receive.recv_timeout(Duration::from_secs(60)).expect("an answer").unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Changed);
    assert_eq!(*read(&reader, COLUMN as u64, 4096).unwrap_err().kind(), ErrorKind::Changed);
    let newer = b.prefetcher.open(ObjectId { etag, ..reader.id().clone() }, LEN as u64, None);
    assert_eq!(read(&newer, COLUMN as u64, 4096).unwrap(), [7; 4096]);
}

#[test]
fn an_open_that_brought_the_tail_leaves_the_column_to_the_next_open() {
    let b = bench(256 << 20);
    ["a.parquet", "b.parquet"].iter().for_each(|name| query(&b, name));
    let asker = Asker::new(b.client.arc(), b.pool.clone(), None, Arc::default());
    let (id, data) = b.object("c.parquet", LEN);
    let reader = b.prefetcher.open(id.clone(), LEN as u64, first_of(&b, &asker, &id, LEN));
    // More than came with the open, so that the store is asked for the rest.
    assert!(read(&reader, (LEN - 100_000) as u64, 100_000).unwrap() == data[LEN - 100_000..]);
    assert!(!is_asked_for(&reader));
}
