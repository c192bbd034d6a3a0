//! Copies within the store.

use bytes::Bytes;

use super::Exam;
use crate::object::{ObjectId, ObjectKey};
use crate::s3::{CompleteUpload, CopyObject, CopyPart, ErrorKind, NewObject, Properties, Replaces, Stored};

/// Smallest part that is not the last, in bytes: S3's limit.
const PART: u64 = 5 << 20;

/// A request that copies the stored version.
fn copy(key: &ObjectKey, stored: &Stored, size: u64, to: &ObjectKey, replaces: Replaces) -> CopyObject {
    CopyObject {
        source: ObjectId::by_etag(key.clone(), stored.etag.clone()),
        size,
        checksum: stored.checksum.clone(),
        to: to.clone(),
        replaces,
        properties: None,
        storage_class: None,
    }
}

async fn described(exam: &Exam, key: &ObjectKey, bytes: &Bytes) -> (Stored, Properties) {
    let mut request = exam.put_request(key, bytes);
    request.object.properties = Properties {
        content_type: Some("text/x-exam".into()),
        user: [("a".to_owned(), "b".to_owned())].into(),
        ..Properties::default()
    };
    let stored = exam.client.put_object(&request).await.expect("put with metadata");
    (stored, request.object.properties)
}

pub(super) async fn a_copy_has_bytes_and_properties_of_its_source(exam: &Exam) {
    for len in [0, 70_001] {
        let (from, to) = (exam.key(&format!("from{len}")), exam.key(&format!("to{len}")));
        let bytes = exam.bytes(1, len);
        let (stored, properties) = described(exam, &from, &bytes).await;
        let request = copy(&from, &stored, len as u64, &to, Replaces::Nothing);
        let copied = exam.client.copy_object(&request).await.expect("copy");
        let told = exam.client.describe_object(&to).await.expect("describe the copy");
        assert!(
            told.meta.etag.matches(copied.etag.as_str()),
            "{:?} is not {:?}",
            told.meta.etag,
            copied.etag
        );
        assert_eq!(told.properties, properties);
        exam.assert_object(&to, &bytes).await;
        exam.assert_object(&from, &bytes).await;
    }
}

pub(super) async fn a_copy_of_another_version_is_refused(exam: &Exam) {
    let (from, to) = (exam.key("from"), exam.key("to"));
    let first = exam.put(&from, &exam.bytes(1, 100)).await;
    exam.put(&from, &exam.bytes(2, 100)).await;
    for replaces in [Replaces::Nothing, Replaces::Anything] {
        let request = copy(&from, &first, 100, &to, replaces);
        let error = exam.client.copy_object(&request).await.expect_err("it was replaced");
        assert_eq!(*error.kind(), ErrorKind::Changed, "{error}");
        exam.assert_missing(&to).await;
    }
    exam.client.delete_object(&from).await.expect("delete");
    let request = copy(&from, &first, 100, &to, Replaces::Nothing);
    let error = exam.client.copy_object(&request).await.expect_err("it is gone");
    assert_eq!(*error.kind(), ErrorKind::NotFound, "{error}");
    exam.assert_missing(&to).await;
}

pub(super) async fn a_copy_over_nothing_spares_what_is_there(exam: &Exam) {
    let (from, to, there) = (exam.key("from"), exam.key("to"), exam.bytes(2, 50));
    let stored = exam.put(&from, &exam.bytes(1, 100)).await;
    exam.put(&to, &there).await;
    let request = copy(&from, &stored, 100, &to, Replaces::Nothing);
    let error = exam.client.copy_object(&request).await.expect_err("an object is there");
    assert_eq!(*error.kind(), ErrorKind::Exists, "{error}");
    exam.assert_object(&to, &there).await;
}

