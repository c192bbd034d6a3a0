//! Makes mounts. Enters: a [`MountRequest`] that `node/` has checked. Leaves: a bind mount at the target, or an error, after which
//! nothing is left mounted.
//!
//! Never here: a gRPC type, a rule about a user's mount options.

pub mod assignment;
mod bind;
pub mod comm_files;
pub mod credentials;
mod dead;
pub mod deaths;
mod engines;
mod host_files;
pub mod idle;
mod kernel_reads;
mod locks;
pub mod mount_id;
pub mod mountinfo;
pub mod notes;
pub mod peer;
pub mod pod;
mod read_only;
mod received;
pub mod reconciler_lease;
mod revival;
pub mod shared;
pub mod source;
mod stages;
pub mod sys;
pub mod systemd;
mod targets;
#[cfg(test)]
pub(crate) mod testing;
pub mod upgrades;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::BoxFuture;
pub use mountpoint::telemetry::engine_lines::Usage;

use crate::contract::restart::Restarting;
use crate::error::Result;
use crate::events::WorkloadRef;

/// Time limit of one mount. The kubelet waits for two minutes, so with a longer limit the error would be lost; with half of it, mounts
/// whose image is still being pulled would fail and be repeated.
pub const MOUNT_WITHIN: Duration = Duration::from_secs(110);

/// Time limit for the engines to report their usage, all at once; slower ones are left out. Prometheus waits for 10 s by default. Doubled,
/// one hanging engine delays each scrape by a second more.
pub const USAGE_WITHIN: Duration = Duration::from_secs(1);

/// Everything about one mount of one workload.
#[derive(Clone, Debug)]
pub struct MountRequest {
    /// The PersistentVolume's name.
    pub volume: String,
    /// The volume handle.
    pub handle: String,
    /// The UID of the workload's pod.
    pub workload_uid: String,
    /// The workload's pod, for Events; `None` if the kubelet does not name it.
    pub workload: Option<WorkloadRef>,
    /// The kubelet's target path: absolute, and below its directory.
    pub target: PathBuf,
    /// Whether only this target is read-only.
    pub read_only: bool,
    /// Whether the volume is read-only for all workloads: then the source is mounted read-only.
    pub source_read_only: bool,
    /// The bucket.
    pub bucket: String,
    /// A digest of the place of the volume's data, which never changes for a PersistentVolume. Volumes with different digests never share a
    /// source.
    pub place: String,
    /// The engine's flags, sorted: `--key` or `--key=value`.
    pub args: Vec<String>,
    /// The engine's environment, without credentials.
    pub env: Vec<(String, String)>,
    /// The reason why the volume's present options allow no new source. Existing mounts are still refreshed.
    pub unusable: Option<String>,
    /// The engine's credentials, which go into files, never into a message. `None`: the engine's own credential chain.
    pub credentials: Option<Credentials>,
    /// Whether the credentials are from the volume's own Secret.
    pub of_secret: bool,
    /// A token of the workload's service account, in place of credentials, for the role in the attachment.
    pub token: Option<Token>,
    /// The agent that gives that service account credentials, if its attachment names no role.
    pub agent: Option<Agent>,
}

impl MountRequest {
    /// Whether the engine needs a stage.
    pub(crate) fn has_stage(&self) -> bool {
        self.args.iter().any(|arg| arg.starts_with("--stage="))
    }
}

/// An agent of the node that gives credentials for a token of a service account, such as EKS Pod Identity's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agent {
    /// The URL of the credentials.
    pub url: String,
    /// A token with the agent's audience.
    pub token: Token,
}

/// A token of a service account.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(pub String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Credentials of an S3 account.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The access key id.
    pub access_key_id: String,
    /// The secret access key.
    pub secret_access_key: String,
    /// The session token of temporary credentials.
    pub session_token: Option<String>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(..)")
    }
}

/// The usage of the engine of one Mountpoint Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeUsage {
    /// The PersistentVolume's name.
    pub volume: String,
    /// The claim to which the volume is bound; empty if unknown.
    pub claim: String,
    /// The claim's namespace.
    pub claim_namespace: String,
    /// The name of the Mountpoint Pod. A volume may have several on a node.
    pub mountpoint_pod: String,
    /// The usage of the pod's container.
    pub usage: Usage,
}

/// The way in which a target was mounted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Made {
    /// The mount was made as configured, or was there already.
    #[default]
    AsUsual,
    /// systemd made the mount in place of a Mountpoint Pod, for this reason.
    BySystemdInstead(String),
}

/// Makes mounts: in Mountpoint Pods, in the engines pod of the node, or (architecture v1) by systemd.
pub trait Mounter: Send + Sync {
    /// Mounts a target; if it is mounted already, refreshes its credentials. After an error nothing of this call is left.
    fn mount(&self, request: MountRequest) -> BoxFuture<'_, Result<Made>>;

    /// The reason why new mounts can't be made now, for the readiness page; `None` if they can. The process goes on:
    /// existing mounts are still refreshed and unmounted.
    fn fault(&self) -> Option<String> {
        None
    }

    /// Attributes of a volume that the driver knows and that have no effect on this mounter's mounts.
    fn ignores(&self) -> &'static [&'static str] {
        &[]
    }

    /// Mount options that this mounter leaves out, and the reason.
    fn leaves_out(&self) -> (&'static [&'static str], &'static str) {
        (&[], "")
    }

    /// Attributes of a volume for which this mounter makes no mounts.
    fn refuses(&self) -> &'static [&'static str] {
        &[]
    }

    /// The reason why its mounts have no stage for `mode full`; `None`: they have one.
    fn no_stage(&self) -> Option<&'static str> {
        None
    }

    /// Whether stages outlive their engine's pod, so that `commit disk` may be promised.
    fn keeps_stages(&self) -> bool {
        false
    }

    /// Most volumes of the node; `None` for no limit.
    fn volumes_max(&self) -> Option<usize> {
        None
    }

    /// Whether the node's engines pod has an earlier template than the driver's chart; `None` if no engines pod is known.
    fn is_outdated(&self) -> Option<bool> {
        None
    }

    /// The state of a target whose engine died, if another engine is about to go on with the mount.
    fn restarting(&self, _target: &Path) -> Option<Restarting> {
        None
    }

    /// The usage of the engines that report it within [`USAGE_WITHIN`].
    fn usage(&self) -> BoxFuture<'_, Vec<VolumeUsage>> {
        Box::pin(std::future::ready(Vec::new()))
    }

    /// Unmounts a target, and removes its directory. No error if it is gone already.
    fn unmount<'a>(&'a self, target: &'a Path) -> BoxFuture<'a, Result<()>>;
}
