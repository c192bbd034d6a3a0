//! Strict mode, encryption and a policy: the server is as strict as S3 where it is more lenient by default.

use s3server::{Effect, Fault};

use crate::client::{BUCKET, Lab};
use crate::multipart::{complete, part, start};

const METHOD: &str = "x-amz-server-side-encryption";
const KEY: &str = "x-amz-server-side-encryption-aws-kms-key-id";

#[test]
fn equal_bytes_have_equal_etags_however_they_were_stored() {
    let lab = Lab::with(|config| config.strict());
    let etag = |key: &str| lab.object("HEAD", key).send().ok().header("etag").to_owned();
    lab.put("a", b"hello");
    lab.put("b", b"hello");
    lab.put("c", b"other");
    assert_eq!(etag("a"), "\"5d41402abc4b2a76b9719d911017c592\"");
    assert_eq!(etag("b"), etag("a"));
    assert_ne!(etag("c"), etag("a"));
    lab.object("PUT", "copy").header("x-amz-copy-source", &format!("/{BUCKET}/a")).send().ok();
    assert_eq!(etag("copy"), etag("a"));
    let joined = |key: &str| {
        let id = start(&lab, key);
        let one = part(&lab, key, &id, 1, b"hello");
        complete(&lab, key, &id, &[(1, &one)], None).ok().first("ETag")
    };
    assert_eq!(joined("m"), joined("n"));
}

#[test]
fn an_upload_that_was_completed_is_gone() {
    let lab = Lab::with(|config| config.strict());
    let id = start(&lab, "k");
    let one = part(&lab, "k", &id, 1, b"x");
    complete(&lab, "k", &id, &[(1, &one)], None).ok();
    complete(&lab, "k", &id, &[(1, &one)], None).fails(404, "NoSuchUpload");
    assert_eq!(lab.get("k").ok().body, b"x");
}

#[test]
fn a_conditional_write_that_another_one_overtakes_is_a_conflict() {
    let lab = Lab::with(|config| config.strict());
    lab.server().faults().add(Fault::on("CompleteMultipartUpload", Effect::Slow { for_ms: 300 }));
    // When a Complete has looked at the key can't be seen from outside, so that a PUT may come before it: again, then.
    let mut statuses = (0..20).map(|i| {
        let key = format!("k{i}");
        let id = start(&lab, &key);
        let one = part(&lab, &key, &id, 1, b"slow");
        let fired = lab.server().faults().fired();
        let status = std::thread::scope(|scope| {
            let slow = scope.spawn(|| complete(&lab, &key, &id, &[(1, &one)], Some(("if-none-match", "*"))));
            while lab.server().faults().fired() == fired {
                std::thread::yield_now();
            }
            std::thread::sleep(std::time::Duration::from_millis(i * 20));
            lab.put(&key, b"quick");
            slow.join().unwrap().status
        });
        // 200: a machine that was busy for 300 ms let the PUT come after the Complete.
        assert!([200, 409, 412].contains(&status), "{status}");
        assert_eq!(lab.get(&key).body, b"quick");
        status
    });
    assert!(statuses.any(|status| status == 409));
    // What did not hold from the start is not a conflict.
    lab.object("PUT", "k0").header("if-none-match", "*").body(b"x").send().fails(412, "PreconditionFailed");
}

#[test]
fn nothing_above_five_gibibytes_is_stored_or_copied_at_once() {
    let lab = Lab::new();
    let large = std::fs::File::create(lab.folder().join("large")).unwrap();
    large.set_len((5 << 30) + 1).unwrap();
    let source = format!("/{BUCKET}/large");
    let copy = |request: crate::client::Request<'_>| request.header("x-amz-copy-source", &source).send();
    copy(lab.object("PUT", "copy")).fails(400, "InvalidRequest");
    let id = start(&lab, "copy");
    copy(lab.object("PUT", "copy").query("partNumber", "1").query("uploadId", &id))
        .fails(400, "InvalidRequest");
}

