//! Receives a body into a temporary file, and computes and checks its checksums in the same pass.

use std::os::unix::fs::FileExt as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::StreamExt as _;
use http::{HeaderMap, StatusCode};
use s3s::dto::StreamingBlob;
use s3s::{S3Error, S3ErrorCode, S3Result, StdError, TrailingHeaders};
use tokio::task::JoinHandle;

use super::error::{internal, invalid, named, to_s3};
use super::{Folder, error};
use crate::store::Staged;
use crate::sums::{Algorithm, Hasher, Sum, hex};

/// Bytes that are collected before a thread hashes and writes them. At most two batches per upload are in memory.
const BATCH: usize = 1 << 20;

/// Most bytes of one PutObject, one part or one copy, as in S3; more are refused.
pub(super) const PUT_MAX: u64 = 5 << 30;

/// The headers of a request that describe its body.
#[derive(Debug)]
pub(super) struct Announced {
    algorithm: Option<Algorithm>,
    value: Option<String>,
    /// Whether the checksum's value follows the body, in a trailer.
    in_trailer: bool,
    md5: Option<[u8; 16]>,
    length: Option<u64>,
    trailers: Option<TrailingHeaders>,
}

impl Announced {
    /// Parses the headers of a PutObject or an UploadPart, after s3s has set Content-Length to the number of bytes without chunk headers.
    pub(super) fn of(headers: &HeaderMap, trailers: Option<TrailingHeaders>) -> S3Result<Self> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let mut named = Algorithm::ALL.into_iter().filter(|a| headers.contains_key(a.header()));
        let in_header = named.next();
        if named.next().is_some() {
            return Err(invalid("Expecting a single x-amz-checksum- header."));
        }
        let in_trailer = text("x-amz-trailer")
            .into_iter()
            .flat_map(|names| names.split(','))
            .find_map(|name| Algorithm::of_header(name.trim()));
        let declared = match text("x-amz-sdk-checksum-algorithm") {
            None => None,
            Some(name) => Some(
                Algorithm::of_name(name)
                    .ok_or_else(|| invalid("The algorithm of x-amz-sdk-checksum-algorithm is not known."))?,
            ),
        };
        let length = text("content-length").and_then(|value| value.parse().ok());
        if length.is_some_and(|length: u64| length > PUT_MAX) {
            let message = "Your proposed upload exceeds the maximum allowed size of 5 GiB.";
            return Err(S3Error::with_message(S3ErrorCode::EntityTooLarge, message));
        }
        let value = in_header.and_then(|a| text(a.header())).map(str::to_owned);
        if let (Some(algorithm), Some(value)) = (in_header, &value)
            && !(Sum { algorithm, value: value.clone() }).is_well_formed()
        {
            return Err(invalid(format!("The value of {} is not valid.", algorithm.header())));
        }
        let md5 = text("content-md5").map(|value| {
            let bytes = STANDARD.decode(value).ok().and_then(|bytes| bytes.try_into().ok());
            bytes.ok_or_else(|| S3Error::new(S3ErrorCode::InvalidDigest))
        });
        Ok(Self {
            algorithm: in_header.or(in_trailer).or(declared),
            value,
            in_trailer: in_header.is_none() && in_trailer.is_some(),
            md5: md5.transpose()?,
            length,
            trailers,
        })
    }

    /// The algorithm that the client chose, if any.
    pub(super) fn algorithm(&self) -> Option<Algorithm> {
        self.algorithm
    }
}

/// A received body in a temporary file.
pub(super) struct Received {
    pub(super) staged: Staged,
    pub(super) sum: Sum,
    /// The MD5 of the bytes: if the client sent a correct Content-MD5, and always in strict mode.
    pub(super) md5: Option<String>,
}

struct Sink {
    staged: Staged,
    hasher: Hasher,
    at: u64,
}

/// The sink: idle, or on a thread that hashes and writes a batch.
enum Writing {
    Idle(Sink),
    Busy(JoinHandle<std::io::Result<Sink>>),
}

impl Writing {
    fn start(mut sink: Sink, batch: Vec<Bytes>) -> Self {
        Self::Busy(tokio::task::spawn_blocking(move || {
            let file = sink.staged.file();
            for piece in &batch {
                sink.hasher.update(piece);
                file.write_all_at(piece, sink.at)?;
                sink.at += piece.len() as u64;
            }
            Ok(sink)
        }))
    }

    async fn finished(self) -> S3Result<Sink> {
        match self {
            Self::Idle(sink) => Ok(sink),
            Self::Busy(handle) => handle.await.map_err(internal)?.map_err(disk),
        }
    }
}

