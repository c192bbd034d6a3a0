//! Parts that several operations on objects share: conditions, metadata of requests, checksums of answers.

use std::collections::BTreeMap;
use std::time::SystemTime;

use http::HeaderMap;
use s3s::dto::{ETag, ETagCondition, Timestamp};
use s3s::{S3Error, S3ErrorCode, S3Result};

use super::error::invalid;
use crate::store::meta::Meta;
use crate::store::{Condition, Entry, keys};
use crate::sums::{Algorithm, Sum};

/// The condition of a write. S3 accepts If-Match with an ETag and If-None-Match with `*`; we accept both forms for both.
pub(super) fn condition(
    if_match: Option<ETagCondition>,
    if_none_match: Option<ETagCondition>,
) -> S3Result<Condition> {
    match (if_match, if_none_match) {
        (None, None) => Ok(Condition::None),
        (Some(ETagCondition::Any), None) => Ok(Condition::Present),
        (Some(ETagCondition::ETag(etag)), None) => Ok(Condition::Etag(etag.into_value())),
        (None, Some(ETagCondition::Any)) => Ok(Condition::Absent),
        (None, Some(ETagCondition::ETag(etag))) => Ok(Condition::NotEtag(etag.into_value())),
        (Some(_), Some(_)) => Err(invalid("If-Match and If-None-Match exclude each other.")),
    }
}

/// The conditions of a read.
#[derive(Default)]
pub(super) struct ReadConditions {
    pub(super) if_match: Option<ETagCondition>,
    pub(super) if_none_match: Option<ETagCondition>,
    pub(super) if_modified_since: Option<Timestamp>,
    pub(super) if_unmodified_since: Option<Timestamp>,
}

/// The result of a read's conditions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    Go,
    NotModified,
    Failed,
}

impl ReadConditions {
    /// Evaluates in the order of RFC 9110 section 13.2.2: a condition on the ETag wins over the corresponding one on the time.
    pub(super) fn judge(&self, etag: &str, modified: SystemTime) -> Verdict {
        let names = |condition: &ETagCondition| match condition {
            ETagCondition::Any => true,
            ETagCondition::ETag(wanted) => wanted.value() == etag,
        };
        let modified = Timestamp::from(modified);
        let matches = self.if_match.as_ref().map(names);
        let unmodified = self.if_unmodified_since.as_ref().map(|since| modified <= *since);
        if matches.or(unmodified) == Some(false) {
            return Verdict::Failed;
        }
        let differs = self.if_none_match.as_ref().map(|c| !names(c));
        let newer = self.if_modified_since.as_ref().map(|since| modified > *since);
        if differs.or(newer) == Some(false) { Verdict::NotModified } else { Verdict::Go }
    }

    /// The error if the conditions do not let the read go on.
    pub(super) fn check(&self, entry: &Entry) -> S3Result<()> {
        match self.judge(&entry.meta.etag, entry.modified()) {
            Verdict::Go => Ok(()),
            Verdict::Failed => Err(S3Error::new(S3ErrorCode::PreconditionFailed)),
            Verdict::NotModified => {
                let mut error = S3Error::new(S3ErrorCode::NotModified);
                let mut headers = HeaderMap::new();
                if let Ok(value) = http::HeaderValue::from_str(&format!("\"{}\"", entry.meta.etag)) {
                    headers.insert(http::header::ETAG, value);
                }
                error.set_headers(headers);
                Err(error)
            }
        }
    }
}

/// Refuses keys that S3 does not accept.
pub(super) fn check_key(key: &str) -> S3Result<()> {
    if keys::is_valid(key) {
        Ok(())
    } else {
        Err(S3Error::with_message(S3ErrorCode::KeyTooLongError, "A key has 1 to 1024 bytes."))
    }
}

/// Headers that are stored with an object and returned.
const KEPT: [&str; 6] = [
    "content-type",
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "expires",
];

/// The metadata that a request sets for its object. The caller adds ETag and checksum.
pub(super) fn meta_of(
    headers: &HeaderMap,
    user: Option<s3s::dto::Metadata>,
    class: Option<String>,
) -> S3Result<Meta> {
    let mut kept = BTreeMap::new();
    for name in KEPT {
        let Some(value) = headers.get(name) else { continue };
        let value = value.to_str().map_err(|_| invalid(format!("The header {name} is not plain ASCII.")))?;
        // The transfer's own coding (aws-chunked) is removed on receipt.
        let value = if name == "content-encoding" { without_chunks(value) } else { value.to_owned() };
        if !value.is_empty() {
            kept.insert(name.to_owned(), value);
        }
    }
    Ok(Meta {
        headers: kept,
        tags: super::tags::of_header(headers)?,
        user: user.unwrap_or_default().into_iter().collect(),
        storage_class: class.filter(|class| class != "STANDARD"),
        ..Meta::default()
    })
}

