//! Mounts through Mountpoint Pods. Enters: a checked request. Leaves: a target bound to a source that an engine serves.
//!
//! Order of a mount: the assignment, the pod, its lock, credentials, the source, the target. A step whose successor fails is undone.
//! An existing mount needs no API server.
//!
//! Never here: a write to the API server. A mount that failed does not stay.

mod keys;
mod stored;
mod usage;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::BoxFuture;
use mountpoint::sync::{Arc, Mutex};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use super::assignment::{Assignments, MountpointPod};
use super::bind::{Over, bind, over};
use super::comm_files::CommFiles;
use super::deaths::{self, Notices};
use super::engines::Engines;
use super::host_files::HostFiles;
use super::idle::Idle;
use super::locks::Locks;
use super::mount_id::MountId;
use super::notes::Notes;
use super::peer::Processes;
use super::reconciler_lease::ReconcilerLease;
use super::revival::Revivals;
use super::source::{self, Peer, SourceMount};
use super::stages::{Stage, Stages};
use super::sys::{self, Health, Probes};
use super::systemd::SystemdMounter;
use super::targets::{self, Targets, check_ours, mounted, table};
use super::{MOUNT_WITHIN, Made, MountRequest, Mounter, VolumeUsage, upgrades};
use crate::contract::comm::{self, Comm};
use crate::contract::message::MountMessage;
use crate::contract::restart::Restarting;
use crate::contract::{pod, stage};
use crate::error::{Error, ErrorKind, Result};
use crate::events::WorkloadRef;

/// The configuration of a [`PodMounter`].
#[derive(Clone, Debug)]
pub struct Config {
    /// This node's name.
    pub node: String,
    /// The kubelet's root directory.
    pub kubelet: PathBuf,
    /// The namespace of the Mountpoint Pods.
    pub namespace: String,
    /// The namespace of the release, which has the reconciler's Lease.
    pub release_namespace: String,
    /// The time limit of one mount: [`MOUNT_WITHIN`].
    pub mount_within: Duration,
    /// Longest wait of a source's unmount for the end of its last target. The next sweep tries again.
    pub unused_within: Duration,
    /// How long an unmount of the last target waits until the bucket has the files of a stage. The kubelet gives up a call after two minutes.
    pub stored_within: Duration,
    /// Whether volumes may have `mode full`.
    pub stages: bool,
    /// The directory of this node with a stage for each volume with `mode full`; `None`: stages are volumes of Mountpoint Pods.
    pub stage_directory: Option<PathBuf>,
    /// Interval between searches for sources whose pod is gone. Doubled, such a source stays mounted twice as long.
    pub sweep_every: Duration,
    /// The table in which mounters' processes are looked up: the node's `/proc`.
    pub processes: Processes,
    /// The writer of Events.
    pub notices: Notices,
    /// Whether cache files are registered with the kernel, which then reads them without the engine.
    pub kernel_reads: bool,
}

impl Config {
    /// A configuration with the defaults.
    #[must_use]
    pub fn new(node: impl Into<String>) -> Self {
        Self {
            node: node.into(),
            kubelet: PathBuf::from("/var/lib/kubelet"),
            namespace: pod::NAMESPACE.to_owned(),
            release_namespace: "kube-system".to_owned(),
            mount_within: MOUNT_WITHIN,
            unused_within: Duration::from_secs(30),
            stored_within: Duration::from_secs(60),
            stages: false,
            stage_directory: None,
            sweep_every: Duration::from_secs(120),
            processes: Processes::default(),
            notices: None,
            kernel_reads: true,
        }
    }
}

/// The mounter of Mountpoint Pods. Owns two watches and the task that unmounts unused sources, which end when it is dropped. Mounts
/// stay.
#[derive(Debug)]
pub struct PodMounter {
    node: Arc<Node>,
    _tasks: JoinSet<()>,
}

