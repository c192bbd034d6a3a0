//! Mounts through the engines pod of the node, whose engines serve all volumes. Enters: a checked request. Leaves: a target bound to a
//! source that an engine of that pod serves.
//!
//! Order of a mount: the share key, its lock, the source's name, the pod, a mounter for the source, credentials, the source, the target. If
//! a step fails, the mounter undoes the step before it. A source that is already mounted needs no API server. A new source needs none
//! either, once the node has a note of the pod.
//!
//! Never here: a reconciler, an attachment, a write to the API server.

mod cached;
mod caches;
mod engines_pod;
mod leaving;
mod shares;
mod unused;

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::BoxFuture;
use kube::Client;
use mountpoint::sync::Arc;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use self::caches::Caches;
pub use self::caches::Disk;
use self::engines_pod::{EnginesPod, EnginesPods};
pub use self::leaving::{Leaving, has_sources};
use self::shares::{Chosen, Share, Shares, key_of};
use super::assignment::{self, MountpointPod, View};
use super::bind::{Over, bind, over};
use super::comm_files::CommFiles;
use super::credentials::Profile;
use super::deaths::{self, Notices};
use super::engines::Engines;
use super::host_files::HostFiles;
use super::locks::Locks;
use super::notes::Notes;
use super::peer::Processes;
use super::revival::Revivals;
use super::source::{self, Peer, SourceMount};
use super::sys::{self, Health, Probes};
use super::targets::{self, Targets, check_ours, mounted, table};
use super::{MOUNT_WITHIN, Made, MountRequest, Mounter};
use crate::contract::comm::{self, Comm};
use crate::contract::engines_pod::APP;
use crate::contract::message::MountMessage;
use crate::contract::restart::Restarting;
use crate::contract::volume;
use crate::error::{Error, ErrorKind, Result};
use crate::events::WorkloadRef;

/// Mount options that would take more than an engine's share of the pod, or that need a volume that the pod lacks.
const LEFT_OUT: [&str; 4] = ["memory-target", "cache", "max-cache-size", "cache-passthrough"];
/// Mount options that are left out even if the pod has a disk for caches.
const LEFT_OUT_OF_MEMORY: [&str; 1] = ["memory-target"];
/// The reason in the Event about options that were left out.
const WHY_LEFT_OUT: &str = "the engines of a node share the memory and disk of one pod, as shared.resources and shared.cache of the chart give it";

/// The configuration of a [`SharedMounter`].
#[derive(Clone, Debug)]
pub struct Config {
    /// This node's name.
    pub node: String,
    /// The kubelet's root directory.
    pub kubelet: PathBuf,
    /// The namespace of the release, which has the engines pods.
    pub namespace: String,
    /// Largest number of sources on the node. One more is refused with `ResourceExhausted`.
    pub volumes_max: usize,
    /// The time limit of one mount: [`MOUNT_WITHIN`].
    pub mount_within: Duration,
    /// Time that a source stays mounted without a target, for the successor of a replaced workload. Doubled, an unused source takes a place
    /// for twice as long.
    pub unused_for: Duration,
    /// The table in which mounters' processes are looked up: the node's `/proc`.
    pub processes: Processes,
    /// The writer of Events.
    pub notices: Notices,
    /// The disk for caches, if the chart gives one.
    pub disk: Option<Disk>,
    /// The digest of the chart's template for engines pods, if the chart tells it.
    pub revision: Option<String>,
    /// Whether files of caches are registered for the kernel to read by itself.
    pub kernel_reads: bool,
    /// Time limit for the disk of caches to make room for one; after it, a volume is mounted without a cache. Doubled, a workload waits twice
    /// as long for a disk that hangs; with half of it, the removal of a large cache on a slow disk may take longer.
    pub cache_within: Duration,
}

