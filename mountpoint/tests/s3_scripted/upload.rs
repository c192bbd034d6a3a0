//! Uploads: the bytes sent, and the meaning of a lost answer.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use bytes::Bytes;
use md5::{Digest as _, Md5};
use mountpoint::checksum::{Checksum, ChecksumAlgorithm};
use mountpoint::object::{ETag, ObjectKey};
use mountpoint::s3::{
    CompleteUpload, Config, ErrorKind, NewObject, ObjectClient as _, PutObject, Replaces, S3Client, UploadId,
    UploadPart, UploadedPart,
};

use super::server::{EMPTY_LISTING, Request, Scripted, Step, Then};
use super::{PATIENCE, bench, config, pattern};

const DATE: (&str, &str) = ("last-modified", "Wed, 21 Oct 2015 07:28:00 GMT");

fn replaces(only_if_absent: bool) -> Replaces {
    if only_if_absent { Replaces::Nothing } else { Replaces::Anything }
}

fn new_object(only_if_absent: bool) -> NewObject {
    NewObject {
        replaces: replaces(only_if_absent),
        checksum: Some(ChecksumAlgorithm::Crc32c),
        ..NewObject::new("dir/k ü")
    }
}

fn put(only_if_absent: bool) -> (PutObject, Vec<u8>) {
    let data = pattern(3_000_000);
    let body = vec![Bytes::copy_from_slice(&data[..1_000_000]), Bytes::copy_from_slice(&data[1_000_000..])];
    let checksum = Some(Checksum::of(ChecksumAlgorithm::Crc32c, &data));
    (PutObject { object: new_object(only_if_absent), body, checksum }, data)
}

fn upload() -> UploadId {
    UploadId { key: ObjectKey::new("k"), id: "u/1".into() }
}

fn parts() -> Vec<UploadedPart> {
    [b"aa", b"bb"]
        .iter()
        .zip(1..)
        .map(|(bytes, part_number)| UploadedPart {
            part_number,
            etag: ETag::new("\"p\""),
            size: 2,
            checksum: Some(Checksum::of(ChecksumAlgorithm::Crc32c, *bytes)),
        })
        .collect()
}

fn composite() -> String {
    let sums: Vec<_> = parts().iter().filter_map(|p| p.checksum).collect();
    Checksum::composite(&sums)
}

fn complete(only_if_absent: bool) -> CompleteUpload {
    CompleteUpload { upload: upload(), parts: parts(), replaces: replaces(only_if_absent) }
}

fn completed() -> Step {
    Step::answer(
        200,
        &[],
        b"<CompleteMultipartUploadResult><ETag>&quot;x-2&quot;</ETag></CompleteMultipartUploadResult>",
    )
}

/// A HEAD's answer about an object of 4 bytes in two parts.
fn head(checksum: Option<&str>) -> Step {
    let mut headers = vec![DATE, ("etag", "\"x-2\""), ("content-length", "4")];
    headers.extend(checksum.map(|c| ("x-amz-checksum-crc32c", c)));
    Step::answer(200, &headers, b"")
}

#[tokio::test]
async fn a_put_is_one_plain_body_with_its_checksum_signed() {
    let (request, data) = put(true);
    let sum = request.checksum.unwrap().to_base64();
    let bench = bench(vec![
        Step::answer(200, &[("etag", "\"e\""), ("x-amz-checksum-crc32c", &sum)], b""),
        Step::answer(200, &[("etag", "\"p\"")], b""),
    ])
    .await;
    let stored = bench.client.put_object(&request).await.unwrap();
    assert_eq!((stored.etag.as_str(), stored.checksum.as_deref()), ("\"e\"", Some(&*sum)));
    let part = UploadPart {
        upload: upload(),
        part_number: 7,
        body: request.body.clone(),
        checksum: request.checksum,
    };
    let part = bench.client.upload_part(&part).await.unwrap();
    assert_eq!((part.part_number, part.size, part.etag.as_str()), (7, 3_000_000, "\"p\""));
    let asked = bench.asked();
    assert_eq!(asked[0].line, "PUT /bucket/dir/k%20%C3%BC HTTP/1.1");
    assert_eq!(asked[1].line, "PUT /bucket/k?partNumber=7&uploadId=u%2F1 HTTP/1.1");
    for request in &asked {
        assert_eq!(request.body, data);
        assert_eq!(request.header("x-amz-content-sha256"), Some("UNSIGNED-PAYLOAD"));
        assert_eq!(request.header("x-amz-checksum-crc32c"), Some(&*sum));
        assert_eq!(request.header("x-amz-sdk-checksum-algorithm"), Some("CRC32C"));
        assert_eq!(request.header("transfer-encoding"), None);
        assert_eq!(request.header("content-encoding"), None);
        assert!(request.header("authorization").unwrap().contains(";x-amz-checksum-crc32c;"));
    }
    assert_eq!(asked[0].header("if-none-match"), Some("*"));
    assert_eq!(asked[0].header("content-type"), Some("binary/octet-stream"));
    assert_eq!(bench.metrics.s3_bytes_sent.get(), 6_000_000);
}

