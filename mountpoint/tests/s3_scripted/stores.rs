//! Stores that treat writes differently from S3: ignore conditions, refuse them, refuse checksums. The client learns this only from
//! answers to its own reads and uploads, and sends no request as a trial.

use std::sync::Arc;

use base64::Engine as _;
use bytes::Bytes;
use md5::Digest as _;
use mountpoint::checksum::{Checksum, ChecksumAlgorithm};
use mountpoint::metrics::Metrics;
use mountpoint::object::ObjectKey;
use mountpoint::s3::{
    CompleteUpload, Config, ErrorKind, NewObject, ObjectClient as _, PartLimits, PutObject, Replaces,
    S3Client, StoreKind, UploadId, UploadPart,
};

use super::config;
use super::names::with_hosts;
use super::server::{EMPTY_LISTING, Request, Scripted, Step};

fn object(only_if_absent: bool) -> NewObject {
    let checksum = Some(ChecksumAlgorithm::Crc32c);
    let replaces = if only_if_absent { Replaces::Nothing } else { Replaces::Anything };
    NewObject { replaces, checksum, ..NewObject::new("k") }
}

fn put(only_if_absent: bool) -> PutObject {
    let body = vec![Bytes::from_static(b"he"), Bytes::from_static(b"llo")];
    let checksum = Some(Checksum::of(ChecksumAlgorithm::Crc32c, b"hello"));
    PutObject { object: object(only_if_absent), body, checksum }
}

fn listing(headers: &[(&str, &str)]) -> Step {
    Step::answer(200, headers, EMPTY_LISTING)
}

fn stored() -> Step {
    Step::answer(200, &[("etag", "\"e\"")], b"")
}

fn absent() -> Step {
    Step::answer(404, &[], b"")
}

async fn connect(server: &Scripted, change: impl FnOnce(&mut Config)) -> Arc<S3Client> {
    let mut config = config(server);
    change(&mut config);
    S3Client::connect(config, server.clock(), Arc::new(Metrics::default())).await.unwrap()
}

/// Method, and whether it has a condition, a checksum and an MD5, of each request after the proof of the bucket.
fn asked(server: &Scripted) -> Vec<(String, bool, bool, bool)> {
    let of = |request: &Request| {
        let has = |name| request.header(name).is_some();
        let method = request.line.split(' ').next().unwrap().to_owned();
        (method, has("if-none-match"), has("x-amz-checksum-crc32c"), has("content-md5"))
    };
    server.requests()[1..].iter().map(of).collect()
}

fn expected(rows: &[(&str, bool, bool, bool)]) -> Vec<(String, bool, bool, bool)> {
    rows.iter().map(|&(method, a, b, c)| (method.to_owned(), a, b, c)).collect()
}

#[tokio::test]
async fn the_answer_that_proves_the_bucket_names_the_kind_unless_the_user_does() {
    for (headers, named, kind) in [
        (&[("Server", "MinIO")][..], None, StoreKind::Minio),
        (&[("Server", "S3 Server")], None, StoreKind::Scality),
        (&[("Server", "MinIO")], Some(StoreKind::Garage), StoreKind::Garage),
        (&[], None, StoreKind::Generic),
    ] {
        let server = Scripted::start(vec![listing(headers)]);
        let client = connect(&server, |config| config.store = named).await;
        assert_eq!(client.store(), kind, "{headers:?}");
        let lines: Vec<_> = server.requests().into_iter().map(|request| request.line).collect();
        assert_eq!(lines.len(), 1, "mounting reads, and nothing more: {lines:?}");
        assert!(lines[0].starts_with("GET /bucket?"), "{lines:?}");
    }
}

#[tokio::test]
async fn a_store_that_ignores_conditions_is_asked_first_and_sent_them_too() {
    let there =
        [("etag", "\"x\""), ("content-length", "4"), ("last-modified", "Wed, 21 Oct 2015 07:28:00 GMT")];
    let server = Scripted::start(vec![
        listing(&[("Server", "S3 Server")]),
        absent(),
        stored(),
        // Another client's, which the store would replace.
        Step::answer(200, &there, b""),
    ]);
    let client = connect(&server, |_| {}).await;
    client.put_object(&put(true)).await.unwrap();
    let error = client.put_object(&put(true)).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Exists, "{error}");
    let rows = [("HEAD", false, false, false), ("PUT", true, true, false), ("HEAD", false, false, false)];
    assert_eq!(asked(&server), expected(&rows));
}