impl PodMounter {
    /// Starts the watches and returns at once. [`Mounter::fault`] tells of an API server or a CRD that is not there yet.
    ///
    /// # Errors
    /// The kubelet's root directory is not there.
    pub fn new(client: kube::Client, config: Config) -> Result<Self> {
        Self::with_fallback(client, config, None)
    }

    /// Starts as [`Self::new`] does. While no reconciler works, `fallback` makes the mounts of new workloads.
    ///
    /// # Errors
    /// An error as from [`Self::new`].
    pub fn with_fallback(
        client: kube::Client,
        config: Config,
        fallback: Option<SystemdMounter>,
    ) -> Result<Self> {
        let config = Config { kubelet: targets::kubelet(&config.kubelet)?, ..config };
        let mut tasks = JoinSet::new();
        let assignments = Assignments::follow(&client, &config.node, &config.namespace, &mut tasks);
        let locks = Arc::new(Locks::default());
        let node = Arc::new(Node {
            targets: Targets::new(&config.kubelet, Arc::clone(&locks)),
            notes: Notes::of(&config.kubelet),
            stages: Stages::new(config.stage_directory.clone()),
            leaving: Mutex::default(),
            files: fallback.as_ref().map_or_else(|| HostFiles::of(&config.kubelet), SystemdMounter::files),
            reconciler: ReconcilerLease::new(client, &config.release_namespace),
            fallback,
            config,
            assignments,
            probes: Probes::default(),
            locks,
            revivals: Arc::new(Revivals::new()),
            engines: Arc::new(Engines::default()),
            last_usage: tokio::sync::Mutex::default(),
        });
        let serving = Arc::clone(&node);
        tasks.spawn(async move { serving.dial_all() });
        let idle = Idle {
            kubelet: node.config.kubelet.clone(),
            notes: node.notes.clone(),
            stages: node.stages.clone(),
            unused_within: node.config.unused_within,
            sweep_every: node.config.sweep_every,
            pods: node.assignments.pods(),
            locks: Arc::clone(&node.locks),
            files: node.files.clone(),
            probes: node.probes.clone(),
        };
        tasks.spawn(idle.run());
        let (kubelet, processes) = (node.config.kubelet.clone(), node.config.processes.clone());
        tasks.spawn(upgrades::run(kubelet, processes, node.assignments.pods()));
        node.revivals.spawn(&mut tasks, &node, |node, name| Box::pin(node.revive(name)));
        Ok(Self { node, _tasks: tasks })
    }
}

impl Mounter for PodMounter {
    fn fault(&self) -> Option<String> {
        self.node.assignments.fault()
    }

    fn no_stage(&self) -> Option<&'static str> {
        (!self.node.config.stages).then_some(stage::EXPERIMENTAL)
    }

    fn keeps_stages(&self) -> bool {
        self.node.config.stage_directory.is_some()
    }

    fn mount(&self, request: MountRequest) -> BoxFuture<'_, Result<Made>> {
        let node = Arc::clone(&self.node);
        // A task of its own: a kubelet that hangs up would otherwise leave half a mount.
        let task = tokio::spawn(async move { Box::pin(node.mount(&request)).await });
        Box::pin(async { task.await.map_err(Error::internal)? })
    }

    fn restarting(&self, target: &Path) -> Option<Restarting> {
        let mounts = table().ok()?;
        let sources = comm::sources(&self.node.config.kubelet);
        let source = mounts.source_of(mounts.at(target)?, &sources)?;
        self.node.restarting(source.point.file_name()?.to_str())
    }

    fn usage(&self) -> BoxFuture<'_, Vec<VolumeUsage>> {
        Box::pin(self.node.usage())
    }

    fn unmount<'a>(&'a self, target: &'a Path) -> BoxFuture<'a, Result<()>> {
        Box::pin(async {
            let Some(target) = self.node.targets.find(target)? else { return Ok(()) };
            let _leaving = self.node.stored(target.path()).await?;
            self.node.revivals.forget(target.path());
            target.take_away()
        })
    }
}