#[test]
fn a_put_or_a_part_above_five_gibibytes_is_refused_by_its_length() {
    let (lab, above) = (Lab::new(), (5 << 30) + 1);
    lab.object("PUT", "k").send_head(above).fails(400, "EntityTooLarge");
    let id = start(&lab, "k");
    let part = lab.object("PUT", "k").query("partNumber", "1").query("uploadId", &id);
    part.send_head(above).fails(400, "EntityTooLarge");
    lab.get("k").fails(404, "NoSuchKey");
}

#[test]
fn encryption_is_echoed_by_every_answer_about_the_object() {
    let lab = Lab::new();
    let put = lab.object("PUT", "k").header(METHOD, "aws:kms").header(KEY, "arn:mine").body(b"x").send().ok();
    let id = lab.object("POST", "m").query("uploads", "").header(METHOD, "AES256").send().ok();
    assert_eq!(id.header(METHOD), "AES256");
    let id = id.first("UploadId");
    let uploaded =
        lab.object("PUT", "m").query("partNumber", "1").query("uploadId", &id).body(b"x").send().ok();
    assert_eq!(uploaded.header(METHOD), "AES256");
    let done = complete(&lab, "m", &id, &[(1, uploaded.header("etag"))], None).ok();
    assert_eq!(done.header(METHOD), "AES256");
    assert_eq!(lab.object("HEAD", "m").send().ok().header(METHOD), "AES256");
    for answer in [put, lab.get("k").ok(), lab.object("HEAD", "k").send().ok()] {
        assert_eq!((answer.header(METHOD), answer.header(KEY)), ("aws:kms", "arn:mine"));
    }
    assert_eq!(lab.put("plain", b"x").header(METHOD), "");
    lab.object("PUT", "k").header(METHOD, "rot13").body(b"y").send().fails(400, "InvalidArgument");
    assert_eq!(lab.get("k").body, b"x");
    let strict = Lab::with(|config| config.strict());
    assert_eq!(strict.put("k", b"x").header(METHOD), "AES256", "S3's own default");
}

#[test]
fn a_policy_hides_all_keys_but_those_below_its_prefix() {
    let mut lab = Lab::with(|mut config| {
        config.policy_prefix = Some("team/".to_owned());
        config
    });
    std::fs::create_dir_all(lab.folder().join("other")).unwrap();
    std::fs::write(lab.folder().join("other/secret"), "s").unwrap();
    lab.restart();
    lab.put("team/a", b"1");
    assert_eq!(lab.get("team/a").ok().body, b"1");
    assert_eq!(lab.list("team/", "", 10).0, ["team/a"]);
    let denied = |request: crate::client::Request<'_>| request.send().fails(403, "AccessDenied");
    denied(lab.object("GET", "other/secret"));
    denied(lab.object("PUT", "other/new").body(b"x"));
    denied(lab.object("DELETE", "other/secret"));
    denied(lab.object("PUT", "team/copy").header("x-amz-copy-source", &format!("/{BUCKET}/other/secret")));
    denied(lab.bucket("GET").query("list-type", "2"));
    denied(lab.bucket("GET").query("list-type", "2").query("prefix", "other/"));
    denied(lab.object("GET", "team/missing"));
    assert_eq!(lab.object("HEAD", "team/missing").send().status, 403);
    assert_eq!(lab.bucket("HEAD").send().status, 403);
    let body = b"<Delete><Object><Key>other/secret</Key></Object><Object><Key>team/a</Key></Object></Delete>";
    let deleted = lab.bucket("POST").query("delete", "").body(body).send().ok();
    assert_eq!((deleted.first("Code"), deleted.all("Key").len()), ("AccessDenied".to_owned(), 2));
    assert!(lab.folder().join("other/secret").exists());
    assert_eq!(lab.get("team/a").status, 403);
}
