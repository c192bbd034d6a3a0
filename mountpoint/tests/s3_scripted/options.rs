//! Options for every request or for new objects: their headers are in the requests for which S3 defines them, and in no others.

use bytes::Bytes;
use mountpoint::metrics::Metrics;
use mountpoint::object::ObjectKey;
use mountpoint::s3::{
    CompleteUpload, Config, NewObject, ObjectClient as _, PutObject, Replaces, S3Client, UploadPart,
};
use std::sync::Arc;
use std::time::SystemTime;

use super::server::{EMPTY_LISTING, Request, Scripted, Step};
use super::{config, fill, get_request, http_date, pattern};

/// Headers of every request: the payer, and the expected owner of the bucket.
const ALWAYS: [(&str, &str); 2] =
    [("x-amz-request-payer", "requester"), ("x-amz-expected-bucket-owner", "111122223333")];
/// Headers of requests that begin an object.
const NEW: [(&str, &str); 3] = [
    ("x-amz-storage-class", "STANDARD_IA"),
    ("x-amz-server-side-encryption", "aws:kms"),
    ("x-amz-server-side-encryption-aws-kms-key-id", "arn:aws:kms:eu-west-3:111122223333:key/1"),
];

/// Sends one request of each operation. Returns the requests by the operation's name.
async fn every_operation(change: impl FnOnce(&mut Config)) -> Vec<(&'static str, Request)> {
    let etag = ("etag", "\"v1\"");
    // A caller that asks for encryption wants to hear of it; no other listens.
    let [_, sse, sse_key] = NEW;
    let xml = |body: &str| Step::answer(200, &[sse, sse_key], body.as_bytes());
    let server = Scripted::start(vec![
        Step::answer(200, &[], EMPTY_LISTING),
        Step::answer(200, &[etag, ("last-modified", &http_date(SystemTime::now()))], b""),
        Step::answer(206, &[etag, ("content-range", "bytes 0-9/100")], &pattern(10)),
        Step::answer(200, &[etag, sse, sse_key], b""),
        xml("<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>"),
        Step::answer(200, &[etag], b""),
        xml("<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>"),
        Step::answer(204, &[], b""),
        xml("<ListMultipartUploadsResult><IsTruncated>false</IsTruncated></ListMultipartUploadsResult>"),
        Step::answer(204, &[], b""),
    ]);
    let mut config = config(&server);
    change(&mut config);
    let client = S3Client::connect(config, server.clock(), Arc::new(Metrics::default())).await.unwrap();
    let key = ObjectKey::new("k");
    client.head_object(&key).await.unwrap();
    client.get_object(&get_request(0..10, 100), &mut fill(10).0).await.unwrap();
    let object = NewObject::new(key.clone());
    let body = vec![Bytes::from_static(b"1")];
    let put = PutObject { object: object.clone(), body: body.clone(), checksum: None };
    client.put_object(&put).await.unwrap();
    let upload = client.create_multipart_upload(&object).await.unwrap();
    let part = UploadPart { upload: upload.clone(), part_number: 1, body, checksum: None };
    let parts = vec![client.upload_part(&part).await.unwrap()];
    let complete = CompleteUpload { upload: upload.clone(), parts, replaces: Replaces::Anything };
    client.complete_multipart_upload(&complete).await.unwrap();
    client.abort_multipart_upload(&upload).await.unwrap();
    client.list_multipart_uploads("").await.unwrap();
    client.delete_object(&key).await.unwrap();
    let names = [
        "ListObjectsV2",
        "HeadObject",
        "GetObject",
        "PutObject",
        "CreateMultipartUpload",
        "UploadPart",
        "CompleteMultipartUpload",
        "AbortMultipartUpload",
        "ListMultipartUploads",
        "DeleteObject",
    ];
    let asked = server.requests();
    assert_eq!(asked.len(), names.len(), "{asked:?}");
    names.into_iter().zip(asked).collect()
}

#[tokio::test]
async fn each_option_is_in_the_requests_where_s3_has_it_and_is_signed() {
    let asked = every_operation(|config| {
        config.requester_pays = true;
        config.expected_bucket_owner = Some("111122223333".into());
        config.storage_class = Some("STANDARD_IA".into());
        config.sse = Some("aws:kms".into());
        config.sse_kms_key_id = Some("arn:aws:kms:eu-west-3:111122223333:key/1".into());
    })
    .await;
    for (operation, request) in asked {
        let signed = request.header("authorization").unwrap().split("SignedHeaders=").nth(1).unwrap();
        let signed: Vec<_> = signed.split(',').next().unwrap().split(';').collect();
        let begins = ["PutObject", "CreateMultipartUpload"].contains(&operation);
        let wanted = |(name, value)| (name, Some(value));
        let unwanted = |(name, _)| (name, None);
        let new = NEW.map(|header| if begins { wanted(header) } else { unwanted(header) });
        for (name, value) in ALWAYS.map(wanted).into_iter().chain(new) {
            assert_eq!(request.header(name), value, "{name} of {operation}");
            assert_eq!(
                signed.contains(&name),
                value.is_some(),
                "{name} of {operation} is signed: {signed:?}"
            );
        }
    }
}

#[tokio::test]
async fn without_options_no_request_has_their_headers() {
    for (operation, request) in every_operation(|_| {}).await {
        for (name, _) in ALWAYS.into_iter().chain(NEW) {
            assert_eq!(request.header(name), None, "{name} of {operation}");
        }
    }
}
