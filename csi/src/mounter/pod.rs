//! Mounts in Mountpoint Pods. Enters: a checked request. Leaves: a target bound to a source that an engine serves.
//!
//! The order of a mount: the assignment, the pod, its lock, credentials, the source, the target. Each step undoes itself if a later
//! one fails. An existing mount needs no API server.
//!
//! Never here: a write to the API server; a mount that outlives its failure.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::BoxFuture;
use mountpoint::sync::Arc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use super::assignment::Assignments;
use super::comm_files::CommFiles;
use super::credentials::Profile;
use super::idle::Idle;
use super::locks::Locks;
use super::mountinfo::{Mount, Mounts};
use super::notes::Notes;
use super::peer::Processes;
use super::source::{self, Peer, SourceMount};
use super::sys::{self, Busy, Health, Probes};
use super::{MountRequest, Mounter};
use crate::contract::comm::{self, Comm};
use crate::contract::message::MountMessage;
use crate::contract::{pod, volume};
use crate::error::{Error, ErrorKind, Result};

/// So many mounts may lie over one another at a target, each but the uppermost of an engine that died. With more, all are taken
/// away first, and containers must be restarted.
const LAYERS_MAX: usize = 8;

/// The configuration of a [`PodMounter`].
#[derive(Clone, Debug)]
pub struct Config {
    /// This node's name.
    pub node: String,
    /// The kubelet's directory.
    pub kubelet: PathBuf,
    /// The namespace of the Mountpoint Pods.
    pub namespace: String,
    /// A mount has this long. The kubelet waits for two minutes, so a longer limit loses the error; half of it loses mounts
    /// whose image is still being pulled, which the kubelet then asks for again.
    pub mount_within: Duration,
    /// An unmount of a source waits so long for its last target; then it is tried again with the next sweep.
    pub unused_within: Duration,
    /// How often sources are searched for mounts whose pod is gone. Doubling it keeps such a mount twice as long.
    pub sweep_every: Duration,
    /// Where a mounter's process is looked up: the node's `/proc`.
    pub processes: Processes,
}

impl Config {
    /// With the usual places and limits.
    #[must_use]
    pub fn new(node: impl Into<String>) -> Self {
        Self {
            node: node.into(),
            kubelet: PathBuf::from("/var/lib/kubelet"),
            namespace: pod::NAMESPACE.to_owned(),
            mount_within: Duration::from_secs(110),
            unused_within: Duration::from_secs(30),
            sweep_every: Duration::from_secs(120),
            processes: Processes::default(),
        }
    }
}

/// Mounts through Mountpoint Pods. It owns two watches and the task that unmounts idle sources; they end when it is dropped, and
/// mounts stay.
#[derive(Debug)]
pub struct PodMounter {
    node: Arc<Node>,
    _tasks: JoinSet<()>,
}

impl PodMounter {
    /// Begins to follow the API server. It returns at once: a server or a CRD that is not there yet is told by [`Mounter::fault`].
    ///
    /// # Errors
    /// The kubelet's directory is not there.
    pub fn new(client: kube::Client, config: Config) -> Result<Self> {
        let kubelet = config.kubelet.canonicalize().map_err(|error| {
            Error::invalid(format!("the kubelet's directory {}: {error}", config.kubelet.display()))
        })?;
        let config = Config { kubelet, ..config };
        let mut tasks = JoinSet::new();
        let assignments = Assignments::follow(&client, &config.node, &config.namespace, &mut tasks);
        let node = Arc::new(Node {
            notes: Notes::of(&config.kubelet),
            config,
            assignments,
            probes: Probes::default(),
            locks: Arc::new(Locks::default()),
        });
        let idle = Idle {
            kubelet: node.config.kubelet.clone(),
            notes: node.notes.clone(),
            unused_within: node.config.unused_within,
            sweep_every: node.config.sweep_every,
            pods: node.assignments.pods(),
            locks: Arc::clone(&node.locks),
            probes: node.probes.clone(),
        };
        tasks.spawn(idle.run());
        Ok(Self { node, _tasks: tasks })
    }
}

