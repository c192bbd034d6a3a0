//! Multipart uploads.

use std::time::Duration;

use s3s::dto::*;
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use super::error::{invalid, to_s3};
use super::list::Names;
use super::object::{ReadConditions, check_key, checksum, condition, etag, meta_of, sum_of};
use super::receive::{Announced, PUT_MAX};
use super::sse::echo;
use super::write::{hash, md5_of};
use super::{Answer, Folder};
use crate::store::meta::Meta;
use crate::store::{self, Condition, NewUpload, Store, Upload, Wanted, append};
use crate::sums::{self, Algorithm, Sum};

/// Most parts of an upload, and most entries of a page, as in S3.
const PARTS_MAX: i32 = 10_000;
const PAGE_MAX: usize = 1000;

impl Folder {
    pub(super) async fn create_multipart_upload_(
        &self,
        req: S3Request<CreateMultipartUploadInput>,
    ) -> Answer<CreateMultipartUploadOutput> {
        let S3Request { input, headers, extensions, .. } = req;
        check_key(&input.key)?;
        self.store.bucket(&input.bucket).map_err(to_s3)?;
        let algorithm = match &input.checksum_algorithm {
            None => None,
            Some(name) => Some(
                Algorithm::of_name(name.as_str())
                    .ok_or_else(|| invalid("The checksum algorithm is not known."))?,
            ),
        };
        let full_object = full_object(algorithm, input.checksum_type.as_ref().map(ChecksumType::as_str))?;
        let class = input.storage_class.map(|class| class.as_str().to_owned());
        let new = NewUpload {
            bucket: input.bucket.clone(),
            key: input.key.clone(),
            meta: Meta { sse: self.sse(&headers, &extensions)?, ..meta_of(&headers, input.metadata, class)? },
            algorithm,
            full_object,
        };
        let upload = self.blocking(move |store| store.create_upload(new)).await?;
        let (server_side_encryption, ssekms_key_id) = echo(upload.started_with().meta.sse.as_ref());
        Ok(S3Response::new(CreateMultipartUploadOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(upload.id().to_owned()),
            checksum_algorithm: input.checksum_algorithm,
            checksum_type: algorithm.map(|_| checksum_type(full_object)),
            server_side_encryption,
            ssekms_key_id,
            ..CreateMultipartUploadOutput::default()
        }))
    }

    pub(super) async fn upload_part_(&self, req: S3Request<UploadPartInput>) -> Answer<UploadPartOutput> {
        let S3Request { input, headers, trailing_headers, .. } = req;
        let number = part_number(input.part_number)?;
        let upload = self.store.upload(&input.bucket, &input.key, &input.upload_id).map_err(to_s3)?;
        let announced = Announced::of(&headers, trailing_headers)?;
        let agreed = upload.started_with().algorithm;
        if let (Some(agreed), Some(chosen)) = (agreed, announced.algorithm())
            && agreed != chosen
        {
            return Err(invalid(format!(
                "The part carries a {} checksum, the upload was started with {}.",
                chosen.name(),
                agreed.name()
            )));
        }
        let received = self.receive(input.body, announced, agreed.unwrap_or(Algorithm::Crc64Nvme)).await?;
        let etag_ = received.md5.unwrap_or_else(|| self.store.new_etag());
        let sums = checksum(Some(&received.sum));
        let (server_side_encryption, ssekms_key_id) = echo(upload.started_with().meta.sse.as_ref());
        let part = self.blocking(move |_| upload.store(number, received.staged, etag_, received.sum)).await?;
        Ok(S3Response::new(UploadPartOutput {
            e_tag: Some(etag(&part.etag)),
            checksum_crc32: sums.checksum_crc32,
            checksum_crc32c: sums.checksum_crc32c,
            checksum_crc64nvme: sums.checksum_crc64nvme,
            checksum_sha1: sums.checksum_sha1,
            checksum_sha256: sums.checksum_sha256,
            server_side_encryption,
            ssekms_key_id,
            ..UploadPartOutput::default()
        }))
    }

    pub(super) async fn upload_part_copy_(&self, input: UploadPartCopyInput) -> Answer<UploadPartCopyOutput> {
        let number = part_number(input.part_number)?;
        let upload = self.store.upload(&input.bucket, &input.key, &input.upload_id).map_err(to_s3)?;
        let (file, source) = self.copy_source(
            &input.copy_source,
            &ReadConditions {
                if_match: input.copy_source_if_match,
                if_none_match: input.copy_source_if_none_match,
                if_modified_since: input.copy_source_if_modified_since,
                if_unmodified_since: input.copy_source_if_unmodified_since,
            },
        )?;
        let range = match input.copy_source_range {
            None => 0..source.size(),
            Some(text) => {
                let range = s3s::dto::Range::parse(&text).map_err(|_| {
                    S3Error::with_message(S3ErrorCode::InvalidArgument, "The range is not valid.")
                })?;
                let inside = range.check(source.size()).ok().filter(|_| match range {
                    s3s::dto::Range::Int { last: Some(last), .. } => last < source.size(),
                    _ => false,
                });
                inside.ok_or_else(|| S3Error::new(S3ErrorCode::InvalidRange))?
            }
        };
        if range.end - range.start > PUT_MAX {
            return Err(invalid(
                "The specified copy range is larger than the maximum allowable size: 5368709120.",
            ));
        }
        let strict = self.strict;
        let part = self
            .blocking(move |store| {
                let staged = store.stage()?;
                let copying = |source| store::Error::Io { what: "copy the part", source };
                let target = staged.file();
                let size = range.end - range.start;
                append(&file, range.start, &target, 0, size).map_err(copying)?;
                let algorithm = upload.started_with().algorithm.unwrap_or(Algorithm::Crc64Nvme);
                let sum = hash(&target, size, algorithm).map_err(copying)?;
                let etag = if strict { md5_of(&target, size).map_err(copying)? } else { store.new_etag() };
                upload.store(number, staged, etag, sum)
            })
            .await?;
        let sums = checksum(part.sum.as_ref());
        let result = CopyPartResult {
            e_tag: Some(etag(&part.etag)),
            last_modified: Some(part.modified.into()),
            checksum_crc32: sums.checksum_crc32,
            checksum_crc32c: sums.checksum_crc32c,
            checksum_crc64nvme: sums.checksum_crc64nvme,
            checksum_sha1: sums.checksum_sha1,
            checksum_sha256: sums.checksum_sha256,
        };
        Ok(S3Response::new(UploadPartCopyOutput {
            copy_part_result: Some(result),
            ..UploadPartCopyOutput::default()
        }))
    }

    pub(super) async fn complete_multipart_upload_(
        &self,
        input: CompleteMultipartUploadInput,
        longer: Duration,
    ) -> Answer<CompleteMultipartUploadOutput> {
        let if_ = condition(input.if_match, input.if_none_match)?;
        let claimed = sum_of([
            input.checksum_crc32,
            input.checksum_crc32c,
            input.checksum_crc64nvme,
            input.checksum_sha1,
            input.checksum_sha256,
        ]);
        let size = input.mpu_object_size;
        let parts = input.multipart_upload.and_then(|u| u.parts).unwrap_or_default();
        let wanted = parts.into_iter().map(wanted_part).collect::<S3Result<Vec<_>>>()?;
        let (bucket, key, id) = (input.bucket.clone(), input.key.clone(), input.upload_id);
        let before = self.before(&*self.store.bucket(&bucket).map_err(to_s3)?, &key, &if_);
        // Strict mode answers NoSuchUpload for a completed upload; then only a HEAD of the object shows the outcome.
        let remembers = !self.strict;
        let meta = self
            .blocking(move |store| {
                let done = || completed_before(store, &bucket, &key, &id).filter(|_| remembers);
                match store.upload(&bucket, &key, &id) {
                    Ok(upload) => {
                        // Completes of one upload run one after the other: two at once would create two objects.
                        let _turn = upload.completing();
                        if let Some(meta) = done() {
                            return Ok(meta);
                        }
                        std::thread::sleep(longer);
                        let completed = complete(store, &upload, &wanted, claimed.as_ref(), size, &if_);
                        completed.map_err(|error| match store.bucket(&bucket) {
                            Ok(bucket) => before.judge(error, &bucket, &key),
                            Err(_) => error,
                        })
                    }
                    Err(error) => done().ok_or(error),
                }
            })
            .await?;
        let (server_side_encryption, ssekms_key_id) = echo(meta.sse.as_ref());
        let sums = checksum(meta.sum.as_ref());
        Ok(S3Response::new(CompleteMultipartUploadOutput {
            location: Some(format!("/{}/{}", input.bucket, input.key)),
            bucket: Some(input.bucket),
            key: Some(input.key),
            e_tag: Some(etag(&meta.etag)),
            checksum_crc32: sums.checksum_crc32,
            checksum_crc32c: sums.checksum_crc32c,
            checksum_crc64nvme: sums.checksum_crc64nvme,
            checksum_sha1: sums.checksum_sha1,
            checksum_sha256: sums.checksum_sha256,
            checksum_type: sums.checksum_type,
            server_side_encryption,
            ssekms_key_id,
            ..CompleteMultipartUploadOutput::default()
        }))
    }

    /// Checks that all parts but the last have the same size.
    pub(super) fn parts_are_equal(&self, input: &CompleteMultipartUploadInput) -> S3Result<()> {
        let upload = self.store.upload(&input.bucket, &input.key, &input.upload_id).map_err(to_s3)?;
        let sizes: Vec<_> = upload.parts().into_iter().map(|(_, part)| part.size).collect();
        let but_last = &sizes[..sizes.len().saturating_sub(1)];
        if but_last.windows(2).all(|pair| pair[0] == pair[1]) {
            return Ok(());
        }
        let message = "All non-trailing parts must have the same length.";
        Err(S3Error::with_message(S3ErrorCode::InvalidPart, message))
    }

    pub(super) async fn abort_multipart_upload_(
        &self,
        input: AbortMultipartUploadInput,
    ) -> Answer<AbortMultipartUploadOutput> {
        self.blocking(move |store| {
            let upload = store.upload(&input.bucket, &input.key, &input.upload_id)?;
            store.forget_upload(&upload)
        })
        .await?;
        let status = http::StatusCode::NO_CONTENT;
        Ok(S3Response::with_status(AbortMultipartUploadOutput::default(), status))
    }

    pub(super) fn list_parts_(&self, input: ListPartsInput) -> Answer<ListPartsOutput> {
        let upload = self.store.upload(&input.bucket, &input.key, &input.upload_id).map_err(to_s3)?;
        let max = input.max_parts.map_or(PAGE_MAX, |max| usize::try_from(max).unwrap_or(0).min(PAGE_MAX));
        let after = input.part_number_marker.unwrap_or(0);
        let mut parts = upload.parts();
        parts.retain(|(number, _)| i32::from(*number) > after);
        let more = parts.len() > max;
        parts.truncate(max);
        let last = parts.last().map(|(number, _)| i32::from(*number));
        let parts = parts
            .into_iter()
            .map(|(number, part)| {
                let sums = checksum(part.sum.as_ref());
                Part {
                    part_number: Some(i32::from(number)),
                    size: Some(part.size as i64),
                    e_tag: Some(etag(&part.etag)),
                    last_modified: Some(part.modified.into()),
                    checksum_crc32: sums.checksum_crc32,
                    checksum_crc32c: sums.checksum_crc32c,
                    checksum_crc64nvme: sums.checksum_crc64nvme,
                    checksum_sha1: sums.checksum_sha1,
                    checksum_sha256: sums.checksum_sha256,
                }
            })
            .collect();
        let new = upload.started_with();
        Ok(S3Response::new(ListPartsOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(input.upload_id),
            part_number_marker: Some(after),
            next_part_number_marker: last.filter(|_| more),
            max_parts: Some(max as i32),
            is_truncated: Some(more),
            parts: Some(parts),
            checksum_algorithm: new.algorithm.map(|a| a.name().to_owned().into()),
            checksum_type: new.algorithm.map(|_| checksum_type(new.full_object)),
            storage_class: Some("STANDARD".to_owned().into()),
            ..ListPartsOutput::default()
        }))
    }

    pub(super) fn list_multipart_uploads_(
        &self,
        input: ListMultipartUploadsInput,
    ) -> Answer<ListMultipartUploadsOutput> {
        self.store.bucket(&input.bucket).map_err(to_s3)?;
        let names = Names::new(input.encoding_type)?;
        let prefix = input.prefix.unwrap_or_default();
        self.policy.allows(&prefix)?;
        if input.delimiter.as_ref().is_some_and(|d| !d.is_empty()) {
            return Err(super::error::unknown("a delimiter of ListMultipartUploads"));
        }
        let max = input.max_uploads.map_or(PAGE_MAX, |max| usize::try_from(max).unwrap_or(0).min(PAGE_MAX));
        let key_marker = input.key_marker.unwrap_or_default();
        let id_marker = input.upload_id_marker.filter(|_| !key_marker.is_empty());
        let mut uploads = self.store.uploads_of(&input.bucket);
        uploads.retain(|u| u.key().starts_with(&prefix));
        // The marker's key may have more uploads: they follow the marked one in the order of the listing.
        let marked = id_marker.as_ref().and_then(|id| uploads.iter().position(|u| u.id() == id));
        let skip = marked.map_or_else(
            || uploads.iter().take_while(|u| !key_marker.is_empty() && *u.key() <= *key_marker).count(),
            |at| at + 1,
        );
        uploads.drain(..skip);
        let more = uploads.len() > max;
        uploads.truncate(max);
        let last = uploads.last().filter(|_| more).cloned();
        let uploads = uploads
            .iter()
            .map(|upload| MultipartUpload {
                key: Some(names.write(upload.key())),
                upload_id: Some(upload.id().to_owned()),
                initiated: Some(upload.initiated().into()),
                checksum_algorithm: upload.started_with().algorithm.map(|a| a.name().to_owned().into()),
                storage_class: Some("STANDARD".to_owned().into()),
                ..MultipartUpload::default()
            })
            .collect();
        Ok(S3Response::new(ListMultipartUploadsOutput {
            bucket: Some(input.bucket),
            prefix: Some(names.write(&prefix)),
            key_marker: Some(names.write(&key_marker)),
            upload_id_marker: Some(id_marker.unwrap_or_default()),
            next_key_marker: last.as_ref().map(|u| names.write(u.key())),
            next_upload_id_marker: last.as_ref().map(|u| u.id().to_owned()),
            max_uploads: Some(max as i32),
            is_truncated: Some(more),
            uploads: Some(uploads),
            encoding_type: names.encoding_type(),
            ..ListMultipartUploadsOutput::default()
        }))
    }
}

