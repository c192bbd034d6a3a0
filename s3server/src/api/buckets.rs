//! Operations on buckets.

use s3s::dto::*;
use s3s::{S3Error, S3ErrorCode, S3Response};

use super::{Answer, Folder, error};

/// The region that the server names as every bucket's. Signatures may name any region.
const REGION: &str = "us-east-1";

impl Folder {
    pub(super) fn list_buckets_(&self, input: ListBucketsInput) -> Answer<ListBucketsOutput> {
        let prefix = input.prefix.unwrap_or_default();
        let after = input.continuation_token.unwrap_or_default();
        let max = usize::try_from(input.max_buckets.unwrap_or(10_000)).unwrap_or(0).max(1);
        let mut names: Vec<_> = self.store.buckets();
        names.retain(|(name, _)| name.starts_with(&prefix) && *name > after);
        let more = names.len() > max;
        names.truncate(max);
        let token = names.last().filter(|_| more).map(|(name, _)| name.clone());
        let buckets = names
            .into_iter()
            .map(|(name, bucket)| Bucket {
                name: Some(name),
                creation_date: Some(bucket.created.into()),
                ..Bucket::default()
            })
            .collect();
        Ok(S3Response::new(ListBucketsOutput {
            buckets: Some(buckets),
            continuation_token: token,
            owner: Some(Owner { id: Some("s3server".into()), display_name: Some("s3server".into()) }),
            prefix: (!prefix.is_empty()).then_some(prefix),
        }))
    }

    /// Creates a bucket. With `again`, an existing bucket is a success, too.
    pub(super) async fn create_bucket_(
        &self,
        input: CreateBucketInput,
        again: bool,
    ) -> Answer<CreateBucketOutput> {
        if !s3s::path::check_bucket_name(&input.bucket) {
            return Err(S3Error::new(S3ErrorCode::InvalidBucketName));
        }
        let location = format!("/{}", input.bucket);
        let made = self.blocking(move |store| store.create_bucket(&input.bucket)).await;
        match made {
            Err(error) if again && *error.code() == S3ErrorCode::BucketAlreadyOwnedByYou => {}
            made => made?,
        }
        Ok(S3Response::new(CreateBucketOutput { location: Some(location) }))
    }

    pub(super) async fn delete_bucket_(&self, input: DeleteBucketInput) -> Answer<DeleteBucketOutput> {
        self.blocking(move |store| store.delete_bucket(&input.bucket)).await?;
        Ok(S3Response::with_status(DeleteBucketOutput {}, http::StatusCode::NO_CONTENT))
    }

    pub(super) fn head_bucket_(&self, input: &HeadBucketInput) -> Answer<HeadBucketOutput> {
        self.store.bucket(&input.bucket).map_err(error::to_s3)?;
        Ok(S3Response::new(HeadBucketOutput {
            bucket_region: Some(REGION.into()),
            ..HeadBucketOutput::default()
        }))
    }

    pub(super) fn get_bucket_location_(
        &self,
        input: &GetBucketLocationInput,
    ) -> Answer<GetBucketLocationOutput> {
        self.store.bucket(&input.bucket).map_err(error::to_s3)?;
        // S3 returns an empty constraint for its first region.
        Ok(S3Response::new(GetBucketLocationOutput { location_constraint: None }))
    }
}
