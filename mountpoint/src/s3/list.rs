//! ListObjectsV2: one page of names.

use std::fmt::Write as _;
use std::time::Duration;

use http::{Method, StatusCode};

use super::endpoint::encode_query;
use super::tries::Tries;
use super::wire::{Failure, Wire};
use super::{ListObjects, ListPage, Result, xml};

const OPERATION: &str = "ListObjectsV2";

/// See [`super::ObjectClient::list_objects`].
pub(super) async fn list_objects(wire: &Wire, request: &ListObjects) -> Result<ListPage> {
    list(wire, request, Tries::new(wire, OPERATION, None, 0)).await
}

/// The same with less patience: at most so many tries, in this time.
pub(super) async fn prove(
    wire: &Wire,
    request: &ListObjects,
    attempts_max: u32,
    within: Duration,
) -> Result<ListPage> {
    list(wire, request, Tries::new(wire, OPERATION, None, 0).at_most(attempts_max, within)).await
}

async fn list(wire: &Wire, request: &ListObjects, mut tries: Tries<'_>) -> Result<ListPage> {
    let target = target(wire.endpoint.bucket_path(), request);
    loop {
        match once(wire, &tries, &target, request).await {
            Ok(page) => {
                tries.succeeded();
                return Ok(page);
            }
            Err(failure) => tries.again(failure).await?,
        }
    }
}

async fn once(
    wire: &Wire,
    tries: &Tries<'_>,
    target: &str,
    request: &ListObjects,
) -> std::result::Result<ListPage, Failure> {
    let answer =
        wire.exchange(tries.draft(Method::GET, target.to_owned())).await?.collect(xml::BODY_MAX).await?;
    if answer.status != StatusCode::OK {
        return Err(answer.failed(wire.clock.wall()));
    }
    xml::list_page(&answer.body, request).map_err(|why| answer.bad(why))
}

/// Path and query, names in alphabetical order as signatures want them.
fn target(bucket_path: &str, request: &ListObjects) -> String {
    let mut target = String::with_capacity(bucket_path.len() + request.prefix.len() + 128);
    target.push_str(bucket_path);
    let mut sign = '?';
    let mut parameter = |name: &str, value: &str| {
        target.push(sign);
        sign = '&';
        target.push_str(name);
        target.push('=');
        encode_query(&mut target, value);
    };
    if let Some(token) = &request.continuation_token {
        parameter("continuation-token", token);
    }
    if request.delimited {
        parameter("delimiter", "/");
    }
    parameter("encoding-type", "url");
    parameter("list-type", "2");
    let mut max_keys = String::new();
    let _ = write!(max_keys, "{}", request.max_keys.clamp(1, 1000));
    parameter("max-keys", &max_keys);
    parameter("prefix", &request.prefix);
    if let (Some(after), None) = (&request.start_after, &request.continuation_token) {
        parameter("start-after", after);
    }
    target
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_query_stands_in_canonical_order() {
        let request = ListObjects {
            prefix: "a b/".into(),
            delimited: true,
            max_keys: 5000,
            start_after: Some("a b/c".into()),
            continuation_token: None,
        };
        assert_eq!(
            target("/bucket", &request),
            "/bucket?delimiter=%2F&encoding-type=url&list-type=2&max-keys=1000&prefix=a%20b%2F&start-after=a%20b%2Fc"
        );
        let next = ListObjects { continuation_token: Some("t=".into()), ..request };
        assert_eq!(
            target("/", &next),
            "/?continuation-token=t%3D&delimiter=%2F&encoding-type=url&list-type=2&max-keys=1000&prefix=a%20b%2F"
        );
    }
}
