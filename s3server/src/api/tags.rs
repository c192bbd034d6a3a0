//! Tags of buckets and of objects.

use std::collections::{BTreeMap, BTreeSet};

use http::HeaderMap;
use percent_encoding::percent_decode_str;
use s3s::dto::*;
use s3s::{S3Error, S3ErrorCode, S3Response, S3Result};

use super::error::{invalid, named, to_s3};
use super::{Answer, Folder};

/// Most tags of a bucket, as in S3. The last two constants are limits in characters.
const TAGS_MAX: usize = 50;
/// Most tags of an object, as in S3.
const OBJECT_TAGS_MAX: usize = 10;
const KEY_MAX: usize = 128;
const VALUE_MAX: usize = 256;

impl Folder {
    pub(super) async fn get_bucket_tagging_(
        &self,
        input: GetBucketTaggingInput,
    ) -> Answer<GetBucketTaggingOutput> {
        let tags = self.blocking(move |store| store.tags(&input.bucket)).await?;
        let none = || named(http::StatusCode::NOT_FOUND, "NoSuchTagSet", "The bucket has no tags.");
        let tag_set = tags.ok_or_else(none)?.into_iter();
        let tag_set = tag_set.map(|(key, value)| Tag { key: Some(key), value: Some(value) }).collect();
        Ok(S3Response::new(GetBucketTaggingOutput { tag_set }))
    }

    pub(super) async fn put_bucket_tagging_(
        &self,
        input: PutBucketTaggingInput,
    ) -> Answer<PutBucketTaggingOutput> {
        let tags = checked(input.tagging.tag_set)?;
        self.blocking(move |store| store.set_tags(&input.bucket, Some(tags))).await?;
        Ok(S3Response::new(PutBucketTaggingOutput::default()))
    }

    pub(super) async fn delete_bucket_tagging_(
        &self,
        input: DeleteBucketTaggingInput,
    ) -> Answer<DeleteBucketTaggingOutput> {
        self.blocking(move |store| store.set_tags(&input.bucket, None)).await?;
        Ok(S3Response::with_status(DeleteBucketTaggingOutput::default(), http::StatusCode::NO_CONTENT))
    }

    pub(super) fn get_object_tagging_(&self, input: GetObjectTaggingInput) -> Answer<GetObjectTaggingOutput> {
        let bucket = self.store.bucket(&input.bucket).map_err(to_s3)?;
        let entry = bucket.head(&input.key).map_err(|e| self.policy.of_read(to_s3(e)))?;
        let tag =
            |(key, value): (&String, &String)| Tag { key: Some(key.clone()), value: Some(value.clone()) };
        let tag_set = entry.meta.tags.iter().map(tag).collect();
        Ok(S3Response::new(GetObjectTaggingOutput { tag_set, ..GetObjectTaggingOutput::default() }))
    }
}

/// The tags in the header of a request for an object: `name=value&...`, encoded as a query.
pub(super) fn of_header(headers: &HeaderMap) -> S3Result<BTreeMap<String, String>> {
    let Some(value) = headers.get("x-amz-tagging") else { return Ok(BTreeMap::new()) };
    let value = value.to_str().map_err(|_| invalid("The header x-amz-tagging is not plain ASCII."))?;
    let decoded = |text: &str| percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned();
    let tag = |pair: &str| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        Tag { key: Some(decoded(key)), value: Some(decoded(value)) }
    };
    let tags: Vec<Tag> = value.split('&').filter(|pair| !pair.is_empty()).map(tag).collect();
    if tags.len() > OBJECT_TAGS_MAX {
        let what = format!("An object has at most {OBJECT_TAGS_MAX} tags.");
        return Err(S3Error::with_message(S3ErrorCode::InvalidTag, what));
    }
    checked(tags).map(|tags| tags.into_iter().collect())
}

fn checked(tags: Vec<Tag>) -> S3Result<Vec<(String, String)>> {
    let wrong = |what: String| Err(S3Error::with_message(S3ErrorCode::InvalidTag, what));
    if tags.len() > TAGS_MAX {
        return wrong(format!("A bucket has at most {TAGS_MAX} tags."));
    }
    let mut seen = BTreeSet::new();
    let mut checked = Vec::with_capacity(tags.len());
    for tag in tags {
        let (key, value) = (tag.key.unwrap_or_default(), tag.value.unwrap_or_default());
        let is_allowed = |c: char| c.is_alphanumeric() || " +-=._:/@".contains(c);
        if key.is_empty() || key.chars().count() > KEY_MAX || value.chars().count() > VALUE_MAX {
            return wrong(format!("The tag `{key}` is too long or has no key."));
        }
        if !key.chars().all(is_allowed) || !value.chars().all(is_allowed) || key.starts_with("aws:") {
            return wrong(format!("The tag `{key}` holds a character that is not allowed."));
        }
        if !seen.insert(key.clone()) {
            return wrong(format!("The tag `{key}` is there twice."));
        }
        checked.push((key, value));
    }
    Ok(checked)
}
