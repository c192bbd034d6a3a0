//! Answers that are late, and bodies that stall, after the client has learned the store's speed.

use std::time::Duration;

use std::sync::Arc;

use mountpoint::metrics::Metrics;
use mountpoint::s3::{Config, ErrorKind, ObjectClient as _, S3Client, Timeouts};

use super::server::{EMPTY_LISTING, Scripted, Step, Then};
use super::{Bench, bench_of, config, fill, get_request, pattern, timeouts};

const LEN: usize = 200_000;
/// Requests after which two answers may be late.
const LEARNED: usize = 128;

/// A sound answer to `bytes=from-` of an object of `LEN` bytes.
fn part(from: usize) -> Step {
    let range = format!("bytes {from}-{}/{LEN}", LEN - 1);
    Step::answer(206, &[("etag", "\"v1\""), ("content-range", &range)], &pattern(LEN)[from..])
}

async fn get(bench: &Bench) -> mountpoint::s3::Result<Vec<u8>> {
    let (mut into, bytes) = fill(LEN);
    bench.client.get_object(&get_request(0..LEN as u64, LEN as u64), &mut into).await?;
    Ok(bytes.bytes())
}

/// A client that has learned that the store answers at once. `script`: the steps after that.
async fn learned(script: Vec<Step>) -> Bench {
    let proof = Step::answer(200, &[], EMPTY_LISTING);
    let bench = bench_of(Scripted::still([vec![proof], vec![part(0); LEARNED], script].concat())).await;
    for _ in 0..LEARNED {
        assert_eq!(get(&bench).await.unwrap(), pattern(LEN));
    }
    assert_eq!(bench.metrics.s3_hedges.get(), 0);
    bench
}

/// Requests after the first [`LEARNED`] ones, by connection and range.
fn asked(bench: &Bench) -> Vec<(usize, String)> {
    let asked = bench.asked().split_off(LEARNED);
    assert!(asked.iter().all(|r| r.header("if-match") == Some("\"v1\"")));
    asked.iter().map(|r| (r.connection, r.header("range").unwrap_or("all").to_owned())).collect()
}

#[tokio::test]
async fn a_missing_answer_is_asked_for_again_and_no_try_is_counted() {
    let bench = learned(vec![Step::silence(Then::Hang), part(0)]).await;
    assert_eq!(get(&bench).await.unwrap(), pattern(LEN));
    let asked = asked(&bench);
    assert_eq!(asked.len(), 2);
    assert_eq!(asked[0].1, asked[1].1);
    assert_ne!(asked[0].0, asked[1].0, "on another connection");
    assert_eq!((bench.metrics.s3_hedges.get(), bench.metrics.s3_retries.get()), (1, 0));
}

#[tokio::test]
async fn the_rest_of_a_body_that_stalls_is_asked_for_anew() {
    let bench = learned(vec![part(0).cut(70_000).then(Then::Hang), part(130_000)]).await;
    assert_eq!(get(&bench).await.unwrap(), pattern(LEN));
    assert_eq!(asked(&bench)[1].1, format!("bytes=130000-{}", LEN - 1));
    assert_eq!((bench.metrics.s3_retries.get(), bench.metrics.s3_errors.get()), (0, 0));
}

/// The case: other reads of the mount earn extra requests for as long as they go on.
#[tokio::test]
async fn a_missing_body_is_an_error_after_the_operations_time_despite_hedges() {
    /// Twice the silence that makes a body stall.
    const LIMIT: Duration = Duration::from_secs(1);
    // Enough requests that four may be extra.
    const ANSWERS: usize = 256;
    let head_alone = || part(0).cut(LEN).then(Then::Hang);
    let proof = Step::answer(200, &[], EMPTY_LISTING);
    let script = [vec![proof], vec![part(0); ANSWERS], vec![head_alone(); 5]].concat();
    let server = Scripted::still(script);
    let timeouts = Timeouts { operation: LIMIT, rate_min: 1, ..timeouts() };
    let (config, metrics) = (Config { timeouts, ..config(&server) }, Arc::new(Metrics::default()));
    let client = S3Client::connect(config, server.clock(), Arc::clone(&metrics)).await.unwrap();
    let bench = Bench { client, server, metrics };
    for _ in 0..ANSWERS {
        assert_eq!(get(&bench).await.unwrap(), pattern(LEN));
    }
    let error = get(&bench).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Timeout, "{error}");
    assert!(error.to_string().contains("nothing of the body"), "{error}");
    assert_eq!(bench.asked().len() - ANSWERS, 2, "the first, and one in the time that was left");
}

/// The first answer is late, not lost: a refusal of the second request is none of the first.
#[tokio::test]
async fn a_second_request_that_is_refused_changes_nothing() {
    let late = part(0).overtaken().after(Duration::from_secs(500));
    let bench = learned(vec![late, Step::error(503, "SlowDown")]).await;
    assert_eq!(get(&bench).await.unwrap(), pattern(LEN));
    assert_eq!((asked(&bench).len(), bench.metrics.s3_retries.get()), (2, 0));
}

#[tokio::test]
async fn another_version_is_refused_whichever_answer_brings_it() {
    let other =
        Step::answer(206, &[("etag", "\"v2\""), ("content-range", "bytes 0-199999/200000")], &pattern(LEN));
    let bench = learned(vec![Step::silence(Then::Hang), other]).await;
    assert_eq!(*get(&bench).await.unwrap_err().kind(), ErrorKind::Changed);
}

/// Two in a hundred: then requests wait for their time, like those of a client that knows nothing yet.
#[tokio::test]
async fn a_store_that_is_silent_as_a_whole_is_not_asked_twice_as_much() {
    let late = || part(0).after(Duration::from_secs(500));
    let bench = learned((0..40).map(|_| late()).collect()).await;
    for _ in 0..20 {
        assert_eq!(get(&bench).await.unwrap(), pattern(LEN));
    }
    assert_eq!(bench.metrics.s3_hedges.get(), 2, "of 148 requests");
    assert_eq!(bench.metrics.s3_retries.get(), 0);
}
