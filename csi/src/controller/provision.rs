//! Creates a volume. Enters: a checked request. Leaves: a new bucket with the driver's tags, or a prefix in an existing bucket; a repeated
//! request gets the same answer.
//!
//! The tags of an existing bucket are checked before it is used (`ownership`). Nothing is deleted here, except a bucket that this call has
//! just created and could not tag.

use mountpoint::s3::{self, Bucket, Created, ListObjects, Tagging, Tags};
use tracing::{info, warn};

use super::cluster::Cluster;
use super::on_delete::OnDelete;
use super::ownership::{self, Found};
use super::parameters::Chosen;
use super::request::Capacity;
use super::secrets::Keys;
use super::store::{self, Listed, Looked};
use super::tags::Mark;
use super::volume_id::Place;
use crate::error::{Error, ErrorKind, Result};

/// Most checks of a bucket that another call creates or deletes at the same time; then the call fails.
const LOOKS: u32 = 3;

/// A volume to create.
#[derive(Debug)]
pub struct Request<'a> {
    /// The cluster.
    pub cluster: &'a Cluster,
    /// The name of the request.
    pub name: &'a str,
    /// The place of the volume.
    pub chosen: &'a Chosen,
    /// The capacity to record.
    pub capacity: Capacity,
    /// The fate of data.
    pub on_delete: OnDelete,
    /// Tags of the class for a new bucket.
    pub tags: Tags,
    /// The region for a new bucket.
    pub location: Option<&'a str>,
    /// The credentials, for messages about their source.
    pub keys: &'a Keys,
}

/// A volume that was created or found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    /// The recorded capacity of the volume, in bytes.
    pub capacity_bytes: i64,
    /// The bucket's region, if the store named another one than the request did.
    pub region: Option<String>,
}

