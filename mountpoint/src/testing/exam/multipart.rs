//! Uploads in parts.

use bytes::Bytes;

use super::Exam;
use crate::checksum::{Checksum, ChecksumAlgorithm};
use crate::object::ObjectKey;
use crate::s3::{
    CompleteUpload, ErrorKind, NewObject, Replaces, Result, Stored, UploadId, UploadPart, UploadedPart,
};

/// Smallest part that is not the last, in bytes: S3's limit.
const PART: usize = 5 << 20;

async fn start(exam: &Exam, key: &ObjectKey, checksum: Option<ChecksumAlgorithm>) -> UploadId {
    let object = NewObject { checksum, ..NewObject::new(key.clone()) };
    let result = exam.client.create_multipart_upload(&object).await;
    let upload = result.unwrap_or_else(|error| panic!("create an upload of {key}: {error}"));
    assert_eq!(upload.key, *key);
    upload
}

fn part(
    upload: &UploadId,
    part_number: u32,
    bytes: &Bytes,
    algorithm: Option<ChecksumAlgorithm>,
) -> UploadPart {
    let checksum = algorithm.map(|algorithm| Checksum::of(algorithm, bytes));
    UploadPart { upload: upload.clone(), part_number, body: vec![bytes.clone()], checksum }
}

async fn send(
    exam: &Exam,
    upload: &UploadId,
    part_number: u32,
    bytes: &Bytes,
    algorithm: Option<ChecksumAlgorithm>,
) -> UploadedPart {
    let request = part(upload, part_number, bytes, algorithm);
    let sent = exam.client.upload_part(&request).await.unwrap_or_else(|error| panic!("send a part: {error}"));
    assert_eq!((sent.part_number, sent.size), (part_number, bytes.len() as u64));
    assert_eq!(sent.checksum, request.checksum);
    sent
}

/// An upload of one part, ready to complete.
async fn prepared(exam: &Exam, key: &ObjectKey, bytes: &Bytes) -> (UploadId, Vec<UploadedPart>) {
    let algorithm = Some(ChecksumAlgorithm::Crc32c);
    let upload = start(exam, key, algorithm).await;
    let sent = send(exam, &upload, 1, bytes, algorithm).await;
    (upload, vec![sent])
}

async fn complete(
    exam: &Exam,
    (upload, parts): (UploadId, Vec<UploadedPart>),
    replaces: Replaces,
) -> Result<Stored> {
    exam.client.complete_multipart_upload(&CompleteUpload { upload, parts, replaces }).await
}

pub(super) async fn three_parts_read_back_whole(exam: &Exam) {
    for algorithm in [Some(ChecksumAlgorithm::Crc32c), Some(ChecksumAlgorithm::Crc64Nvme), None] {
        let key = exam.key(algorithm.map_or("none", ChecksumAlgorithm::name));
        let bytes = exam.bytes(1, 2 * PART + 100_001);
        let upload = start(exam, &key, algorithm).await;
        let cut = |n: u32| {
            let from = (n as usize - 1) * PART;
            bytes.slice(from..bytes.len().min(from + PART))
        };
        let mut parts = Vec::new();
        // Parts are sent in any order, and one of them twice: the last sending counts.
        send(exam, &upload, 2, &exam.bytes(9, PART), algorithm).await;
        for part_number in [3, 1, 2] {
            parts.push(send(exam, &upload, part_number, &cut(part_number), algorithm).await);
        }
        parts.sort_by_key(|part| part.part_number);
        let sums: Vec<Checksum> = parts.iter().filter_map(|part| part.checksum).collect();
        let stored = complete(exam, (upload, parts), Replaces::Anything).await.expect("complete");
        let meta = exam.head(&key).await;
        assert!(meta.etag.matches(stored.etag.as_str()), "{:?} is not {:?}", meta.etag, stored.etag);
        if let (Some(answered), Some(algorithm)) = (stored.checksum, algorithm) {
            let whole = Checksum::of(algorithm, &bytes).to_base64();
            let right = [Checksum::composite(&sums), whole];
            assert!(right.contains(&answered), "{answered} is none of {right:?}");
        }
        exam.assert_object(&key, &bytes).await;
    }
}

pub(super) async fn nothing_is_visible_before_complete(exam: &Exam) {
    let (key, bytes) = (exam.key("o"), exam.bytes(1, 1000));
    let upload = prepared(exam, &key, &bytes).await;
    exam.assert_missing(&key).await;
    assert!(exam.keys_under(&exam.folder).await.is_empty());
    complete(exam, upload, Replaces::Anything).await.expect("complete");
    exam.assert_object(&key, &bytes).await;
}

