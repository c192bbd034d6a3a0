//! HeadObject: the metadata of one object.

use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};

use super::Result;
use super::answer::object_meta;
use super::tries::Tries;
use super::wire::{Collected, Draft, Failure, Wire};
use crate::object::{ObjectKey, ObjectMeta};

const OPERATION: &str = "HeadObject";

/// See [`super::ObjectClient::head_object`].
pub(super) async fn head_object(wire: &Wire, key: &ObjectKey) -> Result<ObjectMeta> {
    Ok(head(wire, key, false).await?.0)
}

/// The same with all headers of the answer; `checksums` asks for those of the object too.
pub(super) async fn head(wire: &Wire, key: &ObjectKey, checksums: bool) -> Result<(ObjectMeta, HeaderMap)> {
    let mut tries = Tries::new(wire, OPERATION, Some(key), 0);
    loop {
        match once(wire, &tries, key, checksums).await {
            Ok(found) => {
                tries.succeeded();
                return Ok(found);
            }
            Err(failure) => tries.again(failure).await?,
        }
    }
}

async fn once(
    wire: &Wire,
    tries: &Tries<'_>,
    key: &ObjectKey,
    checksums: bool,
) -> std::result::Result<(ObjectMeta, HeaderMap), Failure> {
    let mut headers = Vec::new();
    if checksums {
        headers.push((HeaderName::from_static("x-amz-checksum-mode"), HeaderValue::from_static("ENABLED")));
    }
    let answer: Collected = wire
        .exchange(Draft { headers, ..tries.draft(Method::HEAD, wire.endpoint.key_path(key.as_str())) })
        .await?
        .collect(0)
        .await?;
    if answer.status != StatusCode::OK {
        return Err(answer.failed(wire.clock.wall()));
    }
    let meta = object_meta(&answer.headers).map_err(|why| answer.bad(why))?;
    Ok((meta, answer.headers))
}
