//! Removes the objects, versions and uploads of the write probes, and reports those that can't be removed.

use mountpoint::s3::{Bucket, Error, ListObjects, Result, VersionMarkers};

use super::Examination;
use super::report::Kept;
use super::write::Below;

/// Most pages of each listing. The objects of the probes fit on one.
const PAGES_MAX: usize = 10;

impl Examination<'_> {
    /// Removes everything below the prefix. A failure for one object does not stop the rest.
    pub(super) async fn clean(&mut self, below: &Below) {
        (self.around.progress)("removing what was made");
        let bucket = match self.client.bucket() {
            Ok(bucket) => bucket,
            Err(error) => return self.keep(&below.prefix, None, error.to_string()),
        };
        match bucket.uploads(&below.prefix).await {
            Ok(uploads) => {
                for pending in
                    uploads.into_iter().filter(|it| it.upload.key.as_str().starts_with(&below.prefix))
                {
                    if let Err(error) = bucket.abort(&pending.upload).await {
                        self.keep(pending.upload.key.as_str(), None, format!("an upload: {error}"));
                    }
                }
            }
            Err(error) => tracing::debug!("uploads below {} can't be listed: {error}", below.prefix),
        }
        if let Err(error) = self.clean_objects(&bucket, &below.prefix).await {
            self.keep(&below.prefix, None, format!("keys below it can't be listed: {error}"));
        }
        // A bucket without versioning has no other versions of the probes' objects, so it may refuse this listing.
        if self.clean_versions(&bucket, &below.prefix).await.is_err() && self.has_versions() {
            self.keep(&below.prefix, None, "the bucket has versions, and they can't be listed".to_owned());
        }
        if self.report.kept.is_empty() {
            self.report.fine("cleaning up", format!("nothing is left of {:?}", below.prefix));
            return;
        }
        let found =
            format!("{} of what the probes made is still below {:?}", self.report.kept.len(), below.prefix);
        self.report.note(
            "cleaning up",
            found,
            "it is named below, with the reason; remove it by hand, or when its lock ends",
        );
    }

    async fn clean_objects(&mut self, bucket: &Bucket, prefix: &str) -> Result<()> {
        let mut request = ListObjects { prefix: prefix.to_owned(), max_keys: 1000, ..ListObjects::default() };
        for _ in 0..PAGES_MAX {
            let page = bucket.list(&request).await?;
            for object in page.objects {
                if let Err(error) = bucket.delete_object(&object.key, None).await {
                    self.keep(object.key.as_str(), None, error.to_string());
                }
            }
            match page.next_token {
                Some(token) => request.continuation_token = Some(token),
                None => break,
            }
        }
        Ok(())
    }

    /// Deletes all versions, and the delete markers that the earlier deletes made.
    async fn clean_versions(&mut self, bucket: &Bucket, prefix: &str) -> std::result::Result<(), Error> {
        let mut after = VersionMarkers::default();
        for _ in 0..PAGES_MAX {
            let page = bucket.versions(prefix, &after).await?;
            for version in page.versions {
                if let Err(error) = bucket.delete_object(&version.key, Some(&version.id)).await {
                    self.keep(version.key.as_str(), Some(version.id), error.to_string());
                }
            }
            match page.next {
                Some(next) => after = next,
                None => break,
            }
        }
        Ok(())
    }

    fn has_versions(&self) -> bool {
        let of = self.report.findings.iter().find(|finding| finding.probe == "versions");
        of.is_some_and(|finding| finding.found.starts_with("versioning on"))
    }

    fn keep(&mut self, key: &str, version: Option<String>, why: String) {
        // The entry with the version of a key that can't be deleted replaces the one without.
        self.report.kept.retain(|it| it.key != key || it.version.is_some());
        self.report.kept.push(Kept { key: key.to_owned(), version, why });
    }
}
