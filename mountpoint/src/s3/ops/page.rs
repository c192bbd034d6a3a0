//! One page of a listing, of objects or of other kinds.

use http::{Method, StatusCode};

use crate::s3::attempts::Attempts;
use crate::s3::failure::Failure;
use crate::s3::wire::{Collected, Wire};
use crate::s3::{ErrorKind, Result, xml};

/// Requests the page at `target`, with retries. `parse` parses the document, or returns what is wrong with it.
pub(crate) async fn page<P>(
    wire: &Wire,
    mut attempts: Attempts<'_>,
    target: &str,
    parse: impl Fn(&Collected) -> std::result::Result<P, String>,
) -> Result<P> {
    loop {
        match once(wire, &attempts, target, &parse).await {
            Ok(page) => {
                attempts.succeeded();
                return Ok(page);
            }
            Err(failure) => attempts.again(failure).await?,
        }
    }
}

async fn once<P>(
    wire: &Wire,
    attempts: &Attempts<'_>,
    target: &str,
    parse: impl Fn(&Collected) -> std::result::Result<P, String>,
) -> std::result::Result<P, Failure> {
    let draft = attempts.draft(Method::GET, target.to_owned());
    let answer = wire.exchange(&draft).await?.collect(xml::BODY_MAX).await?;
    if answer.status != StatusCode::OK {
        return Err(answer.failed(wire.clock.wall()));
    }
    parse(&answer).map_err(|why| match answer.ends_with_connection() && !xml::is_whole(&answer.body) {
        true => answer.wrong(ErrorKind::Network, format!("the listing broke off: {why}")),
        false => answer.unexpected(why, wire.clock.wall()),
    })
}