#[tokio::test]
async fn empty_requests_announce_a_length_only_where_one_belongs() {
    let created = b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>";
    let bench = bench(vec![
        Step::answer(200, &[("etag", "e"), DATE, ("content-length", "5")], b""),
        Step::answer(204, &[], b""),
        Step::answer(200, &[], created),
        Step::answer(200, &[("etag", "e")], b""),
    ])
    .await;
    let key = ObjectKey::new("k");
    assert_eq!(bench.client.head_object(&key).await.unwrap().size, 5);
    bench.client.delete_object(&key).await.unwrap();
    assert_eq!(bench.client.create_multipart_upload(&new_object(false)).await.unwrap().id, "u");
    let empty = PutObject { object: new_object(false), body: vec![], checksum: None };
    bench.client.put_object(&empty).await.unwrap();
    let lengths: Vec<_> =
        bench.asked().iter().map(|r| (method(r), r.header("content-length").map(str::to_owned))).collect();
    let zero = || Some("0".to_owned());
    assert_eq!(
        lengths,
        [("HEAD".into(), None), ("DELETE".into(), None), ("POST".into(), zero()), ("PUT".into(), zero())]
    );
    assert!(bench.server.requests()[0].header("content-length").is_none(), "the listing's GET");
}

fn method(request: &Request) -> String {
    request.line.split(' ').next().unwrap().to_owned()
}

#[tokio::test]
async fn an_object_that_is_there_already_is_told_apart_from_our_own() {
    let (request, _) = put(true);
    let sum = request.checksum.unwrap().to_base64();
    let there = |sum: &str| {
        let headers =
            [DATE, ("etag", "\"e\""), ("content-length", "3000000"), ("x-amz-checksum-crc32c", sum)];
        Step::answer(200, &headers, b"")
    };
    let bench = bench(vec![
        // The object is plainly another client's.
        Step::error(412, "PreconditionFailed"),
        there("AAAAAA=="),
        // The answer to our own was lost.
        Step::silence(Then::Stall),
        Step::error(412, "PreconditionFailed"),
        there(&sum),
        // Lost too, but the object is another.
        Step::error(500, "InternalError"),
        Step::error(412, "PreconditionFailed"),
        there("AAAAAA=="),
    ])
    .await;
    let error = bench.client.put_object(&request).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Exists);
    assert_eq!(bench.client.put_object(&request).await.unwrap().etag.as_str(), "\"e\"");
    assert_eq!(*bench.client.put_object(&request).await.unwrap_err().kind(), ErrorKind::Exists);
    assert_eq!(bench.server.left(), 0);
}

#[tokio::test]
async fn a_file_is_known_as_our_own_by_a_checksum_in_another_form() {
    let (request, data) = put(true);
    let md5 = base16ct::lower::encode_string(&Md5::digest(&data));
    let of_64_bits = Checksum::of(ChecksumAlgorithm::Crc64Nvme, &data).to_base64();
    let etag = format!("\"{md5}\"");
    let there =
        [DATE, ("etag", &*etag), ("content-length", "3000000"), ("x-amz-checksum-crc64nvme", &*of_64_bits)];
    // The parts' checksums, if they are joined by their bytes, not by their checksums.
    let whole = Checksum::of(ChecksumAlgorithm::Crc32c, b"aabb").to_base64();
    let lost = || Step::silence(Then::Stall);
    let bench = bench(vec![
        lost(),
        Step::error(412, "PreconditionFailed"),
        Step::answer(200, &there, b""),
        Step::error(500, "InternalError"),
        Step::error(412, "PreconditionFailed"),
        head(Some(&whole)),
    ])
    .await;
    assert_eq!(bench.client.put_object(&request).await.unwrap().etag.as_str(), etag);
    bench.client.complete_multipart_upload(&complete(true)).await.unwrap();
    assert_eq!(bench.server.left(), 0);
}

