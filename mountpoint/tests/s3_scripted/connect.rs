//! The first seconds: the messages after a wrong flag or address.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use mountpoint::clock::Clock;
use mountpoint::metrics::Metrics;
use mountpoint::object::ObjectKey;
use mountpoint::s3::{
    CompleteUpload, Config, ErrorKind, NewObject, ObjectClient as _, PutObject, Replaces, S3Client, Timeouts,
    UploadId, UploadPart,
};

use super::server::{EMPTY_LISTING, Request, Scripted, Step, Then};
use super::{PATIENCE, bench, config, fill, get_request, http_date, timeouts};

async fn connect(server: &Scripted, config: Config) -> mountpoint::s3::Result<Arc<S3Client>> {
    S3Client::connect(config, server.clock(), Arc::new(Metrics::default())).await
}

#[tokio::test]
async fn a_dead_endpoint_is_an_error_within_seconds() {
    let dead = testkit::DeadPort::reserve();
    let url = format!("http://{}", dead.address());
    let (clock, metrics) = (Clock::manual(), Arc::new(Metrics::default()));
    let config =
        Config { bucket: "b".into(), endpoint_url: Some(url), sign_requests: false, ..Config::default() };
    let connecting = tokio::spawn(S3Client::connect(config, clock.clone(), metrics));
    let started = clock.now();
    while !connecting.is_finished() {
        clock.advance(Duration::from_millis(1));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let error = connecting.await.unwrap().unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Network, "{error}");
    assert!(error.to_string().contains("refused"), "{error}");
    assert!(clock.now() - started < Duration::from_secs(5), "of its own pauses");
}

#[tokio::test]
async fn a_handshake_that_never_ends_is_an_error_after_the_time_for_it() {
    // The server accepts the connection, and sends nothing.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let clock = Clock::manual();
    let config = Config {
        bucket: "b".into(),
        endpoint_url: Some(url),
        sign_requests: false,
        attempts_max: Some(1),
        ..Config::default()
    };
    let most = config.timeouts.connect * 4;
    let connecting = tokio::spawn(S3Client::connect(config, clock.clone(), Arc::new(Metrics::default())));
    let started = clock.now();
    while !connecting.is_finished() {
        assert!(clock.now() - started < most, "it waits for ever");
        clock.advance(Duration::from_millis(20));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let error = connecting.await.unwrap().unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Timeout, "{error}");
    assert!(error.to_string().contains("no handshake within 3 s"), "{error}");
}

#[tokio::test]
async fn a_request_without_a_connection_while_no_byte_moves_is_an_error() {
    const LEN: u64 = 200_000;
    let head = format!(
        "HTTP/1.1 206 X\r\netag: \"v1\"\r\ncontent-range: bytes 0-{}/{LEN}\r\ncontent-length: {LEN}\r\n\r\n1",
        LEN - 1
    );
    let silent = Step::raw(head.into_bytes()).then(Then::Stall);
    let server = Scripted::start(vec![Step::answer(200, &[], EMPTY_LISTING), silent]);
    // The body has days; the one that waits for its connection has a minute.
    let timeouts =
        Timeouts { operation: Duration::from_secs(60), rate_min: 1, stall: PATIENCE * 100, ..timeouts() };
    let config = Config { connections_max: 1, attempts_max: Some(1), timeouts, ..config(&server) };
    let client = connect(&server, config).await.unwrap();
    let holds = Arc::clone(&client);
    let first = tokio::spawn(async move {
        let (mut into, _) = fill(LEN as usize);
        holds.get_object(&get_request(0..LEN, LEN), &mut into).await
    });
    while server.requests().len() < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let (mut into, _) = fill(LEN as usize);
    let error = client.get_object(&get_request(0..LEN, LEN), &mut into).await.unwrap_err();
    assert!(error.to_string().contains("all 1 connections are in use"), "{error}");
    assert!(!first.is_finished());
    first.abort();
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
        let error = connect(&server, config(&server)).await.unwrap_err();
        assert_eq!(*error.kind(), kind, "{error}");
        assert!(error.to_string().contains(code) && !error.to_string().contains("SECRET"), "{error}");
    }
}

