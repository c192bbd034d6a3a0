//! DeleteObject: deletes one key.

use http::{Method, StatusCode};

use super::tries::Tries;
use super::wire::{Failure, Wire};
use super::xml::BODY_MAX;
use super::{ErrorKind, Result};
use crate::object::ObjectKey;

const OPERATION: &str = "DeleteObject";

/// See [`super::ObjectClient::delete_object`].
pub(super) async fn delete_object(wire: &Wire, key: &ObjectKey) -> Result<()> {
    let mut tries = Tries::new(wire, OPERATION, Some(key), 0);
    loop {
        match once(wire, &tries, key).await {
            Err(failure) if *failure.error.kind() != ErrorKind::NotFound => tries.again(failure).await?,
            _ => {
                tries.succeeded();
                return Ok(());
            }
        }
    }
}

async fn once(wire: &Wire, tries: &Tries<'_>, key: &ObjectKey) -> std::result::Result<(), Failure> {
    let answer = wire
        .exchange(tries.draft(Method::DELETE, wire.endpoint.key_path(key.as_str())))
        .await?
        .collect(BODY_MAX)
        .await?;
    match answer.status {
        StatusCode::NO_CONTENT | StatusCode::OK => Ok(()),
        _ => Err(answer.failed(wire.clock.wall())),
    }
}
