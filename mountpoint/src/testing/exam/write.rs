//! Head, put and delete.

use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;

use super::Exam;
use crate::checksum::{Checksum, ChecksumAlgorithm};
use crate::object::ObjectId;
use crate::s3::{ErrorKind, Properties, Replaces};

pub(super) async fn a_missing_object_is_not_found(exam: &Exam) {
    exam.assert_missing(&exam.key("missing")).await;
    // A folder is not an object either.
    exam.put(&exam.key("folder/x"), &exam.bytes(1, 3)).await;
    exam.assert_missing(&exam.key("folder")).await;
    exam.assert_missing(&exam.key("folder/")).await;
}

pub(super) async fn put_and_head_agree(exam: &Exam) {
    for (salt, len) in [1, 4096, 70_001].into_iter().enumerate() {
        let (key, bytes) = (exam.key(&format!("o{len}")), exam.bytes(salt as u64, len));
        let stored = exam.put(&key, &bytes).await;
        let meta = exam.head(&key).await;
        assert_eq!(meta.size, len as u64);
        assert!(meta.etag.matches(stored.etag.as_str()), "{:?} is not {:?}", meta.etag, stored.etag);
        assert!(meta.readable);
        let year_2020 = UNIX_EPOCH + Duration::from_secs(50 * 365 * 86_400);
        assert!(meta.last_modified > year_2020, "{:?}", meta.last_modified);
        if let Some(answered) = stored.checksum {
            assert_eq!(answered, Checksum::of(ChecksumAlgorithm::Crc32c, &bytes).to_base64());
        }
        exam.assert_object(&key, &bytes).await;
    }
}

pub(super) async fn a_body_in_pieces_is_stored_whole(exam: &Exam) {
    let (key, bytes) = (exam.key("pieces"), exam.bytes(1, 3_000_000));
    let mut request = exam.put_request(&key, &bytes);
    let cuts = [0, 1, 4097, 4097, 2_500_000, bytes.len()];
    request.body = cuts.windows(2).map(|w| bytes.slice(w[0]..w[1])).collect();
    exam.client.put_object(&request).await.expect("put in pieces");
    exam.assert_object(&key, &bytes).await;
    // The other algorithm, and no checksum.
    request.object.checksum = Some(ChecksumAlgorithm::Crc64Nvme);
    request.checksum = Some(Checksum::of(ChecksumAlgorithm::Crc64Nvme, &bytes));
    exam.client.put_object(&request).await.expect("put with CRC64NVME");
    exam.assert_object(&key, &bytes).await;
    (request.object.checksum, request.checksum) = (None, None);
    exam.client.put_object(&request).await.expect("put without a checksum");
    exam.assert_object(&key, &bytes).await;
}

pub(super) async fn an_empty_object_is_an_object(exam: &Exam) {
    let key = exam.key("empty");
    exam.put(&key, &Bytes::new()).await;
    assert_eq!(exam.head(&key).await.size, 0);
    let mut request = exam.put_request(&exam.key("no pieces"), &Bytes::new());
    request.body.clear();
    exam.client.put_object(&request).await.expect("put of no pieces");
    assert_eq!(exam.keys_under(&exam.folder).await, [key, exam.key("no pieces")]);
}

pub(super) async fn put_over_an_object_replaces_it(exam: &Exam) {
    let key = exam.key("twice");
    let old = exam.put(&key, &exam.bytes(1, 50_000)).await;
    let bytes = exam.bytes(2, 100);
    let new = exam.put(&key, &bytes).await;
    assert!(!old.etag.matches(new.etag.as_str()), "other bytes are another version");
    exam.assert_object(&key, &bytes).await;
}

pub(super) async fn put_only_if_absent_spares_what_is_there(exam: &Exam) {
    let (key, first) = (exam.key("once"), exam.bytes(1, 100));
    let mut request = exam.put_request(&key, &first);
    request.object.replaces = Replaces::Nothing;
    exam.client.put_object(&request).await.expect("nothing is there yet");
    let mut request = exam.put_request(&key, &exam.bytes(2, 100));
    request.object.replaces = Replaces::Nothing;
    let error = exam.client.put_object(&request).await.expect_err("an object is there");
    assert_eq!(*error.kind(), ErrorKind::Exists, "{error}");
    exam.assert_object(&key, &first).await;
}

