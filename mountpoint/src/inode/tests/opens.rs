//! Opens and stats of one file at once: how many requests they make, and which answers they may use.

use futures_util::future::join_all;

use super::*;
use crate::inode::board::AT_ONCE;
use crate::listing::expiry::PAGE;

/// A file whose lookup is a while ago.
async fn known(ttl: Ttl) -> (Bench, InodeNo) {
    let bench = Bench::new(ttl, &["a"]);
    let a = bench.lookup(ROOT, "a").await.unwrap().ino;
    bench.clock.advance(Duration::from_secs(60));
    bench.client.reset_log();
    (bench, a)
}

fn etag(opened: Result<OpenRead>) -> Result<ETag> {
    match opened? {
        OpenRead::Object { id, .. } => Ok(id.etag),
        OpenRead::Busy { .. } => panic!("nobody writes"),
    }
}

/// Lets all tasks run until they wait.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn sixteen_opens_of_a_file_at_once_are_three_requests() {
    let (bench, a) = known(Ttl::Minimal).await;
    let gate = bench.client.hold(FaultPlan::on(Op::HeadObject).always());
    let opens = join_all((0..16).map(|_| bench.table.open_read(a, false)));
    let ((), opened) = tokio::join!(
        async {
            gate.arrived(AT_ONCE).await;
            settle().await;
            assert_eq!(bench.requests(), AT_ONCE);
            gate.release();
        },
        opens
    );
    assert!(opened.into_iter().all(|opened| etag(opened).is_ok()));
    assert_eq!(bench.requests(), AT_ONCE + 1);
    assert!(bench.table.0.tree.lock().board.is_empty());
    // Opens one after another each ask S3.
    for _ in 0..3 {
        bench.table.open_read(a, false).await.unwrap();
    }
    assert_eq!(bench.requests(), AT_ONCE + 4);
}

#[tokio::test]
async fn an_open_uses_no_answer_to_a_request_that_went_out_before_it_began() {
    let (bench, a) = known(Ttl::Minimal).await;
    let old = bench.client.meta("a").unwrap().etag;
    // The store has read the object, and its answer is in flight.
    let gate = bench.client.hold_answer(FaultPlan::on(Op::HeadObject).times(1));
    let early = tokio::spawn({
        let table = bench.table.clone();
        async move { etag(table.open_read(a, false).await) }
    });
    gate.arrived(1).await;
    bench.client.insert("a", "longer content");
    let late = join_all((0..5).map(|_| bench.table.open_read(a, false))).await;
    for opened in late {
        assert_error!(etag(opened), ErrorKind::Stale);
    }
    gate.release();
    // The answer was true when the open began, and the name has another inode by now.
    match early.await.unwrap() {
        Ok(etag) => assert_eq!(etag, old),
        Err(error) => assert!(matches!(error.kind(), ErrorKind::Stale), "{error}"),
    }
}

#[tokio::test]
async fn where_a_ttl_is_trusted_opens_at_once_are_one_request() {
    let (bench, a) = known(MINUTE).await;
    let gate = bench.client.hold(FaultPlan::on(Op::HeadObject).always());
    let (opened, ()) = tokio::join!(join_all((0..16).map(|_| bench.table.open_read(a, false))), async {
        gate.arrived(1).await;
        gate.release();
    });
    assert!(opened.into_iter().all(|opened| etag(opened).is_ok()));
    assert_eq!(bench.requests(), 1);
}

#[tokio::test]
async fn stats_of_a_file_at_once_are_one_request_and_join_an_open() {
    let (bench, a) = known(Ttl::Minimal).await;
    for opens in [false, true] {
        bench.client.reset_log();
        let gate = bench.client.hold(FaultPlan::on(Op::HeadObject).always());
        let open = async {
            if opens {
                etag(bench.table.open_read(a, false).await).unwrap();
                bench.table.close_read(a);
            }
        };
        let ((), stats, ()) = tokio::join!(open, join_all((0..16).map(|_| bench.table.getattr(a))), async {
            gate.arrived(1).await;
            gate.release();
        });
        assert!(stats.into_iter().all(|stat| stat.unwrap().size == 7));
        assert_eq!(bench.requests(), 1, "{opens}");
        bench.client.clear_faults();
        bench.clock.advance(PAGE);
    }
}

#[tokio::test]
async fn an_open_that_is_killed_leaves_its_request_to_those_that_wait_with_it() {
    let (bench, a) = known(Ttl::Minimal).await;
    let gate = bench.client.hold(FaultPlan::on(Op::HeadObject).always());
    let spawn = || {
        let table = bench.table.clone();
        tokio::spawn(async move { etag(table.open_read(a, false).await) })
    };
    let mut opens: Vec<_> = (0..6).map(|_| spawn()).collect();
    gate.arrived(AT_ONCE).await;
    settle().await;
    // Two opens whose requests are in flight, and the first of the waiting ones.
    for open in opens.drain(..3) {
        open.abort();
        assert!(open.await.unwrap_err().is_cancelled());
    }
    gate.release();
    for open in opens {
        open.await.unwrap().unwrap();
    }
    assert!(bench.table.0.tree.lock().board.is_empty());
}

#[tokio::test]
async fn a_request_that_hangs_holds_up_no_other_open_for_long() {
    let (bench, a) = known(Ttl::Minimal).await;
    let gate = bench.client.hold(FaultPlan::on(Op::HeadObject).times(AT_ONCE));
    let hangs = join_all((0..AT_ONCE).map(|_| bench.table.open_read(a, false)));
    let waits = async {
        gate.arrived(AT_ONCE).await;
        let (opened, ()) = tokio::join!(bench.table.open_read(a, false), async {
            settle().await;
            assert_eq!(bench.requests(), AT_ONCE, "it waits");
            bench.clock.advance(crate::inode::check::WAIT_MAX);
        });
        etag(opened).unwrap();
        gate.release();
    };
    let (hangs, ()) = tokio::join!(hangs, waits);
    assert!(hangs.into_iter().all(|opened| etag(opened).is_ok()));
}

#[tokio::test]
async fn a_failure_fails_every_open_that_waited_for_it_and_the_next_open_asks() {
    let (bench, a) = known(Ttl::Minimal).await;
    let fails = FaultPlan::on(Op::HeadObject).times(AT_ONCE + 1).fail(s3::ErrorKind::ServerError);
    let gate = bench.client.hold(fails);
    let (opened, ()) = tokio::join!(join_all((0..16).map(|_| bench.table.open_read(a, false))), async {
        gate.arrived(AT_ONCE).await;
        gate.release();
    });
    for opened in opened {
        assert_error!(etag(opened), ErrorKind::Remote(_));
    }
    etag(bench.table.open_read(a, false).await).unwrap();
}
