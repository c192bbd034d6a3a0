//! PutObject and CopyObject, and the parts of them that multipart uploads share.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use http::{Extensions, HeaderMap};
use s3s::dto::*;
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use super::error::{invalid, to_s3, unknown};
use super::object::{ReadConditions, check_key, checksum, condition, etag, meta_of};
use super::receive::{Announced, PUT_MAX};
use super::sse::{self, echo};
use super::{Answer, Folder};
use crate::fault::Effect;
use crate::store::meta::{Meta, Sse};
use crate::store::{self, Bucket, Entry, append};
use crate::sums::{Algorithm, Hasher, Sum, hex};
use crate::wire::Exchange;

/// The checksum that S3 gives an object if the client chooses none.
const DEFAULT: Algorithm = Algorithm::Crc64Nvme;
/// Bytes that are hashed at once, for a copy whose source does not have the requested checksum.
const HASH_PIECE: usize = 1 << 20;

impl Folder {
    pub(super) async fn put_object_(&self, req: S3Request<PutObjectInput>) -> Answer<PutObjectOutput> {
        let S3Request { input, headers, trailing_headers, extensions, .. } = req;
        check_key(&input.key)?;
        let struck = |effect| extensions.get::<Exchange>().is_some_and(|e| e.has(&effect));
        let if_ = match struck(Effect::IgnoreConditions) {
            true => store::Condition::None,
            false => condition(input.if_match, input.if_none_match)?,
        };
        let class = input.storage_class.map(|class| class.as_str().to_owned());
        let meta =
            Meta { sse: self.sse(&headers, &extensions)?, ..meta_of(&headers, input.metadata, class)? };
        let keeps_sums = !struck(Effect::IgnoreChecksums);
        let announced = match keeps_sums {
            true => Announced::of(&headers, trailing_headers)?,
            false => Announced::of(&HeaderMap::new(), None)?,
        };
        let bucket = self.store.bucket(&input.bucket).map_err(to_s3)?;
        let before = self.before(&bucket, &input.key, &if_);
        let received = self.receive(input.body, announced, DEFAULT).await?;

        // Strict mode uses the MD5, as S3 does, so equal bytes have equal ETags. A client that sends Content-MD5 may compare it with the
        // ETag.
        let etag_ = received.md5.unwrap_or_else(|| self.store.new_etag());
        let sum = Some(received.sum).filter(|_| keeps_sums);
        let sums = checksum(sum.as_ref());
        let meta = Meta { etag: etag_.clone(), sum, ..meta };
        let (server_side_encryption, ssekms_key_id) = echo(meta.sse.as_ref());
        self.blocking(move |_| {
            let committed = bucket.commit(&input.key, received.staged, meta, &if_);
            committed.map_err(|error| before.judge(error, &bucket, &input.key))
        })
        .await?;
        Ok(S3Response::new(PutObjectOutput {
            e_tag: Some(etag(&etag_)),
            checksum_crc32: sums.checksum_crc32,
            checksum_crc32c: sums.checksum_crc32c,
            checksum_crc64nvme: sums.checksum_crc64nvme,
            checksum_sha1: sums.checksum_sha1,
            checksum_sha256: sums.checksum_sha256,
            checksum_type: sums.checksum_type,
            server_side_encryption,
            ssekms_key_id,
            ..PutObjectOutput::default()
        }))
    }

