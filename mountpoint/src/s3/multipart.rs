//! Uploads in parts, but for the parts themselves: rare operations, through the SDK.

use std::time::SystemTime;

use aws_sdk_s3::Client;
use aws_sdk_s3::types::{
    ChecksumAlgorithm as SdkAlgorithm, ChecksumType, CompletedMultipartUpload, CompletedPart, RequestPayer,
    ServerSideEncryption, StorageClass,
};

use super::put::exists;
use super::sdk::{EXCHANGE_MAX, Resent, failure};
use super::tries::Tries;
use super::verify::{Ours, look};
use super::wire::{Failure, Wire};
use super::{
    CompleteUpload, Error, ErrorKind, NewObject, PendingUpload, Result, Stored, UploadId, UploadedPart,
};
use crate::checksum::{Checksum, ChecksumAlgorithm};
use crate::object::{ETag, ObjectKey};

/// Pages of a listing of uploads that are read; more would be a store that never ends.
const PAGES_MAX: usize = 1000;

/// The SDK's client and what its requests carry.
#[derive(Debug)]
pub(super) struct Cold {
    pub(super) client: Client,
    pub(super) bucket: String,
}

impl Cold {
    fn payer(wire: &Wire) -> Option<RequestPayer> {
        wire.config.requester_pays.then_some(RequestPayer::Requester)
    }

    fn owner(wire: &Wire) -> Option<String> {
        wire.config.expected_bucket_owner.clone()
    }

    /// See [`super::ObjectClient::create_multipart_upload`].
    pub(super) async fn create(&self, wire: &Wire, request: &NewObject) -> Result<UploadId> {
        const OPERATION: &str = "CreateMultipartUpload";
        let config = &wire.config;
        let mut tries = Tries::new(wire, OPERATION, Some(&request.key), 0);
        loop {
            let generation = wire.generation();
            let sent = self
                .client
                .create_multipart_upload()
                .bucket(&self.bucket)
                .key(request.key.as_str())
                .content_type(request.content_type.as_deref().unwrap_or("binary/octet-stream"))
                .set_checksum_algorithm(request.checksum.map(sdk_algorithm))
                .set_checksum_type(request.checksum.and_then(checksum_type))
                .set_storage_class(config.storage_class.as_deref().map(StorageClass::from))
                .set_server_side_encryption(config.sse.as_deref().map(ServerSideEncryption::from))
                .set_ssekms_key_id(config.sse_kms_key_id.clone())
                .set_request_payer(Self::payer(wire))
                .set_expected_bucket_owner(Self::owner(wire))
                .send()
                .await;
            let failed = match sent {
                Ok(answer) => match answer.upload_id.filter(|id| !id.is_empty()) {
                    Some(id) => {
                        tries.succeeded();
                        return Ok(UploadId { key: request.key.clone(), id });
                    }
                    None => bad(OPERATION, &request.key, "the answer names no upload"),
                },
                Err(e) => failure(OPERATION, Some(&request.key), generation, e),
            };
            tries.again(failed).await?;
        }
    }

    /// See [`super::ObjectClient::complete_multipart_upload`].
    pub(super) async fn complete(&self, wire: &Wire, request: &CompleteUpload) -> Result<Stored> {
        const OPERATION: &str = "CompleteMultipartUpload";
        let key = &request.upload.key;
        let whole = Whole::of(&request.parts);
        let ours =
            Ours { size: whole.size, parts: Some(request.parts.len()), checksum: whole.checksum.clone() };
        let mut tries = Tries::new(wire, OPERATION, Some(key), 0);
        tries.deadline += EXCHANGE_MAX;
        loop {
            let failed = match self.complete_once(wire, request, &whole).await {
                Ok(stored) => {
                    tries.succeeded();
                    return Ok(stored);
                }
                Err(failed) => failed,
            };
            let gone = *failed.error.kind() == ErrorKind::NotFound;
            let taken = request.only_if_absent && *failed.error.kind() == ErrorKind::Changed;
            if gone {
                // Completed by a try whose answer was lost, or aborted by somebody.
                let otherwise =
                    unknown(key, "the upload is gone, and another object is there").source(failed.error);
                return look(wire, OPERATION, key, &ours, otherwise).await;
            }
            let ambiguous = tries.ambiguous || failed.ambiguous;
            if taken && !ambiguous {
                return Err(exists(OPERATION, key).status(412));
            }
            if taken {
                return look(wire, OPERATION, key, &ours, exists(OPERATION, key).status(412)).await;
            }
            if let Err(last) = tries.again(failed).await {
                if !ambiguous {
                    return Err(last);
                }
                let otherwise = unknown(key, "the object is not there yet").source(last);
                return look(wire, OPERATION, key, &ours, otherwise).await;
            }
        }
    }