impl Mounter for PodMounter {
    fn fault(&self) -> Option<String> {
        self.node.assignments.fault()
    }

    fn mount(&self, request: MountRequest) -> BoxFuture<'_, Result<()>> {
        let node = Arc::clone(&self.node);
        // A task of its own: a kubelet that hangs up does not leave half a mount.
        let task = tokio::spawn(async move { Box::pin(node.mount(&request)).await });
        Box::pin(async { task.await.map_err(Error::internal)? })
    }

    fn unmount<'a>(&'a self, target: &'a Path) -> BoxFuture<'a, Result<()>> {
        Box::pin(async { self.node.unmount(target) })
    }
}

#[derive(Debug)]
struct Node {
    config: Config,
    notes: Notes,
    assignments: Assignments,
    probes: Probes,
    locks: Arc<Locks>,
}

impl Node {
    async fn mount(&self, request: &MountRequest) -> Result<()> {
        let deadline = Instant::now() + self.config.mount_within;
        let target = self.target_path(&request.target)?;
        let _target = self.target_lock(&target)?;
        let over = self.refresh(request, &target).await?;
        if over == Over::Nothing {
            return Ok(());
        }
        let name = self.assignments.wait_for(&request.volume, &request.workload_uid, deadline).await?;
        self.assignments.wait_running(&name, deadline).await?;
        let locked = timeout_at(deadline, self.locks.lock(&name)).await;
        let _pod = locked.map_err(|_elapsed| {
            Error::new(ErrorKind::Aborted, format!("another mount of Mountpoint Pod {name} is under way"))
        })?;
        // The previous holder of the lock may have unmounted it for good.
        let uid = self.assignments.wait_running(&name, deadline).await?.uid;
        self.mount_through(request, (&target, over), &Assigned { name: &name, uid: &uid }, deadline)
            .await
            .map_err(|error| {
                let look = format!("kubectl -n {} logs {name}", self.config.namespace);
                Error::new(
                    error.kind,
                    format!("volume {}, Mountpoint Pod {name}: {error} ({look})", request.volume),
                )
            })
    }

    /// For a target that is mounted already: fresh credentials, if it stays as it is; and what becomes of it. It is not touched here:
    /// reads of it go on until a new source is served.
    async fn refresh(&self, request: &MountRequest, target: &Path) -> Result<Over> {
        let mounts = table()?;
        let Some(mount) = mounts.at(target) else { return Ok(Over::Empty) };
        check_ours(mount)?;
        let health = self.probes.check(target, sys::PROBE_LIMIT).await;
        let sources = comm::sources(&self.config.kubelet);
        let source = mounts.source_of(mount, &sources).and_then(|it| it.point.file_name()?.to_str());
        let assigned = self.assignments.known(&request.volume, &request.workload_uid);
        let moved = source.is_some() && assigned.is_some() && assigned.as_deref() != source;
        let over = over(&health, moved, mounts.layers(target));
        if over != Over::Nothing {
            let at = target.display();
            tracing::warn!("{at} is {health:?}, bound to {source:?}, assigned to {assigned:?}: {over:?}");
            return Ok(over);
        }
        if request.read_only && !mount.read_only {
            // A driver of an older release, or on an older kernel, ended between two steps.
            sys::make_read_only(target).map_err(|error| {
                Error::internal(format!("making {} read-only: {error}", target.display()))
            })?;
        }
        if let (true, Some(name)) = (request.credentials.is_some() || request.token.is_some(), source) {
            let uid = self.assignments.pod(name).map(|pod| pod.uid);
            let uid = uid.or_else(|| self.notes.uid(name)).ok_or_else(|| {
                let text = format!(
                    "refreshing credentials: the API server does not answer, and this node has no note of Mountpoint Pod {name}"
                );
                Error::new(ErrorKind::Unavailable, text)
            })?;
            let pod = Assigned { name, uid: &uid };
            self.write_credentials(request, &pod)?;
            // An older release has left no note.
            self.remember(&pod)?;
        }
        match health {
            Health::Hung => Err(source::hangs(target)),
            Health::Alive | Health::Dead(_) => Ok(over),
        }
    }

