//! Mounts by systemd, as architecture v1 makes them: one engine for each target, in a transient unit of the node's service manager. Enters:
//! a checked request. Leaves: a target that an engine serves, or nothing.
//!
//! The engine is a program on the host, mounts at the target itself, and outlives the driver. After a crash systemd restarts it, and it
//! mounts over the dead mount. Containers that follow the host's mounts see the new one.
//!
//! Never here: the API server.

mod manager;
mod unit;

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::BoxFuture;
use mountpoint::sync::Arc;
use tokio::time::Instant;

use self::manager::Manager;
use self::unit::Unit;
use super::comm_files::CredentialFiles;
use super::credentials::Profile;
use super::dead;
use super::deaths::{self, Notices};
use super::host_files::HostFiles;
use super::locks::Locks;
use super::source;
use super::sys::{self, Health, Probes};
use super::targets::{self, Target, Targets, check_ours, table};
use super::{MOUNT_WITHIN, Made, MountRequest, Mounter};
use crate::contract::{comm, volume};
use crate::error::{Error, ErrorKind, Result};

/// The file with the certificates of the chart, in the driver's directory.
const CA_BUNDLE: &str = "ca-bundle.crt";

/// The configuration of a [`SystemdMounter`].
#[derive(Clone, Debug)]
pub struct Config {
    /// The kubelet's root directory, at one path in this process and on the host.
    pub kubelet: PathBuf,
    /// The engine's program file, as a path on the host.
    pub engine: PathBuf,
    /// The socket of the system bus.
    pub socket: PathBuf,
    /// Certificates that engines trust besides the host's, as a path in this process.
    pub extra_ca_bundle: Option<PathBuf>,
    /// The time limit of one mount: [`MOUNT_WITHIN`].
    pub mount_within: Duration,
    /// Time that an engine has for its uploads after the unmount of its target. Afterwards its keys and its cache are removed.
    pub end_within: Duration,
    /// The writer of Events.
    pub notices: Notices,
}

impl Config {
    /// A configuration with the defaults.
    #[must_use]
    pub fn new(kubelet: impl Into<PathBuf>) -> Self {
        Self {
            kubelet: kubelet.into(),
            engine: PathBuf::from("/opt/mountpoint-s3-csi/bin/mount-s3"),
            socket: PathBuf::from("/run/dbus/system_bus_socket"),
            extra_ca_bundle: None,
            mount_within: MOUNT_WITHIN,
            end_within: Duration::from_secs(20),
            notices: None,
        }
    }
}

/// The mounter of the node's systemd. Mounts stay when it is dropped.
#[derive(Debug)]
pub struct SystemdMounter(Arc<Node>);

impl SystemdMounter {
    /// Removes files that an earlier driver left when it crashed. The first call of this mounter connects to systemd.
    ///
    /// # Errors
    /// The kubelet's root directory is not there, or the driver's directory beneath it can't be made.
    pub fn new(config: Config) -> Result<Self> {
        let config = Config { kubelet: targets::kubelet(&config.kubelet)?, ..config };
        let files = HostFiles::of(&config.kubelet);
        std::fs::create_dir_all(files.directory())
            .map_err(|error| Error::internal(format!("making {}: {error}", files.directory().display())))?;
        files.sweep(&table()?);
        Ok(Self(Arc::new(Node {
            manager: Manager::at(&config.socket),
            targets: Targets::new(&config.kubelet, Arc::new(Locks::default())),
            probes: Probes::default(),
            files,
            config,
        })))
    }

    /// The files of this mounter's mounts.
    pub(super) fn files(&self) -> HostFiles {
        self.0.files.clone()
    }
}

impl Mounter for SystemdMounter {
    fn fault(&self) -> Option<String> {
        let socket = self.0.config.socket.display();
        (!self.0.manager.is_there()).then(|| {
            format!(
                "the system bus does not listen at {socket}: with node.mounter: systemd each node needs it"
            )
        })
    }

