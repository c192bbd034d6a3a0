//! PutObject and UploadPart: bytes out, with the checksum by which the store refuses others.

use std::fmt::Write as _;

use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};

use super::endpoint::encode_query;
use super::tries::Tries;
use super::verify::{Ours, look};
use super::wire::{Collected, Draft, Failure, Wire};
use super::{Error, ErrorKind, PutObject, Result, Stored, UploadPart, UploadedPart, answer};
use crate::checksum::Checksum;
use crate::object::{ETag, ObjectKey};

type Headers = Vec<(HeaderName, HeaderValue)>;

/// See [`super::ObjectClient::put_object`].
pub(super) async fn put_object(wire: &Wire, request: &PutObject) -> Result<Stored> {
    const OPERATION: &str = "PutObject";
    let key = &request.object.key;
    let size: u64 = request.body.iter().map(|b| b.len() as u64).sum();
    let mut headers = checksum_headers(request.checksum);
    let content_type = request.object.content_type.as_deref().unwrap_or("binary/octet-stream");
    push(&mut headers, OPERATION, "content-type", content_type)?;
    for (name, value) in new_object_headers(wire) {
        push(&mut headers, OPERATION, name, value)?;
    }
    if request.object.only_if_absent {
        push(&mut headers, OPERATION, "if-none-match", "*")?;
    }
    let mut tries = Tries::new(wire, OPERATION, Some(key), size);
    let target = wire.endpoint.key_path(key.as_str());
    loop {
        let failure = match send(wire, &tries, &target, &headers, &request.body).await {
            Ok(answer) => {
                tries.succeeded();
                return Ok(Stored { etag: etag(&answer)?, checksum: stored_checksum(&answer.headers) });
            }
            Err(failure) => failure,
        };
        let taken = request.object.only_if_absent && *failure.error.kind() == ErrorKind::Changed;
        if taken && (tries.ambiguous || failure.ambiguous) {
            // A try whose answer was lost may have stored it: then what is in the way is ours.
            let ours = Ours { size, parts: None, checksum: request.checksum.map(Checksum::to_base64) };
            return look(wire, OPERATION, key, &ours, exists(OPERATION, key)).await;
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
            operation: tries.operation,
            key: tries.key,
            attempt: tries.attempt,
            method: Method::PUT,
            target: target.to_owned(),
            headers: headers.clone(),
            body: Some(body),
            deadline: tries.deadline,
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

/// What the user wants of every new object.
pub(super) fn new_object_headers(wire: &Wire) -> impl Iterator<Item = (&'static str, &str)> {
    let config = &wire.config;
    [
        ("x-amz-storage-class", &config.storage_class),
        ("x-amz-server-side-encryption", &config.sse),
        ("x-amz-server-side-encryption-aws-kms-key-id", &config.sse_kms_key_id),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((name, value.as_deref()?)))
}

fn push(headers: &mut Headers, operation: &'static str, name: &'static str, value: &str) -> Result<()> {
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
