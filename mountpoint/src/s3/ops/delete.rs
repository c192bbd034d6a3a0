//! DeleteObject: deletes one key, or one version of it.

use std::time::SystemTime;

use http::{Method, StatusCode};

use crate::object::ObjectKey;
use crate::s3::Result;
use crate::s3::attempts::Attempts;
use crate::s3::url::encode_query;
use crate::s3::wire::{Collected, Failure, Wire};
use crate::s3::xml;
use crate::s3::xml::BODY_MAX;

const OPERATION: &str = "DeleteObject";

/// See [`crate::s3::ObjectClient::delete_object`].
pub(crate) async fn delete_object(wire: &Wire, key: &ObjectKey) -> Result<()> {
    delete(wire, key, wire.endpoint.key_path(key.as_str())).await
}

/// Removes one version of an object, or a delete marker. One that is gone already is a success.
pub(crate) async fn delete_version(wire: &Wire, key: &ObjectKey, version: &str) -> Result<()> {
    let mut target = wire.endpoint.key_path(key.as_str());
    target.push_str("?versionId=");
    encode_query(&mut target, version);
    delete(wire, key, target).await
}

async fn delete(wire: &Wire, key: &ObjectKey, target: String) -> Result<()> {
    let mut attempts = Attempts::new(wire, OPERATION, Some(key), 0);
    loop {
        match once(wire, &attempts, &target).await {
            Ok(()) => {
                attempts.succeeded();
                return Ok(());
            }
            Err(failure) => attempts.again(failure).await?,
        }
    }
}

async fn once(wire: &Wire, attempts: &Attempts<'_>, target: &str) -> std::result::Result<(), Failure> {
    let answer =
        wire.exchange(&attempts.draft(Method::DELETE, target.to_owned())).await?.collect(BODY_MAX).await?;
    is_gone(answer, wire.clock.wall())
}

/// Whether the answer to a DELETE says that nothing is left: success without a word, or a 404 with S3's word that nothing was there.
///
/// # Errors
/// Anything else, such as the page of a proxy that has lost the store.
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
