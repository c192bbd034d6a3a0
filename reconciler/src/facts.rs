//! The facts about one volume on one node: plain values that `observed.rs` gathers and `plan.rs` judges.
//!
//! Facts come from caches that may lag behind the API server, each by its own time. A decision therefore names the conditions (UIDs,
//! resource versions, a fresh look) that must still hold when it is carried out.

use std::collections::{BTreeMap, BTreeSet};

use csi::contract::attachment::{MountpointS3PodAttachment, ShareKey};
use csi::events::WorkloadRef;
use k8s_openapi::jiff::Timestamp;

use crate::pod_spec::Settings;

/// One volume on one node: the unit of every decision.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group {
    /// The node.
    pub node: String,
    /// The PersistentVolume's name.
    pub volume: String,
}

/// The facts about a group.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Now.
    pub now: Timestamp,
    /// The group.
    pub group: Group,
    /// The running release; only its Mountpoint Pods take workloads.
    pub release: String,
    /// Workloads that use the volume now or that an attachment of the group names, by UID. A workload that is named and missing here was
    /// not seen.
    pub workloads: BTreeMap<String, Workload>,
    /// The attachments of the group.
    pub attachments: Vec<MountpointS3PodAttachment>,
    /// Pods that these attachments name, pods made for the group, and pods whose names are taken, by name.
    pub pods: BTreeMap<String, MountpointPod>,
    /// Other PersistentVolumes with the same handle that workloads on the node use: the kubelet takes them all for one volume.
    pub twins: BTreeSet<String>,
    /// Names of Mountpoint Pods that the API server has just refused to make. Plans do without them.
    pub refused: BTreeSet<String>,
}

/// A workload's pod.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The workload's namespace, name and UID.
    pub at: WorkloadRef,
    /// The phase of the pod.
    pub phase: Phase,
    /// The deletion of the workload has begun.
    pub deleting: bool,
    /// The present properties of the workload's volume; `None` if its claim or the volume is gone.
    pub wants: Option<Wants>,
}

/// The phase of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Some containers of the pod were not started yet.
    Pending,
    /// The pod runs.
    Running,
    /// The pod succeeded: none of its containers runs or will run.
    Succeeded,
    /// The pod failed: none of its containers runs or will run.
    Failed,
}

impl Phase {
    /// Whether the pod has ended for good.
    #[must_use]
    pub fn has_ended(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

/// The properties of a volume that a workload needs.
#[derive(Clone, Debug)]
pub struct Wants {
    /// The properties that all workloads of one Mountpoint Pod share.
    pub key: ShareKey,
    /// The UID of the PersistentVolume: a volume that was made again under the same name may have another bucket. `None` for an inline
    /// volume.
    pub volume_uid: Option<String>,
    /// The volume's attributes about its Mountpoint Pods, or the reason why they can't be read.
    pub settings: Result<Settings, String>,
}

/// A pod in the namespace of Mountpoint Pods.
#[derive(Clone, Debug)]
pub struct MountpointPod {
    /// The pod's UID.
    pub uid: String,
    /// The observed version of the object.
    pub resource_version: String,
    /// The phase of the pod.
    pub phase: Phase,
    /// A container of the pod has begun, so the pod may have served.
    pub began: bool,
    /// The mounter's container runs, by the pod's status.
    pub runs: bool,
    /// The number of restarts of that container.
    pub restarts: u32,
    /// The container before ended by itself, with the status of a failure: it waited for a mount in vain, or lost the one it had.
    pub gave_up: bool,
    /// The number of restarts when the pod was asked to unmount; `None` if no number was noted.
    pub restarts_when_marked: Option<u32>,
    /// The deletion of the pod has begun.
    pub deleting: bool,
    /// The latest time at which the kubelet kills the pod, once its deletion has begun.
    pub ends_at: Option<Timestamp>,
    /// Whether the pod has the label of a Mountpoint Pod. The reconciler leaves other pods alone.
    pub ours: bool,
    /// The release that made the pod.
    pub release: Option<String>,
    /// Whether the pod was asked to unmount.
    pub needs_unmount: bool,
    /// The pod takes no new workload.
    pub no_new_workload: bool,
    /// The workload for which the pod was made.
    pub workload_uid: Option<String>,
    /// The PersistentVolume for which the pod was made.
    pub volume: Option<String>,
    /// The UID of that PersistentVolume; `None` if the pod does not name it.
    pub volume_uid: Option<String>,
    /// The time at which the pod was made.
    pub created: Timestamp,
    /// The digest of the specification from which the pod was made; `None` if the pod does not name it.
    pub spec: Option<String>,
    /// The pod never began, and would be made with another specification now.
    pub outdated: bool,
    /// Whether an attachment in the cluster names the pod.
    pub named: bool,
    /// Whether an attachment in the cluster names the pod with a workload.
    pub used: bool,
    /// The reason why the pod does not start, or why it ended, for the workloads that wait for it.
    pub trouble: Option<String>,
}

impl MountpointPod {
    /// Whether the pod serves or will, and is not about to stop.
    #[must_use]
    pub fn stays(&self) -> bool {
        !self.phase.has_ended() && !self.deleting && !self.needs_unmount && !self.outdated
    }

    /// Whether a process of the pod may serve a mount that a container still reads, even without an attachment. A process that began after
    /// the mark gets no device of the node's driver, but one from its holder if the container before was killed.
    #[must_use]
    pub fn may_serve(&self) -> bool {
        let is_another =
            self.restarts_when_marked.is_some_and(|then| self.needs_unmount && self.restarts > then);
        self.phase == Phase::Running && self.runs && !(is_another && self.gave_up)
    }

    /// Whether the pod takes another workload.
    #[must_use]
    pub fn takes(&self, release: &str) -> bool {
        self.ours && self.stays() && !self.no_new_workload && self.release.as_deref() == Some(release)
    }

    /// Whether the pod was made for this workload and this volume.
    #[must_use]
    pub fn is_for(&self, workload_uid: &str, volume: &str) -> bool {
        self.ours
            && self.workload_uid.as_deref() == Some(workload_uid)
            && self.volume.as_deref() == Some(volume)
    }

    /// Whether the pod was made for the PersistentVolume of this UID, not for a gone one of its name. If either has no UID, the name
    /// counts.
    #[must_use]
    pub fn is_of(&self, volume_uid: Option<&str>) -> bool {
        self.volume_uid.as_deref().zip(volume_uid).is_none_or(|(made_for, wanted)| made_for == wanted)
    }
}
