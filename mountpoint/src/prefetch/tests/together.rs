//! Reads of one handle that are parts of longer ones.

use super::*;

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