#[derive(Debug)]
struct Node {
    config: Config,
    notes: Notes,
    stages: Stages,
    /// Targets whose unmount waits for a stage.
    leaving: Mutex<BTreeSet<PathBuf>>,
    files: HostFiles, // of mounts that systemd made
    assignments: Assignments,
    reconciler: ReconcilerLease,
    fallback: Option<SystemdMounter>,
    probes: Probes,
    locks: Arc<Locks>,
    targets: Targets,
    revivals: Arc<Revivals>,
    engines: Arc<Engines>,
    last_usage: tokio::sync::Mutex<Option<(Instant, Vec<VolumeUsage>)>>,
}

impl Node {
    async fn mount(&self, request: &MountRequest) -> Result<Made> {
        let deadline = Instant::now() + self.config.mount_within;
        let locked = self.targets.make(&request.target)?;
        let target = locked.path();
        let over = self.refresh(request, target).await?;
        if over == Over::Nothing {
            return Ok(Made::AsUsual);
        }
        let assigned = tokio::select! {
            // An assignment counts, even if no reconciler works now.
            biased;
            name = self.assignments.wait_for(&request.volume, &request.workload_uid, deadline) => Ok(name?),
            error = self.reconciler.gone() => Err(error),
        };
        let name = match (assigned, &self.fallback) {
            (Ok(name), _) => name,
            (Err(why), None) => return Err(why),
            (Err(why), Some(systemd)) => {
                tracing::warn!(volume = request.volume, "mounting by systemd: {why}");
                systemd.mount(request.clone()).await?;
                return Ok(Made::BySystemdInstead(why.to_string()));
            }
        };
        let pod = self.assignments.wait_running(&name, deadline).await?;
        self.check_keys(request, &name, Some(&pod))?;
        let told = |error: Error| {
            let look = format!("kubectl -n {} logs {name}", self.config.namespace);
            Error::new(
                error.kind,
                format!("volume {}, Mountpoint Pod {name}: {error} ({look})", request.volume),
            )
        };
        let source = comm::source(&self.config.kubelet, &name);
        let comm = Comm::on_host(&self.config.kubelet, &pod.uid);
        let served = source::served(&source, &comm, &self.probes).await.map_err(told)?;
        let locked = timeout_at(deadline, self.locks.lock(&name)).await;
        let _pod = locked.map_err(|_elapsed| {
            Error::new(ErrorKind::Aborted, format!("another mount of Mountpoint Pod {name} is in progress"))
        })?;
        // The previous holder of the lock may have unmounted the source for good.
        let uid = self.assignments.wait_running(&name, deadline).await?.uid;
        let source = Source { path: &source, served };
        let pod = Assigned { name: &name, uid: &uid };
        let words = self.last_words(&pod);
        self.mount_through(request, (target, over), source, &pod, deadline).await.map_err(told)?;
        self.revivals.remember(&name, &uid, &self.comm(&pod), request, target);
        if over == Over::Dead {
            self.tell_of_death(request.workload.as_ref(), &request.volume, &name, words.as_deref());
            // The source's other targets are dead, too.
            self.revivals.wake(&name);
        }
        Ok(Made::AsUsual)
    }

