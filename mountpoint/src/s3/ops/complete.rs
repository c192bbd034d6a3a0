//! CompleteMultipartUpload: the request that makes an object from its parts. The client sends it once and waits, because a store may take
//! minutes to join many parts. If the answer is lost, the client checks the key before it sends the request again or gives up.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, StatusCode, header};
use md5::{Digest as _, Md5};

use crate::checksum::{Checksum, ChecksumAlgorithm};
use crate::object::ObjectKey;
use crate::s3::answer::date;
use crate::s3::attempts::Attempts;
use crate::s3::failure::Failure;
use crate::s3::ops::encryption;
use crate::s3::ops::head::head;
use crate::s3::ops::headers::{checksum_type, push, push_condition};
use crate::s3::ops::if_absent::refused;
use crate::s3::ops::multipart::upload_target;
use crate::s3::ops::verify::{Found, Ours, look, prove_encrypted};
use crate::s3::wire::{Clocks, Draft, Wire};
use crate::s3::{CompleteUpload, Error, ErrorKind, Replaces, Result, Stored, UploadedPart, xml};

const OPERATION: &str = "CompleteMultipartUpload";

/// Completes an upload, see [`crate::s3::ObjectClient::complete_multipart_upload`]. `conditional`: the request has the condition of
/// `replaces`.
pub(crate) async fn complete(wire: &Wire, request: &CompleteUpload, conditional: bool) -> Result<Stored> {
    let key = &request.upload.key;
    let whole = Whole::of(&request.parts);
    let ours = whole.ours(&request.parts);
    let replaces = conditional.then_some(&request.replaces);
    let headers = headers(replaces, &whole)?;
    let document = [Bytes::from(xml::complete_document(&request.parts))];
    let timeouts = &wire.config.timeouts;
    // The call needs no slot for its retries: it is sent once in minutes at most, and other retries would wait behind it.
    let mut attempts = Attempts::new(wire, OPERATION, Some(key), 0).without_slots();
    // An unreachable store fails the call as early as any other request; a store that is working has its full time.
    let end = wire.clock.now() + timeouts.operation + timeouts.complete;
    loop {
        let mut failed = match once(wire, &attempts, request, &headers, &document, end).await {
            Ok((stored, encrypted)) => {
                attempts.succeeded();
                // An earlier attempt may have made the object under the key, with another ETag.
                if attempts.ambiguous
                    && let found @ (Found::Ours(_) | Found::Unencrypted(_)) =
                        look(wire, key, &ours, wire.clock.now()).await
                {
                    return found.or(OPERATION, key, || refused(OPERATION, key, &request.replaces));
                }
                if !encrypted {
                    prove_encrypted(wire, OPERATION, key).await?;
                }
                return Ok(match stored.etag.is_none() {
                    true => named(wire, key, stored, whole.size).await,
                    false => stored,
                });
            }
            Err(failed) => failed,
        };
        let now = wire.clock.now();
        let next = Next::after(&failed, attempts.ambiguous, conditional);
        tracing::debug!(%key, ?next, "{}", failed.error);
        match next {
            Next::Settle { patiently } => {
                let until = if patiently { end } else { now };
                let found = look(wire, key, &ours, until).await;
                return found.or(OPERATION, key, || {
                    unknown(key, "the upload is gone, and its object is not there").source(failed.error)
                });
            }
            Next::WhoseIsIt { perhaps_ours: false } => {
                return Err(refused(OPERATION, key, &request.replaces).status(412));
            }
            Next::WhoseIsIt { perhaps_ours: true } => {
                let found = look(wire, key, &ours, now).await;
                return found.or(OPERATION, key, || refused(OPERATION, key, &request.replaces));
            }
            Next::LookThenSend => {
                let until = end.min(now + timeouts.first_byte);
                let found = look(wire, key, &ours, until).await;
                if matches!(found, Found::Ours(_) | Found::Unencrypted(_)) {
                    attempts.succeeded();
                    return found.or(OPERATION, key, || refused(OPERATION, key, &request.replaces));
                }
            }
            Next::Send => {}
        }
        if failed.ambiguous {
            // The store may have worked all the time: its silence counts from now on, not from its beginning.
            failed.silent = Duration::ZERO;
        }
        if let Err(last) = attempts.again(failed).await {
            if !attempts.ambiguous {
                return Err(last);
            }
            let found = look(wire, key, &ours, wire.clock.now()).await;
            return found.or(OPERATION, key, || unknown(key, "the object is not there yet").source(last));
        }
    }
}

/// The stored object with its ETag, from a HEAD. If the object there has another size, it is another one, and the ETag stays empty.
async fn named(wire: &Wire, key: &ObjectKey, stored: Stored, size: u64) -> Stored {
    match head(wire, key).await {
        Ok((meta, _)) if meta.size == size => {
            Stored { etag: meta.etag, modified: Some(meta.last_modified), ..stored }
        }
        _ => stored,
    }
}

