//! Reduces objects to the fields that the reconciler reads. Enters: an object from the API server. Leaves: the same object with
//! these fields only.
//!
//! A cluster has thousands of pods, and the reconciler keeps all of them in memory; of most it needs a name, a node and a phase. Never
//! here: dropping a field that a decision needs. The tests of this crate see only pruned objects, so a missing field fails a test.

use std::collections::BTreeMap;

use csi::contract::DRIVER;
use csi::contract::attachment::{MOUNTED_BY_VERSION, MountpointS3PodAttachment};
use csi::contract::pod::{CONTAINER, DRIVER_CONTAINER};
use csi::contract::stage;
use k8s_openapi::api::core::v1::{
    Affinity, Container, ContainerStatus, EphemeralVolumeSource, PersistentVolume, PersistentVolumeClaim,
    PersistentVolumeClaimSpec, PersistentVolumeSpec, Pod, PodSecurityContext, PodSpec, PodStatus,
    ServiceAccount, Volume,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::observed::index::may_be_ours;

/// Reduces a pod to its phase, its node, and the volumes that may belong to this driver. A workload that may get a Mountpoint Pod also
/// keeps its resources, for the share; a Mountpoint Pod its stage and the reason why it does not run; a driver's pod its image.
pub fn pod(pod: &mut Pod) {
    pod.metadata = of_ours(std::mem::take(&mut pod.metadata));
    let is_mountpoint_pod =
        pod.metadata.labels.as_ref().is_some_and(|all| all.contains_key(MOUNTED_BY_VERSION));
    let is_driver = |it: &PodSpec| it.containers.iter().any(|it| it.name == DRIVER_CONTAINER);
    let is_driver = !is_mountpoint_pod && pod.spec.as_ref().is_some_and(is_driver);
    pod.spec = pod.spec.take().map(|it| spec(it, is_mountpoint_pod));
    pod.status = pod.status.take().map(|it| status(it, is_mountpoint_pod, is_driver));
}

fn spec(spec: PodSpec, is_mountpoint_pod: bool) -> PodSpec {
    let (volumes, rest): (Vec<_>, Vec<_>) =
        spec.volumes.unwrap_or_default().into_iter().partition(may_be_ours);
    let volumes: Vec<_> = volumes.into_iter().map(volume_of_pod).collect();
    let is_stage = |it: &Volume| is_mountpoint_pod && it.name == stage::VOLUME;
    let stage = rest.into_iter().find(is_stage).map(|it| Volume { name: it.name, ..Volume::default() });
    let has_image = |it: &Container| match is_mountpoint_pod {
        true => it.name == CONTAINER,
        false => it.name == DRIVER_CONTAINER,
    };
    let bare = |it: Container| match has_image(&it) {
        true => Container { name: it.name, image: it.image, resources: it.resources, ..Container::default() },
        false => Container { resources: it.resources, ..Container::default() },
    };
    let kept = spec.containers.into_iter().filter(|it| !volumes.is_empty() || has_image(it));
    let containers = kept.map(bare).collect();
    // The affinity names the node of a Mountpoint Pod before it is scheduled.
    let affinity = spec.affinity.filter(|_| is_mountpoint_pod);
    let affinity = affinity.map(|it| Affinity { node_affinity: it.node_affinity, ..Affinity::default() });
    let fs_group = spec.security_context.and_then(|context| context.fs_group);
    PodSpec {
        node_name: spec.node_name,
        containers,
        affinity,
        scheduling_gates: spec.scheduling_gates,
        security_context: fs_group
            .map(|group| PodSecurityContext { fs_group: Some(group), ..PodSecurityContext::default() }),
        service_account_name: spec.service_account_name.filter(|_| !volumes.is_empty()),
        volumes: Some(shrunk(volumes.into_iter().chain(stage).collect()))
            .filter(|it: &Vec<_>| !it.is_empty()),
        ..PodSpec::default()
    }
}

/// Drops the claim template of an ephemeral volume: the claim has the same content.
fn volume_of_pod(volume: Volume) -> Volume {
    Volume {
        name: volume.name,
        persistent_volume_claim: volume.persistent_volume_claim,
        ephemeral: volume.ephemeral.map(|_| EphemeralVolumeSource::default()),
        csi: volume.csi.filter(|csi| csi.driver == DRIVER),
        ..Volume::default()
    }
}

fn status(status: PodStatus, is_mountpoint_pod: bool, is_driver: bool) -> PodStatus {
    if !is_mountpoint_pod && !is_driver {
        return PodStatus { phase: status.phase, ..PodStatus::default() };
    }
    let bare = |it: ContainerStatus| ContainerStatus {
        name: it.name,
        restart_count: it.restart_count,
        state: it.state,
        last_state: it.last_state,
        ..ContainerStatus::default()
    };
    let conditions = status.conditions.unwrap_or_default().into_iter();
    let unscheduled = conditions.filter(|it| it.type_ == "PodScheduled" && it.status == "False").collect();
    PodStatus {
        phase: status.phase,
        reason: status.reason,
        message: status.message,
        conditions: Some(shrunk(unscheduled)),
        container_statuses: status.container_statuses.map(|all| all.into_iter().map(bare).collect()),
        ..PodStatus::default()
    }
}

/// Reduces a claim to its volume's name and its owners.
pub fn claim(claim: &mut PersistentVolumeClaim) {
    let owners = claim.metadata.owner_references.take();
    claim.metadata = ObjectMeta { owner_references: owners, ..of_ours(std::mem::take(&mut claim.metadata)) };
    claim.spec = claim
        .spec
        .take()
        .map(|it| PersistentVolumeClaimSpec { volume_name: it.volume_name, ..Default::default() });
    claim.status = None;
}

/// Reduces a volume to its claim and mode; a volume of this driver also keeps its CSI source and mount options.
pub fn volume(volume: &mut PersistentVolume) {
    volume.metadata = of_ours(std::mem::take(&mut volume.metadata));
    volume.spec = volume.spec.take().map(|it| {
        let csi = it.csi.filter(|csi| csi.driver == DRIVER);
        let mount_options = it.mount_options.filter(|_| csi.is_some());
        PersistentVolumeSpec {
            claim_ref: it.claim_ref,
            volume_mode: it.volume_mode,
            csi,
            mount_options,
            ..Default::default()
        }
    });
    volume.status = None;
}

/// Reduces a service account to its annotations, which name roles.
pub fn account(account: &mut ServiceAccount) {
    let annotations = account.metadata.annotations.take();
    account.metadata = ObjectMeta { annotations, ..of_ours(std::mem::take(&mut account.metadata)) };
    account.secrets = None;
    account.image_pull_secrets = None;
}

/// Drops the managed fields of an attachment.
pub fn attachment(attachment: &mut MountpointS3PodAttachment) {
    attachment.metadata.managed_fields = None;
}

/// Keeps name, UID, versions and times, and the driver's own labels and annotations.
fn of_ours(metadata: ObjectMeta) -> ObjectMeta {
    let ours = |all: Option<BTreeMap<String, String>>| {
        let is_ours = |key: &str| key.strip_prefix(DRIVER).is_some_and(|rest| rest.starts_with('/'));
        let kept: BTreeMap<_, _> = all?.into_iter().filter(|(key, _)| is_ours(key)).collect();
        (!kept.is_empty()).then_some(kept)
    };
    ObjectMeta {
        name: metadata.name,
        namespace: metadata.namespace,
        uid: metadata.uid,
        resource_version: metadata.resource_version,
        creation_timestamp: metadata.creation_timestamp,
        deletion_timestamp: metadata.deletion_timestamp,
        labels: ours(metadata.labels),
        annotations: ours(metadata.annotations),
        ..ObjectMeta::default()
    }
}

/// Shrinks a filtered list to its length: otherwise it keeps the memory of removed entries.
fn shrunk<T>(mut list: Vec<T>) -> Vec<T> {
    list.shrink_to_fit();
    list
}