fn without_chunks(encoding: &str) -> String {
    let codings = encoding.split(',').map(str::trim).filter(|c| !c.eq_ignore_ascii_case("aws-chunked"));
    codings.collect::<Vec<_>>().join(",")
}

pub(super) fn etag(value: &str) -> ETag {
    ETag::Strong(value.to_owned())
}

/// A checksum in the form of s3s: one of five fields is set, and the type of the checksum.
pub(super) fn checksum(sum: Option<&Sum>) -> s3s::dto::Checksum {
    let mut fields = s3s::dto::Checksum::default();
    if let Some(sum) = sum {
        let field = match sum.algorithm {
            Algorithm::Crc32 => &mut fields.checksum_crc32,
            Algorithm::Crc32c => &mut fields.checksum_crc32c,
            Algorithm::Crc64Nvme => &mut fields.checksum_crc64nvme,
            Algorithm::Sha1 => &mut fields.checksum_sha1,
            Algorithm::Sha256 => &mut fields.checksum_sha256,
        };
        *field = Some(sum.value.clone());
        let kind = if sum.is_composite() { "COMPOSITE" } else { "FULL_OBJECT" };
        fields.checksum_type = Some(kind.to_owned().into());
    }
    fields
}

/// The first checksum among the five fields of a request.
pub(super) fn sum_of(fields: [Option<String>; 5]) -> Option<Sum> {
    let [crc32, crc32c, crc64nvme, sha1, sha256] = fields;
    let named = [
        (Algorithm::Crc32, crc32),
        (Algorithm::Crc32c, crc32c),
        (Algorithm::Crc64Nvme, crc64nvme),
        (Algorithm::Sha1, sha1),
        (Algorithm::Sha256, sha256),
    ];
    named.into_iter().find_map(|(algorithm, value)| value.map(|value| Sum { algorithm, value }))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    fn etag_condition(value: &str) -> Option<ETagCondition> {
        Some(ETagCondition::ETag(etag(value)))
    }

    fn at(seconds: u64) -> Option<Timestamp> {
        Some((UNIX_EPOCH + Duration::from_secs(seconds)).into())
    }

    #[test]
    fn conditions_of_a_read_are_judged_in_the_order_of_the_rfc() {
        let judge = |conditions: ReadConditions| conditions.judge("e", UNIX_EPOCH + Duration::from_secs(100));
        let none = ReadConditions::default;
        let cases = [
            (none(), Verdict::Go),
            (ReadConditions { if_match: etag_condition("e"), ..none() }, Verdict::Go),
            (ReadConditions { if_match: etag_condition("x"), ..none() }, Verdict::Failed),
            (ReadConditions { if_match: Some(ETagCondition::Any), ..none() }, Verdict::Go),
            (ReadConditions { if_none_match: etag_condition("e"), ..none() }, Verdict::NotModified),
            (ReadConditions { if_none_match: etag_condition("x"), ..none() }, Verdict::Go),
            (ReadConditions { if_modified_since: at(100), ..none() }, Verdict::NotModified),
            (ReadConditions { if_modified_since: at(99), ..none() }, Verdict::Go),
            (ReadConditions { if_unmodified_since: at(99), ..none() }, Verdict::Failed),
            (ReadConditions { if_unmodified_since: at(100), ..none() }, Verdict::Go),
            (
                ReadConditions { if_match: etag_condition("e"), if_unmodified_since: at(1), ..none() },
                Verdict::Go,
            ),
            (
                ReadConditions { if_none_match: etag_condition("x"), if_modified_since: at(200), ..none() },
                Verdict::Go,
            ),
            (
                ReadConditions {
                    if_match: etag_condition("x"),
                    if_none_match: etag_condition("e"),
                    ..none()
                },
                Verdict::Failed,
            ),
        ];
        for (i, (conditions, expected)) in cases.into_iter().enumerate() {
            assert_eq!(judge(conditions), expected, "case {i}");
        }
    }

    #[test]
    fn the_transfer_coding_is_not_kept() {
        let mut headers = HeaderMap::new();
        headers.insert("content-encoding", "aws-chunked, gzip".parse().unwrap());
        assert_eq!(meta_of(&headers, None, None).unwrap().headers["content-encoding"], "gzip");
        headers.insert("content-encoding", "aws-chunked".parse().unwrap());
        assert!(meta_of(&headers, None, None).unwrap().headers.is_empty());
    }
}