#[tokio::test]
async fn a_refusal_behind_an_unanswered_try_leaves_the_outcome_open() {
    let lost = || Step::silence(Then::Stall);
    let bench = bench(vec![
        // The request is plainly refused.
        Step::error(403, "AccessDenied"),
        // Refused only when it was sent again.
        lost(),
        Step::error(403, "AccessDenied"),
        Step::error(500, "InternalError"),
        Step::error(400, "InvalidArgument"),
        lost(),
        Step::error(412, "PreconditionFailed"),
        // A part is not an object yet.
        lost(),
        Step::error(403, "AccessDenied"),
    ])
    .await;
    let (request, _) = put(false);
    let hint = "check whether the object exists";
    let plain = bench.client.put_object(&request).await.unwrap_err();
    assert_eq!((plain.kind(), plain.may_have_stored()), (&ErrorKind::Denied, false));
    assert!(!plain.to_string().contains(hint), "{plain}");
    for kind in [ErrorKind::Denied, ErrorKind::InvalidRequest, ErrorKind::Changed] {
        let error = bench.client.put_object(&request).await.unwrap_err();
        assert_eq!((error.kind(), error.may_have_stored()), (&kind, true), "{error}");
        assert!(error.to_string().contains(hint), "{error}");
    }
    let part =
        UploadPart { upload: upload(), part_number: 1, body: request.body, checksum: request.checksum };
    let error = bench.client.upload_part(&part).await.unwrap_err();
    assert_eq!((error.kind(), error.may_have_stored()), (&ErrorKind::Denied, false), "{error}");
    assert_eq!(bench.server.left(), 0);
}

#[tokio::test]
async fn a_request_repeated_on_a_new_connection_counts_as_sent_twice() {
    let sum = put(true).0.checksum.unwrap().to_base64();
    let ours = [DATE, ("etag", "\"e\""), ("content-length", "3000000"), ("x-amz-checksum-crc32c", &*sum)];
    // Each comes on the connection of the request before it, which looks as if it had been closed while it was idle.
    let lost = || Step::silence(Then::Close);
    let bench = bench(vec![
        lost(),
        Step::error(403, "AccessDenied"),
        lost(),
        Step::error(412, "PreconditionFailed"),
        Step::answer(200, &ours, b""),
    ])
    .await;
    let error = bench.client.put_object(&put(false).0).await.unwrap_err();
    assert_eq!((error.kind(), error.may_have_stored()), (&ErrorKind::Denied, true), "{error}");
    let stored = bench.client.put_object(&put(true).0).await.unwrap();
    assert_eq!(stored.etag.as_str(), "\"e\"", "what is in the way is our own");
    assert_eq!(bench.server.left(), 0);
}

#[tokio::test]
async fn a_200_that_carries_an_error_is_no_success() {
    let error = b"\n  \n<Error><Code>InternalError</Code><Message>m</Message></Error>";
    // The Complete is sent again. If two may have made an object, the one that stays counts.
    let bench = bench(vec![Step::answer(200, &[], error), completed(), head(Some(&composite()))]).await;
    let stored = bench.client.complete_multipart_upload(&complete(false)).await.unwrap();
    assert_eq!(stored.etag.as_str(), "\"x-2\"");
    let asked = bench.asked();
    assert_eq!(asked.iter().map(method).collect::<Vec<_>>(), ["POST", "POST", "HEAD"]);
    assert_eq!(asked[0].line, "POST /bucket/k?uploadId=u%2F1 HTTP/1.1");
    assert_eq!(asked[0].header("content-type"), Some("application/xml"));
    assert_ne!(asked[0].header("x-amz-content-sha256"), Some("UNSIGNED-PAYLOAD"), "nothing else covers it");
    let body = String::from_utf8(asked[0].body.clone()).unwrap();
    assert!(body.contains("<ChecksumCRC32C>"), "{body}");
}

