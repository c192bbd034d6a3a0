//! Deletes everything below a prefix: all versions, delete markers, multipart uploads in progress. Enters: a bucket, a prefix that ends in
//! a slash or is empty. Leaves: the number of deletions.
//!
//! Never here: the decision to delete.

use futures_util::stream::{self, StreamExt as _};
use mountpoint::s3::{Bucket, Error, ErrorKind, ListObjects, Result, Version, VersionMarkers};

/// Most requests in flight. Doubling it deletes up to twice as fast, and doubles the load of the store.
const AT_ONCE: usize = 16;
/// Entries of a page.
const PAGE: u16 = 1000;

/// Deletes everything below the prefix. Returns the number of deletions, including those of objects that were already gone.
///
/// # Errors
/// An error of the store; some objects may be deleted by then. `Denied` if an object is locked.
pub async fn purge(bucket: &Bucket, prefix: &str) -> Result<u64> {
    let mut deleted = match versions(bucket, prefix).await {
        Err(error) if knows_no_versions(&error) => objects(bucket, prefix).await?,
        deleted => deleted?,
    };
    for upload in bucket.uploads(prefix).await? {
        bucket.abort(&upload.upload).await?;
        deleted += 1;
    }
    Ok(deleted)
}

fn knows_no_versions(error: &Error) -> bool {
    *error.kind() == ErrorKind::Unsupported || error.http_status() == Some(405)
}

async fn versions(bucket: &Bucket, prefix: &str) -> Result<u64> {
    let mut deleted = 0;
    let mut after = VersionMarkers::default();
    loop {
        let page = bucket.versions(prefix, &after).await?;
        deleted += page.versions.len() as u64;
        all(page
            .versions
            .into_iter()
            .map(|Version { key, id }| async move { bucket.delete_object(&key, Some(&id)).await }))
        .await?;
        match page.next {
            Some(next) => after = next,
            None => return Ok(deleted),
        }
    }
}

async fn objects(bucket: &Bucket, prefix: &str) -> Result<u64> {
    let mut deleted = 0;
    let mut request = ListObjects { prefix: prefix.to_owned(), max_keys: PAGE, ..ListObjects::default() };
    loop {
        let page = bucket.list(&request).await?;
        deleted += page.objects.len() as u64;
        all(page
            .objects
            .into_iter()
            .map(|object| async move { bucket.delete_object(&object.key, None).await }))
        .await?;
        match page.next_token {
            Some(token) => request.continuation_token = Some(token),
            None => return Ok(deleted),
        }
    }
}

/// Runs the deletions, [`AT_ONCE`] at a time, to the end of all; returns the first error.
async fn all(deletions: impl Iterator<Item = impl Future<Output = Result<()>>>) -> Result<()> {
    let ended: Vec<_> = stream::iter(deletions).buffer_unordered(AT_ONCE).collect().await;
    ended.into_iter().collect()
}
