//! PutObject and UploadPart: send bytes with their checksum, so the store refuses damaged bytes.

use std::fmt::Write as _;

use http::{Method, StatusCode};

use crate::checksum::Checksum;
use crate::object::ETag;
use crate::s3::attempts::Attempts;
use crate::s3::failure::Failure;
use crate::s3::ops::checksummed::{Proof, headers_of, md5_hex, with_proof};
use crate::s3::ops::encryption;
use crate::s3::ops::encryption::UNENCRYPTED;
use crate::s3::ops::headers::{Headers, new_object_headers, push_condition};
use crate::s3::ops::if_absent::refused;
use crate::s3::ops::verify::{Ours, look};
use crate::s3::url::encode_query;
use crate::s3::wire::{Collected, Draft, Wire};
use crate::s3::{Error, ErrorKind, PutObject, Result, Stored, UploadPart, UploadedPart, answer};

/// Least number of parts that any store accepts. The refusal of a lower part number has another reason.
const PARTS_MIN: u32 = 100;

/// Advice for a part that was stored without the requested encryption.
const UNCOMPLETED: &str =
    "the upload is not completed: check whether the store, and any proxy before it, knows these headers";

/// Stores an object, see [`crate::s3::ObjectClient::put_object`]. `conditional`: the request has the condition of `replaces`.
pub(crate) async fn put_object(wire: &Wire, request: &PutObject, conditional: bool) -> Result<Stored> {
    let put = |proof| put(wire, request, proof, conditional);
    with_proof(wire, request.checksum.is_some(), conditional, put).await
}

async fn put(wire: &Wire, request: &PutObject, proof: Proof, conditional: bool) -> Result<Stored> {
    const OPERATION: &str = "PutObject";
    let key = &request.object.key;
    let size: u64 = request.body.iter().map(|b| b.len() as u64).sum();
    let mut headers = headers_of(proof, request.checksum, &request.body).await;
    headers.append(&mut new_object_headers(wire, OPERATION, &request.object)?);
    if conditional {
        push_condition(&mut headers, OPERATION, &request.object.replaces)?;
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
        // A missing key (404) does not have the version to be replaced, either.
        let taken = conditional && matches!(failure.error.kind(), ErrorKind::Changed | ErrorKind::NotFound);
        if taken && (attempts.ambiguous || failure.ambiguous) {
            // An attempt whose answer was lost may have stored the object: then the object itself fails the condition.
            let checksums = request.checksum.map(Checksum::to_base64).into_iter().collect();
            let ours = Ours { size, parts: None, checksums, md5: md5_hex(&request.body).await };
            let found = look(wire, key, &ours, wire.clock.now()).await;
            return found.or(OPERATION, key, || refused(OPERATION, key, &request.object.replaces));
        } else if taken {
            return Err(refused(OPERATION, key, &request.object.replaces).status(412));
        }
        attempts.again(failure).await?;
    }
}

/// Sends a part, see [`crate::s3::ObjectClient::upload_part`].
pub(crate) async fn upload_part(wire: &Wire, request: &UploadPart) -> Result<UploadedPart> {
    let part = |proof| part(wire, request, proof);
    let sent = with_proof(wire, request.checksum.is_some(), false, part).await;
    if let Err(error) = &sent
        && let Some(most) = too_many(error, request.part_number)
    {
        wire.abilities.learn_parts_max(most);
    }
    sent
}

/// The largest part number of the store, if it refused this part for its number: the limit in the message, or else the number before.
fn too_many(error: &Error, number: u32) -> Option<u32> {
    let is_refused = *error.kind() == ErrorKind::InvalidRequest && error.mentions("part number");
    let named = error.numbers().filter(|named| (PARTS_MIN..number).contains(named)).max();
    (is_refused && number > PARTS_MIN).then(|| named.unwrap_or(number - 1))
}

async fn part(wire: &Wire, request: &UploadPart, proof: Proof) -> Result<UploadedPart> {
    const OPERATION: &str = "UploadPart";
    let key = &request.upload.key;
    let size: u64 = request.body.iter().map(|b| b.len() as u64).sum();
    let headers = headers_of(proof, request.checksum, &request.body).await;
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
                    checksum: request.checksum.filter(|_| proof.checksum),
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

/// Checks that the part's checksum in the store's answer, if there is one, equals the one that was sent.
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
