//! Objects: stored, read, listed, deleted.

use crate::client::Lab;

#[test]
fn what_was_put_is_got_headed_listed_and_deleted() {
    let lab = Lab::new();
    let put = lab
        .object("PUT", "a/b.txt")
        .header("content-type", "text/plain")
        .header("x-amz-meta-colour", "blue")
        .body(b"hello")
        .send()
        .ok();
    let got = lab.get("a/b.txt").ok();
    assert_eq!(got.body, b"hello");
    assert_eq!(got.header("etag"), put.header("etag"));
    let head = lab.object("HEAD", "a/b.txt").send().ok();
    assert_eq!(head.header("content-length"), "5");
    assert_eq!(head.header("content-type"), "text/plain");
    assert_eq!(head.header("x-amz-meta-colour"), "blue");
    assert_eq!(lab.list("", "/", 1000), (vec![], vec!["a/".to_owned()]));
    assert_eq!(lab.list("a/", "/", 1000).0, ["a/b.txt"]);
    assert_eq!(std::fs::read(lab.folder().join("a/b.txt")).unwrap(), b"hello");
    lab.object("DELETE", "a/b.txt").send().ok();
    lab.get("a/b.txt").fails(404, "NoSuchKey");
    assert!(!lab.folder().join("a").exists(), "an empty folder is left");
}

#[test]
fn a_range_is_exactly_the_bytes_that_were_asked_for() {
    let lab = Lab::new();
    let data: Vec<u8> = (0..700_000u32).map(|i| (i * 7) as u8).collect();
    lab.put("big", &data);
    for (range, expected) in [
        ("bytes=0-0", &data[..1]),
        ("bytes=262143-262145", &data[262_143..262_146]),
        ("bytes=699990-", &data[699_990..]),
        ("bytes=699990-900000", &data[699_990..]),
        ("bytes=-7", &data[699_993..]),
    ] {
        let got = lab.object("GET", "big").header("range", range).send();
        assert_eq!(got.status, 206, "{range}");
        assert_eq!(got.body, expected, "{range}");
    }
    assert_eq!(lab.get("big").ok().body, data);
    let beyond = lab.object("GET", "big").header("range", "bytes=700000-").send().fails(416, "InvalidRange");
    assert_eq!(beyond.header("content-range"), "bytes */700000");
}

#[test]
fn parts_become_one_object() {
    let lab = Lab::new();
    let part: Vec<u8> = (0..5u32 << 20).map(|i| (i / 3) as u8).collect();
    let started = lab.object("POST", "mpu").query("uploads", "").send().ok();
    let id = started.first("UploadId");
    let mut named = String::new();
    for (number, body) in [(1, &part[..]), (2, b"tail")] {
        let stored = lab
            .object("PUT", "mpu")
            .query("partNumber", &number.to_string())
            .query("uploadId", &id)
            .body(body)
            .send()
            .ok();
        named +=
            &format!("<Part><PartNumber>{number}</PartNumber><ETag>{}</ETag></Part>", stored.header("etag"));
    }
    let complete = format!("<CompleteMultipartUpload>{named}</CompleteMultipartUpload>");
    lab.get("mpu").fails(404, "NoSuchKey");
    let done = lab.object("POST", "mpu").query("uploadId", &id).body(complete.as_bytes()).send().ok();
    assert!(done.first("ETag").trim_matches('"').ends_with("-2"));
    assert_eq!(lab.get("mpu").ok().body, [&part[..], b"tail"].concat());
}
