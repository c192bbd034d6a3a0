//! The facts about one volume on one node: plain values that `observed.rs` gathers and `plan.rs` judges.
//!
//! Facts come from caches, each of which may lag behind the API server by a different time. A decision therefore names the conditions
//! (UIDs, resource versions, a fresh read) that must still hold when it is carried out.

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
    /// The running release; only Mountpoint Pods of this release take workloads.
    pub release: String,
    /// Workloads that use the volume now or that an attachment of the group names, by UID. If an attachment names a workload that is
    /// missing here, the cache does not have its pod.
    pub workloads: BTreeMap<String, Workload>,
    /// The attachments of the group.
    pub attachments: Vec<MountpointS3PodAttachment>,
    /// Pods that these attachments name, pods made for the group, and pods whose names are taken, by name.
    pub pods: BTreeMap<String, MountpointPod>,
    /// Other PersistentVolumes with the same handle that workloads on the node use: the kubelet takes all of them for one volume.
    pub twins: BTreeSet<String>,
    /// Names of Mountpoint Pods whose creation has just failed. Plans do without them.
    pub refused: BTreeSet<String>,
}

/// A workload's pod.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The workload's namespace, name and UID.
    pub at: WorkloadRef,
    /// The phase of the pod.
    pub phase: Phase,
    /// Whether the deletion of the workload has begun.
    pub deleting: bool,
    /// The current properties of the workload's volume; `None` if the claim or the volume is gone.
    pub wants: Option<Wants>,
}

/// The phase of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Some containers of the pod have not started yet.
    Pending,
    /// The pod is running.
    Running,
    /// The pod succeeded: none of its containers runs or will run again.
    Succeeded,
    /// The pod failed: none of its containers runs or will run again.
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
    /// The UID of the PersistentVolume; `None` for an inline volume. A volume that was deleted and created again under the same name may
    /// have another bucket.
    pub volume_uid: Option<String>,
    /// The volume's attributes for its Mountpoint Pods, or the reason why they are invalid.
    pub settings: Result<Settings, String>,
}

/// A pod in the namespace of Mountpoint Pods.
#[derive(Clone, Debug)]
pub struct MountpointPod {
    /// The pod's UID.
    pub uid: String,
    /// The resource version of the object that was read.
    pub resource_version: String,
    /// The phase of the pod.
    pub phase: Phase,
    /// Whether a container of the pod has started, so the pod may have served.
    pub began: bool,
    /// Whether the mounter's container runs, according to the pod's status.
    pub runs: bool,
    /// The number of restarts of the mounter's container.
    pub restarts: u32,
    /// Whether the container before ended by itself with a failure: no mount was given to it, or it lost its mount.
    pub gave_up: bool,
    /// Whether a volume of the pod is a stage, whose files go with the pod.
    pub has_stage: bool,
    /// The number of restarts when the pod was asked to unmount; `None` if it was not recorded.
    pub restarts_when_marked: Option<u32>,
    /// Whether the deletion of the pod has begun.
    pub deleting: bool,
    /// The time at which the kubelet kills the pod at the latest; `None` unless the deletion has begun.
    pub ends_at: Option<Timestamp>,
    /// Whether the pod has the label of a Mountpoint Pod. The reconciler leaves other pods alone.
    pub ours: bool,
    /// The release that made the pod.
    pub release: Option<String>,
    /// Whether the pod was asked to unmount.
    pub needs_unmount: bool,
    /// Whether the pod is closed to new workloads.
    pub no_new_workload: bool,
    /// UID of the workload for which the pod was created.
    pub workload_uid: Option<String>,
    /// The PersistentVolume for which the pod was created.
    pub volume: Option<String>,
    /// The UID of that PersistentVolume; `None` if the pod does not name it.
    pub volume_uid: Option<String>,
    /// The creation time of the pod.
    pub created: Timestamp,
    /// The digest of the specification from which the pod was created; `None` if the pod does not name it.
    pub spec: Option<String>,
    /// Whether the pod has not started, and would now be created with another specification.
    pub outdated: bool,
    /// Whether an attachment in the cluster names the pod.
    pub named: bool,
    /// Whether an attachment in the cluster names the pod with a workload.
    pub used: bool,
    /// The reason why the pod does not start, or why it ended, for Events on the workloads that wait for it.
    pub trouble: Option<String>,
}

impl MountpointPod {
    /// Whether the pod serves or will serve, and nothing has begun to end it.
    #[must_use]
    pub fn stays(&self) -> bool {
        !self.phase.has_ended() && !self.deleting && !self.needs_unmount && !self.outdated
    }

    /// Whether a process of the pod may serve a mount that a container still reads, even without an attachment. A process that started
    /// after the mark gets no device from the node's driver, but it gets one from the holder if the container before was killed. A pod with a
    /// stage may have the only copy of files: it ends when the node has seen that none are left.
    #[must_use]
    pub fn may_serve(&self) -> bool {
        let is_another =
            self.restarts_when_marked.is_some_and(|then| self.needs_unmount && self.restarts > then);
        self.phase == Phase::Running && (self.has_stage || (self.runs && !(is_another && self.gave_up)))
    }

    /// Whether the pod can take another workload.
    #[must_use]
    pub fn takes(&self, release: &str) -> bool {
        self.ours && self.stays() && !self.no_new_workload && self.release.as_deref() == Some(release)
    }

    /// Whether the pod was created for this workload and this volume.
    #[must_use]
    pub fn is_for(&self, workload_uid: &str, volume: &str) -> bool {
        self.ours
            && self.workload_uid.as_deref() == Some(workload_uid)
            && self.volume.as_deref() == Some(volume)
    }

    /// Whether the pod was created for the PersistentVolume with this UID, not for a deleted one with the same name. Without a UID on both
    /// sides the answer is yes: the name alone decides.
    #[must_use]
    pub fn is_of(&self, volume_uid: Option<&str>) -> bool {
        self.volume_uid.as_deref().zip(volume_uid).is_none_or(|(made_for, wanted)| made_for == wanted)
    }
}
