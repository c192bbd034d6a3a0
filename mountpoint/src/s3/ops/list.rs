//! ListObjectsV2: one page of objects and common prefixes.

use std::time::Duration;

use crate::s3::attempts::Attempts;
use crate::s3::oddities::Oddity;
use crate::s3::ops::page::page;
use crate::s3::url::push_query;
use crate::s3::wire::Wire;
use crate::s3::{ListObjects, ListPage, Result, xml};

const OPERATION: &str = "ListObjectsV2";

/// Lists objects, see [`crate::s3::ObjectClient::list_objects`].
pub(crate) async fn list_objects(wire: &Wire, request: &ListObjects) -> Result<ListPage> {
    list(wire, request, Attempts::new(wire, OPERATION, None, 0)).await
}

/// Lists with limits on the number of attempts and on their time.
pub(crate) async fn prove(
    wire: &Wire,
    request: &ListObjects,
    attempts_max: u32,
    within: Duration,
) -> Result<ListPage> {
    list(wire, request, Attempts::new(wire, OPERATION, None, 0).at_most(attempts_max, within)).await
}

async fn list(wire: &Wire, request: &ListObjects, attempts: Attempts<'_>) -> Result<ListPage> {
    let target = target(wire.endpoint.bucket_path(), request);
    page(wire, attempts, &target, |answer| {
        wire.abilities.see(&answer.headers);
        let (page, left_out) = xml::list_page(&answer.body, request)?;
        if let Some(example) = left_out.example {
            wire.metrics.names_hidden.add(left_out.count);
            wire.abilities.oddities.saw(Oddity::BadEntries, None, &example);
        }
        Ok(page)
    })
    .await
}

/// Path and query of the request, with parameters in alphabetical order for the signature.
fn target(bucket_path: &str, request: &ListObjects) -> String {
    let mut target = String::with_capacity(bucket_path.len() + request.prefix.len() + 128);
    target.push_str(bucket_path);
    let max_keys = request.max_keys.clamp(1, 1000).to_string();
    let start_after = request.start_after.as_deref().filter(|_| request.continuation_token.is_none());
    let parameters = [
        ("continuation-token", request.continuation_token.as_deref()),
        ("delimiter", request.delimited.then_some("/")),
        ("encoding-type", Some("url")),
        ("list-type", Some("2")),
        ("max-keys", Some(max_keys.as_str())),
        ("prefix", Some(&request.prefix)),
        ("start-after", start_after),
    ];
    push_query(&mut target, parameters);
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
