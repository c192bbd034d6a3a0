//! The usage of the engines of Mountpoint Pods. Enters: the sources of this node. Leaves: a connection to each engine, and its usage.
//!
//! Never here: a mount; a wait of one engine for another.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use mountpoint::sync::Arc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use super::Node;
use crate::contract::comm::{self, Comm};
use crate::mounter::engines::Peer;
use crate::mounter::targets::table;
use crate::mounter::{USAGE_WITHIN, VolumeUsage};

/// Largest age of an answer for the next scrape. Doubled, many scrapers cause half the requests to engines, and numbers are twice as old.
const SHARED_FOR: Duration = Duration::from_secs(1);

/// A Mountpoint Pod with a source.
struct Serving {
    name: String,
    uid: String,
    /// The minor number of the source's device.
    minor: Option<u32>,
}

impl Node {
    /// The Mountpoint Pods with a source.
    fn serving(&self) -> Vec<Serving> {
        let Ok(mounts) = table() else { return Vec::new() };
        let sources = comm::sources(&self.config.kubelet);
        let names = mounts.buckets().filter(|point| point.parent() == Some(&*sources));
        let names: BTreeSet<_> = names.filter_map(|point| point.file_name()?.to_str()).collect();
        let serving = |name: &str| {
            let minor = mounts.at(&sources.join(name)).and_then(|mount| mount.minor());
            Some(Serving { name: name.to_owned(), uid: self.uid_of(name)?, minor })
        };
        names.into_iter().filter_map(serving).collect()
    }

    /// Connects to the engines of all sources, after a start of the driver.
    pub(super) fn dial_all(&self) {
        for it in self.serving() {
            self.dial(&it.uid);
        }
    }

    /// Starts to connect to an engine; does not wait.
    pub(super) fn dial(&self, uid: &str) {
        let serving = self.serving();
        self.keep(&serving);
        let Some(it) = serving.into_iter().find(|it| it.uid == uid) else { return };
        let (engines, processes) = (Arc::clone(&self.engines), self.config.processes.clone());
        let (comm, source) = (Comm::on_host(&self.config.kubelet, uid), it.minor);
        let opens = self.config.kernel_reads;
        tokio::spawn(async move {
            let (slot, comm, processes) = (&it.uid, &comm, &processes);
            engines.dial(&Peer { slot, uid: slot, cache: None, comm, processes, source, opens }).await;
        });
    }

    /// Forgets the registered files of an earlier mount that had the device number of this source.
    pub(super) fn forget_counts(&self, source: &Path) {
        let minor = table().ok().and_then(|mounts| mounts.at(source)?.minor());
        if let Some(minor) = minor {
            self.engines.forget_source(minor);
        }
    }

    fn keep(&self, serving: &[Serving]) {
        let (is_needed, is_source) = (
            |uid: &str| serving.iter().any(|it| it.uid == uid),
            |minor| serving.iter().any(|it| it.minor == Some(minor)),
        );
        self.engines.keep(is_needed, is_source);
    }

    /// The usage of all volumes. Scrapes at the same time, or within [`SHARED_FOR`], share one answer.
    pub(super) async fn usage(&self) -> Vec<VolumeUsage> {
        let mut last = self.last_usage.lock().await;
        match &*last {
            Some((at, told)) if at.elapsed() < SHARED_FOR => told.clone(),
            _ => {
                let told = self.ask_all().await;
                *last = Some((Instant::now(), told.clone()));
                told
            }
        }
    }

    /// Asks all engines at once. Pods that the API server has not shown yet are left out: their volume is unknown.
    async fn ask_all(&self) -> Vec<VolumeUsage> {
        let deadline = Instant::now() + USAGE_WITHIN;
        let serving = self.serving();
        self.keep(&serving);
        let mut asked = JoinSet::new();
        for it in serving {
            let Serving { name, uid, minor: source } = it;
            let opens = self.config.kernel_reads;
            let Some(pod) = self.assignments.pod(&name).filter(|pod| pod.uid == uid) else { continue };
            let Some(volume) = pod.volume else { continue };
            let (engines, processes) = (Arc::clone(&self.engines), self.config.processes.clone());
            let comm = Comm::on_host(&self.config.kubelet, &uid);
            asked.spawn(async move {
                let (slot, comm, processes) = (&uid, &comm, &processes);
                let peer = Peer { slot, uid: slot, cache: None, comm, processes, source, opens };
                let usage = timeout_at(deadline, engines.usage(&peer)).await.ok()?;
                let usage = usage.inspect_err(|error| tracing::debug!("Mountpoint Pod {name}: {error}"));
                Some(VolumeUsage {
                    volume,
                    claim: pod.claim,
                    claim_namespace: pod.claim_namespace,
                    mountpoint_pod: name,
                    usage: usage.ok()?,
                })
            });
        }
        let mut told = Vec::new();
        while let Some(usage) = asked.join_next().await {
            told.extend(usage.ok().flatten());
        }
        told.sort_by(|one, other| one.mountpoint_pod.cmp(&other.mountpoint_pod));
        told
    }
}
