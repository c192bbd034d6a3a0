//! DeleteObject: deletes one key, or one version of it.

use http::{Method, StatusCode};

use super::attempts::Attempts;
use super::endpoint::encode_query;
use super::wire::{Failure, Wire};
use super::xml::BODY_MAX;
use super::{ErrorKind, Result};
use crate::object::ObjectKey;

const OPERATION: &str = "DeleteObject";

/// See [`super::ObjectClient::delete_object`].
pub(super) async fn delete_object(wire: &Wire, key: &ObjectKey) -> Result<()> {
    delete(wire, key, wire.endpoint.key_path(key.as_str())).await
}

/// Removes one version of an object, or a delete marker. One that is gone already is a success.
pub(super) async fn delete_version(wire: &Wire, key: &ObjectKey, version: &str) -> Result<()> {
    let mut target = wire.endpoint.key_path(key.as_str());
    target.push_str("?versionId=");
    encode_query(&mut target, version);
    delete(wire, key, target).await
}

async fn delete(wire: &Wire, key: &ObjectKey, target: String) -> Result<()> {
    let mut attempts = Attempts::new(wire, OPERATION, Some(key), 0);
    loop {
        match once(wire, &attempts, &target).await {
            Err(failure) if *failure.error.kind() != ErrorKind::NotFound => attempts.again(failure).await?,
            _ => {
                attempts.succeeded();
                return Ok(());
            }
        }
    }
}

async fn once(wire: &Wire, attempts: &Attempts<'_>, target: &str) -> std::result::Result<(), Failure> {
    let answer =
        wire.exchange(&attempts.draft(Method::DELETE, target.to_owned())).await?.collect(BODY_MAX).await?;
    match answer.status {
        StatusCode::NO_CONTENT | StatusCode::OK => Ok(()),
        _ => Err(answer.failed(wire.clock.wall())),
    }
}
