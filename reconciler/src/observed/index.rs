//! The part of the facts that all groups share. Enters: the caches at one moment. Leaves: an [`Index`]: workloads by node, Mountpoint
//! Pods and attachments by group. With it, a sweep over hundreds of groups reads each pod once, not once for each group.
//!
//! Never here: a decision. An index is out of date as soon as a cache changes; the main loop drops it then.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use csi::contract::attachment::MountpointS3PodAttachment;
use k8s_openapi::api::core::v1::{Pod, Volume};
use kube::ResourceExt as _;

use super::{Cache, group_of_attachment, node_of};
use crate::facts::Group;

/// The caches, sorted by the keys with which the facts of a group are looked up.
#[derive(Debug, Default)]
pub struct Index {
    /// Pods that may use a volume of this driver or that an attachment names, by node.
    pub(super) workloads: HashMap<String, Vec<Arc<Pod>>>,
    /// Mountpoint Pods by the group for which they were created.
    pub(super) mountpoint_pods: HashMap<Group, Vec<Arc<Pod>>>,
    /// Attachments by group.
    pub(super) attachments: HashMap<Group, Vec<Arc<MountpointS3PodAttachment>>>,
    /// Names of Mountpoint Pods in attachments, and whether one of the entries has a workload.
    pub(super) named: HashMap<String, bool>,
}

impl Index {
    /// The workloads of a node.
    pub(super) fn on_node(&self, node: &str) -> impl Iterator<Item = &Arc<Pod>> {
        self.workloads.get(node).into_iter().flatten()
    }
}

impl Cache {
    /// An index of the present caches.
    #[must_use]
    pub fn index(&self) -> Index {
        let mut index = Index::default();
        let mut attached = BTreeSet::new();
        for attachment in self.attachments.state() {
            for (name, workloads) in &attachment.spec.mountpoint_pods {
                *index.named.entry(name.clone()).or_default() |= !workloads.is_empty();
                attached.extend(workloads.iter().map(|it| it.workload_pod_uid.clone()));
            }
            index.attachments.entry(group_of_attachment(&attachment)).or_default().push(attachment);
        }
        for pod in self.pods.state() {
            if self.is_mountpoint_pod(&pod) {
                if let Some(group) = self.group_of_mountpoint_pod(&pod) {
                    index.mountpoint_pods.entry(group).or_default().push(pod);
                }
                continue;
            }
            let is_attached = || attached.contains(&pod.uid().unwrap_or_default());
            if let Some(node) = node_of(&pod)
                && (volumes(&pod).any(may_be_ours) || is_attached())
            {
                index.workloads.entry(node.to_owned()).or_default().push(pod);
            }
        }
        index
    }
}

fn volumes(pod: &Pod) -> impl Iterator<Item = &Volume> {
    pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten())
}

/// Whether a volume may belong to this driver: it is a claim, an ephemeral volume, or an inline volume of a driver.
pub(crate) fn may_be_ours(volume: &Volume) -> bool {
    volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some() || volume.csi.is_some()
}
