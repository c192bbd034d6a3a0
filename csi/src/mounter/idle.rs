//! Unmounts unneeded sources: those whose Mountpoint Pod is marked or deleted. Enters: the view of the pods, the
//! directories of sources. Leaves: no mount, directory or credentials of such a source.
//!
//! Never here: an unmount while a target is bound; a conclusion from an incomplete view.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use mountpoint::sync::Arc;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

use super::assignment::{MountpointPod, View};
use super::comm_files::CommFiles;
use super::host_files::HostFiles;
use super::locks::Locks;
use super::mountinfo::{Changes, Mounts};
use super::notes::Notes;
use super::stages::{Stage, Stages};
use super::sys::{self, Busy, Health, Probes};
use crate::contract::comm::{self, Comm};
use crate::contract::engines_pod::is_source;

/// Longest wait for a process that has a source in use only because it looks at it, such as the kubelet.
const LOOKED_AT: Duration = Duration::from_secs(3);
/// The pause between two attempts to unmount a source.
const AGAIN: Duration = Duration::from_millis(100);

/// The pause between two looks at a stage whose pod is to end. Doubled, the pod ends up to a second later.
const STORED_YET: Duration = Duration::from_secs(1);

/// The task that unmounts idle sources.
#[derive(Debug)]
pub(super) struct Idle {
    pub(super) kubelet: PathBuf,
    pub(super) notes: Notes,
    pub(super) stages: Stages,
    pub(super) unused_within: Duration,
    pub(super) sweep_every: Duration,
    pub(super) pods: watch::Receiver<View<MountpointPod>>,
    pub(super) locks: Arc<Locks>,
    pub(super) files: HostFiles,
    pub(super) probes: Probes,
}

impl Idle {
    /// Unmounts idle sources until the future is dropped.
    pub(super) async fn run(mut self) {
        let mut sweep = tokio::time::interval(self.sweep_every);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut under_way = JoinSet::new();
        let mut names = BTreeSet::new();
        // A source that is still in use waits for the next sweep: otherwise each change of a pod would try it again.
        let mut left = BTreeSet::new();
        loop {
            tokio::select! {
                changed = self.pods.changed() => if changed.is_err() { return },
                _ = sweep.tick() => {
                    left.clear();
                    self.forget_the_gone();
                    // For mounts by systemd: while one is being made, nothing is removed; the next sweep does it.
                    if let Some(_alone) = self.files.alone() {
                        match Mounts::read() {
                            Ok(mounts) => self.files.sweep(&mounts),
                            Err(error) => tracing::warn!("reading the table of mounts: {error}"),
                        }
                    }
                }
                Some(done) = under_way.join_next(), if !under_way.is_empty() => {
                    let Ok((name, outcome)) = done else { continue };
                    names.remove(&name);
                    if let Err(why) = outcome {
                        tracing::warn!("the source of Mountpoint Pod {name} stays until the next sweep: {why}");
                        left.insert(name);
                    }
                    continue;
                }
            }
            let sources = self.sources();
            let (due, waiting) = {
                let pods = self.pods.borrow_and_update();
                (due(&sources, &pods), waiting(&sources, &pods))
            };
            for (name, uid) in waiting {
                if !self.unmounting(&name).has_files(&self.stages, &name, Some(&uid)) {
                    self.send_away(&name, &uid);
                }
            }
            for (name, uid) in due {
                if !left.contains(&name) && names.insert(name.clone()) {
                    let unmount = self.unmount(name.clone(), uid);
                    under_way.spawn(async move { (name, unmount.await) });
                }
            }
        }
    }

    /// Forgets pods that are gone and have no source. It reads only the names of the sources and calls no mount: a hanging engine would
    /// never answer while this call holds the view, and the source of a dead engine would seem to be missing.
    fn forget_the_gone(&self) {
        let sources = self.sources();
        let pods = self.pods.borrow();
        if pods.synced {
            self.notes.keep(|name| pods.items.contains_key(name) || sources.iter().any(|it| it == name));
        }
    }

    /// Tells a waiting mounter that it gets no mount.
    fn send_away(&self, name: &str, uid: &str) {
        let told = CommFiles::find(&Comm::on_host(&self.kubelet, uid)).and_then(|files| match files {
            Some(files) if !files.exit_announced() => files.announce_exit(),
            // The container has not started, or the kubelet has removed the pod: no process waits.
            _ => Ok(()),
        });
        if let Err(error) = told {
            tracing::warn!("Mountpoint Pod {name} has no mount and can't be told to end yet: {error}");
        }
    }

