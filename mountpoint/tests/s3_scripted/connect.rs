//! The first seconds: what a user sees who gave something wrong.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use mountpoint::clock::Clock;
use mountpoint::metrics::Metrics;
use mountpoint::object::ObjectKey;
use mountpoint::s3::{Config, ErrorKind, ObjectClient as _, S3Client};

use super::server::{EMPTY_LISTING, Scripted, Step};
use super::{bench, config, http_date};

async fn connect(config: Config) -> mountpoint::s3::Result<Arc<S3Client>> {
    S3Client::connect(config, Clock::machine(), Arc::new(Metrics::default())).await
}

#[tokio::test]
async fn a_dead_endpoint_is_an_error_within_seconds() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let started = Instant::now();
    let config =
        Config { bucket: "b".into(), endpoint_url: Some(url), sign_requests: false, ..Config::default() };
    let error = connect(config).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Network, "{error}");
    assert!(error.to_string().contains("refused"), "{error}");
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn the_stores_refusal_says_what_is_wrong() {
    for (status, code, kind) in [
        (404, "NoSuchBucket", ErrorKind::NoSuchBucket),
        (403, "AccessDenied", ErrorKind::Denied),
        (403, "InvalidAccessKeyId", ErrorKind::Denied),
        (403, "SignatureDoesNotMatch", ErrorKind::Denied),
    ] {
        let server = Scripted::start(vec![Step::error(status, code)]);
        let error = connect(config(&server)).await.unwrap_err();
        assert_eq!(*error.kind(), kind, "{error}");
        assert!(error.to_string().contains(code) && !error.to_string().contains("SECRET"), "{error}");
    }
}

#[tokio::test]
async fn no_credentials_is_an_error_of_its_own() {
    let server = Scripted::start(vec![]);
    let config =
        Config { credentials: None, profile: Some("no such profile exists here".into()), ..config(&server) };
    let error = connect(config).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::NoCredentials, "{error}");
    assert!(server.requests().is_empty());
}

fn elsewhere() -> Step {
    Step::answer(
        301,
        &[("x-amz-bucket-region", "eu-west-3")],
        b"<Error><Code>PermanentRedirect</Code></Error>",
    )
}

#[tokio::test]
async fn a_region_that_nobody_gave_follows_the_bucket_once() {
    let server = Scripted::start(vec![elsewhere(), Step::answer(200, &[], EMPTY_LISTING)]);
    let client = connect(Config { region: None, ..config(&server) }).await.unwrap();
    assert_eq!(client.region(), "eu-west-3");
    assert!(server.requests()[1].header("authorization").unwrap().contains("/eu-west-3/s3/"));
    let server = Scripted::start(vec![elsewhere(), elsewhere()]);
    assert!(connect(Config { region: None, ..config(&server) }).await.is_err());
}

#[tokio::test]
async fn a_region_that_the_user_gave_is_kept_and_the_right_one_named() {
    let server = Scripted::start(vec![elsewhere()]);
    let error = connect(config(&server)).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::WrongRegion(Some("eu-west-3".into())));
    assert!(error.to_string().contains("is in region eu-west-3, not us-east-1"), "{error}");
}

#[tokio::test]
async fn a_wrong_clock_is_corrected_by_the_stores() {
    let theirs = SystemTime::now() + Duration::from_secs(7200);
    let date = http_date(theirs);
    let body = b"<Error><Code>RequestTimeTooSkewed</Code></Error>";
    let bench = bench(vec![
        Step::answer(403, &[("date", &date)], body),
        Step::answer(204, &[], b""),
        Step::answer(200, &[("etag", "e"), ("last-modified", &date)], b""),
    ])
    .await;
    let key = ObjectKey::new("k");
    bench.client.delete_object(&key).await.unwrap();
    bench.client.head_object(&key).await.unwrap();
    let asked = bench.asked();
    let hour = |i: usize| asked[i].header("x-amz-date").unwrap()[..11].to_owned();
    assert_ne!(hour(0), hour(1), "the SDK's request is signed anew");
    assert_eq!(hour(1), hour(2), "and ours by the same clock");
}

#[tokio::test]
async fn stale_credentials_are_refreshed_before_they_are_an_error() {
    let server = Scripted::start(vec![
        Step::answer(200, &[], EMPTY_LISTING),
        Step::error(400, "ExpiredToken"),
        Step::answer(204, &[], b""),
    ]);
    // The same credentials come back here, so nothing is gained and the refusal stands.
    let client = connect(config(&server)).await.unwrap();
    let error = client.delete_object(&ObjectKey::new("k")).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Denied);
    assert_eq!(server.left(), 1, "the same credentials are not tried twice");
}
