//! Bodies that break, lie or stall.

use mountpoint::s3::{ErrorKind, ListObjects, ObjectClient as _};

use super::server::{Step, Then};
use super::{bench, fill, get_request, pattern};

const LEN: usize = 200_000;

/// A sound answer to `bytes=from-` of an object of `LEN` bytes.
fn part(from: usize) -> Step {
    let range = format!("bytes {from}-{}/{LEN}", LEN - 1);
    Step::answer(206, &[("etag", "\"v1\""), ("content-range", &range)], &pattern(LEN)[from..])
}

async fn breaks_off(first: Step, received: usize) {
    let bench = bench(vec![first, part(received)]).await;
    let (mut into, bytes) = fill(LEN);
    bench.client.get_object(&get_request(0..LEN as u64, LEN as u64), &mut into).await.unwrap();
    assert_eq!(bytes.bytes(), pattern(LEN));
    let asked = bench.asked();
    assert_eq!(asked.len(), 2);
    assert_eq!(asked[0].header("range"), None, "the whole object, whose checksum most stores say only so");
    assert_eq!(asked[0].header("x-amz-checksum-mode"), Some("ENABLED"));
    assert_eq!(asked[1].header("range"), Some(&*format!("bytes={received}-{}", LEN - 1)));
    assert!(asked.iter().all(|r| r.header("if-match") == Some("\"v1\"")));
    assert_eq!(bench.metrics.s3_bytes_received.get(), LEN as u64);
    assert_eq!(bench.metrics.s3_errors.get(), 0);
}

#[tokio::test]
async fn a_truncated_body_goes_on_from_the_first_missing_byte() {
    breaks_off(part(0).cut(70_000).then(Then::Close), 130_000).await;
}

#[tokio::test]
async fn a_reset_body_goes_on_from_the_first_missing_byte() {
    breaks_off(part(0).cut(LEN - 5).then(Then::Reset), 5).await;
}

#[tokio::test]
async fn a_stalled_body_goes_on_from_the_first_missing_byte() {
    breaks_off(part(0).cut(1).then(Then::Stall), LEN - 1).await;
}

#[tokio::test]
async fn an_error_page_of_any_length_is_the_failure_that_its_status_says() {
    let page = vec![b'x'; 70_000];
    let busy = Step::answer(503, &[("content-type", "text/html")], &page);
    let bench = bench(vec![busy, part(0), Step::answer(412, &[], &page), v2_head()]).await;
    let request = get_request(0..LEN as u64, LEN as u64);
    let (mut into, bytes) = fill(LEN);
    bench.client.get_object(&request, &mut into).await.unwrap();
    assert_eq!(bytes.bytes(), pattern(LEN), "it is asked for again");
    let error = bench.client.get_object(&request, &mut fill(LEN).0).await.unwrap_err();
    assert_eq!((error.kind(), bench.asked().len()), (&ErrorKind::Changed, 4));
}

#[tokio::test]
async fn answers_that_are_not_what_was_asked_for_leave_no_byte() {
    let v1 = ("etag", "\"v1\"");
    let body = pattern(10);
    let cases = [
        (
            Step::answer(206, &[("etag", "\"v2\""), ("content-range", "bytes 10-19/100")], &body),
            ErrorKind::Changed,
        ),
        (Step::answer(206, &[v1, ("content-range", "bytes 10-19/101")], &body), ErrorKind::Changed),
        (Step::answer(206, &[v1, ("content-range", "bytes 0-9/100")], &body), ErrorKind::BadAnswer),
        (Step::answer(206, &[("content-range", "bytes 10-19/100")], &body), ErrorKind::BadAnswer),
        (Step::answer(200, &[v1], &pattern(100)), ErrorKind::BadAnswer),
        (Step::error(412, "PreconditionFailed"), ErrorKind::Changed),
        (Step::error(416, "InvalidRange"), ErrorKind::Changed),
        (Step::error(404, "NoSuchKey"), ErrorKind::NotFound),
        (Step::error(403, "InvalidObjectState"), ErrorKind::Archived),
        (Step::error(403, "AccessDenied"), ErrorKind::Denied),
        (Step::answer(307, &[("location", "http://127.0.0.1:1/")], b""), ErrorKind::WrongRegion(None)),
    ];
    let (mut steps, kinds): (Vec<_>, Vec<_>) = cases.into_iter().unzip();
    // After the 412 the object is asked.
    steps.insert(6, v2_head());
    let bench = bench(steps).await;
    for kind in kinds {
        let (mut into, bytes) = fill(10);
        let error = bench.client.get_object(&get_request(10..20, 100), &mut into).await.unwrap_err();
        assert_eq!(*error.kind(), kind, "{error}");
        assert_eq!((into.filled(), bytes.bytes().len()), (0, 0), "{error}");
    }
    assert_eq!(bench.server.left(), 0, "none of these is tried twice");
}

