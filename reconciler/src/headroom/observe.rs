//! Reads the facts about headroom from the caches. Enters: pods, claims and volumes. Leaves: [`Facts`].

use std::time::Duration;

use csi::contract::pod;
use csi::events::WorkloadRef;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use kube::runtime::reflector::ObjectRef;

use super::{Facts, HeadroomPod, Workload};
use crate::facts::{Group, Phase};
use crate::mountpoint_pod;
use crate::observed::{Cache, claims_of, has_reserved};
use crate::plan::Version;
use crate::pod_spec::Settings;

/// Wait before an Event mentions an unbound claim. Volumes take seconds to be provisioned.
const UNBOUND_FOR: Duration = Duration::from_secs(30);

impl Cache {
    /// The workloads with gate or label, and the headroom pods.
    #[must_use]
    pub fn headroom(&self, now: Timestamp) -> Facts {
        let mut facts = Facts::default();
        for pod in self.pods.state_filter(|pod| self.is_about_headroom(pod)) {
            match self.headroom_pod(&pod) {
                Some(headroom) => facts.pods.push(headroom),
                None => facts.workloads.push(self.gated(&pod, now)),
            }
        }
        facts
    }

    /// Whether a pod has gate or label, or is a headroom pod.
    #[must_use]
    pub fn is_about_headroom(&self, pod: &Pod) -> bool {
        gates(pod).any(|gate| gate == pod::HEADROOM_GATE) || has_reserved(pod) || self.is_headroom_pod(pod)
    }

    fn is_headroom_pod(&self, pod: &Pod) -> bool {
        pod.metadata.namespace.as_deref() == Some(&self.namespace)
            && pod.labels().contains_key(pod::HEADROOM_FOR_POD)
            && pod.metadata.name.as_deref().is_some_and(|name| name.starts_with("hr-"))
    }

    fn headroom_pod(&self, pod: &Pod) -> Option<HeadroomPod> {
        self.is_headroom_pod(pod).then(|| HeadroomPod {
            version: version_of(pod),
            workload_uid: pod.labels()[pod::HEADROOM_FOR_POD].clone(),
            volume: pod.annotations().get(pod::HEADROOM_FOR_VOLUME).cloned().unwrap_or_default(),
            deleting: pod.metadata.deletion_timestamp.is_some(),
        })
    }

    fn gated(&self, pod: &Pod, now: Timestamp) -> Workload {
        let created = pod.metadata.creation_timestamp.as_ref().map_or(now, |time| time.0);
        let is_ours = |gate: &&str| *gate == pod::HEADROOM_GATE;
        Workload {
            at: WorkloadRef {
                namespace: pod.namespace().unwrap_or_default(),
                name: pod.name_any(),
                uid: pod.uid().unwrap_or_default(),
            },
            version: version_of(pod),
            gated: gates(pod).any(|gate| is_ours(&gate)),
            other_gates: gates(pod).filter(|gate| !is_ours(gate)).map(str::to_owned).collect(),
            labelled: has_reserved(pod),
            pending: mountpoint_pod::phase(pod) == Phase::Pending,
            deleting: pod.metadata.deletion_timestamp.is_some(),
            waits_long: now.duration_since(created).unsigned_abs() >= UNBOUND_FOR,
            volumes: self.volumes_to_be(pod),
        }
    }

    /// The volumes of this driver that a pod uses, with their settings.
    fn volumes_to_be(&self, pod: &Pod) -> Result<Vec<(String, Settings)>, String> {
        let namespace = pod.namespace().unwrap_or_default();
        for (name, _) in claims_of(pod) {
            let claim = self.claims.get(&ObjectRef::new(&name).within(&namespace));
            let bound = claim.as_ref().and_then(|it| it.spec.as_ref()?.volume_name.as_deref());
            if bound.is_none_or(|volume| self.volumes.get(&ObjectRef::new(volume)).is_none()) {
                return Err(format!(
                    "claim {name} is not bound. A claim of a class with volumeBindingMode WaitForFirstConsumer never is while the pod has \
                     the gate {}: use Immediate, or make the pod without the gate",
                    pod::HEADROOM_GATE
                ));
            }
        }
        let mut volumes = Vec::new();
        for volume in self.volumes_of(pod) {
            let group = Group { node: String::new(), volume: volume.name_any() };
            if let Some(wants) = self.wants(pod, &volume, &group) {
                volumes.push((group.volume, wants.settings?));
            }
        }
        volumes.sort_by(|one, other| one.0.cmp(&other.0));
        volumes.dedup_by(|one, other| one.0 == other.0);
        Ok(volumes)
    }
}

fn gates(pod: &Pod) -> impl Iterator<Item = &str> {
    let gates = pod.spec.iter().flat_map(|spec| spec.scheduling_gates.iter().flatten());
    gates.map(|gate| gate.name.as_str())
}

fn version_of(pod: &Pod) -> Version {
    Version {
        name: pod.name_any(),
        uid: pod.uid().unwrap_or_default(),
        resource_version: pod.resource_version().unwrap_or_default(),
    }
}
