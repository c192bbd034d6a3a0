//! PutObject and UploadPart: sends bytes with their checksum, so that the store refuses other bytes.

use std::fmt::Write as _;

use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};

use super::endpoint::encode_query;
use super::tries::Tries;
use super::verify::{Ours, look};
use super::wire::{Collected, Draft, Failure, Wire};
use super::{
    Error, ErrorKind, NewObject, PutObject, Result, Stored, UploadPart, UploadedPart, answer, encryption,
};
use crate::checksum::{Checksum, ChecksumAlgorithm};
use crate::object::{ETag, ObjectKey};

/// Of an object that is not encrypted as it was to be.
pub(super) const UNENCRYPTED: &str = "the object is in the bucket, in plain text or under another key: remove it, and look whether \
     the store, and what stands before it, knows these headers";

/// Of a part that is not.
const UNCOMPLETED: &str =
    "the upload is not completed: look whether the store, and what stands before it, knows these headers";

type Headers = Vec<(HeaderName, HeaderValue)>;

/// See [`super::ObjectClient::put_object`]. `only_if_absent`: by the store's own condition.
pub(super) async fn put_object(wire: &Wire, request: &PutObject, only_if_absent: bool) -> Result<Stored> {
    const OPERATION: &str = "PutObject";
    let key = &request.object.key;
    let size: u64 = request.body.iter().map(|b| b.len() as u64).sum();
    let mut headers = checksum_headers(request.checksum);
    headers.append(&mut new_object_headers(wire, OPERATION, &request.object)?);
    if only_if_absent {
        push(&mut headers, OPERATION, "if-none-match", "*")?;
    }
    let mut tries = Tries::new(wire, OPERATION, Some(key), size);
    let target = wire.endpoint.key_path(key.as_str());
    loop {
        let failure = match send(wire, &tries, &target, &headers, &request.body).await {
            Ok(answer) => {
                tries.succeeded();
                encryption::proven(&wire.config, &answer.headers).map_err(|why| {
                    answer.wrong(ErrorKind::NotEncrypted, format!("{why}; {UNENCRYPTED}")).error
                })?;
                return Ok(Stored { etag: etag(&answer)?, checksum: stored_checksum(&answer.headers) });
            }
            Err(failure) => failure,
        };
        let taken = only_if_absent && *failure.error.kind() == ErrorKind::Changed;
        if taken && (tries.ambiguous || failure.ambiguous) {
            // A try whose answer was lost may have stored it: then what is in the way is ours.
            let ours = Ours { size, parts: None, checksum: request.checksum.map(Checksum::to_base64) };
            let found = look(wire, key, &ours, wire.clock.now()).await;
            return found.or(OPERATION, key, || exists(OPERATION, key));
        } else if taken {
            return Err(exists(OPERATION, key).status(412));
        }
        tries.again(failure).await?;
    }
}

/// See [`super::ObjectClient::upload_part`].
pub(super) async fn upload_part(wire: &Wire, request: &UploadPart) -> Result<UploadedPart> {
    const OPERATION: &str = "UploadPart";
    let key = &request.upload.key;
    let size: u64 = request.body.iter().map(|b| b.len() as u64).sum();
    let headers = checksum_headers(request.checksum);
    let mut target = wire.endpoint.key_path(key.as_str());
    let _ = write!(target, "?partNumber={}&uploadId=", request.part_number);
    encode_query(&mut target, &request.upload.id);
    let mut tries = Tries::new(wire, OPERATION, Some(key), size);
    loop {
        let sent = send(wire, &tries, &target, &headers, &request.body).await;
        match sent.and_then(|answer| same_checksum(answer, request.checksum)) {
            Ok(answer) => {
                tries.succeeded();
                encryption::not_denied(&wire.config, &answer.headers).map_err(|why| {
                    answer.wrong(ErrorKind::NotEncrypted, format!("{why}; {UNCOMPLETED}")).error
                })?;
                return Ok(UploadedPart {
                    part_number: request.part_number,
                    etag: etag(&answer)?,
                    size,
                    checksum: request.checksum,
                });
            }
            Err(failure) => tries.again(failure).await?,
        }
    }
}

