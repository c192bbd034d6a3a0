//! A store and its buckets, for a process that creates and deletes buckets. Enters: one configuration for all buckets, the name of one.
//! Leaves: operations on it, each with the retries and limits of every other request.
//!
//! The caller decides whether to create or to delete a bucket.

use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::net::pool::ConnectionPool;
use crate::object::ObjectKey;
use crate::s3::ops::{bucket, delete, list, multipart, tagging, versions};
use crate::s3::wire::Wire;
use crate::s3::{
    Config, Created, Credentials, Deleted, ListObjects, ListPage, PendingUpload, Result, Tagging, Tags,
    UploadId, VersionMarkers, VersionPage, client,
};
use crate::sync::Arc;

/// A store. Its buckets share its connections.
#[derive(Debug)]
pub struct Store {
    config: Config,
    pool: Arc<ConnectionPool>,
}

impl Store {
    /// Makes a store without a request. [`Store::bucket`] replaces name, region and credentials of `config`. Must be called within a tokio
    /// runtime.
    ///
    /// # Errors
    /// `InvalidRequest`: the configuration.
    pub fn new(config: Config, clock: &Clock, metrics: &Arc<Metrics>) -> Result<Self> {
        let pool = ConnectionPool::new(&config.net(), clock, metrics)?;
        Ok(Self { config, pool })
    }

    /// One bucket, which need not exist, for one account. Without `credentials` it uses those that `aws-config` finds. Makes no request.
    ///
    /// # Errors
    /// `InvalidRequest`: the endpoint.
    pub fn bucket(&self, name: &str, region: &str, credentials: Option<Credentials>) -> Result<Bucket> {
        let config = Config {
            bucket: name.to_owned(),
            region: Some(region.to_owned()),
            credentials,
            ..self.config.clone()
        };
        Ok(Bucket { pool: Arc::clone(&self.pool), wire: client::wire(config, region, &self.pool)? })
    }
}

/// One bucket of a store.
#[derive(Debug)]
pub struct Bucket {
    pub(crate) pool: Arc<ConnectionPool>,
    pub(crate) wire: Wire,
}

impl Bucket {
    /// The bucket's name.
    pub fn name(&self) -> &str {
        &self.wire.config.bucket
    }

    /// A copy of this bucket, with requests to another region.
    ///
    /// # Errors
    /// `InvalidRequest`: the endpoint.
    pub fn in_region(&self, region: &str) -> Result<Self> {
        let config = Config { region: Some(region.to_owned()), ..self.wire.config.clone() };
        Ok(Self { pool: Arc::clone(&self.pool), wire: client::wire(config, region, &self.pool)? })
    }

    // Each call is boxed: calls are rare, and a future that makes several calls in turn stays small.

    /// Creates the bucket. `location`: the region to name in the request; `None` for stores without regions, and for us-east-1, AWS's
    /// first.
    ///
    /// # Errors
    /// `Denied`, `InvalidRequest` (the name, the location), and the errors of every request.
    pub async fn create(&self, location: Option<&str>) -> Result<Created> {
        Box::pin(bucket::create(&self.wire, location)).await
    }

    /// Deletes the bucket, which must be empty. A missing bucket is a success.
    ///
    /// # Errors
    /// `Denied`, and the errors of every request.
    pub async fn delete(&self) -> Result<Deleted> {
        Box::pin(bucket::delete(&self.wire)).await
    }

    /// Checks that the bucket exists and this user may list it.
    ///
    /// # Errors
    /// `NoSuchBucket`; `Denied`, also for a bucket of another account; `WrongRegion`; and the errors of every request.
    pub async fn head(&self) -> Result<()> {
        Box::pin(bucket::head(&self.wire)).await
    }

    /// The bucket's tags.
    ///
    /// # Errors
    /// `NoSuchBucket`, `Denied`, `WrongRegion`, and the errors of every request. A store without tags is not an error.
    pub async fn tags(&self) -> Result<Tagging> {
        Box::pin(tagging::get(&self.wire)).await
    }

    /// Replaces all tags of the bucket; `false`: the store has no tags.
    ///
    /// # Errors
    /// `NoSuchBucket`, `Denied`, `InvalidRequest` (a character, the number of tags), and the errors of every request.
    pub async fn set_tags(&self, tags: &Tags) -> Result<bool> {
        Box::pin(tagging::put(&self.wire, tags)).await
    }

    /// One page of the bucket's objects.
    ///
    /// # Errors
    /// The same as [`crate::s3::ObjectClient::list_objects`].
    pub async fn list(&self, request: &ListObjects) -> Result<ListPage> {
        Box::pin(list::list_objects(&self.wire, request)).await
    }

    /// One page of all versions and delete markers of keys with this prefix; without versioning each object is one version.
    ///
    /// # Errors
    /// `Unsupported`: the store does not know versions. Also the errors of [`crate::s3::ObjectClient::list_objects`].
    pub async fn versions(&self, prefix: &str, after: &VersionMarkers) -> Result<VersionPage> {
        Box::pin(versions::list(&self.wire, prefix, after)).await
    }

    /// Deletes one version for good. Without `version` it deletes the object, whose data a versioned bucket keeps. A missing version is a
    /// success.
    ///
    /// # Errors
    /// `Denied` (also a version under object lock), and the errors of every request.
    pub async fn delete_object(&self, key: &ObjectKey, version: Option<&str>) -> Result<()> {
        match version {
            Some(version) => Box::pin(delete::delete_version(&self.wire, key, version)).await,
            None => Box::pin(delete::delete_object(&self.wire, key)).await,
        }
    }

    /// Lists unfinished multipart uploads of keys with this prefix.
    ///
    /// # Errors
    /// The same as [`crate::s3::ObjectClient::list_multipart_uploads`].
    pub async fn uploads(&self, prefix: &str) -> Result<Vec<PendingUpload>> {
        Box::pin(multipart::list_uploads(&self.wire, prefix)).await
    }

    /// Aborts a multipart upload. A missing upload is a success.
    ///
    /// # Errors
    /// The same as [`crate::s3::ObjectClient::abort_multipart_upload`].
    pub async fn abort(&self, upload: &UploadId) -> Result<()> {
        Box::pin(multipart::abort(&self.wire, upload)).await
    }
}