pub(super) async fn put_with_a_wrong_checksum_is_refused(exam: &Exam) {
    for algorithm in [ChecksumAlgorithm::Crc32c, ChecksumAlgorithm::Crc64Nvme] {
        let key = exam.key(algorithm.name());
        let mut request = exam.put_request(&key, &exam.bytes(1, 1000));
        request.object.checksum = Some(algorithm);
        request.checksum = Some(Checksum::of(algorithm, &exam.bytes(2, 1000)));
        let error = exam.client.put_object(&request).await.expect_err("these are other bytes");
        assert_eq!(*error.kind(), ErrorKind::Corrupt, "{error}");
        exam.assert_missing(&key).await;
    }
}

pub(super) async fn delete_twice_is_fine(exam: &Exam) {
    let key = exam.key("gone");
    exam.put(&key, &exam.bytes(1, 10)).await;
    for _ in 0..2 {
        exam.client.delete_object(&key).await.expect("delete");
        exam.assert_missing(&key).await;
    }
    assert!(exam.keys_under(&exam.folder).await.is_empty());
}

pub(super) async fn put_over_a_version_spares_another(exam: &Exam) {
    let (key, second) = (exam.key("o"), exam.bytes(2, 100));
    let first = exam.put(&key, &exam.bytes(1, 100)).await;
    let newer = exam.put(&key, &second).await;
    let mut request = exam.put_request(&key, &exam.bytes(3, 100));
    request.object.replaces = Replaces::Version(first.etag);
    let error = exam.client.put_object(&request).await.expect_err("it was replaced");
    assert_eq!(*error.kind(), ErrorKind::Changed, "{error}");
    exam.assert_object(&key, &second).await;
    request.object.replaces = Replaces::Version(newer.etag);
    let third = exam.client.put_object(&request).await.expect("it is this version");
    exam.assert_object(&key, &exam.bytes(3, 100)).await;
    exam.client.delete_object(&key).await.expect("delete");
    request.object.replaces = Replaces::Version(third.etag);
    let error = exam.client.put_object(&request).await.expect_err("it is gone");
    assert_eq!(*error.kind(), ErrorKind::Changed, "{error}");
    exam.assert_missing(&key).await;
}

pub(super) async fn delete_of_a_version_spares_another(exam: &Exam) {
    let (key, second) = (exam.key("o"), exam.bytes(2, 100));
    let first = exam.put(&key, &exam.bytes(1, 100)).await;
    let newer = exam.put(&key, &second).await;
    let of = |etag| ObjectId::by_etag(key.clone(), etag);
    let error = exam.client.delete_version(&of(first.etag)).await.expect_err("it was replaced");
    assert_eq!(*error.kind(), ErrorKind::Changed, "{error}");
    exam.assert_object(&key, &second).await;
    for _ in 0..2 {
        exam.client.delete_version(&of(newer.etag.clone())).await.expect("this version, or none");
        exam.assert_missing(&key).await;
    }
}

pub(super) async fn properties_come_back_as_they_went(exam: &Exam) {
    let key = exam.key("described");
    let properties = Properties {
        content_type: Some("text/x-exam".into()),
        cache_control: Some("max-age=60".into()),
        content_language: Some("de".into()),
        user: [("mode".to_owned(), "33188".to_owned()), ("mtime".to_owned(), "1.5".to_owned())].into(),
        ..Properties::default()
    };
    let mut request = exam.put_request(&key, &exam.bytes(1, 100));
    request.object.properties = properties.clone();
    let stored = exam.client.put_object(&request).await.expect("put with metadata");
    let told = exam.client.describe_object(&key).await.expect("describe");
    assert_eq!(told.properties, properties);
    assert!(told.meta.size == 100 && told.meta.etag.matches(stored.etag.as_str()), "{told:?}");
}