impl Config {
    /// A configuration with the defaults.
    #[must_use]
    pub fn new(node: impl Into<String>, volumes_max: usize) -> Self {
        Self {
            node: node.into(),
            kubelet: PathBuf::from("/var/lib/kubelet"),
            namespace: "kube-system".to_owned(),
            volumes_max,
            mount_within: MOUNT_WITHIN,
            unused_for: Duration::from_secs(60),
            processes: Processes::default(),
            notices: None,
            disk: None,
            revision: None,
            kernel_reads: true,
            cache_within: Duration::from_secs(30),
        }
    }
}

/// The mounter of the node's engines pod. Owns a watch and the tasks that revive and unmount sources, which end when it is dropped. Mounts
/// stay.
#[derive(Debug)]
pub struct SharedMounter {
    node: Arc<Node>,
    _tasks: JoinSet<()>,
}

impl SharedMounter {
    /// Starts the watch and returns at once. [`Mounter::fault`] tells of a pod that is not there yet.
    ///
    /// # Errors
    /// The kubelet's root directory is not there.
    pub fn new(client: &Client, config: Config) -> Result<Self> {
        let config = Config { kubelet: targets::kubelet(&config.kubelet)?, ..config };
        let mut tasks = JoinSet::new();
        let pods = assignment::follow_app(client, &config.node, &config.namespace, APP, &mut tasks);
        let node = Node::new(config, pods, false);
        let serving = Arc::clone(&node);
        tasks.spawn(async move { serving.dial_all() });
        tasks.spawn(unused::run(Arc::clone(&node)));
        let (mut pods, revivals) = (node.pods.clone(), Arc::clone(&node.revivals));
        tasks.spawn(async move {
            let mut last = None;
            // All engines of the earlier pod ended with it.
            while pods.replaced(&mut last).await {
                revivals.wake_all();
            }
        });
        node.revivals.spawn(&mut tasks, &node, |node, name| Box::pin(node.revive(name)));
        Ok(Self { node, _tasks: tasks })
    }
}

impl Mounter for SharedMounter {
    fn fault(&self) -> Option<String> {
        self.node.pods.fault()
    }

    fn ignores(&self) -> &'static [&'static str] {
        if self.node.caches.has_disk() { volume::OF_ONE_DISK_EACH } else { volume::OF_ONE_POD_EACH }
    }

    fn leaves_out(&self) -> (&'static [&'static str], &'static str) {
        let names: &[&str] = if self.node.caches.has_disk() { &LEFT_OUT_OF_MEMORY } else { &LEFT_OUT };
        (names, WHY_LEFT_OUT)
    }

    fn refuses(&self) -> &'static [&'static str] {
        &[volume::CA_CONFIG_MAP]
    }

    fn no_stage(&self) -> Option<&'static str> {
        Some(
            "it needs a Mountpoint Pod for each volume, which has the stage; set node.mounter: pod in the chart, or leave it out",
        )
    }

    fn volumes_max(&self) -> Option<usize> {
        Some(self.node.shares.max())
    }

    fn is_outdated(&self) -> Option<bool> {
        self.node.pods.is_outdated(self.node.config.revision.as_deref()?)
    }

    fn mount(&self, request: MountRequest) -> BoxFuture<'_, Result<Made>> {
        let node = Arc::clone(&self.node);
        // A task of its own: a kubelet that hangs up would otherwise leave half a mount.
        let task = tokio::spawn(async move { Box::pin(node.mount(&request)).await });
        Box::pin(async { task.await.map_err(Error::internal)?.map(|()| Made::AsUsual) })
    }

    fn restarting(&self, target: &Path) -> Option<Restarting> {
        self.node.restarting_at(target)
    }

    fn unmount<'a>(&'a self, target: &'a Path) -> BoxFuture<'a, Result<()>> {
        Box::pin(async {
            let Some(target) = self.node.targets.find(target)? else { return Ok(()) };
            self.node.revivals.forget(target.path());
            target.take_away()?;
            self.node.released.notify_one();
            Ok(())
        })
    }
}

