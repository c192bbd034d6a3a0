//! Metadata and first bytes in one request: the bytes that are used, and the cases for a HEAD.

use std::sync::Arc;
use std::time::SystemTime;

use mountpoint::buffer::{BlockMut, Pool, Use};
use mountpoint::checksum::{Checksum, ChecksumAlgorithm};
use mountpoint::object::{ETag, ObjectKey};
use mountpoint::s3::{
    Begin, Config, ErrorKind, First, GetFirst, NewObject, ObjectClient as _, PutObject, Result, S3Client,
};

use super::server::{EMPTY_LISTING, Scripted, Step, Then};
use super::{Bench, bench, config, pattern};

const ROOM: usize = 100;
const V1: (&str, &str) = ("etag", "\"v1\"");
const DATE: (&str, &str) = ("last-modified", "Wed, 21 Oct 2015 07:28:00 GMT");

fn room() -> BlockMut {
    let pool = Pool::new(&mountpoint::buffer::Config { target: 128 << 20, network: 0 });
    pool.try_take(Use::Ahead, ROOM).unwrap()
}

async fn first(bench: &Bench, known: Option<&str>) -> Result<First> {
    let request = GetFirst {
        key: ObjectKey::new("k"),
        etag: known.map(ETag::new),
        begin: Begin::At(0),
        is_whole: false,
        is_lookup: false,
    };
    bench.client.get_first(&request, room()).await
}

/// The beginning of an object of `size` bytes.
fn part(size: usize) -> Step {
    let len = size.min(ROOM);
    let range = format!("bytes 0-{}/{size}", len - 1);
    Step::answer(206, &[V1, DATE, ("content-range", &range)], &pattern(len))
}

/// The tail of an object of 1000 bytes: the bytes from 950 on.
async fn tail(bench: &Bench) -> Result<First> {
    let etag = Some(ETag::new("\"v1\""));
    let request = of("k", etag, Begin::At(950), false);
    bench.client.get_first(&request, room()).await
}

fn of(key: &str, etag: Option<ETag>, begin: Begin, is_lookup: bool) -> GetFirst {
    GetFirst { key: ObjectKey::new(key), etag, begin, is_whole: false, is_lookup }
}

/// The last bytes of an object whose size is unknown.
async fn last(bench: &Bench) -> Result<First> {
    last_of(bench, "k").await
}

async fn last_of(bench: &Bench, key: &str) -> Result<First> {
    let request = of(key, None, Begin::Tail, true);
    bench.client.get_first(&request, room()).await
}

/// The last bytes of an object of 1000 bytes.
fn last_bytes() -> Step {
    Step::answer(206, &[V1, DATE, ("content-range", "bytes 900-999/1000")], &pattern(1000)[900..])
}

fn bytes(first: &First) -> Option<&[u8]> {
    first.bytes.as_ref().map(|(_, bytes)| &bytes[..])
}

fn head(size: usize) -> Step {
    Step::answer(200, &[V1, DATE, ("content-length", &size.to_string())], b"")
}

