//! Invariants of each write of a reconciler in the model. Enters: all objects before and after a write. Leaves: findings.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::fixtures::{Key, NAMESPACE};

pub(crate) const ATTACHMENTS: &str = "mountpoints3podattachments";
/// A node without a driver: nothing is mounted there, and nothing unmounted.
pub(crate) const BARE_NODE: &str = "node-2";

/// Checks the invariants of one write of a reconciler.
pub(crate) fn judge(before: &BTreeMap<Key, Value>, after: &BTreeMap<Key, Value>, key: &Key) -> Vec<String> {
    let mut found = Vec::new();
    let live: Vec<_> = after.values().filter(|pod| is_live_workload(pod)).map(uid_of).collect();
    if key.0 == "pods" && key.1 == NAMESPACE {
        let (was, is) = (before.get(key), after.get(key));
        let marked_now = is.is_some_and(is_marked) && !was.is_some_and(is_marked);
        let users: Vec<_> = live.iter().filter(|uid| pods_of(after, uid).contains(&key.2)).collect();
        if marked_now && !users.is_empty() {
            found.push(format!("{} is asked to unmount while {users:?} use it", key.2));
        }
        if let (Some(was), None) = (was, is)
            && is_alive(was)
            && !(is_marked(was) && (was["status"]["phase"] == "Pending" || has_begun_again(was)))
        {
            found.push(format!("{} is deleted while it lives", key.2));
        }
    }
    if key.0 == ATTACHMENTS {
        for uid in live {
            if !pods_of(before, uid).is_empty() && pods_of(after, uid).is_empty() {
                found.push(format!("{uid} lives and has lost its attachment"));
            }
        }
        // Attachments are compared by share key: two reconcilers that see different mount options may make two attachments, and one of
        // these goes at once.
        if let Some(attachment) = after.get(key) {
            let mut uids = BTreeSet::new();
            for workload in attachment["spec"]["mountpointS3PodAttachments"]
                .as_object()
                .unwrap()
                .values()
                .flat_map(|it| it.as_array().unwrap())
            {
                if !uids.insert(workload["workloadPodUID"].as_str().unwrap()) {
                    found.push(format!("{} names {workload} twice", key.2));
                }
            }
        }
    }
    found
}

/// Workloads that wait, and that this write gives a pod of another volume than theirs.
pub(crate) fn wrong_volumes(
    before: &BTreeMap<Key, Value>,
    after: &BTreeMap<Key, Value>,
    key: &Key,
) -> Vec<String> {
    let mut found = Vec::new();
    let waits = |pod: &&Value| is_live_workload(pod) && pod["status"]["phase"] == "Pending";
    for workload in after.values().filter(waits).filter(|_| key.0 == ATTACHMENTS) {
        let Some(volume) = volume_of(after, workload) else { continue };
        let had = pods_of(before, uid_of(workload));
        for pod in pods_of(after, uid_of(workload)).into_iter().filter(|pod| !had.contains(pod)) {
            let Some(it) = after.get(&("pods".into(), NAMESPACE.into(), pod.clone())) else { continue };
            let made_for = &it["metadata"]["annotations"]["s3.csi.scality.com/volume-uid"];
            if made_for != uid_of(volume) {
                found.push(format!("{} gets {pod} of another volume: {made_for}", name_of(workload)));
            }
        }
    }
    found
}

pub(crate) fn claim_of(workload: &Value) -> &str {
    workload["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"].as_str().unwrap()
}

pub(crate) fn volume_of<'a>(objects: &'a BTreeMap<Key, Value>, workload: &Value) -> Option<&'a Value> {
    objects.get(&("persistentvolumes".into(), String::new(), claim_of(workload).into()))
}

pub(crate) fn pods_of(objects: &BTreeMap<Key, Value>, uid: &str) -> Vec<String> {
    let attachments = objects.iter().filter(|(key, _)| key.0 == ATTACHMENTS);
    let entries =
        attachments.flat_map(|(_, it)| it["spec"]["mountpointS3PodAttachments"].as_object().unwrap());
    let named = entries
        .filter(|(_, workloads)| workloads.as_array().unwrap().iter().any(|it| it["workloadPodUID"] == uid));
    named.map(|(pod, _)| pod.clone()).collect()
}

pub(crate) fn is_live_workload(object: &Value) -> bool {
    object["kind"] == "Pod" && object["metadata"]["namespace"] == "default" && is_alive(object)
}

pub(crate) fn is_alive(pod: &Value) -> bool {
    pod["status"]["phase"] == "Pending" || pod["status"]["phase"] == "Running"
}

pub(crate) fn is_marked(pod: &Value) -> bool {
    pod["metadata"]["annotations"]["s3.csi.scality.com/needs-unmount"] == "true"
}

/// Whether a marked pod has restarted since the mark.
pub(crate) fn has_begun_again(pod: &Value) -> bool {
    let then = pod["metadata"]["annotations"]["s3.csi.scality.com/restarts-when-marked"].as_str();
    then.is_some_and(|then| restarts(pod) > then.parse().unwrap())
}

pub(crate) fn restarts(pod: &Value) -> u64 {
    pod["status"]["containerStatuses"][0]["restartCount"].as_u64().unwrap_or(0)
}

/// No driver runs on its node.
pub(crate) fn is_bare(pod: &Value) -> bool {
    let affinity = &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    affinity["nodeSelectorTerms"][0]["matchFields"][0]["values"][0] == BARE_NODE
}

pub(crate) fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap()
}

pub(crate) fn uid_of(object: &Value) -> &str {
    object["metadata"]["uid"].as_str().unwrap()
}