#[tokio::test]
async fn a_completion_whose_answer_was_lost_is_looked_up() {
    let sum = composite();
    let lost = || Step::silence(Then::Close);
    let gone = || Step::error(404, "NoSuchUpload");
    let bench = bench(vec![
        // The Complete took effect, and the store forgot the upload.
        Step::error(500, "InternalError"),
        gone(),
        head(Some(&sum)),
        // The Complete took effect, and only_if_absent finds our own object.
        Step::error(500, "InternalError"),
        Step::error(412, "PreconditionFailed"),
        head(Some(&sum)),
        // Another object of the same size and parts is there.
        gone(),
        head(Some("AAAAAA==-2")),
        // An object is there that says nothing of its bytes.
        gone(),
        head(None),
        // No answer comes, and the object turns out to be there.
        lost(),
        head(Some(&sum)),
        // A gateway speaks for the store; a first look comes too early.
        Step::error(504, "GatewayTimeout"),
        Step::error(404, "NoSuchKey"),
        head(Some(&sum)),
    ])
    .await;
    let kind = |r: mountpoint::s3::Result<_>| match r {
        Ok(_) => None,
        Err(e) => Some(e.kind().clone()),
    };
    assert_eq!(kind(bench.client.complete_multipart_upload(&complete(false)).await), None);
    assert_eq!(kind(bench.client.complete_multipart_upload(&complete(true)).await), None);
    for _ in 0..2 {
        let unclear = bench.client.complete_multipart_upload(&complete(false)).await;
        assert_eq!(kind(unclear), Some(ErrorKind::Unknown));
    }
    for _ in 0..2 {
        assert_eq!(kind(bench.client.complete_multipart_upload(&complete(false)).await), None);
    }
    assert_eq!(bench.server.left(), 0);
}

#[tokio::test]
async fn the_object_says_the_etag_that_the_answer_to_a_completion_leaves_empty() {
    let nameless = || {
        Step::answer(
            200,
            &[],
            b"<CompleteMultipartUploadResult><ETag></ETag></CompleteMultipartUploadResult>",
        )
    };
    let other = Step::answer(200, &[DATE, ("etag", "\"y\""), ("content-length", "9")], b"");
    let bench = bench(vec![nameless(), head(None), nameless(), other]).await;
    let stored = bench.client.complete_multipart_upload(&complete(true)).await.unwrap();
    assert_eq!(stored.etag.as_str(), "\"x-2\"");
    let stored = bench.client.complete_multipart_upload(&complete(true)).await.unwrap();
    assert!(stored.etag.is_none(), "of another size: {stored:?}");
    assert_eq!(bench.server.left(), 0);
}

#[tokio::test]
async fn silence_and_white_space_are_waited_out_while_a_store_joins_parts() {
    let document = "<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>";
    // Longer each time than other requests are waited for.
    let slow = Step::answer(200, &[], document.as_bytes()).after(2 * PATIENCE);
    let spaces = Step::answer(200, &[], format!("  {document}").as_bytes());
    let spaces = spaces.pause(document.len() + 1, 2 * PATIENCE);
    let bench = bench(vec![slow, spaces]).await;
    for _ in 0..2 {
        bench.client.complete_multipart_upload(&complete(false)).await.unwrap();
    }
    assert_eq!(bench.asked().len(), 2, "each was sent once");
}

#[tokio::test]
async fn a_store_that_sends_white_space_for_ever_is_given_up_in_time() {
    const SPACES: usize = 1_000;
    let endless = Step::answer(200, &[], &[b' '; SPACES]).drip(SPACES, 1, PATIENCE);
    let bench = bench(vec![endless, Step::error(404, "NoSuchKey")]).await;
    let (clock, times) = (bench.server.clock(), super::timeouts());
    let began = clock.now();
    let error = bench.client.complete_multipart_upload(&complete(false)).await.unwrap_err();
    let took = clock.now() - began;
    let most = times.operation + times.complete + 2 * PATIENCE;
    assert!(took > times.complete && took < most, "{took:?}: {error}");
    assert_eq!(*error.kind(), ErrorKind::Unknown, "the store may be at work still: {error}");
}

#[tokio::test]
async fn what_a_store_does_not_know_it_did_not_do() {
    // The upload is tried once without its checksum: that may be what the store does not know.
    let bench = bench(vec![Step::error(501, "NotImplemented"); 3]).await;
    let error = bench.client.complete_multipart_upload(&complete(false)).await.unwrap_err();
    assert_eq!((error.kind(), error.may_have_stored()), (&ErrorKind::Unsupported, false), "{error}");
    let error = bench.client.put_object(&put(false).0).await.unwrap_err();
    assert_eq!((error.kind(), error.may_have_stored()), (&ErrorKind::Unsupported, false), "{error}");
    assert!(!error.to_string().contains("earlier try"), "{error}");
}

