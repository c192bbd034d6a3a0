//! PutObject and UploadPart: sends bytes with their checksum, so that the store refuses other bytes.

use std::fmt::Write as _;

use http::{Method, StatusCode};

use crate::checksum::Checksum;
use crate::object::ETag;
use crate::s3::attempts::Attempts;
use crate::s3::ops::checksummed::{md5_hex, proof, with_checksum};
use crate::s3::ops::encryption;
use crate::s3::ops::encryption::UNENCRYPTED;
use crate::s3::ops::headers::{Headers, new_object_headers, push};
use crate::s3::ops::if_absent::exists;
use crate::s3::ops::verify::{Ours, look};
use crate::s3::url::encode_query;
use crate::s3::wire::{Collected, Draft, Failure, Wire};
use crate::s3::{ErrorKind, PutObject, Result, Stored, UploadPart, UploadedPart, answer};

/// Of a part that is not.
const UNCOMPLETED: &str =
    "the upload is not completed: check whether the store, and any proxy before it, knows these headers";

/// See [`crate::s3::ObjectClient::put_object`]. `only_if_absent`: by the store's own condition.
pub(crate) async fn put_object(wire: &Wire, request: &PutObject, only_if_absent: bool) -> Result<Stored> {
    let put = |named| put(wire, request, named, only_if_absent);
    with_checksum(wire, request.checksum.is_some(), only_if_absent, put).await
}

/// `named`: the checksum goes along.
async fn put(wire: &Wire, request: &PutObject, named: bool, only_if_absent: bool) -> Result<Stored> {
    const OPERATION: &str = "PutObject";
    let key = &request.object.key;
    let size: u64 = request.body.iter().map(|b| b.len() as u64).sum();
    let mut headers = proof(request.checksum, named, &request.body).await;
    headers.append(&mut new_object_headers(wire, OPERATION, &request.object)?);
    if only_if_absent {
        push(&mut headers, OPERATION, "if-none-match", "*")?;
    }
    let mut attempts = Attempts::new(wire, OPERATION, Some(key), size);
    let target = wire.endpoint.key_path(key.as_str());
    loop {
        let failure = match send(wire, &attempts, &target, &headers, &request.body).await {
            Ok((etag, answer)) => {
                attempts.succeeded();
                encryption::proven(&wire.config, &answer.headers).map_err(|why| {
                    answer.wrong(ErrorKind::NotEncrypted, format!("{why}; {UNENCRYPTED}")).error
                })?;
                return Ok(Stored {
                    etag,
                    checksum: answer::stored_checksum(&answer.headers),
                    modified: answer::date(&answer.headers),
                });
            }
            Err(failure) => failure,
        };
        let taken = only_if_absent && *failure.error.kind() == ErrorKind::Changed;
        if taken && (attempts.ambiguous || failure.ambiguous) {
            // An attempt whose answer was lost may have stored it: then what is in the way is ours.
            let checksums = request.checksum.map(Checksum::to_base64).into_iter().collect();
            let ours = Ours { size, parts: None, checksums, md5: md5_hex(&request.body).await };
            let found = look(wire, key, &ours, wire.clock.now()).await;
            return found.or(OPERATION, key, || exists(OPERATION, key));
        } else if taken {
            return Err(exists(OPERATION, key).status(412));
        }
        attempts.again(failure).await?;
    }
}

/// See [`crate::s3::ObjectClient::upload_part`].
pub(crate) async fn upload_part(wire: &Wire, request: &UploadPart) -> Result<UploadedPart> {
    let part = |named| part(wire, request, named);
    with_checksum(wire, request.checksum.is_some(), false, part).await
}

async fn part(wire: &Wire, request: &UploadPart, named: bool) -> Result<UploadedPart> {
    const OPERATION: &str = "UploadPart";
    let key = &request.upload.key;
    let size: u64 = request.body.iter().map(|b| b.len() as u64).sum();
    let headers = proof(request.checksum, named, &request.body).await;
    let mut target = wire.endpoint.key_path(key.as_str());
    let _ = write!(target, "?partNumber={}&uploadId=", request.part_number);
    encode_query(&mut target, &request.upload.id);
    let mut attempts = Attempts::new(wire, OPERATION, Some(key), size);
    loop {
        let sent = send(wire, &attempts, &target, &headers, &request.body).await;
        match sent.and_then(|(etag, answer)| Ok((etag, same_checksum(answer, request.checksum)?))) {
            Ok((etag, answer)) => {
                attempts.succeeded();
                encryption::not_denied(&wire.config, &answer.headers).map_err(|why| {
                    answer.wrong(ErrorKind::NotEncrypted, format!("{why}; {UNCOMPLETED}")).error
                })?;
                return Ok(UploadedPart {
                    part_number: request.part_number,
                    etag,
                    size,
                    checksum: request.checksum.filter(|_| named),
                });
            }
            Err(failure) => attempts.again(failure).await?,
        }
    }
}

async fn send(
    wire: &Wire,
    attempts: &Attempts<'_>,
    target: &str,
    headers: &Headers,
    body: &[bytes::Bytes],
) -> std::result::Result<(ETag, Collected), Failure> {
    let answer = wire
        .exchange(&Draft {
            headers: headers.clone(),
            body: Some(body),
            ..attempts.draft(Method::PUT, target.to_owned())
        })
        .await?
        .collect(crate::s3::xml::BODY_MAX)
        .await?;
    if answer.status != StatusCode::OK {
        return Err(answer.failed(wire.clock.wall()));
    }
    match etag(&answer) {
        Some(etag) => Ok((etag, answer)),
        None => Err(answer.unexpected("the answer has no ETag", wire.clock.wall())),
    }
}

/// A part's checksum, where the store answers with one, is the one that was sent.
fn same_checksum(answer: Collected, sent: Option<Checksum>) -> std::result::Result<Collected, Failure> {
    if let Some(sent) = sent
        && let Some(theirs) = answer::text(&answer.headers, sent.algorithm.header())
        && theirs != sent.to_base64()
    {
        let why = format!("the store has checksum {theirs}, the engine sent {}", sent.to_base64());
        return Err(answer.wrong(ErrorKind::Corrupt, why));
    }
    Ok(answer)
}

fn etag(answer: &Collected) -> Option<ETag> {
    answer::text(&answer.headers, "etag").filter(|etag| !etag.is_empty()).map(ETag::new)
}