#[tokio::test]
async fn a_store_that_refuses_the_question_for_checksums_is_read_without_it() {
    let there = [
        ("etag", "\"v1\""),
        ("content-range", "bytes 0-9/10"),
        ("last-modified", "Wed, 21 Oct 2015 07:28:00 GMT"),
    ];
    let head = || Step::answer(200, &[&[("content-length", "10")][..], &there[..]].concat(), b"");
    let part = || Step::answer(206, &there, b"0123456789");
    // S3Proxy refuses it on HEAD and on GET. Of a 501 for another reason nothing is learned.
    let refused = || Step::error(501, "NotImplemented");
    for (script, asked_with) in [
        (vec![refused(), head(), part()], &[true, false, false][..]),
        (vec![head(), refused(), part()], &[true, true, false]),
    ] {
        let server = Scripted::start([vec![listing(&[])], script].concat());
        let client = connect(&server, |_| {}).await;
        client.head_object(&ObjectKey::new("k")).await.unwrap();
        let (mut into, received) = super::fill(10);
        client.get_object(&super::get_request(0..10, 10), &mut into).await.unwrap();
        assert_eq!(received.bytes(), b"0123456789");
        let asks = |request: &Request| request.header("x-amz-checksum-mode").is_some();
        assert_eq!(server.requests()[1..].iter().map(asks).collect::<Vec<_>>(), asked_with);
    }
    let server = Scripted::start(vec![listing(&[]), refused(), refused(), head()]);
    let client = connect(&server, |_| {}).await;
    let error = client.head_object(&ObjectKey::new("k")).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Unsupported, "{error}");
    client.head_object(&ObjectKey::new("k")).await.unwrap();
    assert!(server.requests()[3].header("x-amz-checksum-mode").is_some());
}

#[tokio::test]
async fn a_name_that_a_delete_marker_has_is_stored_once_head_finds_nothing() {
    let refused = || Step::error(412, "PreconditionFailed");
    let there =
        [("etag", "\"x\""), ("content-length", "4"), ("last-modified", "Wed, 21 Oct 2015 07:28:00 GMT")];
    let server = Scripted::start(vec![
        listing(&[]),
        // versitygw takes the marker for an object.
        refused(),
        absent(),
        refused(),
        absent(),
        stored(),
        // Deleted between the two requests: the condition holds when it is sent again.
        refused(),
        absent(),
        stored(),
        // Stored by another client meanwhile.
        refused(),
        absent(),
        refused(),
        Step::answer(200, &there, b""),
        // The HEAD does not say whether the object is there.
        refused(),
        Step::answer(403, &[], b""),
    ]);
    let client = connect(&server, |_| {}).await;
    client.put_object(&put(true)).await.unwrap();
    client.put_object(&put(true)).await.unwrap();
    for _ in 0..2 {
        let error = client.put_object(&put(true)).await.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Exists, "{error}");
    }
    let kept = ("PUT", true, true, false);
    let asked_for = ("HEAD", false, false, false);
    let rows = [
        &[kept, asked_for, kept, asked_for, ("PUT", false, true, false)][..],
        &[kept, asked_for, kept],
        &[kept, asked_for, kept, asked_for],
        &[kept, asked_for],
    ];
    let made = asked(&server);
    assert_eq!(made[..rows.concat().len()], expected(&rows.concat()));
    let puts = made.iter().filter(|row| row.0 == "PUT" && !row.1).count();
    assert_eq!(puts, 1, "nothing is stored without the condition but behind the marker: {made:?}");
}