#[tokio::test]
async fn giving_up_what_is_gone_already_is_a_success() {
    let bench = bench(vec![Step::error(404, "NoSuchUpload"), Step::error(404, "NoSuchKey")]).await;
    bench.client.abort_multipart_upload(&upload()).await.unwrap();
    bench.client.delete_object(&ObjectKey::new("k")).await.unwrap();
}

#[tokio::test]
async fn uploads_in_progress_are_found_page_by_page() {
    let page = |truncated: bool, key: &str| {
        let body = format!(
            "<ListMultipartUploadsResult><IsTruncated>{truncated}</IsTruncated>\
             <NextKeyMarker>{key}</NextKeyMarker><NextUploadIdMarker>u</NextUploadIdMarker>\
             <Upload><Key>{key}</Key><UploadId>u</UploadId><Initiated>2015-10-21T07:28:00.000Z</Initiated></Upload>\
             </ListMultipartUploadsResult>"
        );
        Step::answer(200, &[], body.as_bytes())
    };
    let bench =
        bench(vec![page(true, "p/a"), page(false, "p/b"), page(true, "p/a"), page(true, "p/a")]).await;
    let found = bench.client.list_multipart_uploads("p/").await.unwrap();
    let keys: Vec<_> = found.iter().map(|u| u.upload.key.as_str()).collect();
    assert_eq!(keys, ["p/a", "p/b"]);
    let endless = bench.client.list_multipart_uploads("p/").await.unwrap_err();
    assert_eq!(*endless.kind(), ErrorKind::BadAnswer);
}

#[tokio::test]
async fn a_store_without_if_none_match_is_asked_first() {
    let found = Step::answer(200, &[DATE, ("etag", "\"x\""), ("content-length", "4")], b"");
    let bench = bench(vec![
        Step::error(501, "NotImplemented"),
        Step::answer(404, &[], b""),
        Step::answer(200, &[("etag", "\"e\"")], b""),
        // From then on at once; and what is there stays.
        found,
    ])
    .await;
    let (request, _) = put(true);
    bench.client.put_object(&request).await.unwrap();
    let error = bench.client.put_object(&request).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Exists, "{error}");
    let asked = bench.asked();
    let asked: Vec<_> = asked.iter().map(|r| (method(r), r.header("if-none-match").is_some())).collect();
    let expected = [("PUT", true), ("HEAD", false), ("PUT", false), ("HEAD", false)];
    assert_eq!(asked, expected.map(|(method, condition)| (method.to_owned(), condition)));
}

#[tokio::test]
async fn a_store_without_if_none_match_that_can_not_be_asked_is_sent_nothing() {
    let bench = bench(vec![Step::error(501, "NotImplemented"), Step::answer(403, &[], b"")]).await;
    let error = bench.client.put_object(&put(true).0).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Denied, "{error}");
    assert_eq!(bench.asked().iter().filter(|request| method(request) == "PUT").count(), 1);
}

/// Answers a PUT as soon as its head is here, and reads none of its body; proves the bucket to everything else.
fn hasty() -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let answer = |mut stream: TcpStream| {
        let mut head = Vec::new();
        let mut byte = [0];
        while matches!(stream.read(&mut byte), Ok(1)) {
            head.push(byte[0]);
            if !head.ends_with(b"\r\n\r\n") {
                continue;
            }
            let is_put = head.starts_with(b"PUT");
            let body = if is_put { b"" } else { EMPTY_LISTING };
            stream.write_all(&Step::answer(200, &[("etag", "e")], body).say).unwrap();
            if is_put {
                // Open, and deaf, until the test ends.
                return std::mem::forget(stream);
            }
            head.clear();
        }
    };
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || answer(stream.unwrap()));
        }
    });
    url
}

#[tokio::test]
async fn a_success_that_comes_before_the_body_was_sent_stores_nothing() {
    let scripted = Scripted::start(vec![]);
    let config = Config { endpoint_url: Some(hasty()), attempts_max: Some(2), ..config(&scripted) };
    let client = S3Client::connect(config, scripted.clock(), Arc::default()).await.unwrap();
    // More bytes than the sockets hold.
    let body = vec![Bytes::from(vec![7; 64 << 20])];
    let put = PutObject { object: new_object(false), body, checksum: None };
    let error = client.put_object(&put).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Network, "{error}");
    assert!(error.to_string().contains("before the whole body was sent"), "{error}");
}