    fn ignores(&self) -> &'static [&'static str] {
        volume::OF_MOUNTPOINT_PODS
    }

    fn no_stage(&self) -> Option<&'static str> {
        Some(NO_STAGE)
    }

    fn mount(&self, request: MountRequest) -> BoxFuture<'_, Result<Made>> {
        let node = Arc::clone(&self.0);
        // A task of its own: a kubelet that hangs up would otherwise leave half a mount.
        let task = tokio::spawn(async move { Box::pin(node.mount(&request)).await });
        Box::pin(async { task.await.map_err(Error::internal)?.map(|()| Made::AsUsual) })
    }

    fn unmount<'a>(&'a self, target: &'a Path) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.0.unmount(target))
    }
}

#[derive(Debug)]
struct Node {
    config: Config,
    manager: Manager,
    targets: Targets,
    probes: Probes,
    files: HostFiles,
}

impl Node {
    async fn mount(&self, request: &MountRequest) -> Result<()> {
        let deadline = Instant::now() + self.config.mount_within;
        let target = self.targets.make(&request.target)?;
        if request.token.is_some() {
            return Err(Error::new(
                ErrorKind::FailedPrecondition,
                "authenticationSource: pod needs Mountpoint Pods: set node.mounter: pod in the chart, or give the volume a Secret",
            ));
        }
        let was_mounted = table()?.at(target.path()).is_some();
        if self.is_served(request, &target).await? {
            return Ok(());
        }
        if let Some(why) = &request.unusable {
            return Err(Error::invalid(why));
        }
        if request.has_stage() {
            // In place of a Mountpoint Pod, while no reconciler works.
            return Err(Error::new(ErrorKind::Unavailable, format!("mount option 'mode full': {NO_STAGE}")));
        }
        let unit = unit::name(target.path());
        self.serve(request, &target, &unit, deadline).await.map_err(|error| {
            let look = format!("on the node: journalctl -u {unit}");
            Error::new(error.kind, format!("volume {}: {error} ({look})", request.volume))
        })?;
        if was_mounted {
            let server = format!("the node's systemd ({unit})");
            deaths::tell(&self.config.notices, request.workload.as_ref(), &request.volume, &server, None);
        }
        Ok(())
    }

    /// Whether the target is mounted and stays mounted. Such a mount's engine gets fresh keys. A dead mount stays, and the new mount
    /// covers it.
    async fn is_served(&self, request: &MountRequest, target: &Target) -> Result<bool> {
        let (mounts, path) = (table()?, target.path());
        let Some(mount) = mounts.at(path) else { return Ok(false) };
        check_ours(mount)?;
        let sources = comm::sources(&self.config.kubelet);
        if let Some(pod) = mounts.source_of(mount, &sources) {
            // A driver with Mountpoint Pods made this mount. The mount's keys are in that pod, and this mounter does not refresh them.
            tracing::warn!("{} is bound to {}: restart its workload", path.display(), pod.point.display());
        } else {
            self.files.write_keys(request)?;
        }
        match self.probes.check(path, sys::PROBE_LIMIT).await {
            Health::Alive => {
                dead::forget_lower(&mounts, path, &self.config.kubelet)?;
                Ok(true)
            }
            Health::Hung => Err(source::hangs(path, None)),
            Health::Dead(why) => {
                tracing::warn!("the engine of {} has ended ({why}): mounting again", path.display());
                Ok(false)
            }
        }
    }

    async fn serve(
        &self,
        request: &MountRequest,
        target: &Target,
        unit: &str,
        deadline: Instant,
    ) -> Result<()> {
        let path = target.path();
        // An earlier engine may have left its unit: failed, or about to be restarted by systemd.
        self.manager.stop(unit, deadline).await;
        dead::make_room(path, &self.config.kubelet)?;
        let _making = self.files.making().await;
        let made_directory = make_directory(path)?;
        let started = match self.unit(request, path) {
            Ok(made) => self.manager.start(unit, &made.properties(request), deadline).await,
            Err(error) => Err(error),
        };
        let served = started.and_then(|()| {
            let there = table()?.at(path).is_some_and(|mount| mount.is_bucket());
            there.then_some(()).ok_or_else(|| unseen(path))
        });
        if served.is_err() {
            self.manager.stop(unit, Instant::now() + self.config.end_within).await;
            self.clean_up(request, path, made_directory);
        }
        served
    }

