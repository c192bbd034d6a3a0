//! Multipart uploads: refusals, lists, aborts, restarts, copies.

use crate::client::{Answer, BUCKET, Lab};

const PART: usize = 5 << 20;

pub(crate) fn start(lab: &Lab, key: &str) -> String {
    lab.object("POST", key).query("uploads", "").send().ok().first("UploadId")
}

pub(crate) fn part(lab: &Lab, key: &str, id: &str, number: u16, body: &[u8]) -> String {
    let request = lab.object("PUT", key).query("partNumber", &number.to_string()).query("uploadId", id);
    request.body(body).send().ok().header("etag").to_owned()
}

pub(crate) fn complete(
    lab: &Lab,
    key: &str,
    id: &str,
    parts: &[(u16, &str)],
    header: Option<(&str, &str)>,
) -> Answer {
    let named: String = parts
        .iter()
        .map(|(n, etag)| format!("<Part><PartNumber>{n}</PartNumber><ETag>{etag}</ETag></Part>"))
        .collect();
    let body = format!("<CompleteMultipartUpload>{named}</CompleteMultipartUpload>");
    let request = lab.object("POST", key).query("uploadId", id).body(body.as_bytes());
    match header {
        Some((name, value)) => request.header(name, value).send(),
        None => request.send(),
    }
}

#[test]
fn a_complete_that_names_wrong_parts_is_refused_and_can_be_mended() {
    let lab = Lab::new();
    let id = start(&lab, "k");
    let big = vec![1; PART];
    let one = part(&lab, "k", &id, 1, &big);
    let two = part(&lab, "k", &id, 2, b"small");
    let three = part(&lab, "k", &id, 3, b"end");
    complete(&lab, "k", &id, &[(2, &two), (1, &one)], None).fails(400, "InvalidPartOrder");
    complete(&lab, "k", &id, &[(1, "\"other\"")], None).fails(400, "InvalidPart");
    complete(&lab, "k", &id, &[(1, &one), (9, &two)], None).fails(400, "InvalidPart");
    complete(&lab, "k", &id, &[(1, &one), (2, &two), (3, &three)], None).fails(400, "EntityTooSmall");
    complete(&lab, "k", &id, &[(1, &one), (3, &three)], None).ok();
    assert_eq!(lab.get("k").ok().body, [&big[..], b"end"].concat());
}

#[test]
fn a_complete_sent_again_is_answered_as_before() {
    let lab = Lab::new();
    let id = start(&lab, "k");
    let one = part(&lab, "k", &id, 1, b"x");
    let first = complete(&lab, "k", &id, &[(1, &one)], None).ok().first("ETag");
    assert_eq!(complete(&lab, "k", &id, &[(1, &one)], None).ok().first("ETag"), first);
    lab.put("k", b"newer");
    complete(&lab, "k", &id, &[(1, &one)], None).fails(404, "NoSuchUpload");
}

#[test]
fn a_complete_with_conditions_replaces_only_what_it_names() {
    let lab = Lab::new();
    let etag = lab.put("k", b"old").header("etag").to_owned();
    let id = start(&lab, "k");
    let one = part(&lab, "k", &id, 1, b"new");
    complete(&lab, "k", &id, &[(1, &one)], Some(("if-none-match", "*"))).fails(412, "PreconditionFailed");
    complete(&lab, "k", &id, &[(1, &one)], Some(("if-match", "\"no\""))).fails(412, "PreconditionFailed");
    assert_eq!(lab.get("k").body, b"old");
    complete(&lab, "k", &id, &[(1, &one)], Some(("if-match", &etag))).ok();
    assert_eq!(lab.get("k").body, b"new");
}

#[test]
fn an_aborted_upload_is_gone_with_its_parts() {
    let lab = Lab::new();
    let id = start(&lab, "k");
    part(&lab, "k", &id, 1, b"x");
    lab.object("DELETE", "k").query("uploadId", &id).send().ok();
    lab.object("DELETE", "k").query("uploadId", &id).send().fails(404, "NoSuchUpload");
    let late = lab.object("PUT", "k").query("partNumber", "1").query("uploadId", &id).body(b"x").send();
    late.fails(404, "NoSuchUpload");
    let left = std::fs::read_dir(lab.root.path().join(".s3server/uploads")).unwrap().count();
    assert_eq!(left, 0);
}

