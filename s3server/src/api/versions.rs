//! ListObjectVersions, as S3 answers for a bucket without versioning: each object is one version, `null`.

use s3s::S3Response;
use s3s::dto::*;

use super::list::{Names, page_size};
use super::object::etag;
use super::{Answer, Folder};
use crate::store::list::{From, Item, Query};

impl Folder {
    pub(super) async fn list_object_versions_(
        &self,
        input: ListObjectVersionsInput,
    ) -> Answer<ListObjectVersionsOutput> {
        let names = Names::new(input.encoding_type)?;
        let prefix = input.prefix.unwrap_or_default();
        self.policy.allows(&prefix)?;
        let query = Query {
            prefix: prefix.clone(),
            delimiter: String::new(),
            from: match &input.key_marker {
                Some(key) if !key.is_empty() => From::After(key.clone()),
                _ => From::Start,
            },
            max: page_size(input.max_keys)?,
        };
        let max_keys = query.max;
        let bucket = input.bucket.clone();
        let page = self.blocking(move |store| store.bucket(&bucket)?.list(&query)).await?;
        let mut versions = Vec::with_capacity(page.items.len());
        let mut last = None;
        for item in page.items {
            let Item::Key(key, entry) = item else { continue };
            last = Some(key.clone());
            versions.push(ObjectVersion {
                key: Some(names.write(&key)),
                version_id: Some("null".into()),
                is_latest: Some(true),
                last_modified: Some(entry.modified().into()),
                e_tag: Some(etag(&entry.meta.etag)),
                size: i64::try_from(entry.size()).ok(),
                ..ObjectVersion::default()
            });
        }
        let truncated = page.next.is_some();
        Ok(S3Response::new(ListObjectVersionsOutput {
            name: Some(input.bucket),
            prefix: Some(names.write(&prefix)),
            key_marker: input.key_marker,
            max_keys: i32::try_from(max_keys).ok(),
            is_truncated: Some(truncated),
            next_key_marker: last.filter(|_| truncated).map(|key| names.write(&key)),
            next_version_id_marker: truncated.then(|| "null".into()),
            versions: Some(versions),
            encoding_type: names.encoding_type(),
            ..ListObjectVersionsOutput::default()
        }))
    }
}