impl Request<'_> {
    /// Creates the volume, or finds the one of an earlier call.
    ///
    /// # Errors
    /// `AlreadyExists`: the bucket belongs to another owner, or has another capacity; or the prefix has objects.
    /// `FailedPrecondition`: the shared bucket does not exist. Other kinds: the store's errors.
    pub async fn make(&self, bucket: Bucket) -> Result<Made> {
        match &self.chosen.place {
            Place::Bucket(_) => self.make_bucket(bucket).await,
            Place::Prefix { .. } => self.find_bucket(bucket).await,
        }
    }

    /// Checks the bucket of a prefix: the driver's credentials must be able to list it. A prefix that another claim may have had
    /// must have no objects: the new claim would otherwise show the old claim's data.
    async fn find_bucket(&self, bucket: Bucket) -> Result<Made> {
        let name = bucket.name().to_owned();
        let prefix = self.chosen.place.prefix().unwrap_or_default();
        let one = ListObjects { prefix, max_keys: 1, ..ListObjects::default() };
        match store::listed(bucket, &one).await {
            Ok(Listed { page, .. }) if self.chosen.must_be_empty && !page.objects.is_empty() => {
                Err(Error::new(
                    ErrorKind::AlreadyExists,
                    format!(
                        "the prefix {} of the bucket {name} has objects, perhaps those of an earlier claim of this name: put ${{pv.name}} or \
                         ${{hash}} into prefixTemplate of the StorageClass, or take them over with adoptPrefix: \"true\"",
                        self.chosen.place.prefix().unwrap_or_default()
                    ),
                ))
            }
            Ok(Listed { region, .. }) => Ok(Made { capacity_bytes: self.capacity.recorded(), region }),
            Err(error) if *error.kind() == s3::ErrorKind::NoSuchBucket => Err(Error::new(
                ErrorKind::FailedPrecondition,
                format!(
                    "the bucket {name} does not exist: create it, or correct the parameter bucketName of the StorageClass"
                ),
            )),
            Err(error) => Err(store::error_of(&format!("listing the bucket {name}"), &error, self.keys)),
        }
    }

    async fn make_bucket(&self, bucket: Bucket) -> Result<Made> {
        let name = bucket.name().to_owned();
        let (mut bucket, mut region) = (bucket, None);
        let mut made_just_now = false;
        for _ in 0..LOOKS {
            let looked = store::look(bucket).await;
            let Looked { bucket: there, region: named, tagging } = match looked {
                Ok(looked) => looked,
                Err(error) => return Err(self.look_failed(&name, &error)),
            };
            bucket = there;
            region = named.or(region);
            if let Some(tagging) = tagging {
                let capacity_bytes = self.take(&bucket, &tagging, made_just_now).await?;
                return Ok(Made { capacity_bytes, region });
            }
            match bucket.create(self.location).await {
                Ok(Created::New) => {
                    let capacity_bytes = self.mark(&bucket, true).await?;
                    return Ok(Made { capacity_bytes, region });
                }
                Ok(Created::Yours { perhaps_by_us }) => made_just_now = perhaps_by_us,
                Ok(Created::Others) => {
                    return Err(Error::new(
                        ErrorKind::AlreadyExists,
                        format!(
                            "the bucket {name} belongs to another account: names of buckets are the same for all accounts of a \
                             store; choose others by bucketNameTemplate of the StorageClass"
                        ),
                    ));
                }
                Err(error) => return Err(self.failed("making", &bucket, &error)),
            }
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            format!(
                "the bucket {name} was created and deleted meanwhile: another process works on it; the provisioner will try again"
            ),
        ))
    }

    /// Uses an existing bucket if it is ours. Returns its recorded capacity.
    async fn take(&self, bucket: &Bucket, tagging: &Tagging, made_just_now: bool) -> Result<i64> {
        let found =
            ownership::at_creation(tagging, self.cluster, self.name, self.chosen.is_digest, made_just_now);
        match found {
            Found::Ours { capacity_bytes } => {
                let recorded = capacity_bytes.unwrap_or_else(|| self.capacity.recorded());
                if !self.capacity.is_met_by(recorded) {
                    return Err(Error::new(
                        ErrorKind::AlreadyExists,
                        format!(
                            "the volume {} exists with {recorded} bytes, but the request asks for another size",
                            self.name
                        ),
                    ));
                }
                Ok(recorded)
            }
            Found::OursIfEmpty => {
                let one = ListObjects { max_keys: 1, ..ListObjects::default() };
                let page = bucket.list(&one).await.map_err(|error| self.failed("listing", bucket, &error))?;
                if !page.objects.is_empty() {
                    return Err(self.taken(bucket, "it has no tag of this driver and is not empty"));
                }
                self.mark(bucket, false).await
            }
            Found::Taken(why) => Err(self.taken(bucket, &why)),
        }
    }

    /// Writes our tags. A bucket without them would have no owner, so a `new` bucket is deleted if that fails.
    async fn mark(&self, bucket: &Bucket, new: bool) -> Result<i64> {
        let capacity = self.capacity.recorded();
        let mark = Mark::new(self.cluster, self.name, capacity, self.on_delete);
        match bucket.set_tags(&mark.tags(self.tags.clone())).await {
            Ok(true) => {
                self.check_mark(bucket).await?;
                info!(bucket = bucket.name(), volume = self.name, new, "bucket made");
            }
            Ok(false) => {
                info!(
                    bucket = bucket.name(),
                    volume = self.name,
                    new,
                    "bucket made; the store has no tags of buckets"
                );
            }
            Err(error) => {
                if new && let Err(left) = bucket.delete().await {
                    warn!(bucket = bucket.name(), %left, "a new bucket without tags remains");
                }
                return Err(self.failed("tagging", bucket, &error));
            }
        }
        Ok(capacity)
    }

    /// Reads our tags back. If a store answers CreateBucket alike for every creator, two clusters may both take a bucket for new, and one
    /// overwrites the other's tags. The last writer owns the bucket.
    async fn check_mark(&self, bucket: &Bucket) -> Result<()> {
        let read = bucket.tags().await.map_err(|error| self.failed("reading the tags of", bucket, &error))?;
        match ownership::at_creation(&read, self.cluster, self.name, true, true) {
            // A store may show tags late. Missing tags do not mean another cluster.
            Found::Ours { .. } | Found::OursIfEmpty => Ok(()),
            Found::Taken(why) => Err(self.taken(bucket, &why)),
        }
    }

    fn taken(&self, bucket: &Bucket, why: &str) -> Error {
        Error::new(
            ErrorKind::AlreadyExists,
            format!(
                "the bucket {} is there already, and {why}: remove it if it is a left-over, or choose other names by \
                 bucketNameTemplate of the StorageClass (${{hash}} makes them unique)",
                bucket.name()
            ),
        )
    }

    fn failed(&self, doing: &str, bucket: &Bucket, error: &s3::Error) -> Error {
        store::error_of(&format!("{doing} the bucket {}", bucket.name()), error, self.keys)
    }

    /// The error of a failed check. A store answers 403 also for a bucket of another account.
    fn look_failed(&self, bucket: &str, error: &s3::Error) -> Error {
        let trying = match error.kind() {
            s3::ErrorKind::Denied => format!(
                "checking whether the bucket {bucket} exists (it may belong to another account, or the account may not call \
                 s3:GetBucketTagging)"
            ),
            _ => format!("checking whether the bucket {bucket} exists"),
        };
        store::error_of(&trying, error, self.keys)
    }
}