    /// Makes the unit and the files that its engine needs.
    fn unit(&self, request: &MountRequest, target: &Path) -> Result<Unit> {
        let profile = self.files.write_keys(request)?;
        let leads = profile.as_ref().map(|profile: &Profile| profile.env(self.files.directory()));
        let leads: Vec<_> = leads.into_iter().flatten().collect();
        let mut env = request.env.clone();
        env.retain(|(name, _)| !leads.iter().any(|(other, _)| other == name));
        env.extend(leads);
        Ok(Unit {
            engine: self.config.engine.clone(),
            target: target.to_owned(),
            env,
            cache: unit::wants_cache(request).then(|| self.files.cache(target)).transpose()?,
            state: self.files.state()?,
            extra_ca_bundle: self.certificates()?,
            start_within: self.config.mount_within,
        })
    }

    /// Copies the chart's certificates to the host, because the driver's own file is in its container. Returns the path of the copy.
    fn certificates(&self) -> Result<Option<PathBuf>> {
        let Some(given) = &self.config.extra_ca_bundle else { return Ok(None) };
        let failed = |error: std::io::Error| {
            Error::internal(format!("copying the certificates {} to the host: {error}", given.display()))
        };
        let text = std::fs::read_to_string(given).map_err(failed)?;
        let directory = CredentialFiles::open(self.files.directory()).map_err(failed)?;
        directory.write(CA_BUNDLE, &text).map_err(failed)?;
        Ok(Some(self.files.directory().join(CA_BUNDLE)))
    }

    /// Removes all that this call made, after its failure. Files of the workload's other volumes go with their unmounts.
    fn clean_up(&self, request: &MountRequest, target: &Path, made_directory: bool) {
        let cleaned = table().map(|mounts| {
            if mounts.at(target).is_none() {
                self.files.forget_failed(request, target);
                if made_directory && let Err(error) = std::fs::remove_dir(target) {
                    tracing::warn!("removing {} after a failure: {error}", target.display());
                }
            }
        });
        if let Err(error) = cleaned {
            tracing::warn!("after a failure: {error}");
        }
    }

    async fn unmount(&self, target: &Path) -> Result<()> {
        let Some(target) = self.targets.find(target)? else { return Ok(()) };
        let path = target.path();
        let mounted = table()?.at(path).is_some();
        target.take_away()?;
        let unit = unit::name(path);
        // An engine ends with its mount, after the uploads of closed files. An engine that never mounted, or that waits for its restart,
        // must be stopped.
        if mounted && !self.manager.ended(&unit, Instant::now() + self.config.end_within).await {
            tracing::warn!(
                "{unit} keeps running: a process has files of {} open, or uploads are in progress",
                path.display()
            );
        } else {
            self.manager.stop(&unit, Instant::now() + self.config.end_within).await;
        }
        self.files.forget(path, &table()?);
        Ok(())
    }
}

/// The reason why units have no stage: each target has an engine of its own, and a stage belongs to one.
const NO_STAGE: &str = "it needs a Mountpoint Pod, which has the stage, and the node's systemd would mount; set node.mounter: pod in the chart, \
                        wait for the reconciler, or leave it out";

/// Makes the directory of a target, and returns whether it was missing. The directory of a dead mount exists.
fn make_directory(target: &Path) -> Result<bool> {
    match std::fs::create_dir(target) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(Error::internal(format!("making the target {}: {error}", target.display()))),
    }
}

/// The error for an engine that mounts in the host's namespace, where this container does not see it.
fn unseen(target: &Path) -> Error {
    Error::internal(format!(
        "the engine mounted {} on the host, and this container does not see it: is the kubelet's directory mounted with propagation \
         Bidirectional?",
        target.display()
    ))
}

#[cfg(test)]
mod tests;