#[derive(Debug)]
struct Node {
    config: Config,
    pods: EnginesPods,
    shares: Shares,
    files: HostFiles, // of mounts that systemd made
    caches: Caches,
    engines: Arc<Engines>,
    probes: Probes,
    locks: Arc<Locks>,
    targets: Targets,
    revivals: Arc<Revivals>,
    /// Notified when a target was unmounted.
    released: Notify,
    /// Whether new mounts are another mounter's, which also has all sources but those of engines pods.
    leaves: bool,
}

/// The mount found at a target, and the name of the source that it is bound to, if it must be mounted again and the table of mounts tells
/// it.
struct Found {
    over: Over,
    source: Option<String>,
}

impl Node {
    fn new(config: Config, pods: watch::Receiver<View<MountpointPod>>, leaves: bool) -> Arc<Self> {
        let locks = Arc::new(Locks::default());
        Arc::new(Self {
            pods: EnginesPods::new(pods, &config.kubelet, &config.namespace, config.processes.clone()),
            targets: Targets::new(&config.kubelet, Arc::clone(&locks)),
            shares: Shares::of(&config.kubelet, config.volumes_max),
            files: HostFiles::of(&config.kubelet),
            caches: Caches::of(&config.kubelet, config.disk.clone()),
            engines: Arc::new(Engines::default()),
            probes: Probes::default(),
            locks,
            revivals: Arc::new(Revivals::new()),
            released: Notify::new(),
            leaves,
            config,
        })
    }

    async fn mount(self: &Arc<Self>, request: &MountRequest) -> Result<()> {
        let deadline = Instant::now() + self.config.mount_within;
        let locked = self.targets.make(&request.target)?;
        let target = locked.path();
        if request.token.is_some() {
            return Err(Error::new(
                ErrorKind::FailedPrecondition,
                "authenticationSource: pod needs a Mountpoint Pod of its own for each service account: set node.mounter: pod in the chart, \
                 or give the volume a Secret",
            ));
        }
        let Found { over, source } = self.refresh(request, target).await?;
        if over == Over::Nothing {
            return Ok(());
        }
        // A workload keeps its source, even if the volume's options were edited.
        let noted = source.and_then(|name| self.shares.get(&name));
        let noted = noted.filter(|share| share.place == request.place).map(|share| share.key);
        let key = noted.unwrap_or_else(|| key_of(request));
        let locked = timeout_at(deadline, self.locks.lock(&key)).await;
        let _share = locked.map_err(|_elapsed| {
            let text = format!("another mount of PersistentVolume {} is in progress", request.volume);
            Error::new(ErrorKind::Aborted, text)
        })?;
        let (name, is_new) = self.source_for(request, &key)?;
        let words = self.last_words(&name);
        let told = |error: Error| {
            Error::new(error.kind, format!("volume {}, source {name}: {error}", request.volume))
        };
        let mounted = self.mount_through(request, (target, over), &name, deadline).await;
        if mounted.is_err() && is_new {
            self.give_up(&name);
        }
        let uid = mounted.map_err(told)?;
        self.revivals.remember(&name, &uid, &self.comm(&uid, &name), request, target);
        if over == Over::Dead {
            self.tell_of_death(request.workload.as_ref(), &request.volume, words.as_deref());
            // The source's other targets are dead, too.
            self.revivals.wake(&name);
        }
        Ok(())
    }

