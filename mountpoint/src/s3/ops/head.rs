//! HeadObject: the metadata of one object. If the store refuses to say whether a key is there, a listing of this key says so.

use http::{HeaderMap, Method, StatusCode};

use crate::object::{ObjectId, ObjectKey, ObjectMeta};
use crate::s3::answer::{object_meta, stored_checksum, text};
use crate::s3::attempts::Attempts;
use crate::s3::ops::headers::checksum_mode;
use crate::s3::ops::list;
use crate::s3::wire::{Collected, Draft, Failure, Wire};
use crate::s3::{Described, Error, ErrorKind, ListObjects, Properties, Result};

const OPERATION: &str = "HeadObject";

/// See [`crate::s3::ObjectClient::head_object`].
pub(crate) async fn head_object(wire: &Wire, key: &ObjectKey) -> Result<ObjectMeta> {
    let (meta, headers) = head(wire, key).await?;
    let id = ObjectId { key: key.clone(), etag: meta.etag.clone() };
    wire.sums.learn(&id, StatusCode::OK, &headers);
    Ok(meta)
}

/// The same with all headers of the answer, which asks for the object's checksum: that takes the permission to read an object under a KMS key.
/// Where that is refused, the next question leaves it out.
pub(crate) async fn head(wire: &Wire, key: &ObjectKey) -> Result<(ObjectMeta, HeaderMap)> {
    let mut checksums = true;
    let mut attempts = Attempts::new(wire, OPERATION, Some(key), 0);
    let mut looked = false;
    loop {
        let clock = wire.skew.times_learned();
        let failure = match once(wire, &attempts, key, checksums).await {
            Ok(found) => {
                attempts.succeeded();
                return Ok(found);
            }
            Err(failure) => failure,
        };
        if *failure.error.kind() == ErrorKind::Denied && !looked {
            looked = true;
            match is_listed(wire, key).await {
                Some(false) => return Err(absent(key)),
                // Meanwhile the store's clock was learned: it was the date that was refused.
                _ if wire.skew.times_learned() != clock => continue,
                Some(true) => {
                    if let Ok(found) = once(wire, &attempts, key, false).await {
                        attempts.succeeded();
                        return Ok(found);
                    }
                    // The store knows us, and does not let us read it: other credentials are not looked for. But the listing may have found
                    // others: then it was not these that were refused.
                    if !has_other_keys(wire, failure.generation).await {
                        return Err(failure.error);
                    }
                }
                None => {}
            }
            checksums = false;
        }
        attempts.again(failure).await?;
    }
}

/// See [`crate::s3::ObjectClient::describe_object`].
pub(crate) async fn describe_object(wire: &Wire, key: &ObjectKey) -> Result<Described> {
    let (meta, headers) = head(wire, key).await?;
    let properties = Properties::of(&headers)
        .map_err(|why| Error::new(ErrorKind::BadAnswer, OPERATION).key(key).message(why))?;
    let tags = text(&headers, "x-amz-tagging-count").and_then(|count| count.parse().ok()).unwrap_or(0);
    Ok(Described { meta, properties, tags, checksum: stored_checksum(&headers) })
}

/// Whether a listing has the key, if we may list it. S3 answers 403 to a HEAD of a missing key if the policy allows listings only
/// under a condition, such as a prefix: the answer itself does not say whether the key is there.
async fn is_listed(wire: &Wire, key: &ObjectKey) -> Option<bool> {
    let request = ListObjects { prefix: key.as_str().to_owned(), max_keys: 1, ..ListObjects::default() };
    let page = list::list_objects(wire, &request).await.ok()?;
    match page.objects.first() {
        // The first of all keys that begin so.
        Some(first) => Some(first.key == *key),
        None => page.next_token.is_none().then_some(false),
    }
}

/// Whether requests are signed with other credentials now than with those of `generation`.
async fn has_other_keys(wire: &Wire, generation: Option<u64>) -> bool {
    match (&wire.credentials, generation) {
        (Some(source), Some(generation)) => {
            source.get().await.is_ok_and(|held| held.generation != generation)
        }
        _ => false,
    }
}

fn absent(key: &ObjectKey) -> Error {
    Error::new(ErrorKind::NotFound, OPERATION)
        .key(key)
        .message("the store refused to say (403), and a listing has no such key")
}

async fn once(
    wire: &Wire,
    attempts: &Attempts<'_>,
    key: &ObjectKey,
    checksums: bool,
) -> std::result::Result<(ObjectMeta, HeaderMap), Failure> {
    let mut headers = Vec::new();
    if checksums {
        headers.push(checksum_mode());
    }
    let answer: Collected = wire
        .exchange(&Draft { headers, ..attempts.draft(Method::HEAD, wire.endpoint.key_path(key.as_str())) })
        .await?
        .collect(0)
        .await?;
    if answer.status != StatusCode::OK {
        return Err(answer.failed(wire.clock.wall()));
    }
    let meta = object_meta(&answer.headers).map_err(|why| answer.bad(why))?;
    Ok((meta, answer.headers))
}
