//! ListObjectVersions: one page of versions and delete markers.

use crate::s3::attempts::Attempts;
use crate::s3::ops::page::page;
use crate::s3::url::push_query;
use crate::s3::wire::Wire;
use crate::s3::xml::{VersionMarkers, VersionPage};
use crate::s3::{Error, ErrorKind, Result, xml};

/// Lists versions, see [`crate::s3::Bucket::versions`].
pub(crate) async fn list(wire: &Wire, prefix: &str, after: &VersionMarkers) -> Result<VersionPage> {
    const OPERATION: &str = "ListObjectVersions";
    let target = target(wire.endpoint.bucket_path(), prefix, after);
    let attempts = Attempts::new(wire, OPERATION, None, 0);
    let page = page(wire, attempts, &target, |answer| xml::version_page(&answer.body, prefix)).await?;
    if page.next.as_ref() == Some(after) {
        let error = Error::new(ErrorKind::BadAnswer, OPERATION);
        return Err(error.message("the listing of versions does not end"));
    }
    Ok(page)
}

/// Path and query, with parameters in alphabetical order for the signature.
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
