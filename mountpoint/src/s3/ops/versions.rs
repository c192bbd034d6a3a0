//! ListObjectVersions: one page of versions and delete markers.

use http::{Method, StatusCode};

use crate::s3::attempts::Attempts;
use crate::s3::url::push_query;
use crate::s3::wire::{Draft, Failure, Wire};
use crate::s3::xml::{VersionMarkers, VersionPage};
use crate::s3::{ErrorKind, Result, xml};

/// See [`crate::s3::Bucket::versions`].
pub(crate) async fn list(wire: &Wire, prefix: &str, after: &VersionMarkers) -> Result<VersionPage> {
    let target = target(wire.endpoint.bucket_path(), prefix, after);
    let mut attempts = Attempts::new(wire, "ListObjectVersions", None, 0);
    loop {
        match page(wire, attempts.draft(Method::GET, target.clone()), prefix).await {
            Ok(page) if page.next.as_ref() == Some(after) => {
                let error = crate::s3::Error::new(ErrorKind::BadAnswer, "ListObjectVersions");
                return Err(error.message("the listing of versions does not end"));
            }
            Ok(page) => {
                attempts.succeeded();
                return Ok(page);
            }
            Err(failure) => attempts.again(failure).await?,
        }
    }
}

async fn page(wire: &Wire, draft: Draft<'_>, prefix: &str) -> std::result::Result<VersionPage, Failure> {
    let answer = wire.exchange(&draft).await?.collect(xml::BODY_MAX).await?;
    if answer.status != StatusCode::OK {
        return Err(answer.failed(wire.clock.wall()));
    }
    xml::version_page(&answer.body, prefix).map_err(|why| answer.unexpected(why, wire.clock.wall()))
}

/// Path and query, names in alphabetical order as signatures want them.
fn target(bucket_path: &str, prefix: &str, after: &VersionMarkers) -> String {
    let mut target = bucket_path.to_owned();
    let parameters = [
        ("encoding-type", Some("url")),
        ("key-marker", after.key.as_deref()),
        ("prefix", Some(prefix)),
        ("version-id-marker", after.version.as_deref()),
        ("versions", Some("")),
    ];
    push_query(&mut target, parameters);
    target
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_query_stands_in_canonical_order() {
        let first = target("/bucket", "a b/", &VersionMarkers::default());
        assert_eq!(first, "/bucket?encoding-type=url&prefix=a%20b%2F&versions=");
        let after = VersionMarkers { key: Some("a b/c".into()), version: Some("v+1".into()) };
        assert_eq!(
            target("/", "", &after),
            "/?encoding-type=url&key-marker=a%20b%2Fc&prefix=&version-id-marker=v%2B1&versions="
        );
    }
}