    /// Mounts a source again after its engine ended, and binds its targets to the new mount. Returns `false` if no new mount was made.
    async fn revive(&self, name: &str) -> Result<bool> {
        let deadline = Instant::now() + self.config.mount_within;
        let _pod = self.locks.lock(name).await;
        let Some(served) = self.revivals.of(name) else { return Ok(false) };
        let known = self.assignments.pod(name);
        // A workload that has ended may wait for files in a stage.
        let ends = |pod: &MountpointPod| pod.needs_unmount && self.notes.stage(name).is_none();
        if known.is_some_and(|pod| pod.uid != served.uid || ends(&pod) || pod.leaving) {
            return Ok(false);
        }
        let source = comm::source(&self.config.kubelet, name);
        let pod = Assigned { name, uid: &served.uid };
        let words = self.last_words(&pod);
        let is_upgraded = CommFiles::open(&self.comm(&pod)).is_ok_and(|files| files.is_handing_over());
        if self.revivals.take_restarted(name) && !is_upgraded {
            for bound in served.targets.values() {
                self.tell_of_restart(bound.workload.as_ref(), &served.request.volume, name, words.as_deref());
            }
        }
        if self.revivals.take_gone(name) {
            let of = &served.request;
            for bound in served.targets.values() {
                let (notices, workload) = (&self.config.notices, bound.workload.as_ref());
                deaths::tell_of_bucket(notices, workload, &of.volume, &of.bucket, name);
            }
        }
        let comm = self.comm(&pod);
        if source::restarting(&comm).is_some() {
            // If the restart fails, the mounter creates its socket, which wakes this source again.
            return Ok(false);
        }
        let mounted = !source::is_served(&source, &comm, &self.probes).await?;
        if mounted {
            self.make_source(&served.request, &source, &pod, deadline).await?.keep();
        } else {
            self.dial(&served.uid); // an earlier engine's connection went with it
        }
        for (path, bound) in &served.targets {
            // Living targets are not locked: the kubelet would have to repeat its call for one of them.
            if !matches!(self.probes.check(path, sys::PROBE_LIMIT).await, Health::Dead(_)) {
                continue;
            }
            // Another call holds the lock of this target. That call finds the dead mount itself, or removes the target.
            let Ok(Some(target)) = self.targets.find(path) else { continue };
            let Health::Dead(why) = self.probes.check(target.path(), sys::PROBE_LIMIT).await else {
                continue;
            };
            bind(&source, target.path(), Over::Dead, bound.read_only, &self.config.kubelet)?;
            tracing::info!("{} was dead ({why}) and is bound to a new mount", path.display());
            self.tell_of_death(bound.workload.as_ref(), &served.request.volume, name, words.as_deref());
        }
        Ok(mounted)
    }

    /// Refreshes the credentials of a mounted target, and decides whether its mount stays. Leaves the target itself alone: reads of it go
    /// on until a new source is served.
    async fn refresh(&self, request: &MountRequest, target: &Path) -> Result<Over> {
        if mounted(target)?.is_none() {
            return Ok(Over::Empty);
        }
        let mounts = table()?;
        let Some(mount) = mounts.at(target) else { return Ok(Over::Empty) };
        check_ours(mount)?;
        let health = self.probes.check(target, sys::PROBE_LIMIT).await;
        let sources = comm::sources(&self.config.kubelet);
        let source = mounts.source_of(mount, &sources).and_then(|it| it.point.file_name()?.to_str());
        let assigned = self.assignments.known(&request.volume, &request.workload_uid);
        let moved = source.is_some() && assigned.is_some() && assigned.as_deref() != source;
        let over = over(&health, moved);
        if over != Over::Nothing {
            let at = target.display();
            tracing::warn!("{at} is {health:?}, bound to {source:?}, assigned to {assigned:?}: {over:?}");
            return Ok(over);
        }
        if request.read_only && !mount.read_only {
            // A driver of an older release, or on an older kernel, ended between bind and read-only.
            sys::make_read_only(target).map_err(|error| {
                Error::internal(format!("making {} read-only: {error}", target.display()))
            })?;
        }
        let pod = source.and_then(|name| self.assignments.pod(name));
        if let Some(name) = source {
            self.check_keys(request, name, pod.as_ref())?;
        }
        if let (true, Some(name)) = (request.credentials.is_some() || request.token.is_some(), source) {
            let uid = self.uid_of(name).ok_or_else(|| {
                let text = format!(
                    "refreshing credentials: the API server does not answer, and this node has no note of Mountpoint Pod {name}"
                );
                Error::new(ErrorKind::Unavailable, text)
            })?;
            let pod = Assigned { name, uid: &uid };
            self.write_credentials(request, &pod)?;
            // An older release has left no note.
            self.remember(&pod)?;
        } else if source.is_none() {
            // The target itself is a mount by systemd, for a driver of architecture v1. Its engine goes on until the workload ends.
            self.files.write_keys(request)?;
        }
        if let Some(name) = source
            && let Some(uid) = self.uid_of(name)
        {
            let pod = Assigned { name, uid: &uid };
            self.revivals.remember(name, &uid, &self.comm(&pod), request, target);
        }
        match health {
            // The restarted engine goes on with this mount.
            Health::Hung if self.restarting(source).is_some() => Ok(over),
            Health::Hung => Err(source::hangs(target, None)),
            Health::Alive | Health::Dead(_) => Ok(over),
        }
    }