#[tokio::test]
async fn a_store_that_refuses_checksums_gets_an_md5_in_their_place_from_then_on() {
    let xml = |body: &str| Step::answer(200, &[], body.as_bytes());
    let unknown =
        "<Error><Code>InvalidArgument</Code><Message>x-amz-Checksum-crc32c is not a header</Message></Error>";
    for refusal in [Step::error(501, "NotImplemented"), Step::answer(400, &[], unknown.as_bytes())] {
        let server = Scripted::start(vec![
            listing(&[]),
            refusal,
            stored(),
            stored(),
            xml("<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>"),
            stored(),
            xml("<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>"),
        ]);
        let client = connect(&server, |_| {}).await;
        client.put_object(&put(false)).await.unwrap();
        client.put_object(&put(false)).await.unwrap();
        let upload = client.create_multipart_upload(&object(false)).await.unwrap();
        let PutObject { body, checksum, .. } = put(false);
        let part = UploadPart { upload: upload.clone(), part_number: 1, body, checksum };
        let part = client.upload_part(&part).await.unwrap();
        assert_eq!(part.checksum, None, "none was sent");
        let complete = CompleteUpload { upload, parts: vec![part], replaces: Replaces::Anything };
        client.complete_multipart_upload(&complete).await.unwrap();
        let rows = [
            ("PUT", false, true, false),
            ("PUT", false, false, true),
            ("PUT", false, false, true),
            ("POST", false, false, false),
            ("PUT", false, false, true),
            ("POST", false, false, false),
        ];
        assert_eq!(asked(&server), expected(&rows));
        let requests = server.requests();
        let md5 = base64::engine::general_purpose::STANDARD.encode(md5::Md5::digest(b"hello"));
        for request in [&requests[2], &requests[5]] {
            assert_eq!(request.header("content-md5"), Some(&*md5));
            assert_eq!(request.body, b"hello");
        }
        assert_eq!(requests[4].header("x-amz-checksum-algorithm"), None);
        assert!(!String::from_utf8_lossy(&requests[6].body).contains("Checksum"));
    }
}

#[tokio::test]
async fn a_store_that_demands_an_md5_gets_one_beside_the_checksum_from_then_on() {
    for (said, named) in [
        (
            "<Message>Content-MD5 HTTP header is required for Put Object requests with Object Lock parameters</Message>",
            true,
        ),
        // AWS's words, where no checksum is sent (--upload-checksums off).
        ("<Message>Content-MD5 OR x-amz-checksum- HTTP header is required</Message>", false),
        ("<Code>MissingContentMD5</Code>", true),
    ] {
        let refusal =
            format!("<Error>{said}</Error>").replace("<Error><M", "<Error><Code>InvalidRequest</Code><M");
        let refusal = Step::answer(400, &[], refusal.as_bytes());
        let server = Scripted::start(vec![listing(&[]), refusal, stored(), stored(), stored()]);
        let client = connect(&server, |_| {}).await;
        let put = |if_absent| match named {
            true => put(if_absent),
            false => PutObject { checksum: None, ..put(if_absent) },
        };
        client.put_object(&put(false)).await.unwrap();
        client.put_object(&put(true)).await.unwrap();
        let PutObject { body, checksum, object } = put(false);
        let upload = UploadId { key: object.key, id: "u".into() };
        client.upload_part(&UploadPart { upload, part_number: 1, body, checksum }).await.unwrap();
        let rows = [
            ("PUT", false, named, false),
            ("PUT", false, named, true),
            ("PUT", true, named, true),
            ("PUT", false, named, true),
        ];
        assert_eq!(asked(&server), expected(&rows), "{said}");
    }
}

#[tokio::test]
async fn a_store_that_demands_an_md5_and_refuses_checksums_gets_the_md5_alone() {
    let refusal = |words: &str| {
        let document = format!("<Error><Code>InvalidRequest</Code><Message>{words}</Message></Error>");
        Step::answer(400, &[], document.as_bytes())
    };
    let (first, second) =
        (refusal("Content-MD5 is required"), refusal("x-amz-checksum-crc32c is not a header"));
    let server = Scripted::start(vec![listing(&[]), first, second, stored(), stored()]);
    let client = connect(&server, |_| {}).await;
    client.put_object(&put(false)).await.unwrap();
    client.put_object(&put(false)).await.unwrap();
    let rows = [
        ("PUT", false, true, false),
        ("PUT", false, true, true),
        ("PUT", false, false, true),
        ("PUT", false, false, true),
    ];
    assert_eq!(asked(&server), expected(&rows));
}

fn one_part(number: u32) -> UploadPart {
    let PutObject { body, checksum, object } = put(false);
    UploadPart { upload: UploadId { key: object.key, id: "u".into() }, part_number: number, body, checksum }
}

