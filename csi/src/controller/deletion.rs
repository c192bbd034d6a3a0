//! Deletes a volume. Enters: its id, the record of its PersistentVolume, credentials. Leaves: the outcome; a repeated call for a deleted
//! volume also succeeds.
//!
//! Deletes nothing without proof that this driver created it (`ownership`), and no data unless the class allows it (`onDelete: purge`).

use mountpoint::s3::{self, Bucket, Deleted, ListObjects};
use tracing::info;

use super::cluster::Cluster;
use super::on_delete::OnDelete;
use super::ownership::{self, Proof, Recorded};
use super::purge::purge;
use super::secrets::Keys;
use super::store::{self, Listed, Looked};
use super::volume_id::{Place, VolumeId};
use crate::error::{Error, ErrorKind, Result};

/// Most attempts to empty a bucket that another program fills at the same time; then the call fails, and the provisioner repeats it.
const ROUNDS: u32 = 3;

/// The result of a deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The volume is gone, by this call or before.
    Gone,
    /// The volume is not in this store.
    NotHere,
    /// The volume had data, which was kept. The text is for the Event.
    Kept(String),
}

/// A volume to delete.
#[derive(Debug)]
pub struct Request<'a> {
    /// The cluster.
    pub cluster: &'a Cluster,
    /// The volume.
    pub id: &'a VolumeId,
    /// The record of its PersistentVolume; `None` if none is known.
    pub recorded: Option<&'a Recorded>,
    /// Whether the API server was asked: then a PersistentVolume that is not known does not exist.
    pub volumes_known: bool,
    /// The credentials, for messages about their source.
    pub keys: &'a Keys,
}

impl Request<'_> {
    /// Deletes the volume.
    ///
    /// # Errors
    /// `FailedPrecondition`: the bucket is not ours, or has data and `onDelete` is `fail`. `Unavailable`: the PersistentVolumes are
    /// not known yet, or data is written during the deletion. Other kinds: the store's errors.
    pub async fn run(&self, bucket: Bucket) -> Result<Outcome> {
        match self.id.place() {
            Place::Bucket(_) => self.delete_bucket(bucket).await,
            Place::Prefix { .. } => self.delete_prefix(bucket).await,
        }
    }

    async fn delete_bucket(&self, bucket: Bucket) -> Result<Outcome> {
        let name = bucket.name().to_owned();
        let looked = store::look(bucket).await;
        let Looked { bucket, tagging, .. } = looked
            .map_err(|error| self.failed(&format!("checking whether the bucket {name} exists"), &error))?;
        let Some(tagging) = tagging else { return Ok(Outcome::NotHere) };
        let allowed = ownership::at_deletion(self.id, &tagging, self.cluster, self.recorded);
        let (proof, on_delete) = match allowed {
            Ok((Proof::Id | Proof::Release22, _)) | Err(_)
                if self.recorded.is_none() && !self.volumes_known =>
            {
                return Err(not_known_yet(self.id));
            }
            Ok(allowed) => allowed,
            Err(why) => {
                return Err(Error::new(
                    ErrorKind::FailedPrecondition,
                    format!(
                        "the bucket {name} is not deleted: {why}. Delete it by hand if it is to go, and set \
                         persistentVolumeReclaimPolicy: Retain on the PersistentVolume before you delete that"
                    ),
                ));
            }
        };
        for _ in 0..ROUNDS {
            let deleted = bucket.delete().await;
            match deleted.map_err(|error| self.failed(&format!("deleting the bucket {name}"), &error))? {
                Deleted::Gone => {
                    info!(bucket = name, ?proof, "bucket deleted");
                    return Ok(Outcome::Gone);
                }
                Deleted::NotEmpty => match on_delete {
                    OnDelete::Keep => {
                        return Ok(Outcome::Kept(format!(
                            "the volume is deleted, but the bucket {name} is not empty and keeps its data; onDelete of the \
                             StorageClass can change that"
                        )));
                    }
                    OnDelete::Fail => return Err(has_data(&format!("the bucket {name}"))),
                    OnDelete::Purge => self.purge(&bucket, "").await?,
                },
            }
        }
        Err(filled_again(&format!("the bucket {name}")))
    }

    async fn delete_prefix(&self, bucket: Bucket) -> Result<Outcome> {
        let Some(prefix) = self.id.place().prefix() else { return Ok(Outcome::Gone) };
        let what = format!("the prefix {prefix} of the bucket {}", bucket.name());
        if self.recorded.is_none() && !self.volumes_known {
            return Err(not_known_yet(self.id));
        }
        // Without a PersistentVolume no workload ever mounted the volume, so it has no data.
        let on_delete = self.recorded.and_then(|it| it.on_delete).unwrap_or_default();
        let one = ListObjects { prefix: prefix.clone(), max_keys: 1, ..ListObjects::default() };
        if on_delete == OnDelete::Keep {
            if store::listed(bucket, &one).await.is_ok_and(|it| it.page.objects.is_empty()) {
                return Ok(Outcome::Gone);
            }
            return Ok(Outcome::Kept(format!(
                "the volume is deleted, but {what} keeps its data; onDelete of the StorageClass can change that"
            )));
        }
        if !self.id.is_of(self.cluster) {
            return Err(Error::new(
                ErrorKind::FailedPrecondition,
                format!(
                    "{what} is not deleted: its volume id does not show that this cluster made it. Delete it by hand if it is to \
                     go, and set persistentVolumeReclaimPolicy: Retain on the PersistentVolume before you delete that"
                ),
            ));
        }
        let mut bucket = bucket;
        for _ in 0..ROUNDS {
            match store::listed(bucket, &one).await {
                Ok(Listed { page, .. }) if page.objects.is_empty() && on_delete == OnDelete::Fail => {
                    return Ok(Outcome::Gone);
                }
                Ok(_) if on_delete == OnDelete::Fail => return Err(has_data(&what)),
                Ok(Listed { bucket: there, .. }) => bucket = there,
                Err(error) if *error.kind() == s3::ErrorKind::NoSuchBucket => return Ok(Outcome::NotHere),
                Err(error) => return Err(self.failed(&format!("listing {what}"), &error)),
            }
            self.purge(&bucket, &prefix).await?;
            let left =
                bucket.list(&one).await.map_err(|error| self.failed(&format!("listing {what}"), &error))?;
            if left.objects.is_empty() {
                info!(bucket = bucket.name(), prefix, "prefix deleted");
                return Ok(Outcome::Gone);
            }
        }
        Err(filled_again(&what))
    }

    async fn purge(&self, bucket: &Bucket, prefix: &str) -> Result<()> {
        let purged = purge(bucket, prefix).await;
        let purged = purged.map_err(|error| {
            self.failed(&format!("deleting what is in {:?} of the bucket {}", prefix, bucket.name()), &error)
        })?;
        info!(bucket = bucket.name(), prefix, purged, "data deleted");
        Ok(())
    }

    fn failed(&self, trying: &str, error: &s3::Error) -> Error {
        store::error_of(trying, error, self.keys)
    }
}

fn has_data(what: &str) -> Error {
    Error::new(
        ErrorKind::FailedPrecondition,
        format!(
            "{what} is not empty, and its class says onDelete: fail: empty it, or set the volume's reclaim policy to Retain"
        ),
    )
}

fn filled_again(what: &str) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!(
            "new objects appear in {what} while it is being emptied: find the program that writes there; the provisioner will try \
             again"
        ),
    )
}

fn not_known_yet(id: &VolumeId) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!(
            "the PersistentVolume of {id} is not known: the API server does not list the volumes now; the provisioner will try again"
        ),
    )
}