#[test]
fn uploads_and_parts_are_listed_in_pages_and_survive_a_restart() {
    let mut lab = Lab::new();
    let ids = [start(&lab, "a"), start(&lab, "b/x"), start(&lab, "b/y")];
    for number in [3, 1, 2] {
        part(&lab, "a", &ids[0], number, &[number as u8; 10]);
    }
    part(&lab, "a", &ids[0], 2, b"replaced");
    lab.restart();
    let uploads = |request: crate::client::Request<'_>| request.query("uploads", "").send().ok();
    assert_eq!(uploads(lab.bucket("GET")).all("Key"), ["a", "b/x", "b/y"]);
    assert_eq!(uploads(lab.bucket("GET").query("prefix", "b/")).all("UploadId"), ids[1..]);
    let page = uploads(lab.bucket("GET").query("max-uploads", "1"));
    assert_eq!((page.all("Key"), page.first("IsTruncated")), (vec!["a".into()], "true".into()));
    let next = lab
        .bucket("GET")
        .query("key-marker", &page.first("NextKeyMarker"))
        .query("upload-id-marker", &page.first("NextUploadIdMarker"));
    assert_eq!(uploads(next).all("Key"), ["b/x", "b/y"]);
    let parts = lab.object("GET", "a").query("uploadId", &ids[0]).query("max-parts", "2").send().ok();
    assert_eq!(parts.all("Size"), ["10", "8"]);
    assert_eq!(parts.first("NextPartNumberMarker"), "2");
    let rest = lab.object("GET", "a").query("uploadId", &ids[0]).query("part-number-marker", "2").send().ok();
    assert_eq!(rest.all("PartNumber"), ["3"]);
}

#[test]
fn objects_and_ranges_of_them_are_copied_with_their_tags() {
    let lab = Lab::new();
    let data: Vec<u8> = (0..6_000_000u32).map(|i| (i / 5) as u8).collect();
    lab.object("PUT", "src é").header("x-amz-meta-a", "b").body(&data).send().ok();
    let source = format!("/{BUCKET}/src%20%C3%A9");
    lab.object("PUT", "copy").header("x-amz-copy-source", &source).send().ok();
    let copy = lab.get("copy").ok();
    assert_eq!(copy.header("x-amz-meta-a"), "b");
    assert!(copy.body == data);
    let refused = lab
        .object("PUT", "copy")
        .header("x-amz-copy-source", &source)
        .header("x-amz-copy-source-if-match", "\"other\"")
        .send();
    refused.fails(412, "PreconditionFailed");

    lab.object("PUT", "tagged").header("x-amz-tagging", "a=1&b%20c=%2F").body(b"1").send().ok();
    let tags = |key: &str| {
        let answer = lab.object("GET", key).query("tagging", "").send().ok();
        (answer.all("Key"), answer.all("Value"))
    };
    assert_eq!(tags("tagged"), (vec!["a".to_owned(), "b c".into()], vec!["1".to_owned(), "/".into()]));
    assert_eq!(lab.object("HEAD", "tagged").send().header("x-amz-tagging-count"), "2");
    lab.object("PUT", "copy").header("x-amz-copy-source", &format!("/{BUCKET}/tagged")).send().ok();
    assert_eq!(tags("copy"), tags("tagged"));
    let untagged = lab.object("PUT", "copy").header("x-amz-copy-source", &format!("/{BUCKET}/tagged"));
    untagged.header("x-amz-tagging-directive", "REPLACE").header("x-amz-tagging", "d=4").send().ok();
    assert_eq!(tags("copy"), (vec!["d".to_owned()], vec!["4".to_owned()]));

    let id = start(&lab, "joined");
    let copied = |number: &str, range: &str| {
        let request = lab.object("PUT", "joined").query("partNumber", number).query("uploadId", &id);
        let request = request.header("x-amz-copy-source", &source).header("x-amz-copy-source-range", range);
        request.send()
    };
    copied("1", "bytes=0-6000000").fails(416, "InvalidRange");
    let one = copied("1", "bytes=500000-5999999").ok().first("ETag");
    let two = copied("2", "bytes=0-9").ok().first("ETag");
    complete(&lab, "joined", &id, &[(1, &one), (2, &two)], None).ok();
    assert!(lab.get("joined").ok().body == [&data[500_000..], &data[..10]].concat());
}
