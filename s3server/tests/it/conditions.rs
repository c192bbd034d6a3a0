//! Conditional requests, signatures, refusals.

use s3server::{Effect, Fault};

use crate::client::{BUCKET, Lab};

#[test]
fn a_read_with_conditions_is_answered_as_http_says() {
    let lab = Lab::new();
    let etag = lab.put("k", b"data").header("etag").to_owned();
    let get = |name: &str, value: &str| lab.object("GET", "k").header(name, value).send();
    assert_eq!(get("if-match", &etag).status, 200);
    get("if-match", "\"other\"").fails(412, "PreconditionFailed");
    let unchanged = get("if-none-match", &etag);
    assert_eq!((unchanged.status, unchanged.body.len()), (304, 0));
    assert_eq!(unchanged.header("etag"), etag);
    assert_eq!(get("if-none-match", "\"other\"").status, 200);
    let modified = lab.object("HEAD", "k").send().header("last-modified").to_owned();
    assert_eq!(get("if-modified-since", &modified).status, 304);
    assert_eq!(get("if-unmodified-since", &modified).status, 200);
    get("if-unmodified-since", "Sat, 01 Jan 2000 00:00:00 GMT").fails(412, "PreconditionFailed");
    assert_eq!(lab.object("HEAD", "k").header("if-match", "\"other\"").send().status, 412);
}

#[test]
fn a_write_with_conditions_replaces_only_what_it_names() {
    let lab = Lab::new();
    let put =
        |name: &str, value: &str, body: &[u8]| lab.object("PUT", "k").header(name, value).body(body).send();
    put("if-match", "\"x\"", b"0").fails(404, "NoSuchKey");
    let first = put("if-none-match", "*", b"1").ok().header("etag").to_owned();
    put("if-none-match", "*", b"2").fails(412, "PreconditionFailed");
    assert_eq!(lab.get("k").body, b"1");
    let second = put("if-match", &first, b"3").ok().header("etag").to_owned();
    assert_ne!(first, second);
    put("if-match", &first, b"4").fails(412, "PreconditionFailed");
    lab.object("DELETE", "k").header("if-match", &first).send().fails(412, "PreconditionFailed");
    assert_eq!(lab.get("k").body, b"3");
    lab.object("DELETE", "k").header("if-match", &second).send().ok();
}

#[test]
fn a_copy_with_conditions_replaces_only_what_it_names() {
    let lab = Lab::new();
    let source = lab.put("source", b"new").header("etag").to_owned();
    let copy = |name: &str, value: &str| {
        let request = lab.object("PUT", "k").header("x-amz-copy-source", &format!("/{BUCKET}/source"));
        request.header("x-amz-copy-source-if-match", &source).header(name, value).send()
    };
    copy("if-match", "\"x\"").fails(404, "NoSuchKey");
    let first = copy("if-none-match", "*").ok().first("ETag");
    copy("if-none-match", "*").fails(412, "PreconditionFailed");
    let old = lab.put("k", b"old").header("etag").to_owned();
    copy("if-match", &first).fails(412, "PreconditionFailed");
    assert_eq!(lab.get("k").body, b"old");
    copy("if-match", &old).ok();
    assert_eq!(lab.get("k").body, b"new");
    lab.put("source", b"newer");
    let etag = lab.object("HEAD", "k").send().header("etag").to_owned();
    copy("if-match", &etag).fails(412, "PreconditionFailed");
    let archived = lab.object("PUT", "source").header("x-amz-storage-class", "GLACIER").body(b"cold").send();
    let cold = archived.ok().header("etag").to_owned();
    let request = lab.object("PUT", "k").header("x-amz-copy-source", &format!("/{BUCKET}/source"));
    request.header("x-amz-copy-source-if-match", &cold).send().fails(403, "InvalidObjectState");
    assert_eq!(lab.get("k").body, b"new");
}

