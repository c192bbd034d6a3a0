//! The operations of S3 over the folder.
//!
//! Enters: requests that s3s has parsed and whose signature it has checked. Leaves: answers for s3s to write. File
//! system calls that may take long run on blocking threads; looking up and opening a file do not.

mod buckets;
mod delete;
mod error;
mod gate;
mod list;
mod multipart;
mod object;
mod policy;
mod read;
mod receive;
mod sse;
mod tags;
mod versions;
mod write;

use std::sync::Arc;

use s3s::dto::*;
use s3s::{S3, S3Request, S3Response, S3Result};

pub(crate) use self::gate::{Gate, OneKey};
pub(crate) use self::policy::Policy;
use self::read::Pool;
use crate::fault::{self, Effect};
use crate::store::{self, Store};
use crate::wire::Exchange;

/// The folder, as an implementation of s3s's interface.
pub(crate) struct Folder {
    store: Arc<Store>,
    pool: Arc<Pool>,
    /// Whether the server behaves as S3 also where its own behaviour is easier for clients.
    strict: bool,
    policy: Policy,
}

impl Folder {
    pub(crate) fn new(store: Arc<Store>, strict: bool, policy: Policy) -> Self {
        Self { store, pool: Arc::default(), strict, policy }
    }

    /// Runs work that may wait for the disk on a blocking thread.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Store) -> store::Result<T> + Send + 'static,
    ) -> S3Result<T> {
        let store = self.store.clone();
        let done = tokio::task::spawn_blocking(move || work(&store)).await;
        done.map_err(error::internal)?.map_err(error::to_s3)
    }
}

type Answer<T> = S3Result<S3Response<T>>;

#[async_trait::async_trait]
impl S3 for Folder {
    async fn list_buckets(&self, req: S3Request<ListBucketsInput>) -> Answer<ListBucketsOutput> {
        self.list_buckets_(req.input)
    }

    async fn create_bucket(&self, req: S3Request<CreateBucketInput>) -> Answer<CreateBucketOutput> {
        let again = req.extensions.get::<Exchange>().is_some_and(|it| it.has(&Effect::OwnBucketAgain));
        self.create_bucket_(req.input, again).await
    }

    async fn delete_bucket(&self, req: S3Request<DeleteBucketInput>) -> Answer<DeleteBucketOutput> {
        self.delete_bucket_(req.input).await
    }

    async fn head_bucket(&self, req: S3Request<HeadBucketInput>) -> Answer<HeadBucketOutput> {
        self.head_bucket_(&req.input)
    }

    async fn get_bucket_location(
        &self,
        req: S3Request<GetBucketLocationInput>,
    ) -> Answer<GetBucketLocationOutput> {
        self.get_bucket_location_(&req.input)
    }

    async fn get_bucket_tagging(
        &self,
        req: S3Request<GetBucketTaggingInput>,
    ) -> Answer<GetBucketTaggingOutput> {
        self.get_bucket_tagging_(req.input).await
    }

    async fn put_bucket_tagging(
        &self,
        req: S3Request<PutBucketTaggingInput>,
    ) -> Answer<PutBucketTaggingOutput> {
        self.put_bucket_tagging_(req.input).await
    }

    async fn delete_bucket_tagging(
        &self,
        req: S3Request<DeleteBucketTaggingInput>,
    ) -> Answer<DeleteBucketTaggingOutput> {
        self.delete_bucket_tagging_(req.input).await
    }

    async fn list_object_versions(
        &self,
        req: S3Request<ListObjectVersionsInput>,
    ) -> Answer<ListObjectVersionsOutput> {
        self.list_object_versions_(req.input).await
    }

    async fn list_objects_v2(&self, req: S3Request<ListObjectsV2Input>) -> Answer<ListObjectsV2Output> {
        self.list_objects_v2_(req.input).await
    }

    async fn list_objects(&self, req: S3Request<ListObjectsInput>) -> Answer<ListObjectsOutput> {
        self.list_objects_(req.input).await
    }

    async fn head_object(&self, req: S3Request<HeadObjectInput>) -> Answer<HeadObjectOutput> {
        self.head_object_(req.input)
    }

    async fn get_object(&self, req: S3Request<GetObjectInput>) -> Answer<GetObjectOutput> {
        self.get_object_(req)
    }

    async fn put_object(&self, req: S3Request<PutObjectInput>) -> Answer<PutObjectOutput> {
        self.put_object_(req).await
    }

    async fn get_object_tagging(
        &self,
        req: S3Request<GetObjectTaggingInput>,
    ) -> Answer<GetObjectTaggingOutput> {
        self.get_object_tagging_(req.input)
    }

    async fn copy_object(&self, req: S3Request<CopyObjectInput>) -> Answer<CopyObjectOutput> {
        self.copy_object_(req).await
    }

    async fn delete_object(&self, req: S3Request<DeleteObjectInput>) -> Answer<DeleteObjectOutput> {
        let ignored = req.extensions.get::<Exchange>().is_some_and(|it| it.has(&Effect::IgnoreConditions));
        let mut input = req.input;
        input.if_match = input.if_match.filter(|_| !ignored);
        self.delete_object_(input).await
    }

    async fn delete_objects(&self, req: S3Request<DeleteObjectsInput>) -> Answer<DeleteObjectsOutput> {
        self.delete_objects_(req.input).await
    }

    async fn create_multipart_upload(
        &self,
        req: S3Request<CreateMultipartUploadInput>,
    ) -> Answer<CreateMultipartUploadOutput> {
        self.create_multipart_upload_(req).await
    }

    async fn upload_part(&self, req: S3Request<UploadPartInput>) -> Answer<UploadPartOutput> {
        self.upload_part_(req).await
    }

    async fn upload_part_copy(&self, req: S3Request<UploadPartCopyInput>) -> Answer<UploadPartCopyOutput> {
        self.upload_part_copy_(req.input).await
    }

    async fn complete_multipart_upload(
        &self,
        req: S3Request<CompleteMultipartUploadInput>,
    ) -> Answer<CompleteMultipartUploadOutput> {
        let effects = req.extensions.get::<Exchange>().map(Exchange::effects).unwrap_or_default();
        let longer = fault::slow(effects);
        let mut input = req.input;
        if effects.contains(&Effect::IgnoreConditions) {
            (input.if_match, input.if_none_match) = (None, None);
        }
        if effects.contains(&Effect::EqualParts) {
            self.parts_are_equal(&input)?;
        }
        self.complete_multipart_upload_(input, longer).await
    }

    async fn abort_multipart_upload(
        &self,
        req: S3Request<AbortMultipartUploadInput>,
    ) -> Answer<AbortMultipartUploadOutput> {
        self.abort_multipart_upload_(req.input).await
    }

    async fn list_parts(&self, req: S3Request<ListPartsInput>) -> Answer<ListPartsOutput> {
        self.list_parts_(req.input)
    }

    async fn list_multipart_uploads(
        &self,
        req: S3Request<ListMultipartUploadsInput>,
    ) -> Answer<ListMultipartUploadsOutput> {
        self.list_multipart_uploads_(req.input)
    }
}
