//! `--sse`: a store's report about its encryption, and the fate of a file if the report is wrong.

use std::sync::Arc;

use bytes::Bytes;
use mountpoint::metrics::Metrics;
use mountpoint::object::{ETag, ObjectKey};
use mountpoint::s3::{
    CompleteUpload, Config, Error, ErrorKind, NewObject, ObjectClient as _, PutObject, Replaces, S3Client,
    UploadId, UploadPart, UploadedPart,
};

use super::config;
use super::server::{EMPTY_LISTING, Scripted, Step};

const KEY: &str = "arn:aws:kms:eu-west-3:111122223333:key/1234";
const SSE: (&str, &str) = ("x-amz-server-side-encryption", "aws:kms");
const SSE_KEY: (&str, &str) = ("x-amz-server-side-encryption-aws-kms-key-id", KEY);
const OTHER_KEY: (&str, &str) = (SSE_KEY.0, "arn:aws:kms:eu-west-3:111122223333:key/5678");
const ETAG: (&str, &str) = ("etag", "\"e\"");
const DATE: (&str, &str) = ("last-modified", "Wed, 21 Oct 2015 07:28:00 GMT");

/// A client that has new objects encrypted with one key.
async fn encrypting(script: Vec<Step>) -> (Arc<S3Client>, Scripted) {
    let server = Scripted::start([vec![Step::answer(200, &[], EMPTY_LISTING)], script].concat());
    let config = Config { sse: Some("aws:kms".into()), sse_kms_key_id: Some(KEY.into()), ..config(&server) };
    let client = S3Client::connect(config, server.clock(), Arc::new(Metrics::default())).await.unwrap();
    (client, server)
}

fn new_object() -> NewObject {
    NewObject { checksum: None, ..NewObject::new(ObjectKey::new("secret plan")) }
}

/// Asserts that an upload failed for this reason, in a line that names the object and the next thing to check.
fn not_encrypted(error: &Error, words: &[&str]) {
    assert_eq!(*error.kind(), ErrorKind::NotEncrypted, "{error}");
    let said = error.to_string();
    for word in ["\"secret plan\"", "check whether the store"].iter().chain(words) {
        assert!(said.contains(word), "{word:?} in {said}");
    }
}

#[tokio::test]
async fn a_put_counts_only_if_the_store_says_that_it_encrypts_as_asked() {
    let answer = |headers: &[(&str, &str)]| Step::answer(200, headers, b"");
    let (client, server) = encrypting(vec![
        answer(&[ETAG, SSE, SSE_KEY]),
        answer(&[ETAG]),
        answer(&[ETAG, (SSE.0, "AES256")]),
        answer(&[ETAG, SSE, OTHER_KEY]),
    ])
    .await;
    let put = PutObject { object: new_object(), body: vec![Bytes::from_static(b"1")], checksum: None };
    client.put_object(&put).await.unwrap();
    for said in ["reports no encryption", "AES256", "key/5678"] {
        let error = client.put_object(&put).await.unwrap_err();
        not_encrypted(&error, &[said, "is in the bucket"]);
        assert!(error.may_have_stored(), "it lies there");
    }
    assert_eq!(server.left(), 0, "each was sent once");
}

#[tokio::test]
async fn an_upload_without_encryption_is_given_up_before_a_part_is_sent() {
    let created = |headers: &[(&str, &str)]| {
        let body = b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>";
        Step::answer(200, headers, body)
    };
    let (client, server) = encrypting(vec![
        created(&[SSE, SSE_KEY]),
        created(&[]),
        Step::answer(204, &[], b""),
        created(&[SSE, OTHER_KEY]),
        Step::answer(204, &[], b""),
    ])
    .await;
    client.create_multipart_upload(&new_object()).await.unwrap();
    for said in ["reports no encryption", "key/5678"] {
        let error = client.create_multipart_upload(&new_object()).await.unwrap_err();
        not_encrypted(&error, &[said, "no byte was sent"]);
        assert!(!error.may_have_stored(), "{error}");
        let last = server.requests().pop().unwrap();
        assert_eq!(last.line, "DELETE /bucket/secret%20plan?uploadId=u HTTP/1.1");
    }
}

#[tokio::test]
async fn a_part_counts_unless_the_store_says_that_it_encrypts_otherwise() {
    let answer = |headers: &[(&str, &str)]| Step::answer(200, headers, b"");
    let (client, server) = encrypting(vec![
        answer(&[ETAG]),
        answer(&[ETAG, SSE]),
        answer(&[ETAG, SSE, SSE_KEY]),
        answer(&[ETAG, (SSE.0, "AES256")]),
        answer(&[ETAG, SSE, OTHER_KEY]),
    ])
    .await;
    let upload = UploadId { key: new_object().key, id: "u".into() };
    let part = UploadPart { upload, part_number: 1, body: vec![Bytes::from_static(b"1")], checksum: None };
    for _ in 0..3 {
        client.upload_part(&part).await.unwrap();
    }
    for said in ["AES256", "key/5678"] {
        let error = client.upload_part(&part).await.unwrap_err();
        not_encrypted(&error, &[said, "the upload is not completed"]);
        assert!(!error.may_have_stored(), "{error}");
    }
    assert_eq!(server.left(), 0, "each was sent once");
}

#[tokio::test]
async fn a_completed_upload_is_checked_if_its_answer_names_no_encryption() {
    let completed = |headers: &[(&str, &str)]| {
        let body = b"<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>";
        Step::answer(200, headers, body)
    };
    let there = |headers: &[(&str, &str)]| {
        Step::answer(200, &[headers, &[ETAG, DATE, ("content-length", "1")]].concat(), b"")
    };
    let (client, server) = encrypting(vec![
        completed(&[SSE, SSE_KEY]),
        completed(&[]),
        there(&[SSE, SSE_KEY]),
        completed(&[]),
        there(&[]),
        completed(&[SSE, OTHER_KEY]),
        there(&[SSE, OTHER_KEY]),
    ])
    .await;
    let part = UploadedPart { part_number: 1, etag: ETag::new("p"), size: 1, checksum: None };
    let upload = UploadId { key: new_object().key, id: "u".into() };
    let complete = CompleteUpload { upload, parts: vec![part], replaces: Replaces::Anything };
    for _ in 0..2 {
        client.complete_multipart_upload(&complete).await.unwrap();
    }
    for said in ["reports no encryption", "key/5678"] {
        let error = client.complete_multipart_upload(&complete).await.unwrap_err();
        not_encrypted(&error, &[said, "is in the bucket"]);
        assert!(error.may_have_stored(), "it lies there");
    }
    assert_eq!(server.left(), 0);
}
