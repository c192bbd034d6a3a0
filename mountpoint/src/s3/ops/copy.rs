//! CopyObject and UploadPartCopy: the store copies bytes from exactly the given version, without sending them to the client.
//!
//! The store may need minutes for a copy, so the client waits as long as for CompleteMultipartUpload. An error may follow status 200. If
//! the answer is lost, the client checks the target before it gives up.

use std::fmt::Write as _;

use http::{Method, StatusCode};

use crate::checksum::Checksum;
use crate::object::{ObjectId, ObjectKey, Second};
use crate::s3::attempts::Attempts;
use crate::s3::failure::Failure;
use crate::s3::ops::encryption;
use crate::s3::ops::head::head;
use crate::s3::ops::headers::{Headers, push, push_condition};
use crate::s3::ops::if_absent::refused;
use crate::s3::ops::verify::{Found, Ours, look};
use crate::s3::url::{encode_path, encode_query};
use crate::s3::wire::{Clocks, Draft, Wire};
use crate::s3::{CopyObject, CopyPart, Error, ErrorKind, Replaces, Result, Stored, UploadedPart, xml};

/// Copies an object, see [`crate::s3::ObjectClient::copy_object`]. `conditional`: the request has the condition of `replaces` on the
/// target.
pub(crate) async fn copy_object(wire: &Wire, request: &CopyObject, conditional: bool) -> Result<Stored> {
    const OPERATION: &str = "CopyObject";
    let key = &request.to;
    let mut headers = source(wire, OPERATION, &request.source).await?;
    if let Some(properties) = &request.properties {
        push(&mut headers, OPERATION, "x-amz-metadata-directive", "REPLACE")?;
        properties.push_all(&mut headers, OPERATION)?;
        if !properties.tags.is_empty() {
            push(&mut headers, OPERATION, "x-amz-tagging-directive", "REPLACE")?;
        }
    }
    for (name, value) in [
        ("x-amz-storage-class", request.storage_class.as_deref()),
        (encryption::SSE, wire.config.sse.as_deref()),
        (encryption::SSE_KEY, wire.config.sse_kms_key_id.as_deref()),
    ] {
        if let Some(value) = value {
            push(&mut headers, OPERATION, name, value)?;
        }
    }
    if conditional {
        push_condition(&mut headers, OPERATION, &request.replaces)?;
    }
    let ours = ours(request);
    let target = wire.endpoint.key_path(key.as_str());
    let mut attempts = Attempts::new(wire, OPERATION, Some(key), 0).without_slots();
    loop {
        let failure = match once(wire, &attempts, &target, &headers).await {
            Ok((copied, encrypted)) => {
                attempts.succeeded();
                encrypted.map_err(|why| {
                    let why = format!("{why}; {}", encryption::UNENCRYPTED);
                    Error::new(ErrorKind::NotEncrypted, OPERATION).key(key).message(why)
                })?;
                let xml::Copied { etag, checksum, modified } = copied;
                return Ok(Stored { etag, checksum: checksum.map(|(_, value)| value), modified });
            }
            Err(failure) => failure,
        };
        let doubt = attempts.ambiguous || failure.ambiguous;
        if matches!(failure.error.kind(), ErrorKind::Changed | ErrorKind::NotFound) {
            // An attempt whose answer was lost may have made the copy: then the copy itself fails the condition.
            if doubt {
                match look(wire, key, &ours, wire.clock.now()).await {
                    Found::NotOurs => {}
                    found => {
                        return found.or(OPERATION, key, || refused(OPERATION, key, &request.replaces));
                    }
                }
            }
            return Err(whose_fault(wire, OPERATION, request, failure.error).await);
        }
        if let Err(last) = attempts.again(failure).await {
            if !attempts.ambiguous {
                return Err(last);
            }
            let found = look(wire, key, &ours, wire.clock.now()).await;
            return found.or(OPERATION, key, || {
                Error::new(ErrorKind::Unknown, OPERATION)
                    .key(key)
                    .message("no attempt had a clear answer; the copy is not there yet")
                    .source(last)
            });
        }
    }
}

/// The properties that identify the copy, as far as its source shows them.
fn ours(request: &CopyObject) -> Ours {
    let etag = request.source.etag.as_str().trim_matches('"');
    let is_md5 = etag.len() == 32 && etag.bytes().all(|b| b.is_ascii_hexdigit());
    Ours {
        size: request.size,
        parts: None,
        checksums: request.checksum.iter().filter(|sum| !sum.contains('-')).cloned().collect(),
        md5: is_md5.then(|| etag.to_ascii_lowercase()),
    }
}

/// The error of the condition that failed, the source's or the target's: the store answers the same to both.
async fn whose_fault(wire: &Wire, operation: &'static str, request: &CopyObject, refusal: Error) -> Error {
    let source = &request.source;
    match head(wire, &source.key).await {
        Ok((meta, _)) if meta.etag.matches(source.etag.as_str()) => match request.replaces {
            // The request has no condition on the target: either the source has come back meanwhile, or the store contradicts itself.
            Replaces::Anything => refusal,
            _ => refused(operation, &request.to, &request.replaces).status(412),
        },
        Ok(_) => changed(operation, source),
        Err(error) => error,
    }
}

fn changed(operation: &'static str, source: &ObjectId) -> Error {
    Error::new(ErrorKind::Changed, operation)
        .key(&source.key)
        .message("the object to be copied is another version by now")
}

