//! A mount that outlives its engine, put together. Enters: the descriptors from the holder. Leaves: an engine that continues the mount.
//!
//! The first engine makes the journal and the mount, and gives both to the service manager. A later engine gets both back, and makes no
//! request to the store or for credentials before it serves.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::SystemTime;

use anyhow::Context as _;

use crate::clock::Clock;
use crate::config::Supervised;
use crate::daemon::ServiceManager;
use crate::fuse::{Device, Outliving};
use crate::metrics::Metrics;
use crate::outlive::{Greeting, Identity, Journal, Refused, Restored};
use crate::s3::{self, S3Client};
use crate::sync::Arc;

/// Names by which the service manager keeps the two descriptors.
const JOURNAL: &str = "journal";
const DEVICE: &str = "fuse";

/// The descriptors and records that the holder kept.
#[derive(Debug)]
pub(super) struct Kept {
    manager: Option<ServiceManager>,
    restart_status: Option<u8>,
    device: Option<OwnedFd>,
    before: Option<(Journal, Restored)>,
}

/// A journal that is in use, and its holder.
#[derive(Debug)]
pub(super) struct Outlived {
    pub(super) journal: Arc<Journal>,
    manager: Option<ServiceManager>,
    restart_status: Option<u8>,
    device: Option<OwnedFd>,
}

/// Announces to journal and holder that the mount was taken down.
#[derive(Clone, Debug)]
pub(super) struct Ending {
    journal: Arc<Journal>,
    manager: Option<ServiceManager>,
    restart_status: Option<u8>,
}

impl Kept {
    /// Opens the journal of an earlier engine. A mount that was unmounted meanwhile is made anew.
    ///
    /// # Errors
    /// The journal can't be used, or another engine uses it.
    pub(super) fn take(supervised: Supervised) -> Result<Self, Refused> {
        let Supervised { manager, restart_status, journal, device, is_mounted } = supervised;
        let Some(shared) = journal else {
            return Ok(Self { manager, restart_status, device, before: None });
        };
        if !is_mounted {
            // The mount is gone, or its device was never kept: no engine can continue it.
            if let Some(manager) = &manager {
                manager.drop(JOURNAL);
            }
            return Ok(Self { manager, restart_status, device: None, before: None });
        }
        let (journal, restored) = Journal::adopt(shared)?;
        if journal.agreed().greeting == Greeting::Ended {
            if let Some(manager) = &manager {
                manager.drop(DEVICE);
                manager.drop(JOURNAL);
            }
            return Ok(Self { manager, restart_status, device: None, before: None });
        }
        Ok(Self { manager, restart_status, device, before: Some((journal, restored)) })
    }

    /// Whether an earlier engine served the mount.
    pub(super) fn goes_on(&self) -> bool {
        self.before.is_some()
    }

    /// The client of the bucket. For a mount of an earlier engine it makes no request: that engine proved it.
    pub(super) async fn client(
        &self,
        config: s3::Config,
        clock: Clock,
        metrics: Arc<Metrics>,
    ) -> s3::Result<Arc<S3Client>> {
        match &self.before {
            None => S3Client::connect(config, clock, metrics).await,
            Some((journal, _)) => {
                let Identity { region, path_style, .. } = journal.identity();
                S3Client::resume(config, region, *path_style, clock, metrics).await
            }
        }
    }

    /// The journal to record in, and its present content. A new journal goes to the holder.
    ///
    /// # Errors
    /// The journal belongs to another mount; the kernel or the service manager refuses a new one.
    pub(super) fn begin(
        self,
        bucket: &str,
        prefix: &str,
        client: &S3Client,
        mounted: SystemTime,
    ) -> anyhow::Result<(Outlived, Restored)> {
        let endpoint = client.endpoint_url().unwrap_or_default();
        let Self { manager, restart_status, device, before } = self;
        let (journal, restored) = match before {
            Some((journal, restored)) => {
                journal.identity().check(bucket, prefix, endpoint).context("the mount's journal")?;
                tracing::info!(
                    "going on with a mount: {} directories, {} open files, {} open directories",
                    restored.directories.len(),
                    restored.files.len(),
                    restored.listings.len()
                );
                (journal, restored)
            }
            None => {
                let since = mounted.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                let journal = Journal::create(Identity {
                    bucket: bucket.to_owned(),
                    prefix: prefix.to_owned(),
                    endpoint: endpoint.to_owned(),
                    region: client.region().to_owned(),
                    path_style: client.is_path_style(),
                    mounted_us: u64::try_from(since.as_micros()).unwrap_or(u64::MAX),
                })
                .context("a journal of the mount")?;
                if let Some(manager) = &manager {
                    manager
                        .keep(JOURNAL, journal.shared())
                        .context("giving the mount's journal to the service manager")?;
                }
                (journal, Restored::default())
            }
        };
        Ok((Outlived { journal: Arc::new(journal), manager, restart_status, device }, restored))
    }
}

impl Outlived {
    /// The device to serve, and the announcement for its unmount.
    pub(super) fn device(self, plain: Device) -> (Device, Ending) {
        let Self { journal, manager, restart_status, device } = self;
        let (dir, device) = match plain {
            Device::Mount(dir) => (Some(dir), device),
            Device::Adopted(fd) => (None, Some(fd)),
            other => return (other, Ending { journal, manager, restart_status }),
        };
        let told = manager.clone();
        let keep = Box::new(move |device: BorrowedFd<'_>| match &told {
            Some(manager) => manager.keep(DEVICE, device),
            None => Ok(()),
        });
        let outliving = Outliving { dir, device, journal: Arc::clone(&journal), keep };
        (Device::Outliving(outliving), Ending { journal, manager, restart_status })
    }
}

impl Ending {
    /// The journal.
    pub(super) fn journal(&self) -> Arc<Journal> {
        Arc::clone(&self.journal)
    }

    /// The exit status at which the service manager starts the next engine.
    pub(super) fn restart_status(&self) -> Option<u8> {
        self.restart_status
    }

    /// Announces that the mount is gone.
    pub(super) fn say(&self) {
        let agreed = crate::outlive::Agreed { greeting: Greeting::Ended, ..self.journal.agreed() };
        if let Err(error) = self.journal.agree(agreed) {
            tracing::debug!("journal: {error}");
        }
        if let Some(manager) = &self.manager {
            manager.drop(DEVICE);
            manager.drop(JOURNAL);
        }
    }
}