    async fn complete_once(
        &self,
        wire: &Wire,
        request: &CompleteUpload,
        whole: &Whole,
    ) -> std::result::Result<Stored, Failure> {
        const OPERATION: &str = "CompleteMultipartUpload";
        let key = &request.upload.key;
        let parts = CompletedMultipartUpload::builder()
            .set_parts(Some(request.parts.iter().map(completed_part).collect()))
            .build();
        let generation = wire.generation();
        let resent = Resent::default();
        let noted = resent.clone();
        let answer = self
            .client
            .complete_multipart_upload()
            .bucket(&self.bucket)
            .key(key.as_str())
            .upload_id(&request.upload.id)
            .multipart_upload(parts)
            .set_checksum_type(whole.algorithm.and_then(checksum_type))
            .set_checksum_crc64_nvme(whole.full_object.clone())
            .set_if_none_match(request.only_if_absent.then(|| "*".to_owned()))
            .set_request_payer(Self::payer(wire))
            .set_expected_bucket_owner(Self::owner(wire))
            .customize()
            .mutate_request(move |request| request.add_extension(noted.clone()))
            .send()
            .await
            .map_err(|e| {
                let failed = failure(OPERATION, Some(key), generation, e);
                Failure { ambiguous: failed.ambiguous || resent.happened(), ..failed }
            })?;
        let checksum = answer.checksum_crc32_c.or(answer.checksum_crc64_nvme);
        match answer.e_tag.filter(|e| !e.is_empty()) {
            Some(etag) => Ok(Stored { etag: ETag::new(etag), checksum }),
            None => {
                let mut bad = bad(OPERATION, key, "the answer has no ETag");
                bad.ambiguous = true;
                Err(bad)
            }
        }
    }

    /// See [`super::ObjectClient::abort_multipart_upload`].
    pub(super) async fn abort(&self, wire: &Wire, upload: &UploadId) -> Result<()> {
        const OPERATION: &str = "AbortMultipartUpload";
        let mut tries = Tries::new(wire, OPERATION, Some(&upload.key), 0);
        loop {
            let generation = wire.generation();
            let sent = self
                .client
                .abort_multipart_upload()
                .bucket(&self.bucket)
                .key(upload.key.as_str())
                .upload_id(&upload.id)
                .set_request_payer(Self::payer(wire))
                .set_expected_bucket_owner(Self::owner(wire))
                .send()
                .await;
            let failed = match sent {
                Ok(_) => {
                    tries.succeeded();
                    return Ok(());
                }
                Err(e) => failure(OPERATION, Some(&upload.key), generation, e),
            };
            if *failed.error.kind() == ErrorKind::NotFound {
                return Ok(());
            }
            tries.again(failed).await?;
        }
    }

    /// See [`super::ObjectClient::list_multipart_uploads`].
    pub(super) async fn list_uploads(&self, wire: &Wire, prefix: &str) -> Result<Vec<PendingUpload>> {
        const OPERATION: &str = "ListMultipartUploads";
        let mut found = Vec::new();
        let mut markers: (Option<String>, Option<String>) = (None, None);
        for _ in 0..PAGES_MAX {
            let mut tries = Tries::new(wire, OPERATION, None, 0);
            let page = loop {
                let generation = wire.generation();
                let sent = self
                    .client
                    .list_multipart_uploads()
                    .bucket(&self.bucket)
                    .prefix(prefix)
                    .set_key_marker(markers.0.clone())
                    .set_upload_id_marker(markers.1.clone())
                    .set_request_payer(Self::payer(wire))
                    .set_expected_bucket_owner(Self::owner(wire))
                    .send()
                    .await;
                match sent {
                    Ok(page) => break page,
                    Err(e) => tries.again(failure(OPERATION, None, generation, e)).await?,
                }
            };
            tries.succeeded();
            found.extend(page.uploads().iter().filter_map(|u| {
                let key = u.key().filter(|k| k.starts_with(prefix))?;
                let upload = UploadId { key: ObjectKey::new(key), id: u.upload_id()?.to_owned() };
                let initiated = SystemTime::try_from(*u.initiated()?).ok()?;
                Some(PendingUpload { upload, initiated })
            }));
            let next = (
                page.next_key_marker.filter(|m| !m.is_empty()),
                page.next_upload_id_marker.filter(|m| !m.is_empty()),
            );
            if page.is_truncated != Some(true) {
                return Ok(found);
            }
            if next == markers || next.0.is_none() {
                break;
            }
            markers = next;
        }
        Err(Error::new(ErrorKind::BadAnswer, OPERATION).message("the listing of uploads does not end"))
    }
}

