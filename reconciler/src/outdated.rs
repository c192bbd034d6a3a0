//! Finds Mountpoint Pods that never started and would have another specification now, because an administrator lowered the chart's
//! resources, or named another image or an existing ConfigMap. Enters: facts, the settings of all Mountpoint Pods. Leaves: the facts,
//! in which such pods are outdated.
//!
//! Never here: a pod that has started, which may serve; a decision (`plan.rs` gives the workloads of such a pod another one). The
//! comparison uses only the digest of the requested specification: the API server adds defaults, and webhooks add more.

use std::collections::{BTreeMap, BTreeSet};

use crate::facts::{Facts, MountpointPod, Phase};
use crate::pod_spec::{self, PodConfig, PodRequest};

/// Sets `outdated` in these facts. A pod is not outdated if one of its workloads would get the same pod now.
pub(crate) fn note(config: &PodConfig, facts: &mut Facts) {
    if !facts.pods.values().any(waits) {
        return;
    }
    let wanted = wanted(config, facts);
    for (name, pod) in facts.pods.iter_mut().filter(|(_, pod)| waits(pod)) {
        let wanted = wanted.get(name).filter(|wanted| !wanted.is_empty());
        pod.outdated =
            wanted.is_some_and(|wanted| pod.spec.as_ref().is_some_and(|spec| !wanted.contains(spec)));
    }
}

/// Whether the pod has not started, and names its digest.
fn waits(pod: &MountpointPod) -> bool {
    pod.ours && pod.phase == Phase::Pending && !pod.began && pod.spec.is_some()
}

/// Digests of the pods that workloads would get now, by name of their Mountpoint Pod: for workloads that wait, and for running ones that
/// lost an earlier pod.
fn wanted(config: &PodConfig, facts: &Facts) -> BTreeMap<String, BTreeSet<String>> {
    let mut wanted = BTreeMap::<_, BTreeSet<_>>::new();
    for (name, workloads) in facts.attachments.iter().flat_map(|it| &it.spec.mountpoint_pods) {
        let digests = workloads.iter().filter_map(|it| digest(config, facts, &it.workload_pod_uid));
        wanted.entry(name.clone()).or_default().extend(digests);
    }
    wanted
}

fn digest(config: &PodConfig, facts: &Facts, uid: &str) -> Option<String> {
    let workload = facts.workloads.get(uid).filter(|it| !it.phase.has_ended())?;
    let wants = workload.wants.as_ref()?;
    let request = PodRequest {
        name: String::new(),
        node: facts.group.node.clone(),
        volume: facts.group.volume.clone(),
        volume_uid: wants.volume_uid.clone(),
        handle: wants.key.handle.clone(),
        workload_uid: uid.to_owned(),
        settings: wants.settings.clone().ok()?,
    };
    Some(pod_spec::digest(config, &request))
}