/// The next step after a failed attempt, as far as its answer shows. Pure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Next {
    /// The store refused or aborted the request: send it again, if the retry limits allow.
    Send,
    /// The store did not answer, and may still be working: check whether the object appears, and otherwise send the request again.
    LookThenSend,
    /// The upload does not exist: an earlier attempt completed it, or another client aborted it. The object under the key decides which.
    /// After an earlier attempt without a clear answer (`patiently`), the object may take time to appear.
    Settle { patiently: bool },
    /// The object under the key is not the one to be replaced. An earlier attempt without a clear answer may have made it (`perhaps_ours`).
    WhoseIsIt { perhaps_ours: bool },
}

impl Next {
    /// The next step after a failed attempt. `doubt`: an earlier attempt had no clear answer.
    fn after(failed: &Failure, doubt: bool, conditional: bool) -> Self {
        match failed.error.kind() {
            // The upload still exists, but the object to replace does not.
            ErrorKind::NotFound if conditional && failed.error.code() == Some("NoSuchKey") => {
                Self::WhoseIsIt { perhaps_ours: doubt || failed.ambiguous }
            }
            ErrorKind::NotFound => Self::Settle { patiently: doubt || failed.ambiguous },
            ErrorKind::Changed if conditional => Self::WhoseIsIt { perhaps_ours: doubt || failed.ambiguous },
            _ if failed.ambiguous && !is_the_stores_word(&failed.error) => Self::LookThenSend,
            _ => Self::Send,
        }
    }
}

/// Whether the store itself reports the failure. A proxy makes the statuses 502 and 504, and the store behind it may still be working.
fn is_the_stores_word(error: &Error) -> bool {
    let by_a_gateway = matches!(error.http_status(), None | Some(502 | 504));
    !by_a_gateway && *error.kind() != ErrorKind::BadAnswer
}

/// Sends the request once. Returns the new object, and whether the answer proves the encryption that the user requires.
async fn once(
    wire: &Wire,
    attempts: &Attempts<'_>,
    request: &CompleteUpload,
    headers: &[(HeaderName, HeaderValue)],
    document: &[Bytes],
    end: Instant,
) -> std::result::Result<(Stored, bool), Failure> {
    let patience = wire.config.timeouts.complete;
    let whole = end.saturating_duration_since(wire.clock.now());
    let answer = wire
        .exchange(&Draft {
            headers: headers.to_vec(),
            body: Some(document),
            hashed: true,
            fresh: true,
            clocks: Clocks {
                unheard: whole,
                silence: patience,
                stall: patience,
                whole,
                floor: None,
                ..attempts.clocks()
            },
            ..attempts.draft(Method::POST, upload_target(wire, &request.upload))
        })
        .await?
        .collect(xml::BODY_MAX)
        .await?;
    if answer.status != StatusCode::OK {
        return Err(answer.failed(wire.clock.wall()));
    }
    // White space may precede the document while the store is working, and the document may be an error.
    match xml::completed(&answer.body) {
        Ok(Some(stored)) => {
            let stored = Stored { modified: date(&answer.headers), ..stored };
            Ok((stored, encryption::proven(&wire.config, &answer.headers).is_ok()))
        }
        Ok(None) => Err(answer.failed(wire.clock.wall())),
        Err(why) => Err(answer.bad(why)),
    }
}

fn headers(replaces: Option<&Replaces>, whole: &Whole) -> Result<Vec<(HeaderName, HeaderValue)>> {
    let mut headers = vec![(header::CONTENT_TYPE, HeaderValue::from_static("application/xml"))];
    if let Some(kind) = whole.algorithm.and_then(checksum_type) {
        push(&mut headers, OPERATION, "x-amz-checksum-type", kind)?;
    }
    if let Some(sum) = &whole.full_object {
        push(&mut headers, OPERATION, ChecksumAlgorithm::Crc64Nvme.header(), sum)?;
    }
    if let Some(replaces) = replaces {
        push_condition(&mut headers, OPERATION, replaces)?;
    }
    Ok(headers)
}

/// Size and checksums of the object that the parts make.
#[derive(Debug)]
struct Whole {
    size: u64,
    algorithm: Option<ChecksumAlgorithm>,
    /// The possible checksums of the object, in the spellings of stores; empty unless every part has a checksum.
    checksums: Vec<String>,
    /// CRC-64/NVME of the whole object, which the request contains.
    full_object: Option<String>,
}

impl Whole {
    fn of(parts: &[UploadedPart]) -> Self {
        let size = parts.iter().map(|p| p.size).sum();
        let sums: Option<Vec<Checksum>> = parts.iter().map(|p| p.checksum).collect();
        let algorithm = sums.as_ref().and_then(|s| s.first()).map(|c| c.algorithm);
        let (Some(algorithm), Some(sums)) = (algorithm, sums) else {
            return Self { size, algorithm: None, checksums: Vec::new(), full_object: None };
        };
        let whole = whole_sum(parts).unwrap_or(sums[0]).to_base64();
        let (checksums, full_object) = match algorithm {
            // The composite checksum of the requested algorithm, and the full one that a store may keep instead.
            ChecksumAlgorithm::Crc32c | ChecksumAlgorithm::Crc32 => {
                (vec![Checksum::composite(&sums), whole], None)
            }
            ChecksumAlgorithm::Crc64Nvme => (vec![whole.clone()], Some(whole)),
        };
        Self { size, algorithm: Some(algorithm), checksums, full_object }
    }