pub(super) async fn a_wrong_part_checksum_is_refused(exam: &Exam) {
    for algorithm in [ChecksumAlgorithm::Crc32c, ChecksumAlgorithm::Crc64Nvme] {
        let key = exam.key(algorithm.name());
        let upload = start(exam, &key, Some(algorithm)).await;
        let mut request = part(&upload, 1, &exam.bytes(1, 1000), Some(algorithm));
        request.checksum = Some(Checksum::of(algorithm, &exam.bytes(2, 1000)));
        let error = exam.client.upload_part(&request).await.expect_err("these are other bytes");
        assert_eq!(*error.kind(), ErrorKind::Corrupt, "{error}");
        exam.client.abort_multipart_upload(&upload).await.expect("abort");
    }
}

pub(super) async fn complete_only_if_absent_spares_what_is_there(exam: &Exam) {
    let (key, first) = (exam.key("o"), exam.bytes(1, 1000));
    let upload = prepared(exam, &key, &first).await;
    complete(exam, upload, Replaces::Nothing).await.expect("nothing is there yet");
    let upload = prepared(exam, &key, &exam.bytes(2, 1000)).await;
    let error = complete(exam, upload, Replaces::Nothing).await.expect_err("an object is there");
    assert_eq!(*error.kind(), ErrorKind::Exists, "{error}");
    exam.assert_object(&key, &first).await;
}

pub(super) async fn complete_over_a_version_spares_another(exam: &Exam) {
    let (key, second) = (exam.key("o"), exam.bytes(2, 1000));
    let first = exam.put(&key, &exam.bytes(1, 1000)).await;
    let newer = exam.put(&key, &second).await;
    let upload = prepared(exam, &key, &exam.bytes(3, 1000)).await;
    let error = complete(exam, upload, Replaces::Version(first.etag.clone())).await;
    assert_eq!(*error.expect_err("it was replaced").kind(), ErrorKind::Changed);
    exam.assert_object(&key, &second).await;
    let third = exam.bytes(3, 1000);
    let upload = prepared(exam, &key, &third).await;
    complete(exam, upload, Replaces::Version(newer.etag)).await.expect("it is this version");
    exam.assert_object(&key, &third).await;
    exam.client.delete_object(&key).await.expect("delete");
    let upload = prepared(exam, &key, &third).await;
    let error = complete(exam, upload, Replaces::Version(first.etag)).await.expect_err("it is gone");
    assert_eq!(*error.kind(), ErrorKind::Changed, "{error}");
    exam.assert_missing(&key).await;
}

pub(super) async fn complete_replaces_what_is_there(exam: &Exam) {
    let (key, bytes) = (exam.key("o"), exam.bytes(2, 1000));
    exam.put(&key, &exam.bytes(1, 5000)).await;
    let upload = prepared(exam, &key, &bytes).await;
    complete(exam, upload, Replaces::Anything).await.expect("complete");
    exam.assert_object(&key, &bytes).await;
}

pub(super) async fn abort_frees_and_twice_is_fine(exam: &Exam) {
    let key = exam.key("o");
    let (upload, _) = prepared(exam, &key, &exam.bytes(1, 1000)).await;
    for _ in 0..2 {
        exam.client.abort_multipart_upload(&upload).await.expect("abort");
    }
    let pending = exam.client.list_multipart_uploads(&exam.folder).await.expect("list uploads");
    assert_eq!(pending, []);
    let late = part(&upload, 2, &exam.bytes(1, 1000), Some(ChecksumAlgorithm::Crc32c));
    let error = exam.client.upload_part(&late).await.expect_err("the upload is gone");
    assert_eq!(*error.kind(), ErrorKind::NotFound, "{error}");
    exam.assert_missing(&key).await;
}

pub(super) async fn pending_uploads_are_listed_by_prefix(exam: &Exam) {
    let mine = start(exam, &exam.key("mine/o"), None).await;
    let again = start(exam, &exam.key("mine/o"), None).await;
    let other = start(exam, &exam.key("other/o"), None).await;
    assert_ne!(mine.id, again.id);
    let listed = |prefix: String| async move {
        let uploads = exam.client.list_multipart_uploads(&prefix).await.expect("list uploads");
        let mut ids: Vec<String> = uploads.into_iter().map(|u| u.upload.id).collect();
        ids.sort();
        ids
    };
    let sorted = |mut ids: Vec<&UploadId>| {
        ids.sort_by(|a, b| a.id.cmp(&b.id));
        ids.into_iter().map(|u| u.id.clone()).collect::<Vec<_>>()
    };
    assert_eq!(listed(format!("{}mine/", exam.folder)).await, sorted(vec![&mine, &again]));
    assert_eq!(listed(exam.folder.clone()).await, sorted(vec![&mine, &again, &other]));
    assert_eq!(listed(format!("{}nobody/", exam.folder)).await, sorted(vec![]));
    for upload in [mine, again, other] {
        exam.client.abort_multipart_upload(&upload).await.expect("abort");
    }
}