    /// The restart of the engine of a source, if one is in progress.
    fn restarting(&self, source: Option<&str>) -> Option<Restarting> {
        let uid = self.uid_of(source?)?;
        source::restarting(&Comm::on_host(&self.config.kubelet, &uid))
    }

    /// The mounter's note about its dead engine.
    fn last_words(&self, pod: &Assigned<'_>) -> Option<String> {
        CommFiles::open(&self.comm(pod)).ok()?.error()
    }

    fn tell_of_death(&self, workload: Option<&WorkloadRef>, volume: &str, pod: &str, words: Option<&str>) {
        deaths::tell(&self.config.notices, workload, volume, &format!("Mountpoint Pod {pod}"), words);
    }

    fn tell_of_restart(&self, workload: Option<&WorkloadRef>, volume: &str, pod: &str, words: Option<&str>) {
        deaths::tell_of_restart(
            &self.config.notices,
            workload,
            volume,
            &format!("Mountpoint Pod {pod}"),
            words,
        );
    }

    /// The UID of a Mountpoint Pod, from the API server or from this node's note.
    fn uid_of(&self, name: &str) -> Option<String> {
        self.assignments.pod(name).map(|pod| pod.uid).or_else(|| self.notes.uid(name))
    }

    async fn mount_through(
        &self,
        request: &MountRequest,
        (target, over): (&Path, Over),
        source: Source<'_>,
        pod: &Assigned<'_>,
        deadline: Instant,
    ) -> Result<()> {
        let is_the_same = source.served.is_some() && mounted(source.path)? == source.served;
        let source = source.path;
        if is_the_same || source::is_served(source, &self.comm(pod), &self.probes).await? {
            self.check_place(request, pod)?;
            self.write_credentials(request, pod)?;
            // The volume may have become read-only after its source was made.
            let read_only = request.read_only || request.source_read_only;
            return bind(source, target, over, read_only, &self.config.kubelet);
        }
        let mounted = self.mount_source(request, source, pod, deadline).await;
        let bound = mounted.and_then(|mount| {
            bind(source, target, over, request.read_only, &self.config.kubelet)?;
            mount.keep();
            Ok(())
        });
        if bound.is_err() {
            let _ = self.open_comm(pod).map(|files| files.remove_credentials());
            // With a stage, an earlier engine may have left files there, and the note leads to them.
            if self.notes.stage(pod.name).is_none() {
                let _ = self.notes.forget(pod.name);
            }
        }
        bound
    }

    /// Mounts a source, unless the API server says meanwhile that its Mountpoint Pod fails.
    async fn mount_source(
        &self,
        request: &MountRequest,
        source: &Path,
        pod: &Assigned<'_>,
        deadline: Instant,
    ) -> Result<SourceMount> {
        tokio::select! {
            // The mounter's own words come before the API server's.
            biased;
            made = self.make_source(request, source, pod, deadline) => made,
            error = self.assignments.fails(pod.name) => Err(error),
        }
    }