/// Joins the parts into the object, after all checks of the request.
fn complete(
    store: &Store,
    upload: &Upload,
    wanted: &[Wanted],
    claimed: Option<&Sum>,
    size: Option<i64>,
    if_: &Condition,
) -> store::Result<Meta> {
    let new = upload.started_with();
    let bucket = store.bucket(&new.bucket)?;
    if let Some(algorithm) = new.algorithm.filter(|_| !new.full_object)
        && wanted.iter().any(|w| w.sum.is_none())
    {
        let message =
            format!("The upload was started with {}: Complete must name each part's.", algorithm.name());
        return Err(store::Error::InvalidRequest(message));
    }
    let parts = upload.choose(wanted)?;
    let total: u64 = parts.iter().map(|(part, _)| part.size).sum();
    if size.is_some_and(|size| u64::try_from(size) != Ok(total)) {
        return Err(store::Error::InvalidRequest(format!("The parts have {total} bytes in all.")));
    }
    let part_sums: Vec<_> = parts.iter().filter_map(|(p, _)| p.sum.as_ref().map(|s| (s, p.size))).collect();
    let sum = match part_sums.first() {
        Some((first, _)) if part_sums.len() == parts.len() => {
            let algorithm = new.algorithm.unwrap_or(first.algorithm);
            let full = new.full_object || (new.algorithm.is_none() && algorithm == Algorithm::Crc64Nvme);
            let of_parts = if full { sums::full_object } else { sums::composite };
            of_parts(algorithm, &part_sums)
        }
        _ => None,
    };
    if let Some(claimed) = claimed
        && sum.as_ref().is_none_or(|sum| sum.algorithm != claimed.algorithm || !same_value(sum, claimed))
    {
        let message = format!("The {} you specified did not match the object's.", claimed.algorithm.name());
        return Err(store::Error::BadDigest(message));
    }

    let staged = store.stage()?;
    let target = staged.file();
    let mut at = 0;
    for (part, file) in &parts {
        append(file, 0, &target, at, part.size)
            .map_err(|source| store::Error::Io { what: "put the parts together", source })?;
        at += part.size;
    }
    let meta = Meta {
        etag: etag_of_parts(parts.iter().map(|(part, _)| part.etag.as_str()))
            .unwrap_or_else(|| store.new_etag_of_parts(parts.len())),
        sum,
        parts: parts.iter().map(|(part, _)| part.size).collect(),
        upload: Some(upload.id().to_owned()),
        ..new.meta.clone()
    };
    bucket.commit(&new.key, staged, meta.clone(), if_)?;
    // The object exists: parts that can't be removed only waste space, and a second Complete finds the object.
    if let Err(error) = store.forget_upload(upload) {
        tracing::warn!(?error, "could not remove the parts of a completed upload");
    }
    Ok(meta)
}

