//! Uploads with a checksum header, on stores that know such headers and on those that refuse them.

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

/// The headers with which the store detects damaged bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Proof {
    /// Whether the request has a checksum header.
    pub(crate) checksum: bool,
    /// Whether the request has Content-MD5.
    pub(crate) md5: bool,
}

/// Sends a request with `send`, which gets the headers to add. `wanted`: the user wants a checksum. `conditional`: the request also has a
/// condition, the likelier cause of a 501.
///
/// After a refusal that may concern checksums, the request is sent once more with an MD5 instead; after a refusal that names Content-MD5,
/// with the MD5 in addition. If that succeeds, later uploads do the same from the start. Any other answer is final: bytes that the store
/// found damaged are never sent again without a checksum.
pub(crate) async fn with_proof<T, F>(
    wire: &Wire,
    wanted: bool,
    conditional: bool,
    send: impl Fn(Proof) -> F,
) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let abilities = &wire.abilities;
    let refused = abilities.refuses_checksums();
    let first = Proof { checksum: wanted && !refused, md5: abilities.demands_md5() || (wanted && refused) };
    let (mut proof, mut demanded) = (first, false);
    loop {
        match send(proof).await {
            Err(error) if !proof.md5 && demands_md5(&error) => {
                (proof.md5, demanded) = (true, true);
            }
            Err(error) if proof.checksum && may_be_about_checksums(&error, conditional) => {
                proof = Proof { checksum: false, md5: true };
            }
            Ok(done) => {
                if first.checksum && !proof.checksum {
                    abilities.learn_refused_checksums();
                }
                if demanded {
                    abilities.learn_demanded_md5();
                }
                return Ok(done);
            }
            outcome => return outcome,
        }
    }
}

fn may_be_about_checksums(error: &Error, conditional: bool) -> bool {
    match error.kind() {
        ErrorKind::Unsupported => !conditional,
        ErrorKind::InvalidRequest => error.http_status() == Some(400) && error.mentions("checksum"),
        _ => false,
    }
}

/// Whether the store reports Content-MD5 as missing. A wrong digest is another kind of error.
fn demands_md5(error: &Error) -> bool {
    let is_named = || ["content-md5", "contentmd5"].into_iter().any(|name| error.mentions(name));
    *error.kind() == ErrorKind::InvalidRequest && error.http_status() == Some(400) && is_named()
}

/// The headers for this proof.
pub(crate) async fn headers_of(proof: Proof, checksum: Option<Checksum>, body: &[Bytes]) -> Headers {
    let mut headers = checksum_headers(checksum.filter(|_| proof.checksum));
    let digest = if proof.md5 { md5(body).await } else { None };
    if let Some(value) = digest.and_then(|digest| HeaderValue::try_from(STANDARD.encode(digest)).ok()) {
        headers.push((HeaderName::from_static("content-md5"), value));
    }
    headers
}

/// The MD5 of a body in hex, which most stores use as the ETag of an object that was not uploaded in parts.
pub(crate) async fn md5_hex(body: &[Bytes]) -> Option<String> {
    md5(body).await.map(|digest| base16ct::lower::encode_string(&digest))
}

async fn md5(body: &[Bytes]) -> Option<[u8; 16]> {
    let pieces = body.to_vec();
    // Computing the MD5 of a part takes longer than a task of the runtime may run.
    let digest = tokio::task::spawn_blocking(move || {
        let mut md5 = Md5::new();
        pieces.iter().for_each(|piece| md5.update(piece));
        md5.finalize().into()
    });
    digest.await.ok()
}