    /// Mounts a source again after its engine ended, and binds its targets to the new mount. Returns `false` if no new mount was made.
    async fn revive(self: &Arc<Self>, name: &str) -> Result<bool> {
        let deadline = Instant::now() + self.config.mount_within;
        // A source whose note can't be read is not mounted again: the next call for each of its targets finds another source.
        let share = || self.shares.get(name).filter(Share::is_readable);
        let Some(key) = share().map(|share| share.key) else { return Ok(false) };
        let _share = self.locks.lock(&key).await;
        let (Some(share), Some(served)) = (share(), self.revivals.of(name)) else {
            return Ok(false);
        };
        let comm = self.comm(&share.pod, name);
        let words = self.last_words(name);
        let volume = &served.request.volume;
        if self.revivals.take_restarted(name) {
            for bound in served.targets.values() {
                let (notices, workload) = (&self.config.notices, bound.workload.as_ref());
                deaths::tell_of_restart(notices, workload, volume, SERVER, words.as_deref());
            }
        }
        if self.revivals.take_gone(name) {
            for bound in served.targets.values() {
                let (notices, workload) = (&self.config.notices, bound.workload.as_ref());
                deaths::tell_of_bucket(notices, workload, volume, &served.request.bucket, APP);
            }
        }
        if source::restarting(&comm).is_some() {
            // If the restart fails, the mounter creates its socket, which wakes this source again.
            return Ok(false);
        }
        let source = comm::source(&self.config.kubelet, name);
        let mounted = !source::is_served(&source, &comm, &self.probes).await?;
        if mounted {
            let pod = self.pods.wait(deadline).await?;
            self.make_source(&served.request, name, &pod, deadline).await?.keep();
            self.revivals.follow(name, &pod.uid, &self.comm(&pod.uid, name));
        } else {
            self.dial(name); // an earlier engine's connection went with it
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
            self.tell_of_death(bound.workload.as_ref(), volume, words.as_deref());
        }
        Ok(mounted)
    }

    /// Refreshes the credentials of a mounted target, and decides whether its mount stays. Leaves the target itself alone: reads of it go
    /// on until a new source is served.
    async fn refresh(&self, request: &MountRequest, target: &Path) -> Result<Found> {
        if mounted(target)?.is_none() {
            return Ok(Found { over: Over::Empty, source: None });
        }
        let mounts = table()?;
        let Some(mount) = mounts.at(target) else { return Ok(Found { over: Over::Empty, source: None }) };
        check_ours(mount)?;
        let health = self.probes.check(target, sys::PROBE_LIMIT).await;
        let sources = comm::sources(&self.config.kubelet);
        let source = mounts.source_of(mount, &sources).and_then(|it| it.point.file_name()?.to_str());
        let over = over(&health, false);
        if over != Over::Nothing {
            tracing::warn!("{} is {health:?}, bound to {source:?}: {over:?}", target.display());
            return Ok(Found { over, source: source.map(str::to_owned) });
        }
        if request.read_only && !mount.read_only {
            // A driver of an older release, or on an older kernel, ended between bind and read-only.
            sys::make_read_only(target).map_err(|error| {
                Error::internal(format!("making {} read-only: {error}", target.display()))
            })?;
        }
        match (source, source.and_then(|name| self.shares.get(name))) {
            (Some(name), Some(share)) if !share.is_readable() => self.refuse_keys(request, name)?,
            (Some(name), Some(share)) => {
                self.check_keys(request, &share)?;
                let comm = self.comm(&share.pod, name);
                self.write_credentials(request, &share.pod, &comm)?;
                self.revivals.remember(name, &share.pod, &comm, request, target);
            }
            // A driver with Mountpoint Pods made this mount. Its engine goes on in its Mountpoint Pod.
            (Some(name), None) => {
                if let Some(uid) = Notes::of(&self.config.kubelet).uid(name) {
                    let comm = Comm::on_host(&self.config.kubelet, &uid);
                    self.write_credentials(request, &uid, &comm)?;
                }
            }
            // The target itself is a mount by systemd.
            (None, _) => drop(self.files.write_keys(request)?),
        }
        match health {
            // The restarted engine goes on with this mount.
            Health::Hung if source.is_some_and(|name| self.restarting(name).is_some()) => {}
            Health::Hung => return Err(source::hangs(target, None)),
            Health::Alive | Health::Dead(_) => {}
        }
        Ok(Found { over, source: None })
    }

