//! DeleteObject: deletes one key, or one version of it.

use std::time::SystemTime;

use http::{HeaderName, HeaderValue, Method, StatusCode};

use crate::object::{ObjectId, ObjectKey};
use crate::s3::attempts::Attempts;
use crate::s3::failure::Failure;
use crate::s3::ops::head::head_object;
use crate::s3::ops::headers::{Headers, push_condition};
use crate::s3::url::encode_query;
use crate::s3::wire::{Collected, Draft, Wire};
use crate::s3::xml::BODY_MAX;
use crate::s3::{ErrorKind, Replaces, Result, xml};

const OPERATION: &str = "DeleteObject";

/// Deletes an object, see [`crate::s3::ObjectClient::delete_object`].
pub(crate) async fn delete_object(wire: &Wire, key: &ObjectKey) -> Result<()> {
    delete(wire, key, wire.endpoint.key_path(key.as_str())).await
}

/// Deletes a version, see [`crate::s3::ObjectClient::delete_version`]. `conditional`: the request has If-Match; otherwise it deletes any
/// object.
pub(crate) async fn delete_if(wire: &Wire, id: &ObjectId, conditional: bool) -> Result<()> {
    if !conditional {
        return delete_object(wire, &id.key).await;
    }
    let mut headers = Headers::new();
    push_condition(&mut headers, OPERATION, &Replaces::Version(id.etag.clone()))?;
    let target = wire.endpoint.key_path(id.key.as_str());
    let mut attempts = Attempts::new(wire, OPERATION, Some(&id.key), 0);
    loop {
        match once(wire, &attempts, &target, &headers).await {
            Ok(()) => {
                attempts.succeeded();
                return Ok(());
            }
            // Some stores refuse the condition for a missing key, and an attempt whose answer was lost may have deleted the key.
            Err(failure) if *failure.error.kind() == ErrorKind::Changed => {
                return match head_object(wire, &id.key).await {
                    Err(error) if *error.kind() == ErrorKind::NotFound => Ok(()),
                    _ => Err(failure.error),
                };
            }
            Err(failure) => attempts.again(failure).await?,
        }
    }
}

/// Deletes one version of an object for good, or a delete marker. A missing version is a success.
pub(crate) async fn delete_version(wire: &Wire, key: &ObjectKey, version: &str) -> Result<()> {
    let mut target = wire.endpoint.key_path(key.as_str());
    target.push_str("?versionId=");
    encode_query(&mut target, version);
    delete(wire, key, target).await
}

async fn delete(wire: &Wire, key: &ObjectKey, target: String) -> Result<()> {
    let mut attempts = Attempts::new(wire, OPERATION, Some(key), 0);
    loop {
        match once(wire, &attempts, &target, &[]).await {
            Ok(()) => {
                attempts.succeeded();
                return Ok(());
            }
            Err(failure) => attempts.again(failure).await?,
        }
    }
}

async fn once(
    wire: &Wire,
    attempts: &Attempts<'_>,
    target: &str,
    headers: &[(HeaderName, HeaderValue)],
) -> std::result::Result<(), Failure> {
    let draft = Draft { headers: headers.to_vec(), ..attempts.draft(Method::DELETE, target.to_owned()) };
    let answer = wire.exchange(&draft).await?.collect(BODY_MAX).await?;
    is_gone(answer, wire.clock.wall())
}

/// Checks the answer to a DELETE: success without a body, or 404 with S3's code for a missing key, proves that nothing is left.
///
/// # Errors
/// Any other answer, such as the page of a proxy that has lost the store.
pub(crate) fn is_gone(answer: Collected, wall: SystemTime) -> std::result::Result<(), Failure> {
    let is_silent = answer.body.trim_ascii().is_empty();
    let code = xml::error_body(&answer.body).code;
    match (answer.status, code.as_deref()) {
        (StatusCode::NO_CONTENT, _) => Ok(()),
        (StatusCode::OK, None) if is_silent => Ok(()),
        (StatusCode::NOT_FOUND, Some("NoSuchKey" | "NoSuchVersion" | "NoSuchUpload")) => Ok(()),
        (StatusCode::OK | StatusCode::NOT_FOUND, None) => Err(answer
            .bad("the answer is not one of S3: what stands between here and the store may have made it")),
        _ => Err(answer.failed(wall)),
    }
}