impl Folder {
    /// Receives a body. Uses `algorithm` if the client chose none.
    pub(super) async fn receive(
        &self,
        body: Option<StreamingBlob>,
        announced: Announced,
        algorithm: Algorithm,
    ) -> S3Result<Received> {
        let staged = self.store.stage().map_err(to_s3)?;
        let hasher =
            Hasher::new(announced.algorithm.unwrap_or(algorithm), announced.md5.is_some() || self.strict);
        let mut sink = Writing::Idle(Sink { staged, hasher, at: 0 });
        let mut batch: Vec<Bytes> = Vec::new();
        let mut collected = 0;
        if let Some(mut body) = body {
            while let Some(piece) = body.next().await {
                let piece = piece.map_err(broken)?;
                collected += piece.len();
                batch.push(piece);
                if collected >= BATCH {
                    // The next batch is collected while a thread writes this one.
                    sink = Writing::start(sink.finished().await?, std::mem::take(&mut batch));
                    collected = 0;
                }
            }
        }
        let mut sink = sink.finished().await?;
        if !batch.is_empty() {
            sink = Writing::start(sink, batch).finished().await?;
        }
        check(sink, &announced)
    }
}

fn check(sink: Sink, announced: &Announced) -> S3Result<Received> {
    let Sink { staged, hasher, at: size } = sink;
    if announced.length.is_some_and(|length| length != size) {
        return Err(S3Error::new(S3ErrorCode::IncompleteBody));
    }
    let (sum, md5) = hasher.finish();
    if announced.md5.is_some() && md5 != announced.md5 {
        return Err(S3Error::with_message(
            S3ErrorCode::BadDigest,
            "The Content-MD5 you specified did not match what we received.",
        ));
    }
    let wanted = match &announced.value {
        Some(value) => Some(value.clone()),
        None if announced.in_trailer => {
            let header = sum.algorithm.header();
            let trailers = announced.trailers.as_ref().and_then(TrailingHeaders::take);
            let value = trailers.as_ref().and_then(|t| t.get(header)).and_then(|v| v.to_str().ok());
            let missing = || {
                let message = format!("The trailer {header} was announced and did not come.");
                named(StatusCode::BAD_REQUEST, "MalformedTrailerError", message)
            };
            Some(value.ok_or_else(missing)?.to_owned())
        }
        None => None,
    };
    if wanted.is_some_and(|wanted| wanted != sum.value) {
        let name = sum.algorithm.name();
        return Err(S3Error::with_message(
            S3ErrorCode::BadDigest,
            format!("The {name} you specified did not match the calculated checksum."),
        ));
    }
    Ok(Received { staged, sum, md5: md5.map(|md5| hex(&md5)) })
}

fn disk(source: std::io::Error) -> S3Error {
    error::to_s3(crate::store::Error::Io { what: "write the received bytes", source })
}

/// The error of a body that ended early or does not match its signature. The types of s3s's errors are private, so their text is
/// compared.
fn broken(error: StdError) -> S3Error {
    let text = error.to_string();
    let code = if text.contains("Sha256Mismatch") {
        "XAmzContentSHA256Mismatch"
    } else if text.contains("SignatureMismatch") {
        "SignatureDoesNotMatch"
    } else {
        "IncompleteBody"
    };
    let status =
        if code == "SignatureDoesNotMatch" { StatusCode::FORBIDDEN } else { StatusCode::BAD_REQUEST };
    named(status, code, format!("The body can't be taken: {text}."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn the_checksum_may_stand_in_a_header_or_be_announced_as_a_trailer() {
        let in_header = Announced::of(&headers(&[("x-amz-checksum-crc32c", "AAAAAQ==")]), None).unwrap();
        assert_eq!(in_header.algorithm(), Some(Algorithm::Crc32c));
        assert!(!in_header.in_trailer);
        assert!(Announced::of(&headers(&[("content-length", "5368709120")]), None).is_ok());
        let trailer = headers(&[("x-amz-trailer", "x-amz-checksum-crc64nvme")]);
        let in_trailer = Announced::of(&trailer, None).unwrap();
        assert_eq!(in_trailer.algorithm(), Some(Algorithm::Crc64Nvme));
        assert!(in_trailer.in_trailer);
    }

    #[test]
    fn values_that_can_not_be_right_are_refused() {
        for pairs in [
            &[("x-amz-checksum-crc32c", "short")][..],
            &[("x-amz-checksum-crc32c", "AAAAAQ=="), ("x-amz-checksum-crc32", "AAAAAQ==")],
            &[("content-md5", "AAAAAQ==")],
            &[("x-amz-sdk-checksum-algorithm", "CRC7")],
            &[("content-length", "5368709121")],
        ] {
            assert!(Announced::of(&headers(pairs), None).is_err(), "{pairs:?}");
        }
    }
}