async fn send(
    wire: &Wire,
    tries: &Tries<'_>,
    target: &str,
    headers: &Headers,
    body: &[bytes::Bytes],
) -> std::result::Result<Collected, Failure> {
    let answer = wire
        .exchange(Draft {
            headers: headers.clone(),
            body: Some(body),
            ..tries.draft(Method::PUT, target.to_owned())
        })
        .await?
        .collect(super::xml::BODY_MAX)
        .await?;
    if answer.status != StatusCode::OK {
        return Err(answer.failed(wire.clock.wall()));
    }
    Ok(answer)
}

/// A part's checksum, where the store answers with one, is the one that was sent.
fn same_checksum(answer: Collected, sent: Option<Checksum>) -> std::result::Result<Collected, Failure> {
    if let Some(sent) = sent
        && let Some(theirs) = answer::text(&answer.headers, sent.algorithm.header())
        && theirs != sent.to_base64()
    {
        let why = format!("the store has checksum {theirs}, we sent {}", sent.to_base64());
        return Err(answer.wrong(ErrorKind::Corrupt, why));
    }
    Ok(answer)
}

/// What a request that begins an object says of it: its type, and what the user wants of every new object.
pub(super) fn new_object_headers(
    wire: &Wire,
    operation: &'static str,
    object: &NewObject,
) -> Result<Headers> {
    let config = &wire.config;
    let mut headers = Headers::with_capacity(8);
    for (name, value) in [
        ("content-type", Some(object.content_type.as_deref().unwrap_or("binary/octet-stream"))),
        ("x-amz-storage-class", config.storage_class.as_deref()),
        (encryption::SSE, config.sse.as_deref()),
        (encryption::SSE_KEY, config.sse_kms_key_id.as_deref()),
    ] {
        if let Some(value) = value {
            push(&mut headers, operation, name, value)?;
        }
    }
    Ok(headers)
}

/// The kind of a multipart object's checksum, named only where it is not the default: stores older than the parameter refuse it.
pub(super) fn checksum_type(algorithm: ChecksumAlgorithm) -> Option<&'static str> {
    match algorithm {
        ChecksumAlgorithm::Crc32c => None,
        ChecksumAlgorithm::Crc64Nvme => Some("FULL_OBJECT"),
    }
}

pub(super) fn push(
    headers: &mut Headers,
    operation: &'static str,
    name: &'static str,
    value: &str,
) -> Result<()> {
    let value = HeaderValue::from_str(value).map_err(|e| {
        Error::new(ErrorKind::InvalidRequest, operation).message(format!("{name}: {value:?}")).source(e)
    })?;
    headers.push((HeaderName::from_static(name), value));
    Ok(())
}

fn checksum_headers(checksum: Option<Checksum>) -> Headers {
    let mut headers = Headers::with_capacity(8);
    if let Some(checksum) = checksum {
        let name = HeaderName::from_static(checksum.algorithm.header());
        // Base64 and names of ours are header text.
        if let Ok(value) = HeaderValue::try_from(checksum.to_base64()) {
            headers.push((name, value));
        }
        let algorithm = HeaderValue::from_static(checksum.algorithm.name());
        headers.push((HeaderName::from_static("x-amz-sdk-checksum-algorithm"), algorithm));
    }
    headers
}

fn etag(answer: &Collected) -> Result<ETag> {
    match answer::text(&answer.headers, "etag") {
        Some(etag) if !etag.is_empty() => Ok(ETag::new(etag)),
        _ => Err(answer.bad("the answer has no ETag").error),
    }
}

/// The checksum that the store answers with, whichever it keeps.
pub(super) fn stored_checksum(headers: &HeaderMap) -> Option<String> {
    ["x-amz-checksum-crc32c", "x-amz-checksum-crc64nvme"]
        .iter()
        .find_map(|name| answer::text(headers, name))
        .map(str::to_owned)
}

/// `only_if_absent`, and something is there.
pub(super) fn exists(operation: &'static str, key: &ObjectKey) -> Error {
    Error::new(ErrorKind::Exists, operation).key(key).message("an object is there already")
}