#[tokio::test]
async fn no_credentials_is_an_error_of_its_own() {
    let server = Scripted::start(vec![]);
    let config =
        Config { credentials: None, profile: Some("no such profile exists here".into()), ..config(&server) };
    let error = connect(&server, config).await.unwrap_err();
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
    let client = connect(&server, Config { region: None, ..config(&server) }).await.unwrap();
    assert_eq!(client.region(), "eu-west-3");
    assert!(server.requests()[1].header("authorization").unwrap().contains("/eu-west-3/s3/"));
    let server = Scripted::start(vec![elsewhere(), elsewhere()]);
    assert!(connect(&server, Config { region: None, ..config(&server) }).await.is_err());
}

#[tokio::test]
async fn a_region_that_the_user_gave_is_kept_and_the_right_one_named() {
    let server = Scripted::start(vec![elsewhere()]);
    let error = connect(&server, config(&server)).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::WrongRegion(Some("eu-west-3".into())));
    assert!(error.to_string().contains("is in region eu-west-3, not us-east-1"), "{error}");
}

/// The answer to a CreateMultipartUpload.
fn created() -> Step {
    let body = b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>";
    Step::answer(200, &[], body)
}

fn new_object() -> NewObject {
    NewObject::new(ObjectKey::new("k"))
}

#[tokio::test]
async fn a_wrong_clock_is_corrected_by_the_stores() {
    let theirs = SystemTime::now() + Duration::from_secs(7200);
    let date = http_date(theirs);
    let skewed = || {
        let body = b"<Error><Code>RequestTimeTooSkewed</Code></Error>";
        Step::answer(403, &[("date", &date)], body)
    };
    let found = || Step::answer(200, &[("etag", "e"), ("last-modified", &date)], b"");
    let hour = |asked: &[Request], i: usize| asked[i].header("x-amz-date").unwrap()[..11].to_owned();
    let key = ObjectKey::new("k");

    let bench = bench(vec![skewed(), created(), found()]).await;
    bench.client.create_multipart_upload(&new_object()).await.unwrap();
    bench.client.head_object(&key).await.unwrap();
    let asked = bench.asked();
    assert_ne!(hour(&asked, 0), hour(&asked, 1), "the request is signed anew");
    assert_eq!(hour(&asked, 1), hour(&asked, 2), "and the next one by the same clock");
}

/// The case: a HEAD's refusal has no code. The listing that should show whether the key exists is refused for the date too, and has a
/// code.
#[tokio::test]
async fn a_head_refused_for_its_date_is_repeated_once_the_clock_is_known() {
    let date = http_date(SystemTime::now() + Duration::from_secs(7200));
    let skewed = Step::answer(403, &[("date", &date)], b"<Error><Code>RequestTimeTooSkewed</Code></Error>");
    let listed = Step::answer(
        200,
        &[],
        b"<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>k</Key><ETag>e</ETag><Size>0</Size>\
          <LastModified>2015-10-21T07:28:00.000Z</LastModified></Contents></ListBucketResult>",
    );
    let found = Step::answer(200, &[("etag", "e"), ("last-modified", &date)], b"");
    let bench = bench(vec![Step::answer(403, &[], b""), skewed, listed, found]).await;
    bench.client.head_object(&ObjectKey::new("k")).await.unwrap();
    let methods = bench.asked().into_iter().map(|r| r.line.split(' ').next().unwrap().to_owned());
    assert_eq!(methods.collect::<Vec<_>>(), ["HEAD", "GET", "GET", "HEAD"]);
}

#[tokio::test]
async fn a_head_that_is_a_bad_request_is_sent_once_with_the_same_credentials() {
    let bench = bench(vec![Step::answer(400, &[], b""), Step::answer(400, &[], b"")]).await;
    let error = bench.client.head_object(&ObjectKey::new("k")).await.unwrap_err();
    assert_eq!((error.kind(), bench.asked().len()), (&ErrorKind::InvalidRequest, 1));
}