    /// Chooses the source for a request. Returns its name, and whether it is new. Notes a new one.
    fn source_for(&self, request: &MountRequest, key: &str) -> Result<(String, bool)> {
        let is_taken = |name: &str| {
            let pod = self.pods.known();
            // The table of mounts is enough: an engine behind the mount may hang.
            mounted(&comm::source(&self.config.kubelet, name)).is_ok_and(|mount| mount.is_some())
                || pod.is_some_and(|uid| self.comm(&uid, name).directory().symlink_metadata().is_ok())
        };
        match self.shares.choose(key, request, is_taken)? {
            Chosen::Known(name) => {
                if let Some(share) = self.shares.get(&name) {
                    self.check_keys(request, &share)?;
                }
                Ok((name, false))
            }
            Chosen::New(name) => Ok((name, true)),
            Chosen::Full => {
                let (max, volume) = (self.shares.max(), &request.volume);
                let why = format!(
                    "the engines pod of node {} serves {max} volumes, and PersistentVolume {volume} would be one more: a volume takes a place \
                     until a minute after its last pod. Raise shared.maxVolumes of the chart, or run the pod on another node",
                    self.config.node
                );
                deaths::tell_of_limit(&self.config.notices, request.workload.as_ref(), why.clone());
                Err(Error::new(ErrorKind::ResourceExhausted, why))
            }
        }
    }

    /// Binds the target to the source, and mounts the source first if no engine serves it. Returns the UID of the pod that serves it.
    async fn mount_through(
        self: &Arc<Self>,
        request: &MountRequest,
        (target, over): (&Path, Over),
        name: &str,
        deadline: Instant,
    ) -> Result<String> {
        let source = comm::source(&self.config.kubelet, name);
        let share = self.shares.get(name).unwrap_or_default();
        let comm = self.comm(&share.pod, name);
        if source::is_served(&source, &comm, &self.probes).await? {
            self.write_credentials(request, &share.pod, &comm)?;
            // The volume may have become read-only after its source was made.
            let read_only = request.read_only || request.source_read_only;
            bind(&source, target, over, read_only, &self.config.kubelet)?;
            return Ok(share.pod);
        }
        let pod = self.pods.wait(deadline).await?;
        let mount = self.make_source(request, name, &pod, deadline).await?;
        bind(&source, target, over, request.read_only, &self.config.kubelet)?;
        mount.keep();
        Ok(pod.uid)
    }

    async fn make_source(
        self: &Arc<Self>,
        request: &MountRequest,
        name: &str,
        pod: &EnginesPod,
        deadline: Instant,
    ) -> Result<SourceMount> {
        if let Some(why) = &request.unusable {
            return Err(Error::invalid(why));
        }
        let share = self.shares.get(name).unwrap_or_default();
        self.check_keys(request, &share)?;
        // From now on its engine may use its cache: nobody else gets it meanwhile.
        let share = Share { pod: pod.uid.clone(), without_cache: false, ..share };
        self.shares.put(name, &share)?;
        let user = self.pods.begin(pod, name, deadline).await?;
        let comm = self.comm(&pod.uid, name);
        let (args, cache) = self.args(request, name, pod, (user, deadline)).await?;
        let share = match cache {
            Some((cache, mib)) => Share { cache: Some(cache), cache_mib: Some(mib), ..share },
            None => Share { without_cache: true, ..share },
        };
        self.shares.put(name, &share)?;
        let mut env = request.env.clone();
        if let Some(profile) = self.write_credentials(request, &pod.uid, &comm)? {
            let leads = profile.env(&Comm::in_pod().of_source(name).credentials());
            env.retain(|(name, _)| !leads.iter().any(|(other, _)| other == name));
            env.extend(leads);
        }
        let message = MountMessage {
            bucket_name: request.bucket.clone(),
            // The kernel gets this flag with the mount; an engine that is given a device refuses it.
            args: args.into_iter().filter(|arg| arg != "--read-only").collect(),
            env: env.into_iter().map(|(name, value)| format!("{name}={value}")).collect(),
            adopt: None,
            stage: false,
        };
        let peer = Peer { uid: &pod.uid, processes: &self.config.processes, stage: None };
        let source = comm::source(&self.config.kubelet, name);
        let made =
            SourceMount::make(&source, request.source_read_only, &comm, &peer, message, deadline).await?;
        self.forget_counts(&source);
        self.dial(name);
        Ok(made)
    }

