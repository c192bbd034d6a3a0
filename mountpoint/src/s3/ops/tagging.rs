//! GetBucketTagging, PutBucketTagging and GetObjectTagging. A store without tags of buckets is a result, not an error.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode, header};
use md5::{Digest as _, Md5};

use crate::object::ObjectKey;
use crate::s3::attempts::Attempts;
use crate::s3::failure::Failure;
use crate::s3::ops::bucket::plain;
use crate::s3::ops::headers::push;
use crate::s3::wire::{Draft, Wire};
use crate::s3::xml::Tags;
use crate::s3::{Error, ErrorKind, Result, xml};

/// A store's answer to a request for a bucket's tags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tagging {
    /// The store does not know tags of buckets.
    Unsupported,
    /// The bucket's tags; empty if it has none.
    Tags(Tags),
}

/// Gets a bucket's tags, see [`crate::s3::Bucket::tags`].
pub(crate) async fn get(wire: &Wire) -> Result<Tagging> {
    let mut attempts = Attempts::new(wire, "GetBucketTagging", None, 0);
    let target = target(wire);
    loop {
        let found = match got(wire, attempts.draft(Method::GET, target.clone())).await {
            Ok(tags) => Tagging::Tags(tags),
            Err(failure) if failure.error.code() == Some("NoSuchTagSet") => Tagging::Tags(Tags::new()),
            Err(failure) if is_unknown(&failure.error) => Tagging::Unsupported,
            Err(failure) => {
                attempts.again(failure).await?;
                continue;
            }
        };
        attempts.succeeded();
        return Ok(found);
    }
}

async fn got(wire: &Wire, draft: Draft<'_>) -> std::result::Result<Tags, Failure> {
    let answer = wire.exchange(&draft).await?.collect(xml::BODY_MAX).await?;
    if answer.status != StatusCode::OK {
        return Err(answer.failed(wire.clock.wall()));
    }
    xml::tags(&answer.body).map_err(|why| answer.unexpected(why, wire.clock.wall()))
}

/// Gets an object's tags, see [`crate::s3::ObjectClient::object_tags`].
pub(crate) async fn of_object(wire: &Wire, key: &ObjectKey) -> Result<Tags> {
    let mut attempts = Attempts::new(wire, "GetObjectTagging", Some(key), 0);
    let target = wire.endpoint.key_path(key.as_str()) + "?tagging=";
    loop {
        match got(wire, attempts.draft(Method::GET, target.clone())).await {
            Ok(tags) => {
                attempts.succeeded();
                return Ok(tags);
            }
            Err(failure) => attempts.again(failure).await?,
        }
    }
}

/// Replaces a bucket's tags, see [`crate::s3::Bucket::set_tags`].
pub(crate) async fn put(wire: &Wire, tags: &Tags) -> Result<bool> {
    const OPERATION: &str = "PutBucketTagging";
    let document = [Bytes::from(xml::tags_document(tags))];
    let mut headers = vec![(header::CONTENT_TYPE, HeaderValue::from_static("application/xml"))];
    // Stores older than the checksum headers refuse a document without Content-MD5.
    push(&mut headers, OPERATION, "content-md5", &STANDARD.encode(Md5::digest(&document[0])))?;
    let target = target(wire);
    let mut attempts = Attempts::new(wire, OPERATION, None, 0);
    loop {
        let draft = attempts.draft(Method::PUT, target.clone());
        let draft = Draft { headers: headers.clone(), body: Some(&document), hashed: true, ..draft };
        let has_tags = match plain(wire, draft).await {
            Ok(()) => true,
            Err(failure) if is_unknown(&failure.error) => false,
            Err(failure) => {
                attempts.again(failure).await?;
                continue;
            }
        };
        attempts.succeeded();
        return Ok(has_tags);
    }
}

/// Path and query of a request about tags; the parameter has an empty value, as signatures require.
fn target(wire: &Wire) -> String {
    wire.endpoint.bucket_path().to_owned() + "?tagging="
}

/// Whether the store does not know the operation.
fn is_unknown(error: &Error) -> bool {
    *error.kind() == ErrorKind::Unsupported || error.http_status() == Some(405)
}