pub(super) async fn a_copy_over_a_version_spares_another(exam: &Exam) {
    let (from, to) = (exam.key("from"), exam.key("to"));
    let (bytes, second) = (exam.bytes(1, 100), exam.bytes(3, 50));
    let stored = exam.put(&from, &bytes).await;
    let first = exam.put(&to, &exam.bytes(2, 50)).await;
    let newer = exam.put(&to, &second).await;
    let over = |there: &Stored| copy(&from, &stored, 100, &to, Replaces::Version(there.etag.clone()));
    let error = exam.client.copy_object(&over(&first)).await.expect_err("it was replaced");
    assert_eq!(*error.kind(), ErrorKind::Exists, "{error}");
    exam.assert_object(&to, &second).await;
    exam.client.copy_object(&over(&newer)).await.expect("it is this version");
    exam.assert_object(&to, &bytes).await;
    exam.client.delete_object(&to).await.expect("delete");
    let error = exam.client.copy_object(&over(&newer)).await.expect_err("it is gone");
    assert_eq!(*error.kind(), ErrorKind::Exists, "{error}");
    exam.assert_missing(&to).await;
}

pub(super) async fn a_copy_with_properties_of_its_own_has_those(exam: &Exam) {
    let (key, bytes) = (exam.key("o"), exam.bytes(1, 100));
    let (stored, properties) = described(exam, &key, &bytes).await;
    let mut changed = properties;
    changed.user.insert("a".into(), "c".into());
    let replaces = Replaces::Version(stored.etag.clone());
    let onto_itself = copy(&key, &stored, 100, &key, replaces);
    let request = CopyObject { properties: Some(changed.clone()), ..onto_itself };
    exam.client.copy_object(&request).await.expect("a copy onto itself");
    assert_eq!(exam.client.describe_object(&key).await.expect("describe").properties, changed);
    exam.assert_object(&key, &bytes).await;
}

pub(super) async fn ranges_are_copied_into_parts(exam: &Exam) {
    let (from, to) = (exam.key("from"), exam.key("to"));
    let bytes = exam.bytes(1, PART as usize + 1_000);
    let stored = exam.put(&from, &bytes).await;
    let upload =
        exam.client.create_multipart_upload(&NewObject::new(to.clone())).await.expect("create an upload");
    let part = |part_number, range| CopyPart {
        upload: upload.clone(),
        part_number,
        source: ObjectId::by_etag(from.clone(), stored.etag.clone()),
        range,
    };
    let mut parts = Vec::new();
    for (number, range) in [(1, 500..PART + 500), (2, 0..10)] {
        parts.push(exam.client.upload_part_copy(&part(number, range)).await.expect("copy a part"));
    }
    assert_eq!((parts[0].size, parts[1].size), (PART, 10));
    exam.assert_missing(&to).await;
    exam.put(&from, &exam.bytes(2, 100)).await;
    let error = exam.client.upload_part_copy(&part(3, 0..10)).await.expect_err("it was replaced");
    assert_eq!(*error.kind(), ErrorKind::Changed, "{error}");
    let complete = CompleteUpload { upload: upload.clone(), parts, replaces: Replaces::Nothing };
    exam.client.complete_multipart_upload(&complete).await.expect("complete");
    let joined = [&bytes[500..PART as usize + 500], &bytes[..10]].concat();
    exam.assert_object(&to, &joined.into()).await;
}

pub(super) async fn every_key_is_a_source(exam: &Exam) {
    let bytes = exam.bytes(1, 10);
    for (i, name) in exam.hostile.iter().enumerate() {
        let from = ObjectKey::new(format!("{}{name}", exam.folder));
        if from.as_str().len() > ObjectKey::LEN_MAX || (exam.traits.refuses_key)(name).is_some() {
            continue;
        }
        let to = exam.key(&format!("a-copy-{i}"));
        let stored = exam.put(&from, &bytes).await;
        let request = copy(&from, &stored, 10, &to, Replaces::Nothing);
        exam.client.copy_object(&request).await.unwrap_or_else(|error| panic!("copy {from}: {error}"));
        exam.assert_object(&to, &bytes).await;
        exam.client.delete_object(&from).await.expect("delete");
    }
}