    /// The names of the directories of sources.
    fn sources(&self) -> Vec<String> {
        // A missing directory has no sources.
        let entries = std::fs::read_dir(comm::sources(&self.kubelet)).into_iter().flatten();
        entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    fn unmounting(&self, name: &str) -> Unmounting {
        Unmounting {
            source: comm::source(&self.kubelet, name),
            kubelet: self.kubelet.clone(),
            notes: self.notes.clone(),
            within: self.unused_within,
            probes: self.probes.clone(),
        }
    }

    fn unmount(&self, name: String, uid: Option<String>) -> impl Future<Output = Result<(), String>> + use<> {
        let unmounting = self.unmounting(&name);
        let (locks, pods, stages) = (Arc::clone(&self.locks), self.pods.clone(), self.stages.clone());
        async move {
            // The unmount of a target waits for them, too, and an engine that dies meanwhile must be followed by another. Without the pod's
            // lock, under which that one is mounted.
            while unmounting.has_files(&stages, &name, uid.as_deref()) {
                tokio::time::sleep(STORED_YET).await;
            }
            let _pod = locks.lock(&name).await;
            // The pod may exist after all, and a mount may have come first.
            if due(std::slice::from_ref(&name), &pods.borrow()).is_empty() {
                return Ok(());
            }
            unmounting.run(&name, uid).await
        }
    }
}

/// The sources to unmount, with their pods' UIDs if known: the pod is marked; or it is gone, if all pods have been listed. Sources of an
/// engines pod are not among them: after a change of `node.mounter` the room `shared/` unmounts them.
fn due(sources: &[String], pods: &View<MountpointPod>) -> Vec<(String, Option<String>)> {
    let is_due = |name: &String| match pods.items.get(name) {
        Some(pod) => pod.needs_unmount.then(|| (name.clone(), Some(pod.uid.clone()))),
        None => (pods.synced && !is_source(name)).then(|| (name.clone(), None)),
    };
    sources.iter().filter_map(is_due).collect()
}

/// Marked pods without a source: the workload went before the mount, or could not be mounted.
fn waiting(sources: &[String], pods: &View<MountpointPod>) -> Vec<(String, String)> {
    let waits = |(name, pod): &(&String, &MountpointPod)| pod.needs_unmount && !sources.contains(name);
    pods.items.iter().filter(waits).map(|(name, pod)| (name.clone(), pod.uid.clone())).collect()
}

/// The unmount of one source.
pub(super) struct Unmounting {
    pub(super) source: PathBuf,
    pub(super) kubelet: PathBuf,
    pub(super) notes: Notes,
    pub(super) within: Duration,
    pub(super) probes: Probes,
}

impl Unmounting {
    /// Whether files wait in a stage that goes with the pod. One that can't be read may have some.
    fn has_files(&self, stages: &Stages, name: &str, uid: Option<&str>) -> bool {
        let uid = uid.map(str::to_owned).or_else(|| self.notes.uid(name));
        let is_of_pod = self.notes.stage(name).as_deref().and_then(Stage::read) == Some(Stage::OfPod);
        uid.filter(|_| is_of_pod).is_some_and(|uid| {
            let waiting = stages.waiting(&Stage::OfPod, &Comm::on_host(&self.kubelet, &uid));
            waiting.map_or_else(
                |error| {
                    tracing::debug!(
                        "the stage of Mountpoint Pod {name} can't be read, and its pod stays: {error}"
                    );
                    true
                },
                |it| it.files > 0,
            )
        })
    }

    /// Unmounts the source. The caller holds the pod's lock.
    async fn run(&self, name: &str, uid: Option<String>) -> Result<(), String> {
        let at = self.source.display();
        let uid = uid.or_else(|| self.notes.uid(name));
        // The kubelet may have removed the pod's directory already.
        let files = uid.map(|uid| CommFiles::find(&Comm::on_host(&self.kubelet, &uid))).transpose();
        let files = files.map_err(|error| error.to_string())?.flatten();
        if let Some(files) = &files {
            files.announce_exit().map_err(|error| error.to_string())?;
        }
        // A dead engine serves no workload, even if targets are still bound to its mount.
        if !matches!(self.probes.check(&self.source, sys::PROBE_LIMIT).await, Health::Dead(_)) {
            self.unused().await?;
        }
        self.take_away(files.as_ref()).await?;
        match std::fs::remove_dir(&self.source) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(format!("removing the directory {at}: {error}"));
            }
            _ => {}
        }
        if let Some(files) = &files {
            files.remove_credentials().map_err(|error| format!("removing credentials: {error}"))?;
        }
        self.notes.forget(name).map_err(|error| format!("forgetting the pod: {error}"))?;
        tracing::info!("{at} is unmounted");
        Ok(())
    }

    /// Unmounts the source. A source in use is tried again for a short time: the kubelet and our own probes look at mounts, and the next
    /// sweep is minutes away.
    pub(super) async fn take_away(&self, files: Option<&CommFiles>) -> Result<(), String> {
        let at = self.source.display();
        let deadline = Instant::now() + self.within.min(LOOKED_AT);
        loop {
            match sys::unmount(&self.source, Busy::Refuse) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {}
                Err(error) => return Err(format!("unmounting {at}: {error}")),
            }
            match self.probes.check(&self.source, sys::PROBE_LIMIT).await {
                Health::Dead(_) => {
                    return sys::unmount(&self.source, Busy::Detach)
                        .map(drop)
                        .map_err(|error| format!("unmounting {at}: {error}"));
                }
                Health::Hung if files.is_some_and(|files| files.restarting().is_some()) => {
                    if Instant::now() >= deadline {
                        return Err(format!(
                            "it is in use, and the engine that serves {at} is started again"
                        ));
                    }
                    tokio::time::sleep(AGAIN).await;
                }
                Health::Hung => {
                    return Err(format!("it is in use, and the engine that serves {at} does not answer"));
                }
                Health::Alive if Instant::now() >= deadline => {
                    return Err(format!("a process has a file or a shell open at {at}"));
                }
                Health::Alive => tokio::time::sleep(AGAIN).await,
            }
        }
    }

    /// Waits until no target is bound to the source.
    async fn unused(&self) -> Result<(), String> {
        let deadline = Instant::now() + self.within;
        let mut users = Vec::new();
        let is_unused = |mounts: &Mounts| {
            let source = mounts.at(&self.source);
            users = source.map_or_else(Vec::new, |source| {
                mounts.references(source, &self.kubelet).map(|it| it.point.clone()).collect()
            });
            users.is_empty()
        };
        let changes = Changes::watch().map_err(|error| format!("watching the table of mounts: {error}"))?;
        match changes.until(deadline, is_unused).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(format!("it is still bound at {users:?}")),
            Err(error) => Err(format!("reading the table of mounts: {error}")),
        }
    }
}

#[cfg(test)]
mod tests;
