//! HeadObject: the metadata of one object. If the store denies the HEAD, a listing shows whether the key exists.

use http::{HeaderMap, HeaderValue, Method, StatusCode, header};

use crate::object::{ObjectId, ObjectKey, ObjectMeta, Second};
use crate::s3::answer::{meta_of, meta_of_byte, object_meta, says_empty, stored_checksum, text};
use crate::s3::attempts::Attempts;
use crate::s3::failure::Failure;
use crate::s3::oddities::Oddity;
use crate::s3::ops::list;
use crate::s3::wire::{Collected, Draft, Wire};
use crate::s3::{Described, Error, ErrorKind, ListObjects, Properties, Result};

const OPERATION: &str = "HeadObject";

/// Gets the metadata, see [`crate::s3::ObjectClient::head_object`].
pub(crate) async fn head_object(wire: &Wire, key: &ObjectKey) -> Result<ObjectMeta> {
    let (meta, headers) = head(wire, key).await?;
    let id = ObjectId::of(key.clone(), &meta);
    wire.sums.learn(&id, meta.size, StatusCode::OK, &headers);
    Ok(meta)
}

/// Gets the metadata and all headers of the answer. Requests the object's checksum, which for an object under a KMS key needs the
/// permission to read it; if the store denies that, the next attempt leaves the checksum out.
pub(crate) async fn head(wire: &Wire, key: &ObjectKey) -> Result<(ObjectMeta, HeaderMap)> {
    let mut checksums = true;
    let mut attempts = Attempts::new(wire, OPERATION, Some(key), 0);
    let mut looked = false;
    loop {
        let clock = wire.skew.times_learned();
        let failure = match once(wire, &attempts, key, checksums).await {
            Ok(headers) => {
                attempts.succeeded();
                return Ok((described(wire, key, &headers).await?, headers));
            }
            Err(failure) => failure,
        };
        if *failure.error.kind() == ErrorKind::Denied && !looked {
            looked = true;
            match is_listed(wire, key).await {
                Some(false) => return Err(absent(key)),
                // The store refused the request's date, and its clock was learned meanwhile.
                _ if wire.skew.times_learned() != clock => continue,
                Some(true) => {
                    if let Ok(headers) = once(wire, &attempts, key, false).await {
                        attempts.succeeded();
                        return Ok((described(wire, key, &headers).await?, headers));
                    }
                    // The store accepts these credentials, and denies the read, so other credentials would not help. But if the listing
                    // found other ones, the denied credentials are no longer in use.
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

/// The metadata in these headers, completed by other requests.
async fn described(wire: &Wire, key: &ObjectKey, headers: &HeaderMap) -> Result<ObjectMeta> {
    let meta = match object_meta(headers) {
        Some(meta) => meta,
        None => sized(wire, key, headers).await?,
    };
    Ok(dated(wire, key, meta).await)
}

/// The metadata of an object whose HEAD lacks the length: from a GET of one byte, or from a listing of the key.
async fn sized(wire: &Wire, key: &ObjectKey, head: &HeaderMap) -> Result<ObjectMeta> {
    wire.abilities.oddities.saw(Oddity::NoLength, Some(key), "HeadObject has no Content-Length");
    let mut attempts = Attempts::new(wire, "GetObject", Some(key), 0);
    loop {
        let range = (header::RANGE, HeaderValue::from_static("bytes=0-0"));
        let draft = attempts.draft(Method::GET, wire.endpoint.key_path(key.as_str()));
        match wire.exchange(&Draft { headers: vec![range], ..draft }).await {
            Ok(answer) if says_empty(&answer.headers) => return Ok(meta_of(head, 0)),
            // The body is not read, so its connection is closed.
            Ok(answer) if answer.status.is_success() => match meta_of_byte(answer.status, &answer.headers) {
                Some(meta) => return Ok(meta),
                None => break,
            },
            Ok(answer) => attempts.again(answer.failed(wire.clock.wall()).await).await?,
            Err(failure) => attempts.again(failure).await?,
        }
    }
    match listed(wire, key).await {
        Some(meta) => Ok(meta_of(head, meta.size)),
        None => Err(Error::new(ErrorKind::BadAnswer, OPERATION)
            .key(key)
            .message("neither HEAD, nor a range of one byte, nor a listing says how long the object is")),
    }
}

/// Adds the date from a listing of the key, if the object's own answer has none.
pub(crate) async fn dated(wire: &Wire, key: &ObjectKey, mut meta: ObjectMeta) -> ObjectMeta {
    if meta.etag.is_none() {
        wire.abilities.oddities.saw(Oddity::NoEtag, Some(key), "");
    }
    if Second::of(meta.last_modified).is_none() {
        wire.abilities.oddities.saw(Oddity::NoDate, Some(key), "");
        if let Some(listed) = listed(wire, key).await {
            meta.last_modified = listed.last_modified;
        }
    }
    meta
}

/// The metadata of the object from a listing of its key.
async fn listed(wire: &Wire, key: &ObjectKey) -> Option<ObjectMeta> {
    let request = ListObjects { prefix: key.as_str().to_owned(), max_keys: 1, ..ListObjects::default() };
    let page = list::list_objects(wire, &request).await.ok()?;
    page.objects.into_iter().find(|object| object.key == *key).map(|object| object.meta)
}

/// Gets all facts of a HEAD, see [`crate::s3::ObjectClient::describe_object`].
pub(crate) async fn describe_object(wire: &Wire, key: &ObjectKey) -> Result<Described> {
    let (meta, headers) = head(wire, key).await?;
    let properties = Properties::of(&headers)
        .map_err(|why| Error::new(ErrorKind::BadAnswer, OPERATION).key(key).message(why))?;
    let tags = text(&headers, "x-amz-tagging-count").and_then(|count| count.parse().ok()).unwrap_or(0);
    let version = text(&headers, "x-amz-version-id").filter(|id| *id != "null").map(str::to_owned);
    Ok(Described { meta, properties, version, tags, checksum: stored_checksum(&headers) })
}

/// Whether a listing has the key; `None` if the listing fails. S3 answers 403 to a HEAD of a missing key if the policy allows listings only
/// under a condition, such as a prefix, so the answer does not show whether the key exists.
async fn is_listed(wire: &Wire, key: &ObjectKey) -> Option<bool> {
    let request = ListObjects { prefix: key.as_str().to_owned(), max_keys: 1, ..ListObjects::default() };
    let page = list::list_objects(wire, &request).await.ok()?;
    match page.objects.first() {
        // The first key of the listing is the first of all keys with this prefix, so it is the key itself if that exists.
        Some(first) => Some(first.key == *key),
        None => page.next_token.is_none().then_some(false),
    }
}

/// Whether the current credentials are newer than `generation`.
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
) -> std::result::Result<HeaderMap, Failure> {
    let mut headers = Vec::new();
    if checksums {
        headers.extend(attempts.checksum_mode());
    }
    let answer: Collected = wire
        .exchange(&Draft { headers, ..attempts.draft(Method::HEAD, wire.endpoint.key_path(key.as_str())) })
        .await?
        .collect(0)
        .await?;
    if answer.status != StatusCode::OK {
        return Err(answer.failed(wire.clock.wall()));
    }
    Ok(answer.headers)
}