/// What the parts are together.
#[derive(Debug)]
struct Whole {
    size: u64,
    algorithm: Option<ChecksumAlgorithm>,
    /// As the store will spell it; `None` unless every part has one.
    checksum: Option<String>,
    /// CRC64NVME of the whole object: what Complete is sent.
    full_object: Option<String>,
}

impl Whole {
    fn of(parts: &[UploadedPart]) -> Self {
        let size = parts.iter().map(|p| p.size).sum();
        let sums: Option<Vec<Checksum>> = parts.iter().map(|p| p.checksum).collect();
        let algorithm = sums.as_ref().and_then(|s| s.first()).map(|c| c.algorithm);
        let (checksum, full_object) = match (algorithm, sums) {
            (Some(ChecksumAlgorithm::Crc32c), Some(sums)) => (Some(Checksum::composite(&sums)), None),
            (Some(ChecksumAlgorithm::Crc64Nvme), Some(sums)) => {
                let whole = sums.iter().zip(parts).skip(1).fold(sums[0], |w, (c, p)| w.combine(*c, p.size));
                (Some(whole.to_base64()), Some(whole.to_base64()))
            }
            _ => (None, None),
        };
        Self { size, algorithm: checksum.is_some().then_some(algorithm).flatten(), checksum, full_object }
    }
}

fn completed_part(part: &UploadedPart) -> CompletedPart {
    let sum = |algorithm| part.checksum.filter(|c| c.algorithm == algorithm).map(Checksum::to_base64);
    CompletedPart::builder()
        .part_number(part.part_number as i32)
        .e_tag(part.etag.as_str())
        .set_checksum_crc32_c(sum(ChecksumAlgorithm::Crc32c))
        .set_checksum_crc64_nvme(sum(ChecksumAlgorithm::Crc64Nvme))
        .build()
}

fn sdk_algorithm(algorithm: ChecksumAlgorithm) -> SdkAlgorithm {
    match algorithm {
        ChecksumAlgorithm::Crc32c => SdkAlgorithm::Crc32C,
        ChecksumAlgorithm::Crc64Nvme => SdkAlgorithm::Crc64Nvme,
    }
}

/// Named only where it is not the default: stores older than the parameter refuse it.
fn checksum_type(algorithm: ChecksumAlgorithm) -> Option<ChecksumType> {
    match algorithm {
        ChecksumAlgorithm::Crc32c => None,
        ChecksumAlgorithm::Crc64Nvme => Some(ChecksumType::FullObject),
    }
}

fn bad(operation: &'static str, key: &ObjectKey, why: &str) -> Failure {
    Failure::from(Error::new(ErrorKind::BadAnswer, operation).key(key).message(why))
}

fn unknown(key: &ObjectKey, why: &str) -> Error {
    Error::new(ErrorKind::Unknown, "CompleteMultipartUpload")
        .key(key)
        .message(format!("no try had a clear answer; {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_make_the_checksum_that_the_store_will_keep() {
        let data = [b"hello ".as_slice(), b"world", b"!"];
        let parts = |algorithm| {
            data.iter()
                .zip(1..)
                .map(|(d, part_number)| UploadedPart {
                    part_number,
                    etag: ETag::new("e"),
                    size: d.len() as u64,
                    checksum: Some(Checksum::of(algorithm, d)),
                })
                .collect::<Vec<_>>()
        };
        let whole = Whole::of(&parts(ChecksumAlgorithm::Crc64Nvme));
        let expected = Checksum::of(ChecksumAlgorithm::Crc64Nvme, b"hello world!").to_base64();
        assert_eq!((whole.size, whole.full_object), (12, Some(expected)));
        let composite = Whole::of(&parts(ChecksumAlgorithm::Crc32c));
        assert!(composite.full_object.is_none());
        assert!(composite.checksum.unwrap().ends_with("-3"));
        let mut unknown = parts(ChecksumAlgorithm::Crc32c);
        unknown[1].checksum = None;
        assert!(Whole::of(&unknown).checksum.is_none());
    }
}