#[tokio::test]
async fn the_parts_that_a_store_takes_are_learned_from_its_refusals_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    let refusal = |code: &str, words: &str| {
        let document = format!("<Error><Code>{code}</Code><Message>{words}</Message></Error>");
        Step::answer(400, &[], document.as_bytes())
    };
    let few = refusal("InvalidArgument", "Part number must be an integer between 1 and 1000, inclusive");
    let unequal = refusal("InvalidPart", "All non-trailing parts must have the same length.");
    let server = Scripted::start(vec![listing(&[]), few, stored(), unequal, listing(&[])]);
    let state = |config: &mut Config| config.state_dir = Some(dir.path().to_owned());
    let client = connect(&server, state).await;
    assert_eq!(client.part_limits(), PartLimits::default());
    // Parts are under way side by side: the first to be refused need not be the first one too many.
    let error = client.upload_part(&one_part(1007)).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::InvalidRequest, "{error}");
    assert_eq!(client.part_limits(), PartLimits { parts_max: 1000, are_equal: false });
    let part = client.upload_part(&one_part(1)).await.unwrap();
    let complete =
        CompleteUpload { upload: one_part(1).upload, parts: vec![part], replaces: Replaces::Anything };
    client.complete_multipart_upload(&complete).await.unwrap_err();
    let learned = PartLimits { parts_max: 1000, are_equal: true };
    assert_eq!(client.part_limits(), learned);
    let kept = dir.path().join("stores");
    let is_whole = |text: String| text.contains("\"wants_equal_parts\":true");
    testkit::until("it is kept", || {
        std::fs::read_dir(&kept).is_ok_and(|mut files| {
            files.any(|it| std::fs::read_to_string(it.unwrap().path()).is_ok_and(is_whole))
        })
    });
    assert_eq!(connect(&server, state).await.part_limits(), learned, "of the next mount");
}

#[tokio::test]
async fn a_store_of_a_named_kind_is_known_for_equal_or_few_parts_at_once() {
    for (kind, limits) in [
        (StoreKind::R2, PartLimits { are_equal: true, ..PartLimits::default() }),
        (StoreKind::Scaleway, PartLimits { parts_max: 1000, ..PartLimits::default() }),
        (StoreKind::Aws, PartLimits::default()),
    ] {
        let server = Scripted::start(vec![listing(&[])]);
        assert_eq!(connect(&server, |config| config.store = Some(kind)).await.part_limits(), limits);
    }
}

#[tokio::test]
async fn gzip_objects_of_google_are_asked_for_raw_by_an_unsigned_header() {
    let there = [
        ("etag", "\"v1\""),
        ("content-range", "bytes 0-9/10"),
        ("content-encoding", "gzip"),
        ("last-modified", "Wed, 21 Oct 2015 07:28:00 GMT"),
    ];
    let part = || Step::answer(206, &there, b"compressed");
    let head = Step::answer(200, &[&[("content-length", "10")][..], &there[..]].concat(), b"");
    for (headers, named) in [(&[("x-guploader-uploadid", "AB")][..], None), (&[], Some(StoreKind::Gcs))] {
        let server = Scripted::start(vec![listing(headers), head.clone(), part(), absent(), stored()]);
        let client = connect(&server, |config| config.store = named).await;
        client.head_object(&ObjectKey::new("k")).await.unwrap();
        let (mut into, received) = super::fill(10);
        client.get_object(&super::get_request(0..10, 10), &mut into).await.unwrap();
        assert_eq!(received.bytes(), b"compressed");
        client.put_object(&put(true)).await.unwrap();
        let requests = server.requests();
        for request in &requests[1..3] {
            assert_eq!(request.header("accept-encoding"), Some("gzip"), "{}", request.line);
            assert!(!request.header("authorization").unwrap().contains("accept-encoding"));
        }
        assert!(requests.last().unwrap().header("accept-encoding").is_none());
    }
}

#[tokio::test]
async fn an_object_that_is_decompressed_on_the_way_is_one_clear_error() {
    let of_google =
        [("etag", "\"v1\""), ("x-goog-stored-content-encoding", "gzip"), ("content-length", "4000")];
    let of_a_proxy =
        [("etag", "W/\"v1\""), ("warning", "214 proxy \"Transformation Applied\""), ("content-length", "10")];
    for headers in [of_google, of_a_proxy] {
        let server = Scripted::start(vec![listing(&[]), Step::answer(200, &headers, &[0; 4000])]);
        let client = connect(&server, |_| {}).await;
        let (mut into, received) = super::fill(10);
        let error = client.get_object(&super::get_request(0..10, 10), &mut into).await.unwrap_err();
        assert_eq!((error.kind(), received.bytes().len()), (&ErrorKind::BadAnswer, 0));
        assert!(error.to_string().contains("decompresses the object (Content-Encoding: gzip)"), "{error}");
        assert_eq!(server.requests().len(), 2, "asking again would not help");
        assert!(
            server.requests()[1].header("accept-encoding").is_none(),
            "another store might compress on the way"
        );
    }
}