/// Whether a claimed checksum is the computed one. A composite may be claimed with or without its number of parts.
fn same_value(sum: &Sum, claimed: &Sum) -> bool {
    let value = |sum: &Sum| sum.value.split('-').next().map(str::to_owned);
    sum.value == claimed.value || (!claimed.is_composite() && value(sum) == value(claimed))
}

/// The metadata of an object that this upload has created: a Complete whose answer was lost gets the same answer when it is repeated.
fn completed_before(store: &Store, bucket: &str, key: &str, id: &str) -> Option<Meta> {
    let entry = store.bucket(bucket).ok()?.head(key).ok()?;
    (entry.meta.upload.as_deref() == Some(id)).then(|| (*entry.meta).clone())
}

/// The MD5 of the parts' MD5s as an ETag; `None` unless every part was sent with Content-MD5.
fn etag_of_parts<'a>(etags: impl Iterator<Item = &'a str>) -> Option<String> {
    let (mut joined, mut count) = (Vec::new(), 0);
    for etag in etags.filter(|e| !e.is_empty()) {
        joined.extend(base16ct::mixed::decode_vec(etag).ok().filter(|md5| md5.len() == 16)?);
        count += 1;
    }
    Some(format!("{}-{count}", sums::hex(&sums::md5(&joined))))
}