/// The answer to a HEAD of another version than is read.
fn v2_head() -> Step {
    let date = ("last-modified", "Wed, 21 Oct 2015 07:28:00 GMT");
    Step::answer(200, &[("etag", "\"v2\""), date, ("content-length", "7")], b"")
}

#[tokio::test]
async fn a_store_that_refuses_if_match_with_its_own_etag_is_read_without_it() {
    let v1 = ("etag", "\"v1\"");
    let date = ("last-modified", "Wed, 21 Oct 2015 07:28:00 GMT");
    let unchanged = Step::answer(200, &[v1, date, ("content-length", "100")], b"");
    let range = ("content-range", "bytes 10-19/100");
    let part = || Step::answer(206, &[v1, range], &pattern(10));
    let refused = || Step::error(412, "PreconditionFailed");
    let other = Step::answer(206, &[("etag", "\"v2\""), range], &pattern(10));
    let bench = bench(vec![refused(), unchanged, part(), part(), other]).await;
    for _ in 0..2 {
        let (mut into, bytes) = fill(10);
        bench.client.get_object(&get_request(10..20, 100), &mut into).await.unwrap();
        assert_eq!(bytes.bytes(), pattern(10));
    }
    let conditions: Vec<_> = bench.asked().iter().map(|asked| asked.header("if-match").is_some()).collect();
    assert_eq!(conditions, [true, false, false, false], "one GET, a HEAD, and GETs without a condition");
    let error = bench.client.get_object(&get_request(10..20, 100), &mut fill(10).0).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Changed, "the answer's version is compared");
}

#[tokio::test]
async fn a_200_serves_when_the_whole_object_was_asked_for() {
    let bench = bench(vec![Step::answer(200, &[("etag", "\"v1\"")], &pattern(LEN))]).await;
    let (mut into, bytes) = fill(LEN);
    bench.client.get_object(&get_request(0..LEN as u64, LEN as u64), &mut into).await.unwrap();
    assert_eq!(bytes.bytes(), pattern(LEN));
}

