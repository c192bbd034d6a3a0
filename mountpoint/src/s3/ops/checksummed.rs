//! Requests with a checksum header, on stores that know such headers and on those that refuse them.

use std::future::Future;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use md5::{Digest as _, Md5};

use crate::checksum::Checksum;
use crate::s3::ops::headers::{Headers, checksum_headers};
use crate::s3::wire::Wire;
use crate::s3::{Error, ErrorKind, Result};

/// Sends by `send`, which is told whether to name a checksum. `wanted`: the user wants one. `conditional`: the request has a condition, too,
/// which is the likelier cause of a 501.
///
/// A refusal that may be about checksums is tried once more without one; if that works, no later upload carries one. Any other answer
/// stands: bytes that the store found damaged are not sent again without their proof.
pub(crate) async fn with_checksum<T, F>(
    wire: &Wire,
    wanted: bool,
    conditional: bool,
    send: impl Fn(bool) -> F,
) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    if !wanted || wire.abilities.refuses_checksums() {
        return send(false).await;
    }
    match send(true).await {
        Err(error) if may_be_about_checksums(&error, conditional) => {}
        outcome => return outcome,
    }
    let outcome = send(false).await;
    if outcome.is_ok() {
        wire.abilities.learn_refused_checksums();
    }
    outcome
}

fn may_be_about_checksums(error: &Error, conditional: bool) -> bool {
    match error.kind() {
        ErrorKind::Unsupported => !conditional,
        ErrorKind::InvalidRequest => error.http_status() == Some(400) && error.mentions("checksum"),
        _ => false,
    }
}

/// The headers by which the store finds damaged bytes: the checksum, or in its place an MD5, which every store knows.
pub(crate) async fn proof(checksum: Option<Checksum>, named: bool, body: &[Bytes]) -> Headers {
    if named || checksum.is_none() {
        return checksum_headers(checksum);
    }
    let value = md5(body).await.and_then(|digest| HeaderValue::try_from(STANDARD.encode(digest)).ok());
    value.map(|value| (HeaderName::from_static("content-md5"), value)).into_iter().collect()
}

/// The MD5 as most stores spell it in the ETag of an object that is no multipart one.
pub(crate) async fn md5_hex(body: &[Bytes]) -> Option<String> {
    md5(body).await.map(|digest| base16ct::lower::encode_string(&digest))
}

async fn md5(body: &[Bytes]) -> Option<[u8; 16]> {
    let pieces = body.to_vec();
    // A part takes the processor for longer than a task of the runtime should.
    let digest = tokio::task::spawn_blocking(move || {
        let mut md5 = Md5::new();
        pieces.iter().for_each(|piece| md5.update(piece));
        md5.finalize().into()
    });
    digest.await.ok()
}