fn part_number(number: i32) -> S3Result<u16> {
    let valid = (1..=PARTS_MAX).contains(&number).then(|| u16::try_from(number).ok()).flatten();
    valid.ok_or_else(|| S3Error::with_message(S3ErrorCode::InvalidArgument, "A part's number is 1 to 10000."))
}

fn wanted_part(part: CompletedPart) -> S3Result<Wanted> {
    let number = part.part_number.ok_or_else(|| S3Error::new(S3ErrorCode::MalformedXML))?;
    Ok(Wanted {
        number: part_number(number)?,
        etag: part.e_tag.map(ETag::into_value),
        sum: sum_of([
            part.checksum_crc32,
            part.checksum_crc32c,
            part.checksum_crc64nvme,
            part.checksum_sha1,
            part.checksum_sha256,
        ]),
    })
}

/// Whether the object's checksum covers its bytes, not its parts' checksums: always for CRC64NVME, never for SHA, otherwise on request.
fn full_object(algorithm: Option<Algorithm>, kind: Option<&str>) -> S3Result<bool> {
    let Some(algorithm) = algorithm else {
        return Ok(false);
    };
    // S3, and some clients, also write the type in lower case.
    match (algorithm, kind.map(str::to_ascii_uppercase).as_deref()) {
        (Algorithm::Crc64Nvme, None | Some("FULL_OBJECT")) => Ok(true),
        (_, None) => Ok(false),
        (Algorithm::Crc32 | Algorithm::Crc32c, Some("FULL_OBJECT")) => Ok(true),
        (Algorithm::Crc64Nvme, _) | (_, Some("FULL_OBJECT")) => {
            Err(invalid(format!("{} can't be of that checksum type.", algorithm.name())))
        }
        (_, Some("COMPOSITE")) => Ok(false),
        (_, Some(_)) => Err(invalid("The checksum type is not known.")),
    }
}