    /// Ends the mounter of a source that could not be mounted, and removes its keys and its note. If that fails, the note stays: the mounter
    /// waits for a mount, so the next attempt takes it, or else the search for unused sources tells it to end.
    fn give_up(&self, name: &str) {
        let share = self.shares.get(name).unwrap_or_default();
        // Keys go first: a mounter whose exit is announced takes no mount, and its note would stop the next attempt.
        let ended = CommFiles::find(&self.comm(&share.pod, name)).and_then(|files| {
            files.map_or(Ok(()), |files| files.remove_credentials().and_then(|()| files.announce_exit()))
        });
        if let Err(error) = ended {
            tracing::warn!("after a failure, ending the mounter of {name}: {error}; it is tried again later");
            self.released.notify_one();
            return;
        }
        share.used_cache().into_iter().for_each(|cache| self.caches.leave(cache, name));
        if let Err(error) = self.shares.forget(name) {
            tracing::warn!("after a failure, forgetting {name}: {error}");
        }
    }

    /// Refuses keys for a source whose note can't be read: its pod is not known, nor whether its keys come from a Secret.
    fn refuse_keys(&self, request: &MountRequest, name: &str) -> Result<()> {
        if request.credentials.is_none() {
            return Ok(());
        }
        Err(Error::internal(format!(
            "PersistentVolume {} stays mounted and gets no new keys, since the driver's note shared/{name} on the node {} can't be read: end \
             the pods with this volume there; a minute later it is mounted anew",
            request.volume, self.config.node
        )))
    }

    /// Refuses to use the driver's keys for a volume that names a Secret.
    fn check_keys(&self, request: &MountRequest, share: &Share) -> Result<()> {
        if request.of_secret || !share.of_secret {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "the Secret that nodePublishSecretRef of PersistentVolume {} names is empty, and the driver's keys are never used in its place: \
             write access_key_id and secret_access_key into that Secret",
            request.volume
        )))
    }

    /// Writes the request's keys; returns `None` if the request has none.
    fn write_credentials(&self, request: &MountRequest, uid: &str, comm: &Comm) -> Result<Option<Profile>> {
        let Some(keys) = &request.credentials else { return Ok(None) };
        let opened = CommFiles::open(comm).and_then(|files| files.credentials());
        let files = opened.map_err(|error| {
            let at = comm.directory().display();
            Error::new(
                ErrorKind::Unavailable,
                format!("opening the directory of credentials in {at}: {error}"),
            )
        })?;
        let profile = Profile::new(uid, &request.handle)?;
        profile.write(&files, keys)?;
        Ok(Some(profile))
    }

    fn tell_of_death(&self, workload: Option<&WorkloadRef>, volume: &str, words: Option<&str>) {
        deaths::tell(&self.config.notices, workload, volume, SERVER, words);
    }

    /// The mounter's note about its dead engine.
    fn last_words(&self, name: &str) -> Option<String> {
        let share = self.shares.get(name)?;
        CommFiles::open(&self.comm(&share.pod, name)).ok()?.error()
    }

    /// The restart of the engine behind a target, if one is in progress.
    fn restarting_at(&self, target: &Path) -> Option<Restarting> {
        let mounts = table().ok()?;
        let source = mounts.source_of(mounts.at(target)?, &comm::sources(&self.config.kubelet))?;
        self.restarting(source.point.file_name()?.to_str()?)
    }

    /// The restart of the engine of a source, if one is in progress.
    fn restarting(&self, name: &str) -> Option<Restarting> {
        let share = self.shares.get(name)?;
        source::restarting(&self.comm(&share.pod, name))
    }

    /// The directory that the node and the mounter of a source share.
    fn comm(&self, pod: &str, name: &str) -> Comm {
        Comm::on_host(&self.config.kubelet, pod).of_source(name)
    }
}

/// Name of the engines pod in Events.
const SERVER: &str = "the engines pod";

#[cfg(test)]
mod tests;