    async fn mount_through(
        &self,
        request: &MountRequest,
        (target, over): (&Path, Over),
        pod: &Assigned<'_>,
        deadline: Instant,
    ) -> Result<()> {
        let source = comm::source(&self.config.kubelet, pod.name);
        if source::is_served(&source, &self.probes).await? {
            self.write_credentials(request, pod)?;
            return bind(&source, target, over, request.read_only);
        }
        let mounted = self.mount_source(request, &source, pod, deadline).await;
        let bound = mounted.and_then(|mount| {
            bind(&source, target, over, request.read_only)?;
            mount.keep();
            Ok(())
        });
        if bound.is_err() {
            let _ = self.open_comm(pod).map(|files| files.remove_credentials());
            let _ = self.notes.forget(pod.name);
        }
        bound
    }

    async fn mount_source(
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
            (Some(profile), _) => profile.env().into(),
            (None, Some(profile)) => profile.token_env(&self.role(request)?).into(),
            (None, None) => Vec::new(),
        };
        env.retain(|(name, _)| !leads.iter().any(|(other, _)| other == name));
        env.extend(leads);
        self.remember(pod)?;
        let message = MountMessage {
            bucket_name: request.bucket.clone(),
            // That is said to the kernel here; an engine that is given a device refuses it.
            args: request.args.iter().filter(|arg| *arg != "--read-only").cloned().collect(),
            env: env.into_iter().map(|(name, value)| format!("{name}={value}")).collect(),
        };
        let peer = Peer { uid: pod.uid, processes: &self.config.processes };
        let read_only = request.source_read_only;
        tokio::select! {
            // Its own words come first.
            biased;
            made = SourceMount::make(source, read_only, &comm, &peer, message, deadline) => made,
            error = self.assignments.fails(pod.name) => Err(error),
        }
    }

    /// `None`: the request has none.
    fn write_credentials(&self, request: &MountRequest, pod: &Assigned<'_>) -> Result<Option<Profile>> {
        let profile = Profile::new(pod.uid, &request.handle)?;
        match (&request.credentials, &request.token) {
            (Some(keys), _) => profile.write(&self.open_comm(pod)?, keys)?,
            (None, Some(token)) => profile.write_token(&self.open_comm(pod)?, token)?,
            (None, None) => return Ok(None),
        }
        Ok(Some(profile))
    }

    fn role(&self, request: &MountRequest) -> Result<String> {
        self.assignments.role(&request.volume, &request.workload_uid).ok_or_else(|| {
            Error::new(
                ErrorKind::FailedPrecondition,
                format!(
                    "no role is known for the workload: its attachment names none. Was it made before the volume said authenticationSource: \
                     pod, or by an older release? Annotate the workload's ServiceAccount with {} and restart the workload",
                    volume::ROLE_ANNOTATIONS[0]
                ),
            )
        })
    }

    /// So that a driver started anew, without the API server, finds this pod's directory by its source.
    fn remember(&self, pod: &Assigned<'_>) -> Result<()> {
        self.notes.remember(pod.name, pod.uid).map_err(|error| {
            Error::internal(format!("noting Mountpoint Pod {} on this node: {error}", pod.name))
        })
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

    fn unmount(&self, target: &Path) -> Result<()> {
        let target = match sys::resolved(target) {
            Ok(target) => target,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(Error::invalid(format!("target path {}: {error}", target.display()))),
        };
        self.check_beneath(&target)?;
        let _target = self.target_lock(&target)?;
        unmounted(&target)?;
        match std::fs::remove_dir(&target) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::internal(format!(
                "{} is unmounted, but can't be removed: {error}",
                target.display()
            ))),
            _ => Ok(()),
        }
    }

    /// The target as the table of mounts has it. The directories above it are made: the kubelet makes them, others may not.
    fn target_path(&self, target: &Path) -> Result<PathBuf> {
        let failed = |error: io::Error| {
            Error::internal(format!("making the target path {}: {error}", target.display()))
        };
        // Before anything is made: a link on the way may lead elsewhere.
        let there = target.ancestors().skip(1).find(|directory| directory.exists());
        if let Some(directory) = there {
            self.check_beneath(&directory.canonicalize().map_err(failed)?)?;
        }
        if let Some(parent) = target.parent() {
            std::fs::create_dir_all(parent).map_err(failed)?;
        }
        sys::resolved(target).map_err(failed)
    }

    /// We mount and unmount nothing outside the kubelet's directory, whatever links there say.
    fn check_beneath(&self, resolved: &Path) -> Result<()> {
        let kubelet = &self.config.kubelet;
        if resolved.starts_with(kubelet) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "target_path leads by a symbolic link to {}, which is not beneath the kubelet's directory {}: if this node's \
             kubelet keeps its pods elsewhere, set node.kubeletPath in the chart to that place",
            resolved.display(),
            kubelet.display()
        )))
    }

    fn target_lock(&self, target: &Path) -> Result<tokio::sync::OwnedMutexGuard<()>> {
        self.locks.try_lock(&target.to_string_lossy()).ok_or_else(|| {
            Error::new(ErrorKind::Aborted, format!("another call for {} is under way", target.display()))
        })
    }
}