fn checksum_type(full_object: bool) -> ChecksumType {
    let kind = if full_object { ChecksumType::FULL_OBJECT } else { ChecksumType::COMPOSITE };
    ChecksumType::from_static(kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_with_md5s_give_the_etag_s3_would_give() {
        let parts = ["d41d8cd98f00b204e9800998ecf8427e", "d41d8cd98f00b204e9800998ecf8427e"];
        let mut bytes = Vec::new();
        for _ in 0..2 {
            bytes.extend(sums::md5(b""));
        }
        let expected = format!("{}-2", sums::hex(&sums::md5(&bytes)));
        assert_eq!(etag_of_parts(parts.into_iter()), Some(expected));
        assert_eq!(etag_of_parts(["0123-1"].into_iter()), None);
    }

    #[test]
    fn each_algorithm_has_its_checksum_types() {
        assert!(full_object(Some(Algorithm::Crc64Nvme), None).unwrap());
        assert!(!full_object(Some(Algorithm::Crc32c), None).unwrap());
        assert!(full_object(Some(Algorithm::Crc32), Some("FULL_OBJECT")).unwrap());
        assert!(full_object(Some(Algorithm::Crc32c), Some("full_object")).unwrap());
        assert!(!full_object(Some(Algorithm::Sha256), Some("Composite")).unwrap());
        assert!(full_object(Some(Algorithm::Sha256), Some("FULL_OBJECT")).is_err());
        assert!(full_object(Some(Algorithm::Crc64Nvme), Some("COMPOSITE")).is_err());
        assert!(full_object(Some(Algorithm::Crc32c), Some("SOMETHING")).is_err());
    }
}