fn lines(bench: &Bench) -> Vec<String> {
    bench.asked().into_iter().map(|request| request.line.split(' ').next().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn metadata_and_first_bytes_are_one_get_with_a_range_or_if_match() {
    let bench = bench(vec![part(1000), part(7)]).await;
    let found = first(&bench, None).await.unwrap();
    assert_eq!((found.meta.size, found.meta.etag.as_str()), (1000, "\"v1\""));
    assert_eq!(bytes(&found), Some(&pattern(ROOM)[..]));
    let found = first(&bench, Some("\"v1\"")).await.unwrap();
    assert_eq!((found.meta.size, bytes(&found)), (7, Some(&pattern(7)[..])));
    let asked = bench.asked();
    assert_eq!(lines(&bench), ["GET", "GET"]);
    assert!(asked.iter().all(|request| request.header("range") == Some("bytes=0-99")));
    assert_eq!(asked[0].header("if-match"), None);
    assert_eq!(asked[1].header("if-match"), Some("\"v1\""));
    assert_eq!(bench.metrics.s3_bytes_received.get(), 107);
}

#[tokio::test]
async fn a_head_decides_where_a_get_is_refused_or_says_too_little() {
    let odd = [
        (Step::error(416, "InvalidRange"), 0),
        (Step::error(403, "InvalidObjectState"), 50),
        (Step::error(403, "AccessDenied"), 50),
        (Step::error(501, "NotImplemented"), 50),
        // The store ignores ranges.
        (Step::answer(200, &[V1, DATE], &pattern(1000)), 1000),
        // For another range, without a size.
        (Step::answer(206, &[V1, DATE, ("content-range", "bytes 1-7/8")], &pattern(7)), 8),
        (Step::answer(206, &[V1, DATE, ("content-range", "bytes 0-6/*")], &pattern(7)), 7),
    ];
    let cases = odd.len();
    let bench = bench(odd.iter().flat_map(|(step, size)| [step.clone(), head(*size)]).collect()).await;
    for (step, size) in odd {
        let found = first(&bench, None).await.unwrap();
        let said = String::from_utf8_lossy(&step.say).into_owned();
        assert_eq!((found.meta.size, found.bytes.is_none()), (size as u64, true), "{said}");
    }
    assert_eq!(lines(&bench), ["GET", "HEAD"].repeat(cases), "never more than these two");
    assert_eq!(bench.metrics.s3_errors.get(), 0, "none of these failed");
}

#[tokio::test]
async fn a_tail_is_taken_as_it_was_asked_for_and_else_a_head_decides() {
    let answer = |range: &str, len: usize| {
        Step::answer(206, &[V1, DATE, ("content-range", range)], &pattern(1000)[1000 - len..])
    };
    let odd = [
        // The store ignores ranges: no byte of the answer counts as the tail.
        Step::answer(200, &[V1, DATE], &pattern(1000)),
        // The object became shorter than that.
        Step::error(416, "InvalidRange"),
        answer("bytes 940-999/1000", 60),
        answer("bytes 950-998/1000", 49),
        answer("bytes 950-999/*", 50),
    ];
    let cases = odd.len();
    let mut steps = vec![answer("bytes 950-999/1000", 50)];
    steps.extend(odd.into_iter().flat_map(|step| [step, head(1000)]));
    let bench = bench(steps).await;
    let found = tail(&bench).await.unwrap();
    assert_eq!((found.meta.size, bytes(&found)), (1000, Some(&pattern(1000)[950..])));
    let asked = bench.asked();
    assert_eq!(asked[0].header("range"), Some("bytes=950-1049"));
    assert_eq!(asked[0].header("if-match"), Some("\"v1\""), "never of two versions");
    for case in 0..cases {
        let found = tail(&bench).await.unwrap();
        assert_eq!((found.meta.size, found.bytes.is_none()), (1000, true), "{case}");
    }
    assert_eq!(lines(&bench)[1..], ["GET", "HEAD"].repeat(cases));
}

#[tokio::test]
async fn the_tail_of_an_unknown_size_is_one_get_with_a_suffix_range() {
    let answer = |range: &str, from: usize, to: usize| {
        Step::answer(206, &[V1, DATE, ("content-range", range)], &pattern(1000)[from..to])
    };
    let whole =
        |size: usize| Step::answer(200, &[V1, DATE, ("content-length", &size.to_string())], &pattern(size));
    let steps = vec![answer("bytes 900-999/1000", 900, 1000), answer("bytes 0-6/7", 0, 7), whole(ROOM)];
    let bench = bench(steps).await;
    for (size, from) in [(1000, 900), (7, 0), (ROOM, 0)] {
        let found = last(&bench).await.unwrap();
        assert_eq!((found.meta.size, found.meta.etag.as_str()), (size as u64, "\"v1\""));
        let (at, bytes) = found.bytes.unwrap();
        assert_eq!((at, &bytes[..]), (from as u64, &pattern(size)[from..]), "{size}");
    }
    assert_eq!(lines(&bench), ["GET", "GET", "GET"]);
    assert!(bench.asked().iter().all(|request| request.header("range") == Some("bytes=-100")));
}

#[tokio::test]
async fn a_whole_object_in_place_of_its_tail_is_cut_off_and_not_asked_for_again() {
    const SIZE: usize = 64 << 20;
    let announced = Step::answer(200, &[V1, DATE, ("content-length", &SIZE.to_string())], &pattern(5000));
    let bench = bench(vec![announced.then(Then::Stall), head(1000)]).await;
    let found = last(&bench).await.unwrap();
    assert_eq!((found.meta.size, found.meta.etag.as_str()), (SIZE as u64, "\"v1\""), "its head says it");
    assert!(found.bytes.is_none() && bench.metrics.s3_bytes_received.get() < 6000);
    let found = last(&bench).await.unwrap();
    assert_eq!((found.meta.size, found.bytes.is_none()), (1000, true));
    assert_eq!(lines(&bench), ["GET", "HEAD"]);
}

#[tokio::test]
async fn a_store_that_refuses_a_suffix_range_is_asked_for_none_again() {
    let answer = |range: &str, len: usize| {
        Step::answer(206, &[V1, DATE, ("content-range", range)], &pattern(1000)[1000 - len..])
    };
    for odd in [
        Step::error(416, "InvalidRange"),
        Step::error(501, "NotImplemented"),
        Step::error(400, "InvalidArgument"),
        Step::error(400, "InvalidRange"),
        // The store takes `-100` for the first bytes, or for other last ones, or does not say of how many bytes.
        Step::answer(206, &[V1, DATE, ("content-range", "bytes 0-99/1000")], &pattern(100)),
        answer("bytes 901-999/1000", 99),
        answer("bytes 900-999/*", 100),
        Step::answer(206, &[V1, DATE], &pattern(100)),
    ] {
        let said = String::from_utf8_lossy(&odd.say).into_owned();
        let bench = bench(vec![odd, head(1000), head(1000)]).await;
        for _ in 0..2 {
            let found = last(&bench).await.unwrap();
            assert_eq!((found.meta.size, found.bytes.is_none()), (1000, true), "{said}");
        }
        assert_eq!(lines(&bench), ["GET", "HEAD", "HEAD"], "{said}");
        assert_eq!(bench.metrics.s3_errors.get(), 0, "none of these failed: {said}");
    }
}

#[tokio::test]
async fn an_object_without_a_tail_says_nothing_of_the_next() {
    let tail = Step::answer(206, &[V1, DATE, ("content-range", "bytes 0-6/7")], &pattern(7));
    let steps = [
        // Empty, in an archive, and not there.
        Step::error(416, "InvalidRange"),
        head(0),
        tail.clone(),
        Step::error(403, "InvalidObjectState"),
        head(50),
        tail.clone(),
        Step::error(404, "NoSuchKey"),
        tail,
    ];
    let bench = bench(steps.to_vec()).await;
    for (size, has_bytes) in [(0, false), (7, true), (50, false), (7, true)] {
        let found = last(&bench).await.unwrap();
        assert_eq!((found.meta.size, found.bytes.is_some()), (size, has_bytes));
    }
    assert_eq!(*last(&bench).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert!(last(&bench).await.unwrap().bytes.is_some());
    assert_eq!(lines(&bench), ["GET", "HEAD", "GET", "GET", "HEAD", "GET", "GET", "GET"]);
}

#[tokio::test]
async fn an_object_whose_bytes_fail_is_looked_up_by_head_at_once() {
    let closed = Step::silence(Then::Close);
    for failed in [
        vec![Step::error(500, "InternalError")],
        vec![Step::error(503, "SlowDown")],
        // A connection that was idle is replaced once first.
        vec![closed.clone(), closed],
        vec![Step::silence(Then::Stall)],
    ] {
        let gets = failed.len();
        let bench = bench([failed, vec![head(1000), last_bytes()]].concat()).await;
        let found = last(&bench).await.unwrap();
        assert_eq!((found.meta.size, found.bytes.is_none()), (1000, true));
        let found = last(&bench).await.unwrap();
        assert_eq!(found.bytes.map(|(at, bytes)| (at, bytes.len())), Some((900, 100)), "the next is asked");
        assert_eq!(lines(&bench), [vec!["GET"; gets], vec!["HEAD", "GET"]].concat());
        assert_eq!(bench.metrics.s3_errors.get(), 0, "the look-up did not fail");
    }
}

/// A look-up asks for the tail of a file whose size is known, too.
#[tokio::test]
async fn a_look_up_of_a_known_size_whose_bytes_fail_is_by_head_at_once() {
    for failed in [Step::error(503, "SlowDown"), Step::silence(Then::Stall)] {
        let bench = bench(vec![failed, head(1000)]).await;
        let request = of("k", None, Begin::At(950), true);
        let found = bench.client.get_first(&request, room()).await.unwrap();
        assert_eq!((found.meta.size, found.bytes.is_none()), (1000, true));
        assert_eq!(lines(&bench), ["GET", "HEAD"]);
        assert_eq!(bench.metrics.s3_errors.get(), 0, "the look-up did not fail");
    }
}

#[tokio::test]
async fn a_refusal_that_is_about_one_object_leaves_the_tails_of_others() {
    let empty = "<Error><Code>InvalidRange</Code></Error>";
    for refused in [
        // It was empty, and has bytes by the time of the HEAD.
        Step::answer(416, &[("content-range", "bytes */0")], empty.as_bytes()),
        Step::error(400, "InvalidRequest"),
        Step::error(400, "KMS.DisabledException"),
        Step::error(403, "AccessDenied"),
    ] {
        let said = String::from_utf8_lossy(&refused.say).into_owned();
        let bench = bench(vec![refused, head(1000), last_bytes()]).await;
        let found = last(&bench).await.unwrap();
        assert_eq!((found.meta.size, found.bytes.is_none()), (1000, true), "{said}");
        assert!(last_of(&bench, "other").await.unwrap().bytes.is_some(), "{said}");
        assert_eq!(lines(&bench), ["GET", "HEAD", "GET"], "{said}");
        assert_eq!(bench.metrics.s3_errors.get(), 0, "none of these failed: {said}");
    }
}

#[tokio::test]
async fn the_second_key_whose_tail_is_denied_ends_such_requests() {
    let denied = || [Step::error(403, "AccessDenied"), head(1000)];
    let bench = bench([denied(), denied(), denied(), [head(1000), head(1000)]].concat()).await;
    // Some stores deny what is missing: each such look-up would cost a request more.
    for key in ["k", "k", "j", "i", "k"] {
        let found = last_of(&bench, key).await.unwrap();
        assert_eq!((found.meta.size, found.bytes.is_none()), (1000, true), "{key}");
    }
    assert_eq!(lines(&bench), ["GET", "HEAD", "GET", "HEAD", "GET", "HEAD", "HEAD", "HEAD"]);
}

#[tokio::test]
async fn another_version_is_changed_and_a_missing_one_not_found() {
    let v2 = ("etag", "\"v2\"");
    let bench = bench(vec![
        Step::error(412, "PreconditionFailed"),
        Step::answer(200, &[v2, DATE, ("content-length", "7")], b""),
        // Stores that ignore If-Match.
        Step::answer(206, &[v2, DATE, ("content-range", "bytes 0-6/7")], &pattern(7)),
        Step::error(416, "InvalidRange"),
        Step::answer(200, &[v2, DATE, ("content-length", "0")], b""),
        Step::error(404, "NoSuchKey"),
    ])
    .await;
    for kind in [ErrorKind::Changed, ErrorKind::Changed, ErrorKind::Changed, ErrorKind::NotFound] {
        let error = first(&bench, Some("\"v1\"")).await.unwrap_err();
        assert_eq!(*error.kind(), kind, "{error}");
    }
    assert_eq!(lines(&bench), ["GET", "HEAD", "GET", "GET", "HEAD", "GET"]);
}

#[tokio::test]
async fn first_bytes_without_an_etag_are_taken_and_a_missing_date_is_listed() {
    let page = "<ListBucketResult><Contents><Key>k</Key><Size>7</Size><LastModified>2015-10-21T07:28:00Z</LastModified></Contents></ListBucketResult>";
    let part = ("content-range", "bytes 0-6/7");
    let bench = bench(vec![
        Step::answer(206, &[DATE, part], &pattern(7)),
        Step::answer(206, &[V1, part], &pattern(7)),
        Step::answer(200, &[], page.as_bytes()),
    ])
    .await;
    let found = first(&bench, None).await.unwrap();
    assert!(found.meta.etag.is_none() && found.bytes.is_some());
    let dated = first(&bench, None).await.unwrap();
    assert_eq!((dated.meta.etag.as_str(), dated.meta.last_modified), ("\"v1\"", found.meta.last_modified));
    assert_eq!(lines(&bench), ["GET", "GET", "GET"], "the last one lists");
}

#[tokio::test]
async fn a_missing_date_is_listed_on_the_connection_of_the_bytes() {
    let page = "<ListBucketResult><Contents><Key>k</Key><Size>7</Size><LastModified>2015-10-21T07:28:00Z</LastModified></Contents></ListBucketResult>";
    let server = Scripted::start(vec![
        Step::answer(200, &[], EMPTY_LISTING),
        Step::answer(206, &[V1, ("content-range", "bytes 0-6/7")], &pattern(7)),
        Step::answer(200, &[], page.as_bytes()),
    ]);
    // A listing that needs another connection than the only one would wait for its own request.
    let config = Config { connections_max: 1, ..config(&server) };
    let client = S3Client::connect(config, server.clock(), Arc::default()).await.unwrap();
    let found = client.get_first(&of("k", None, Begin::At(0), false), room()).await.unwrap();
    let second = found.meta.last_modified.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    assert_eq!((second, bytes(&found)), (1_445_412_480, Some(&pattern(7)[..])));
    let connections: Vec<_> = server.requests().iter().map(|request| request.connection).collect();
    assert_eq!(connections, [0, 0, 0]);
}

#[tokio::test]
async fn a_whole_object_without_a_length_is_asked_for_by_a_range_from_then_on() {
    let chunked =
        b"HTTP/1.1 200 X\r\ntransfer-encoding: chunked\r\netag: \"v1\"\r\n\r\n7\r\n1234567\r\n0\r\n\r\n";
    let bench = bench(vec![Step::raw(chunked.to_vec()), head(7), part(7)]).await;
    let whole = GetFirst { is_whole: true, ..of("k", None, Begin::At(0), false) };
    for bytes_come in [false, true] {
        let found = bench.client.get_first(&whole, room()).await.unwrap();
        assert_eq!((found.meta.size, found.bytes.is_some()), (7, bytes_come));
    }
    assert_eq!(lines(&bench), ["GET", "HEAD", "GET"]);
    let ranges: Vec<_> = bench.asked().iter().map(|asked| asked.header("range").is_some()).collect();
    assert_eq!(ranges, [false, false, true]);
}

/// A store that gives all objects one ETag, and no checksums.
#[tokio::test]
async fn a_file_stored_here_is_read_after_others_replace_it_under_its_etag() {
    let same = ("etag", "\"same\"");
    let part = |date, bytes: &[u8]| {
        let range = format!("bytes 0-{}/{}", bytes.len() - 1, bytes.len());
        Step::answer(206, &[same, ("last-modified", date), ("content-range", &range)], bytes)
    };
    let stored = Step::answer(200, &[same, ("date", "Wed, 21 Oct 2015 07:28:00 GMT")], b"");
    let (then, later) = ("Wed, 21 Oct 2015 07:28:00 GMT", "Wed, 21 Oct 2015 07:30:00 GMT");
    let bench = bench(vec![
        stored,
        part(then, b"longer than what was stored"),
        part(later, b"another"),
        part(then, b"written"),
        part(then, b"flipped"),
    ])
    .await;
    let checksum = Some(Checksum::of(ChecksumAlgorithm::Crc32c, b"written"));
    let put = PutObject { object: NewObject::new("k"), body: vec!["written".into()], checksum };
    bench.client.put_object(&put).await.unwrap();
    for found in ["longer than what was stored", "another", "written"] {
        assert_eq!(bytes(&first(&bench, None).await.unwrap()), Some(found.as_bytes()));
    }
    assert_eq!(
        bytes(&first(&bench, None).await.unwrap()),
        None,
        "wrong bytes of the version that was stored"
    );
    assert_eq!(bench.metrics.read_corrupt.get(), 1);
}

#[tokio::test]
async fn a_body_that_breaks_off_leaves_the_metadata_and_no_bytes() {
    for then in [Then::Close, Then::Reset, Then::Stall] {
        let bench = bench(vec![part(1000).cut(1).then(then)]).await;
        let found = first(&bench, None).await.unwrap();
        assert_eq!((found.meta.size, found.bytes.is_none()), (1000, true), "{then:?}");
        assert_eq!(lines(&bench), ["GET"], "{then:?}");
    }
}

#[tokio::test]
async fn first_bytes_refused_for_their_date_are_asked_again_by_the_stores_clock() {
    let body = b"<Error><Code>RequestTimeTooSkewed</Code></Error>";
    let bench =
        bench(vec![Step::answer(403, &[("date", "Wed, 21 Oct 2037 07:28:00 GMT")], body), part(1000)]).await;
    assert_eq!(bytes(&first(&bench, None).await.unwrap()), Some(&pattern(ROOM)[..]));
    assert_eq!(lines(&bench), ["GET", "GET"], "no HEAD, whose refusal would name nothing");
}

#[tokio::test]
async fn a_store_that_fails_is_asked_again_for_the_first_bytes() {
    let bench = bench(vec![Step::error(503, "SlowDown"), Step::silence(Then::Close), part(1000)]).await;
    let found = first(&bench, None).await.unwrap();
    assert_eq!(bytes(&found), Some(&pattern(ROOM)[..]));
    assert_eq!(lines(&bench), ["GET", "GET", "GET"]);
}