    /// The properties that identify the object made of these parts.
    fn ours(&self, parts: &[UploadedPart]) -> Ours {
        let (size, checksums, md5) = (self.size, self.checksums.clone(), etag_of_parts(parts));
        Ours { size, parts: Some(parts.len()), checksums, md5 }
    }
}

/// The checksum of the whole object, if each part has one.
pub(crate) fn whole_sum(parts: &[UploadedPart]) -> Option<Checksum> {
    let mut parts = parts.iter();
    let first = parts.next()?.checksum?;
    parts.try_fold(first, |whole, part| Some(whole.combine(part.checksum?, part.size)))
}

/// The ETag of an object made of these parts, in order, on stores whose ETags are MD5 sums; `None` if a part's ETag is not.
pub(crate) fn etag_of_parts<'a>(parts: impl IntoIterator<Item = &'a UploadedPart>) -> Option<String> {
    let (mut md5, mut count) = (Md5::new(), 0);
    for part in parts {
        let digits = part.etag.as_str().trim_matches('"');
        md5.update(base16ct::mixed::decode_vec(digits).ok().filter(|sum| sum.len() == 16)?);
        count += 1;
    }
    let sum: [u8; 16] = md5.finalize().into();
    Some(format!("{}-{count}", base16ct::lower::encode_string(&sum)))
}

fn unknown(key: &ObjectKey, why: &str) -> Error {
    Error::new(ErrorKind::Unknown, OPERATION)
        .key(key)
        .message(format!("no attempt had a clear answer; {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::ETag;

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
        let whole = Checksum::of(ChecksumAlgorithm::Crc32c, b"hello world!").to_base64();
        assert!(composite.checksums[0].ends_with("-3") && composite.checksums[1] == whole, "{composite:?}");
        let mut unknown = parts(ChecksumAlgorithm::Crc32c);
        unknown[1].checksum = None;
        assert!(Whole::of(&unknown).checksums.is_empty());
    }

    #[test]
    fn the_etag_of_parts_is_the_sum_of_their_sums() {
        let part = |(etag, part_number): (&str, u32)| UploadedPart {
            part_number,
            etag: ETag::new(etag),
            size: 5,
            checksum: None,
        };
        // The sums of "hello" and "world", and the sum of both as AWS computes it.
        let sums = ["\"5d41402abc4b2a76b9719d911017c592\"", "7D793037A0760186574B0282F2F435E7"];
        let parts: Vec<_> = sums.into_iter().zip(1..).map(part).collect();
        let ours = Whole::of(&parts).ours(&parts);
        assert_eq!(ours.md5.as_deref(), Some("065947336a2f2a95ba8899f3675c3be6-2"), "it proves the object");
        assert_eq!(etag_of_parts(&parts).as_deref(), Some("065947336a2f2a95ba8899f3675c3be6-2"));
        assert_eq!(etag_of_parts(&[part(("a mark of its own", 1))]), None);
    }

    #[test]
    fn only_a_store_that_said_no_word_may_still_be_at_work() {
        use ErrorKind::{BadAnswer, Changed, Denied, Network, NotFound, ServerError, Throttled, Timeout};
        let failed = |kind, status: Option<u16>, ambiguous| {
            let error = Error::new(kind, OPERATION);
            let error = match status {
                Some(status) => error.status(status),
                None => error,
            };
            Failure { ambiguous, ..Failure::from(error) }
        };
        for (kind, status, ambiguous, doubt, next) in [
            // Never sent.
            (Network, None, false, false, Next::Send),
            (Denied, Some(403), false, true, Next::Send),
            (Throttled, Some(503), true, false, Next::Send),
            (ServerError, Some(500), true, false, Next::Send),
            // An error behind status 200.
            (ServerError, Some(200), true, false, Next::Send),
            (Timeout, None, true, false, Next::LookThenSend),
            (Network, None, true, true, Next::LookThenSend),
            (ServerError, Some(502), true, false, Next::LookThenSend),
            (ServerError, Some(504), true, false, Next::LookThenSend),
            (BadAnswer, Some(200), true, false, Next::LookThenSend),
            (NotFound, Some(404), false, false, Next::Settle { patiently: false }),
            (NotFound, Some(404), false, true, Next::Settle { patiently: true }),
            (Changed, Some(412), false, false, Next::WhoseIsIt { perhaps_ours: false }),
            (Changed, Some(412), false, true, Next::WhoseIsIt { perhaps_ours: true }),
        ] {
            let failed = failed(kind, status, ambiguous);
            assert_eq!(Next::after(&failed, doubt, true), next, "{failed:?}");
        }
        let changed = failed(Changed, Some(412), false);
        assert_eq!(Next::after(&changed, true, false), Next::Send, "nobody asked for an absent object");
    }
}