    pub(super) async fn copy_object_(&self, req: S3Request<CopyObjectInput>) -> Answer<CopyObjectOutput> {
        let S3Request { input, headers, extensions, .. } = req;
        check_key(&input.key)?;
        let effects = extensions.get::<Exchange>().map(|it| it.effects().to_vec()).unwrap_or_default();
        let ignores = effects.contains(&Effect::IgnoreConditions);
        // s3s does not know these conditions on the target of a copy.
        let named = |name: &str| {
            let value = headers.get(name).filter(|_| !ignores);
            let parsed = value.map(|value| ETagCondition::parse_http_header(value.as_bytes())).transpose();
            parsed.map_err(|_| invalid(format!("The header {name} is not valid.")))
        };
        let if_ = condition(named("if-match")?, named("if-none-match")?)?;
        let (file, source) = self.copy_source(
            &input.copy_source,
            &ReadConditions {
                if_match: input.copy_source_if_match.filter(|_| !ignores),
                if_none_match: input.copy_source_if_none_match,
                if_modified_since: input.copy_source_if_modified_since,
                if_unmodified_since: input.copy_source_if_unmodified_since,
            },
        )?;
        let class = input.storage_class.map(|class| class.as_str().to_owned());
        let replace = input.metadata_directive.as_ref().is_some_and(|d| d.as_str() == "REPLACE");
        if source.size() > PUT_MAX {
            return Err(invalid(
                "The specified copy source is larger than the maximum allowable size: 5368709120.",
            ));
        }
        let onto_itself = matches!(&input.copy_source, CopySource::Bucket { bucket, key, .. }
            if **bucket == *input.bucket && **key == *input.key);
        if onto_itself && !replace && class.is_none() {
            return Err(invalid("A copy onto itself changes metadata or storage class."));
        }
        let sse = self.sse(&headers, &extensions)?;
        let mut meta = Meta { sse, ..meta_of(&headers, input.metadata, class)? };
        if !replace {
            meta.headers = source.meta.headers.clone();
            meta.user = source.meta.user.clone();
        }
        if input.tagging_directive.as_ref().is_none_or(|directive| directive.as_str() == "COPY") {
            meta.tags = source.meta.tags.clone();
        }
        let algorithm = match &input.checksum_algorithm {
            None => None,
            Some(name) => Some(
                Algorithm::of_name(name.as_str())
                    .ok_or_else(|| invalid("The checksum algorithm is not known."))?,
            ),
        };
        let bucket = self.store.bucket(&input.bucket).map_err(to_s3)?;
        let before = self.before(&bucket, &input.key, &if_);
        let (strict, longer) = (self.strict, crate::fault::slow(&effects));
        let entry = self
            .blocking(move |store| {
                std::thread::sleep(longer);
                let staged = store.stage()?;
                let copying = |source| store::Error::Io { what: "copy the object", source };
                let target = staged.file();
                append(&file, 0, &target, 0, source.size()).map_err(copying)?;
                meta.etag = match strict {
                    true => md5_of(&target, source.size()).map_err(copying)?,
                    false => store.new_etag(),
                };
                // A checksum of the bytes is valid for the copy, too; a composite is not.
                let same = source.meta.sum.as_ref().filter(|sum| {
                    !sum.is_composite() && algorithm.is_none_or(|wanted| wanted == sum.algorithm)
                });
                meta.sum = Some(match same {
                    Some(sum) => sum.clone(),
                    None => hash(&target, source.size(), algorithm.unwrap_or(DEFAULT)).map_err(copying)?,
                });
                let committed = bucket.commit(&input.key, staged, meta, &if_);
                committed.map_err(|error| before.judge(error, &bucket, &input.key))
            })
            .await?;
        let sums = checksum(entry.meta.sum.as_ref());
        let result = CopyObjectResult {
            e_tag: Some(etag(&entry.meta.etag)),
            last_modified: Some(entry.modified().into()),
            checksum_crc32: sums.checksum_crc32,
            checksum_crc32c: sums.checksum_crc32c,
            checksum_crc64nvme: sums.checksum_crc64nvme,
            checksum_sha1: sums.checksum_sha1,
            checksum_sha256: sums.checksum_sha256,
            checksum_type: sums.checksum_type,
        };
        let (server_side_encryption, ssekms_key_id) = echo(entry.meta.sse.as_ref());
        Ok(S3Response::new(CopyObjectOutput {
            copy_object_result: Some(result),
            server_side_encryption,
            ssekms_key_id,
            ..CopyObjectOutput::default()
        }))
    }