#[tokio::test]
async fn a_store_clock_at_the_last_second_of_9999_causes_no_panic() {
    let last = ("date", "Fri, 31 Dec 9999 23:59:59 GMT");
    let skewed = || Step::answer(403, &[last], b"<Error><Code>RequestTimeTooSkewed</Code></Error>");
    let dated = Step::answer(200, &[("etag", "e"), ("last-modified", last.1)], b"");
    let bench = bench(vec![skewed(), created(), skewed(), skewed(), dated]).await;
    bench.client.create_multipart_upload(&new_object()).await.unwrap();
    let key = ObjectKey::new("k");
    assert_eq!(*bench.client.delete_object(&key).await.unwrap_err().kind(), ErrorKind::Denied);
    bench.client.head_object(&key).await.unwrap();
    assert!(bench.asked().iter().all(|r| r.header("x-amz-date").is_some_and(|d| d.len() == 16)));
}

#[tokio::test]
async fn answers_that_are_no_answer_yet_end_some_time() {
    let informed = |times: usize| b"HTTP/1.1 103 Hints\r\n\r\n".repeat(times);
    let few = |last: &[u8]| Step::raw([informed(3), last.to_vec()].concat());
    let endless = || Step::raw(informed(100_000)).then(Then::Stall);
    let stored = b"HTTP/1.1 200 X\r\netag: e\r\ncontent-length: 0\r\n\r\n";
    let bench = bench(vec![few(b"HTTP/1.1 204 X\r\n\r\n"), endless(), few(stored), endless()]).await;
    let key = ObjectKey::new("k");
    bench.client.delete_object(&key).await.unwrap();
    let of_delete = bench.client.delete_object(&key).await.unwrap_err();
    let put = PutObject { object: new_object(), body: vec![Bytes::from_static(b"1")], checksum: None };
    bench.client.put_object(&put).await.unwrap();
    let of_put = bench.client.put_object(&put).await.unwrap_err();
    for error in [of_delete, of_put] {
        assert_eq!(*error.kind(), ErrorKind::BadAnswer, "{error}");
        assert!(error.to_string().contains("answers with status 1xx"), "{error}");
    }
}

#[tokio::test]
async fn a_refused_head_is_decided_by_a_listing_of_its_key() {
    let listing = |key: &str| {
        let object = format!(
            "<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>\
             <ETag>e</ETag><Size>1</Size></Contents>"
        );
        let page = format!("<ListBucketResult><IsTruncated>false</IsTruncated>{object}</ListBucketResult>");
        Step::answer(200, &[], page.as_bytes())
    };
    let refused = || Step::answer(403, &[], b"");
    let found = [("etag", "\"e\""), ("last-modified", &*http_date(SystemTime::now()))];
    let script = [
        vec![refused(), Step::answer(200, &[], EMPTY_LISTING)],
        vec![refused(), listing("key-longer")],
        // It may be the checksum alone that is refused: under a KMS key it takes more permissions.
        vec![refused(), listing("key"), refused()],
        vec![refused(), Step::error(403, "AccessDenied")],
        vec![refused(), listing("key"), Step::answer(200, &found, b"")],
    ];
    let bench = bench(script.concat()).await;
    let key = ObjectKey::new("key");
    for kind in [ErrorKind::NotFound, ErrorKind::NotFound, ErrorKind::Denied, ErrorKind::Denied] {
        let error = bench.client.head_object(&key).await.unwrap_err();
        assert_eq!(*error.kind(), kind, "{error}");
    }
    let asked = bench.asked();
    assert_eq!(asked[1].line, "GET /bucket?encoding-type=url&list-type=2&max-keys=1&prefix=key HTTP/1.1");
    assert_eq!((asked.len(), bench.metrics.s3_errors.get()), (9, 2));
    assert_eq!(asked[2].header("x-amz-checksum-mode"), Some("ENABLED"));
    bench.client.head_object(&key).await.unwrap();
    let asked = bench.asked();
    assert_eq!((asked.len(), asked[11].header("x-amz-checksum-mode")), (12, None));
}