#[tokio::test]
async fn a_region_that_ends_in_a_line_end_is_taken_without_it() {
    let server = Scripted::start(vec![listing(&[])]);
    let client = connect(&server, |config| {
        config.region = Some("eu-west-3\r\n".into());
        config.endpoint_url = config.endpoint_url.take().map(|url| url + "\n");
    });
    assert_eq!(client.await.region(), "eu-west-3");
    let config = Config { region: Some("eu\nwest".into()), ..config(&server) };
    let error = S3Client::connect(config, server.clock(), Arc::new(Metrics::default())).await.unwrap_err();
    assert!(error.to_string().contains("AWS_REGION"), "{error}");
}

#[tokio::test]
async fn damaged_bytes_and_refusals_are_not_repeated_without_a_checksum() {
    for (status, code) in [(400, "InvalidDigest"), (400, "InvalidArgument"), (403, "AccessDenied")] {
        let server = Scripted::start(vec![listing(&[]), Step::error(status, code)]);
        let client = connect(&server, |_| {}).await;
        client.put_object(&put(false)).await.unwrap_err();
        assert!(asked(&server).iter().all(|row| row.2), "{code}: {:?}", asked(&server));
    }
}

#[tokio::test]
async fn what_an_upload_showed_of_a_store_is_known_to_the_next_mount() {
    let dir = tempfile::tempdir().unwrap();
    let server = Scripted::start(vec![
        listing(&[]),
        Step::error(501, "NotImplemented"),
        absent(),
        stored(),
        listing(&[]),
        absent(),
        stored(),
    ]);
    let state = |config: &mut Config| config.state_dir = Some(dir.path().to_owned());
    let first = connect(&server, state).await;
    first.put_object(&put(true)).await.unwrap();
    drop(first);
    let kept = dir.path().join("stores");
    testkit::until("it is kept", || {
        std::fs::read_dir(&kept)
            .is_ok_and(|mut files| files.any(|it| it.unwrap().path().extension().unwrap() == "json"))
    });
    let next = connect(&server, state).await;
    next.put_object(&put(true)).await.unwrap();
    let rows = [
        ("PUT", true, true, false),
        ("HEAD", false, false, false),
        ("PUT", false, true, false),
        ("GET", false, false, false),
        ("HEAD", false, false, false),
        ("PUT", false, true, false),
    ];
    assert_eq!(asked(&server), expected(&rows));
}

#[test]
fn a_bucket_whose_host_name_nobody_knows_is_asked_for_in_the_path() {
    let test = "stores::a_bucket_whose_host_name_nobody_knows_is_asked_for_in_the_path";
    if !with_hosts(test, "127.0.0.1 s3.test minio.test\n127.0.0.1 bucket.wild.test wild.test\n") {
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let url = |name: &'static str, server: &Scripted| {
            let url = format!("http://{name}:{}", server.port());
            move |config: &mut Config| config.endpoint_url = Some(url)
        };
        // No address for bucket.s3.test.
        let server = Scripted::start(vec![listing(&[])]);
        connect(&server, url("s3.test", &server)).await;
        assert!(server.requests()[0].line.starts_with("GET /bucket?"));
        // bucket.wild.test has an address, and the store finds buckets by the path alone: it answers with the list of buckets, or an error.
        for strange in [
            Step::answer(200, &[], b"<ListAllMyBucketsResult><Buckets></Buckets></ListAllMyBucketsResult>"),
            Step::error(404, "NoSuchBucket"),
        ] {
            let server = Scripted::start(vec![strange, listing(&[])]);
            connect(&server, url("wild.test", &server)).await;
            let requests = server.requests();
            assert!(requests[0].line.starts_with("GET /?") && requests[1].line.starts_with("GET /bucket?"));
        }
        // A kind that is known by its name is not asked twice.
        let server = Scripted::start(vec![listing(&[])]);
        connect(&server, url("minio.test", &server)).await;
        assert!(server.requests()[0].line.starts_with("GET /bucket?"));
        // The first answer shows a bucket that is nowhere.
        let server =
            Scripted::start(vec![Step::error(404, "NoSuchBucket"), Step::error(403, "AccessDenied")]);
        let mut config = config(&server);
        url("wild.test", &server)(&mut config);
        let error =
            S3Client::connect(config, server.clock(), Arc::new(Metrics::default())).await.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::NoSuchBucket, "{error}");
    });
}