/// The Mountpoint Pod of a workload.
struct Assigned<'a> {
    name: &'a str,
    uid: &'a str,
}

/// The state of a target before a new mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    /// No mount.
    Empty,
    /// The right one: there is no new mount.
    Nothing,
    /// A dead one, which the new one is laid over.
    Dead,
    /// One that is taken away, once the new one can take its place: alive, but of another source than the workload's; or too many.
    Another,
}

fn over(health: &Health, moved: bool, layers: usize) -> Over {
    match health {
        Health::Dead(_) if layers < LAYERS_MAX => Over::Dead,
        Health::Dead(_) => Over::Another,
        Health::Alive | Health::Hung if moved => Over::Another,
        Health::Alive | Health::Hung => Over::Nothing,
    }
}

/// Binds the target unless it is bound to this source already. What is left there is dead, and the new mount goes over it: containers
/// hold a copy of the dead mount, and one with HostToContainer propagation gets what is mounted on its root, but never what takes
/// its place (both tried, docs/e2e.md).
fn bind(source: &Path, target: &Path, over: Over, read_only: bool) -> Result<()> {
    let mounts = table()?;
    if let Some(mount) = mounts.at(target) {
        check_ours(mount)?;
        if mounts.at(source).is_some_and(|it| it.device == mount.device) {
            return Ok(());
        }
        if over == Over::Another {
            unmounted(target)?;
        }
    }
    let failed =
        |what: &str, error: io::Error| Error::internal(format!("{what} {}: {error}", target.display()));
    let made = match std::fs::create_dir(target) {
        Ok(()) => true,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
        Err(error) => return Err(failed("making the target", error)),
    };
    sys::bind(source, target, read_only).map_err(|error| {
        if made {
            let _ = std::fs::remove_dir(target);
        }
        failed("binding the source to", error)
    })
}

/// We unmount nothing that another put there.
fn check_ours(mount: &Mount) -> Result<()> {
    if mount.is_bucket() {
        return Ok(());
    }
    let Mount { point, kind, name, .. } = mount;
    let text = format!("{} of {name} is mounted at {} already: unmount it first", kind, point.display());
    Err(Error::new(ErrorKind::FailedPrecondition, text))
}

fn unmounted(target: &Path) -> Result<bool> {
    sys::unmount(target, Busy::Detach)
        .map_err(|error| Error::internal(format!("unmounting {}: {error}", target.display())))
}

fn table() -> Result<Mounts> {
    Mounts::read().map_err(|error| Error::internal(format!("reading the table of mounts: {error}")))
}

#[cfg(test)]
mod tests;