    /// The encryption of a request's object. Strict mode uses AES256 by default, as S3 has done since 2023.
    pub(super) fn sse(&self, headers: &HeaderMap, extensions: &Extensions) -> S3Result<Option<Sse>> {
        let asked = sse::requested(headers)?;
        let ignored = extensions.get::<Exchange>().is_some_and(|e| e.has(&Effect::IgnoreSse));
        let default = || self.strict.then(|| Sse { method: "AES256".to_owned(), key: None });
        Ok(asked.filter(|_| !ignored).or_else(default))
    }

    /// The state of the key when a conditional write begins.
    pub(super) fn before(&self, bucket: &Bucket, key: &str, if_: &store::Condition) -> Before {
        Before((self.strict && *if_ != store::Condition::None).then(|| etag_of(bucket, key)))
    }

    /// The open source of a copy. S3 answers 412 to any condition that does not hold, never 304.
    pub(super) fn copy_source(
        &self,
        source: &CopySource,
        conditions: &ReadConditions,
    ) -> S3Result<(File, Arc<Entry>)> {
        let CopySource::Bucket { bucket, key, version_id } = source else {
            return Err(unknown("access points"));
        };
        if version_id.as_ref().is_some_and(|id| **id != *"null") {
            return Err(unknown("object versions"));
        }
        self.policy.allows(key)?;
        let bucket = self.store.bucket(bucket).map_err(to_s3)?;
        let (file, entry) = bucket.read(key).map_err(|error| self.policy.of_read(to_s3(error)))?;
        match conditions.judge(&entry.meta.etag, entry.modified()) {
            super::object::Verdict::Go => {}
            _ => return Err(to_s3(store::Error::Precondition)),
        }
        if let Some("GLACIER" | "DEEP_ARCHIVE") = entry.meta.storage_class.as_deref() {
            return Err(S3Error::new(S3ErrorCode::InvalidObjectState));
        }
        Ok((file, entry))
    }
}

/// The ETag under the key when a conditional write began; `None` if the server does not answer conflicts (409).
pub(super) struct Before(Option<Option<String>>);

impl Before {
    /// Turns the error of a failed condition into a conflict if the object changed after the write began.
    pub(super) fn judge(&self, error: store::Error, bucket: &Bucket, key: &str) -> store::Error {
        let changed = self.0.as_ref().is_some_and(|before| *before != etag_of(bucket, key));
        let failed = matches!(error, store::Error::Precondition | store::Error::NoSuchKey);
        if failed && changed { store::Error::Conflict } else { error }
    }
}

fn etag_of(bucket: &Bucket, key: &str) -> Option<String> {
    bucket.head(key).ok().map(|entry| entry.meta.etag.clone())
}

/// The MD5 of a file's first `size` bytes, in the form of an ETag.
pub(super) fn md5_of(file: &File, size: u64) -> io::Result<String> {
    let (_, md5) = read_through(file, size, Hasher::new(DEFAULT, true))?.finish();
    Ok(hex(&md5.unwrap_or_default()))
}

/// The checksum of a file's first `size` bytes.
pub(super) fn hash(file: &File, size: u64, algorithm: Algorithm) -> io::Result<Sum> {
    Ok(read_through(file, size, Hasher::new(algorithm, false))?.finish().0)
}

fn read_through(file: &File, size: u64, mut hasher: Hasher) -> io::Result<Hasher> {
    let mut buffer = vec![0; HASH_PIECE];
    let mut at = 0;
    while at < size {
        let piece = usize::try_from(size - at).map_or(HASH_PIECE, |left| left.min(HASH_PIECE));
        file.read_exact_at(&mut buffer[..piece], at)?;
        hasher.update(&buffer[..piece]);
        at += piece as u64;
    }
    Ok(hasher)
}