/// Copies a range into a part, see [`crate::s3::ObjectClient::upload_part_copy`].
pub(crate) async fn upload_part_copy(wire: &Wire, request: &CopyPart) -> Result<UploadedPart> {
    const OPERATION: &str = "UploadPartCopy";
    let key = &request.upload.key;
    let named = source(wire, OPERATION, &request.source).await;
    let mut headers = named.map_err(|error| match error.kind() {
        ErrorKind::NotFound => changed(OPERATION, &request.source),
        _ => error,
    })?;
    let range = format!("bytes={}-{}", request.range.start, request.range.end.saturating_sub(1));
    push(&mut headers, OPERATION, "x-amz-copy-source-range", &range)?;
    let mut target = wire.endpoint.key_path(key.as_str());
    let _ = write!(target, "?partNumber={}&uploadId=", request.part_number);
    encode_query(&mut target, &request.upload.id);
    let mut attempts = Attempts::new(wire, OPERATION, Some(key), 0).without_slots();
    loop {
        match once(wire, &attempts, &target, &headers).await {
            Ok((xml::Copied { etag, checksum, .. }, _)) => {
                attempts.succeeded();
                return Ok(UploadedPart {
                    part_number: request.part_number,
                    etag,
                    size: request.range.end - request.range.start,
                    checksum: checksum
                        .and_then(|(algorithm, value)| Checksum::from_base64(algorithm, &value)),
                });
            }
            Err(failure) => {
                attempts.again(failure).await.map_err(|error| gone(error, OPERATION, &request.source))?
            }
        }
    }
}

/// Turns the error of a missing source into `Changed`. An error about a missing upload stays.
fn gone(error: Error, operation: &'static str, source: &ObjectId) -> Error {
    if *error.kind() != ErrorKind::NotFound || error.code() != Some("NoSuchKey") {
        return error;
    }
    Error::new(ErrorKind::Changed, operation)
        .key(&source.key)
        .message("the object to be copied is gone")
        .source(error)
}

/// The headers that name the source and require its version. If the ETag can't be a condition, a HEAD compares the version: another client
/// may replace the source after it.
async fn source(wire: &Wire, operation: &'static str, id: &ObjectId) -> Result<Headers> {
    let mut headers = Headers::with_capacity(12);
    push(&mut headers, operation, "x-amz-copy-source", &named(&wire.config.bucket, &id.key))?;
    match id.etag.if_match() {
        Some(value) => push(&mut headers, operation, "x-amz-copy-source-if-match", &value)?,
        None => {
            let (there, _) = head(wire, &id.key).await?;
            if !id.may_be(there.etag.as_str(), Second::of(there.last_modified)) {
                return Err(changed(operation, id));
            }
        }
    }
    Ok(headers)
}

/// The name of an object in the header, encoded as in a path. For an access point, "/object/" separates its ARN from the key.
fn named(bucket: &str, key: &ObjectKey) -> String {
    let mut name = match bucket.starts_with("arn:") {
        true => format!("{bucket}/object/"),
        false => format!("/{bucket}/"),
    };
    encode_path(&mut name, key.as_str());
    name
}

/// Sends the copy once. Returns the result, and whether the answer proves the encryption that the user requires.
async fn once(
    wire: &Wire,
    attempts: &Attempts<'_>,
    target: &str,
    headers: &Headers,
) -> std::result::Result<(xml::Copied, std::result::Result<(), String>), Failure> {
    let timeouts = &wire.config.timeouts;
    let (patience, whole) = (timeouts.complete, timeouts.operation + timeouts.complete);
    let clocks = Clocks {
        unheard: whole,
        silence: patience,
        stall: patience,
        whole,
        floor: None,
        ..attempts.clocks()
    };
    let answer = wire
        .exchange(&Draft {
            headers: headers.clone(),
            body: Some(&[]),
            clocks,
            ..attempts.draft(Method::PUT, target.to_owned())
        })
        .await?
        .collect(xml::BODY_MAX)
        .await?;
    if answer.status != StatusCode::OK {
        return Err(answer.failed(wire.clock.wall()));
    }
    // White space may precede the document while the store is working, and the document may be an error.
    match xml::copied(&answer.body) {
        Ok(Some(copied)) => Ok((copied, encryption::proven(&wire.config, &answer.headers))),
        // An error document means that the store made no copy.
        Ok(None) => Err(Failure { ambiguous: false, ..answer.failed(wire.clock.wall()) }),
        Err(why) => Err(answer.bad(why)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::ETag;

    #[test]
    fn a_source_is_named_by_bucket_or_access_point_and_encoded_once() {
        let key = ObjectKey::new("a b/%2F+ü");
        assert_eq!(named("bucket", &key), "/bucket/a%20b/%252F%2B%C3%BC");
        let arn = "arn:aws:s3:eu-west-3:111122223333:accesspoint/ap";
        assert_eq!(named(arn, &ObjectKey::new("k")), format!("{arn}/object/k"));
    }

    #[test]
    fn a_copy_is_told_by_what_its_source_tells() {
        let request = |etag: &str, checksum: Option<&str>| CopyObject {
            source: ObjectId::by_etag(ObjectKey::new("a"), ETag::new(etag)),
            size: 5,
            checksum: checksum.map(str::to_owned),
            to: ObjectKey::new("b"),
            replaces: Replaces::Nothing,
            properties: None,
            storage_class: None,
        };
        let md5 = "5D41402ABC4B2A76B9719D911017C592";
        let plain = ours(&request(&format!("\"{md5}\""), Some("abc=")));
        assert_eq!((plain.md5, plain.checksums), (Some(md5.to_ascii_lowercase()), vec!["abc=".to_owned()]));
        let of_parts = ours(&request(&format!("\"{md5}-2\""), Some("abc=-2")));
        assert_eq!((of_parts.md5, of_parts.checksums.len()), (None, 0), "a copy is not of parts");
    }
}