#[tokio::test]
async fn all_operations_but_an_unrepeatable_one_share_a_connection() {
    let etag = ("etag", "\"p\"");
    let completed =
        b"<CompleteMultipartUploadResult><ETag>&quot;x-1&quot;</ETag></CompleteMultipartUploadResult>";
    let bench = bench(vec![
        created(),
        Step::answer(200, &[etag], b""),
        Step::answer(200, &[], completed),
        Step::answer(200, &[etag, ("last-modified", &http_date(SystemTime::now()))], b""),
        Step::answer(204, &[], b""),
        // The store closes it: the next request opens another one, at no try's cost.
        Step::silence(Then::Close),
        created(),
    ])
    .await;
    let client = &bench.client;
    let upload = client.create_multipart_upload(&new_object()).await.unwrap();
    let part = UploadPart {
        upload: upload.clone(),
        part_number: 1,
        body: vec![Bytes::from_static(b"part")],
        checksum: None,
    };
    let parts = vec![client.upload_part(&part).await.unwrap()];
    let complete = CompleteUpload { upload: upload.clone(), parts, replaces: Replaces::Anything };
    client.complete_multipart_upload(&complete).await.unwrap();
    client.head_object(&ObjectKey::new("k")).await.unwrap();
    client.abort_multipart_upload(&upload).await.unwrap();
    client.create_multipart_upload(&new_object()).await.unwrap();
    let connections: Vec<_> = bench.server.requests().iter().map(|r| r.connection).collect();
    // The proof of the bucket is the first. CompleteMultipartUpload opens one: an idle one's end would look like a lost answer.
    assert_eq!(connections, [0, 0, 0, 1, 1, 1, 1, 2]);
    assert_eq!((bench.metrics.s3_connections.get(), bench.metrics.s3_retries.get()), (3, 0));
}

#[tokio::test]
async fn stale_credentials_are_refreshed_before_they_are_an_error() {
    let server = Scripted::start(vec![
        Step::answer(200, &[], EMPTY_LISTING),
        Step::error(400, "ExpiredToken"),
        Step::answer(204, &[], b""),
    ]);
    // The same credentials come back here, so nothing is gained and the refusal stands.
    let client = connect(&server, config(&server)).await.unwrap();
    let error = client.delete_object(&ObjectKey::new("k")).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Denied);
    assert_eq!(server.left(), 1, "the same credentials are not tried twice");
}

#[tokio::test]
async fn only_the_stores_word_says_that_a_key_is_deleted_or_an_upload_aborted() {
    let page = b"<html><body>no such site</body></html>";
    let word = |code: &str| format!("<Error><Code>{code}</Code></Error>").into_bytes();
    for (status, body, done) in [
        (204, &b""[..], true),
        (200, b"", true),
        (404, &word("NoSuchKey"), true),
        (404, &word("NoSuchUpload"), true),
        (404, page, false),
        (404, b"", false),
        (200, page, false),
        (200, &word("AccessDenied"), false),
        (404, &word("NoSuchBucket"), false),
    ] {
        // No body may follow a 204.
        let step = || match status {
            204 => Step::raw(b"HTTP/1.1 204 X\r\n\r\n".to_vec()),
            status => Step::answer(status, &[], body),
        };
        let bench = bench(vec![step(), step()]).await;
        let key = ObjectKey::new("k");
        let upload = UploadId { key: key.clone(), id: "u".into() };
        let said = String::from_utf8_lossy(body);
        assert_eq!(bench.client.delete_object(&key).await.is_ok(), done, "delete: {status} {said}");
        assert_eq!(
            bench.client.abort_multipart_upload(&upload).await.is_ok(),
            done,
            "abort: {status} {said}"
        );
    }
}

#[tokio::test]
async fn what_is_left_over_behind_an_answer_costs_the_next_request_nothing() {
    // The bytes come behind the second request: earlier ones would be seen by the look at the connection.
    let answer = Step::answer(200, &[("etag", "e")], b"");
    let put = PutObject { object: new_object(), body: vec![Bytes::from_static(b"1")], checksum: None };
    let script = vec![answer.clone(), Step::raw([b"left over", &answer.say[..]].concat()), answer];
    let bench = bench(script).await;
    for _ in 0..2 {
        bench.client.put_object(&put).await.unwrap();
    }
    let puts = bench.asked();
    let connections: Vec<_> = puts.iter().map(|put| put.connection).collect();
    assert_eq!(puts.len(), 3, "{puts:?}");
    assert!(connections[0] == connections[1] && connections[1] != connections[2], "{connections:?}");
}