#[test]
fn conditions_that_a_fault_hides_are_not_looked_at() {
    let lab = Lab::new();
    lab.put("k", b"1");
    lab.put("source", b"2");
    lab.server().faults().add(Fault { operation: None, ..Fault::on("", Effect::IgnoreConditions) });
    let request = lab.object("PUT", "k").header("x-amz-copy-source", &format!("/{BUCKET}/source"));
    request.header("x-amz-copy-source-if-match", "\"no\"").header("if-none-match", "*").send().ok();
    assert_eq!(lab.get("k").body, b"2");
    lab.object("DELETE", "k").header("if-match", "\"no\"").send().ok();
    lab.get("k").fails(404, "NoSuchKey");
}

#[test]
fn one_of_many_writers_at_once_wins_if_none_match() {
    let lab = Lab::new();
    let won: usize = std::thread::scope(|scope| {
        let write = |i: u8| {
            let lab = &lab;
            move || lab.object("PUT", "k").header("if-none-match", "*").body(&[i; 1000]).send().status
        };
        let writers: Vec<_> = (0..8).map(|i| scope.spawn(write(i))).collect();
        let statuses: Vec<_> = writers.into_iter().map(|w| w.join().unwrap()).collect();
        assert!(statuses.iter().all(|status| [200, 412].contains(status)), "{statuses:?}");
        statuses.iter().filter(|status| **status == 200).count()
    });
    assert_eq!(won, 1);
}

#[test]
fn a_wrong_signature_is_refused_and_not_counted() {
    let lab = Lab::new();
    lab.object("PUT", "k").secret("wrong").body(b"x").send().fails(403, "SignatureDoesNotMatch");
    lab.get("k").fails(404, "NoSuchKey");
    assert_eq!(lab.server().requests().count("PutObject"), 0);
    assert_eq!(lab.server().requests().count("GetObject"), 1);
}

#[test]
fn a_body_that_is_not_what_was_signed_is_refused() {
    let lab = Lab::new();
    lab.object("PUT", "k").signed_payload().body(b"signed").send().ok();
    let tampered = lab.object("PUT", "k").signed_payload().tampered().body(b"signed").send();
    tampered.fails(400, "XAmzContentSHA256Mismatch");
    assert_eq!(lab.get("k").body, b"signed");
}

#[test]
fn operations_that_are_not_known_are_never_taken_for_a_put() {
    let lab = Lab::new();
    lab.put("k", b"kept");
    let refused = |request: crate::client::Request<'_>| {
        request.body(b"lost").send().fails(501, "NotImplemented");
    };
    refused(lab.object("PUT", "k").query("renameObject", ""));
    refused(lab.object("PUT", "k").query("append", ""));
    refused(lab.object("PUT", "k").header("x-amz-write-offset-bytes", "4"));
    refused(lab.object("PUT", "k").header("x-amz-server-side-encryption-customer-algorithm", "AES256"));
    refused(lab.object("PUT", "k").query("tagging", ""));
    assert_eq!(lab.get("k").body, b"kept");
    lab.object("GET", "k").query("versionId", "abc").send().fails(501, "NotImplemented");
}

#[test]
fn what_is_not_there_is_said_by_its_code() {
    let lab = Lab::new();
    lab.get("none").fails(404, "NoSuchKey");
    lab.request("GET", "/nobucket/k").send().fails(404, "NoSuchBucket");
    lab.request("PUT", "/nobucket/k").body(b"x").send().fails(404, "NoSuchBucket");
    lab.request("GET", "/nobucket").query("list-type", "2").send().fails(404, "NoSuchBucket");
    assert_eq!(lab.request("HEAD", "/nobucket").send().status, 404);
    lab.object("DELETE", "none").send().ok();
    lab.put("k", b"x");
    lab.bucket("DELETE").send().fails(409, "BucketNotEmpty");
    lab.bucket("PUT").send().fails(409, "BucketAlreadyOwnedByYou");
    assert_eq!(lab.request("GET", "/").send().ok().all("Name"), ["bucket"]);
    lab.bucket("GET").query("location", "").send().ok();
}