    async fn make_source(
        &self,
        request: &MountRequest,
        source: &Path,
        pod: &Assigned<'_>,
        deadline: Instant,
    ) -> Result<SourceMount> {
        if let Some(why) = &request.unusable {
            return Err(Error::invalid(why));
        }
        let comm = self.comm(pod);
        let mut env = request.env.clone();
        let profile = self.write_credentials(request, pod)?;
        let of_keys = profile.as_ref().filter(|_| request.credentials.is_some());
        let of_token = profile.as_ref().filter(|_| request.token.is_some());
        let leads: Vec<_> = match (of_keys, of_token) {
            (Some(profile), _) => profile.env(&Comm::in_pod().credentials()).into(),
            (None, Some(profile)) => self.identity_env(profile, request)?,
            (None, None) => Vec::new(),
        };
        env.retain(|(name, _)| !leads.iter().any(|(other, _)| other == name));
        env.extend(leads);
        let stage = self.stage(request, pod)?;
        self.remember_source(request, pod, stage.as_ref())?;
        let stage = stage.filter(|it| *it != Stage::OfPod).and_then(|it| self.stages.path(&it, &comm));
        let message = MountMessage {
            bucket_name: request.bucket.clone(),
            // The kernel gets this flag with the mount; an engine that is given a device refuses it.
            args: request.args.iter().filter(|arg| *arg != "--read-only").cloned().collect(),
            env: env.into_iter().map(|(name, value)| format!("{name}={value}")).collect(),
            adopt: None,
            stage: stage.is_some(),
        };
        let peer = Peer { uid: pod.uid, processes: &self.config.processes, stage: stage.as_deref() };
        let mount =
            SourceMount::make(source, request.source_read_only, &comm, &peer, message, deadline).await?;
        self.forget_counts(source);
        self.dial(pod.uid);
        Ok(mount)
    }

    /// Refuses a source of another place. A reconciler that has not yet seen a PersistentVolume deleted and made again assigns the old pod.
    fn check_place(&self, request: &MountRequest, pod: &Assigned<'_>) -> Result<()> {
        if self.notes.place(pod.name).is_none_or(|served| served == request.place) {
            return Ok(());
        }
        let volume = &request.volume;
        Err(Error::new(
            ErrorKind::FailedPrecondition,
            format!(
                "it serves another bucket, prefix or endpoint than PersistentVolume {volume} names: the volume was deleted and made again under \
                 its name while pods used it. Delete this pod: the next one gets a Mountpoint Pod of its own"
            ),
        ))
    }

    /// Notes the pod's UID, so that a restarted driver without the API server finds the pod's directory by its source.
    fn remember(&self, pod: &Assigned<'_>) -> Result<()> {
        self.notes.remember(pod.name, pod.uid).map_err(|error| unnoted(pod, &error))
    }

    fn remember_source(
        &self,
        request: &MountRequest,
        pod: &Assigned<'_>,
        stage: Option<&Stage>,
    ) -> Result<()> {
        let (place, stage) = (&request.place, stage.map(Stage::to_string).unwrap_or_default());
        let noted = self.notes.remember_source(
            pod.name,
            pod.uid,
            place,
            request.of_secret,
            (&stage, &request.volume),
        );
        noted.map_err(|error| unnoted(pod, &error))
    }

    fn open_comm(&self, pod: &Assigned<'_>) -> Result<CommFiles> {
        CommFiles::open(&self.comm(pod)).map_err(|error| {
            let at = self.comm(pod).directory().display().to_string();
            Error::new(ErrorKind::Unavailable, format!("opening the comm directory {at}: {error}"))
        })
    }

    fn comm(&self, pod: &Assigned<'_>) -> Comm {
        Comm::on_host(&self.config.kubelet, pod.uid)
    }
}

/// The Mountpoint Pod of a workload.
struct Assigned<'a> {
    name: &'a str,
    uid: &'a str,
}

fn unnoted(pod: &Assigned<'_>, error: &io::Error) -> Error {
    Error::internal(format!("noting Mountpoint Pod {} on this node: {error}", pod.name))
}

/// The source of a mount, as seen before its lock was taken.
struct Source<'a> {
    path: &'a Path,
    /// The mount that answered, if there is one. Callers of many mounts ask before they take the lock, so that they share one answer.
    served: Option<MountId>,
}

#[cfg(test)]
mod tests;