/// An answer whose body comes in chunks of this size, without a length.
fn in_chunks(status: u16, headers: &[(&str, &str)], body: &[u8], size: usize) -> Step {
    let mut say = format!("HTTP/1.1 {status} X\r\ntransfer-encoding: chunked\r\n").into_bytes();
    headers.iter().for_each(|(name, value)| say.extend(format!("{name}: {value}\r\n").into_bytes()));
    say.extend(b"\r\n");
    for chunk in body.chunks(size) {
        say.extend([format!("{:x}\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat());
    }
    say.extend(b"0\r\n\r\n");
    Step::raw(say)
}

#[tokio::test]
async fn an_object_in_chunks_of_unknown_length_is_read_and_counted() {
    let (v1, range) = (("etag", "\"v1\""), format!("bytes 0-{}/{LEN}", LEN - 1));
    let whole = |size| in_chunks(200, &[v1], &pattern(LEN), size);
    let part = || in_chunks(206, &[v1, ("content-range", &range)], &pattern(LEN), 1 << 20);
    // The end of the connection ends the body.
    let head = "HTTP/1.1 200 X\r\nconnection: close\r\netag: \"v1\"\r\n\r\n";
    let closed = |len: usize| Step::raw([head.as_bytes(), &pattern(len)].concat()).then(Then::Close);
    let sound = vec![whole(LEN), whole(8192), part(), part(), closed(LEN)];
    let bench = bench([sound.clone(), vec![part()]].concat()).await;
    for _ in 0..=sound.len() {
        let (mut into, bytes) = fill(LEN);
        bench.client.get_object(&get_request(0..LEN as u64, LEN as u64), &mut into).await.unwrap();
        assert_eq!(bytes.bytes(), pattern(LEN));
    }
    let connections: Vec<_> = bench.asked().iter().map(|r| r.connection).collect();
    assert_eq!(connections, [0, 0, 0, 0, 0, 1], "a connection serves on after chunks");
    assert_eq!((bench.metrics.s3_retries.get(), bench.metrics.s3_errors.get()), (0, 0));
}

#[tokio::test]
async fn chunks_of_more_or_other_bytes_than_the_object_has_are_an_error() {
    let v1 = ("etag", "\"v1\"");
    let range = ("content-range", "bytes 0-9/10");
    let kind_of = async |step: Step, rest: Vec<Step>| {
        let bench = bench([vec![step], rest].concat()).await;
        let (mut into, bytes) = fill(10);
        let got = bench.client.get_object(&get_request(0..10, 10), &mut into).await;
        assert_eq!(bench.server.left(), 0);
        (got.map_err(|error| error.kind().clone()), bytes.bytes().len())
    };
    let longer = in_chunks(200, &[v1], &pattern(11), 4);
    assert_eq!(kind_of(longer, vec![]).await, (Err(ErrorKind::Changed), 0));
    let longer = in_chunks(206, &[v1, range], &pattern(11), 4);
    assert_eq!(kind_of(longer, vec![]).await, (Err(ErrorKind::BadAnswer), 0));
    let decompressed = in_chunks(200, &[("etag", "W/\"v1\"")], &pattern(10), 4);
    assert_eq!(kind_of(decompressed, vec![]).await, (Err(ErrorKind::BadAnswer), 0));
    // The rest of a shorter one is asked for.
    let rest = Step::answer(206, &[v1, ("content-range", "bytes 7-9/10")], &pattern(10)[7..]);
    let shorter = in_chunks(200, &[v1], &pattern(7), 4);
    assert_eq!(kind_of(shorter, vec![rest]).await, (Ok(()), 10));
}

#[tokio::test]
async fn a_connection_serves_on_unless_more_came_than_was_announced() {
    let extra = {
        let mut step = part(0);
        step.say.extend_from_slice(b"and more");
        step
    };
    let bench = bench(vec![part(0), extra, part(0)]).await;
    for _ in 0..3 {
        let (mut into, bytes) = fill(LEN);
        bench.client.get_object(&get_request(0..LEN as u64, LEN as u64), &mut into).await.unwrap();
        assert_eq!(bytes.bytes(), pattern(LEN));
    }
    let connections: Vec<_> = bench.asked().iter().map(|r| r.connection).collect();
    assert_eq!(connections, [0, 0, 1]);
    assert_eq!(bench.metrics.s3_retries.get(), 0);
}

#[tokio::test]
async fn an_idle_connection_that_the_store_closed_costs_no_try() {
    let bench = bench(vec![part(0), Step::silence(Then::Close), part(0)]).await;
    for _ in 0..2 {
        let (mut into, _) = fill(LEN);
        bench.client.get_object(&get_request(0..LEN as u64, LEN as u64), &mut into).await.unwrap();
    }
    assert_eq!(bench.server.left(), 0);
    assert_eq!(bench.metrics.s3_retries.get(), 0);
}

#[tokio::test]
async fn a_store_that_is_busy_is_asked_again_and_in_the_end_it_is_an_error() {
    let busy = || Step::error(503, "SlowDown");
    let bench = bench(vec![busy(), part(0), busy(), busy(), busy(), busy()]).await;
    let (mut into, _) = fill(LEN);
    bench.client.get_object(&get_request(0..LEN as u64, LEN as u64), &mut into).await.unwrap();
    let (mut into, _) = fill(LEN);
    let error =
        bench.client.get_object(&get_request(0..LEN as u64, LEN as u64), &mut into).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Throttled);
    assert_eq!(bench.server.left(), 0, "four tries, as configured");
    assert_eq!((bench.metrics.s3_retries.get(), bench.metrics.s3_errors.get()), (4, 1));
}

#[tokio::test]
async fn a_listing_that_a_closed_connection_cuts_is_asked_for_again() {
    let page = |keys: &[&str]| {
        let entries: String =
            keys.iter().map(|key| format!("<Contents><Key>{key}</Key><Size>1</Size></Contents>")).collect();
        format!("<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>")
    };
    let whole = page(&["a", "b"]);
    // Without a length the end of the connection ends the body, wherever that is.
    let until_the_end = |end: usize| {
        let head = "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n";
        Step::raw([head.as_bytes(), &whole.as_bytes()[..end]].concat()).then(Then::Close)
    };
    let cuts = [0, 5, whole.find("<Key>b").unwrap(), whole.len() - 1];
    let mut script: Vec<_> =
        cuts.iter().flat_map(|&at| [until_the_end(at), until_the_end(whole.len())]).collect();
    script.push(
        Step::raw(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n<html>no store</html>".to_vec())
            .then(Then::Close),
    );
    let bench = bench(script).await;
    let request = ListObjects { max_keys: 1000, ..ListObjects::default() };
    for at in cuts {
        let page = bench.client.list_objects(&request).await.unwrap_or_else(|e| panic!("cut at {at}: {e}"));
        assert_eq!(page.objects.len(), 2, "cut at {at}");
    }
    let error = bench.client.list_objects(&request).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::BadAnswer, "a whole document of another kind: {error}");
    assert_eq!(bench.server.left(), 0);
}

#[tokio::test]
async fn a_listing_that_never_ends_ends_with_an_error() {
    let page = b"<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken></ListBucketResult>";
    let bench = bench(vec![Step::answer(200, &[], page), Step::answer(200, &[], page)]).await;
    let mut request = ListObjects { max_keys: 1000, ..ListObjects::default() };
    request.continuation_token = bench.client.list_objects(&request).await.unwrap().next_token;
    let error = bench.client.list_objects(&request).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::BadAnswer, "{error}");
}
