//! A Mountpoint Pod, read from the API object. Enters: a [`Pod`] of the namespace of Mountpoint Pods. Leaves: a [`MountpointPod`], with the
//! reason why it does not serve, as a sentence for the Event on its workloads.
//!
//! Never here: a decision about the pod (`plan.rs`).

use csi::contract::{pod, stage};
use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod, PodStatus};
use k8s_openapi::jiff::Timestamp;

use crate::facts::{MountpointPod, Phase};

/// Exit status of a mounter that gave up. A killed mounter has another one, and its mount may go on in the next container.
const FAILED: i32 = 1;

/// The phase of a pod. The phase Unknown counts as Running: the node does not answer, and the pod may still run.
#[must_use]
pub fn phase(pod: &Pod) -> Phase {
    match pod.status.as_ref().and_then(|status| status.phase.as_deref()) {
        Some("Succeeded") => Phase::Succeeded,
        Some("Failed") => Phase::Failed,
        Some("Running" | "Unknown") => Phase::Running,
        _ => Phase::Pending,
    }
}

/// Reads the pod from its object; `named` and `used` come from the attachments. `outdated.rs` sets `outdated` later.
#[must_use]
pub fn read(pod: &Pod, named: bool, used: bool) -> MountpointPod {
    let metadata = &pod.metadata;
    let label = |key: &str| metadata.labels.as_ref().and_then(|all| all.get(key)).cloned();
    let annotation = |key: &str| metadata.annotations.as_ref().and_then(|all| all.get(key)).cloned();
    // Release 2.2 wrote these as labels.
    let either = |key: &str| annotation(key).or_else(|| label(key));
    let is_set = |key: &str| annotation(key).as_deref() == Some("true");
    let phase = phase(pod);
    let mounter = pod.status.as_ref().and_then(mounter);
    let waits = |it: &ContainerState| it.waiting.is_some() || it.terminated.is_some();
    MountpointPod {
        uid: metadata.uid.clone().unwrap_or_default(),
        resource_version: metadata.resource_version.clone().unwrap_or_default(),
        phase,
        began: phase == Phase::Running || pod.status.as_ref().is_some_and(has_begun),
        runs: !mounter.and_then(|it| it.state.as_ref()).is_some_and(waits),
        restarts: mounter.map_or(0, |it| u32::try_from(it.restart_count).unwrap_or_default()),
        gave_up: mounter
            .and_then(|it| it.last_state.as_ref()?.terminated.as_ref())
            .is_some_and(|ended| ended.exit_code == FAILED),
        has_stage: pod
            .spec
            .iter()
            .flat_map(|it| it.volumes.iter().flatten())
            .any(|it| it.name == stage::VOLUME),
        restarts_when_marked: annotation(pod::RESTARTS_WHEN_MARKED).and_then(|text| text.parse().ok()),
        deleting: metadata.deletion_timestamp.is_some(),
        ends_at: metadata.deletion_timestamp.as_ref().map(|time| time.0),
        ours: label(pod::MOUNTED_BY_VERSION).is_some(),
        release: label(pod::MOUNTED_BY_VERSION),
        needs_unmount: is_set(pod::NEEDS_UNMOUNT),
        no_new_workload: is_set(pod::NO_NEW_WORKLOAD),
        workload_uid: either(pod::WORKLOAD_UID),
        volume: either(pod::VOLUME_NAME),
        volume_uid: annotation(pod::VOLUME_UID),
        created: metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0),
        spec: annotation(pod::SPEC),
        outdated: false,
        named,
        used,
        trouble: pod.status.as_ref().and_then(|status| match phase {
            Phase::Pending => waits_for(status),
            Phase::Succeeded => Some("its mount was removed on the host".to_owned()),
            Phase::Failed => ended_by(status),
            Phase::Running => None,
        }),
    }
}

/// The status of the mounter's container. A cluster may add others, such as a service mesh's side-car.
fn mounter(status: &PodStatus) -> Option<&ContainerStatus> {
    status.container_statuses.iter().flatten().find(|it| it.name == pod::CONTAINER)
}

/// Whether a container has started. The kubelet can reject a pod before it starts any.
fn has_begun(status: &PodStatus) -> bool {
    let begun = |container: &ContainerStatus| {
        let state = |it: &ContainerState| it.running.is_some() || it.terminated.is_some();
        container.state.as_ref().is_some_and(state) || container.last_state.as_ref().is_some_and(state)
    };
    status.container_statuses.iter().flatten().any(begun)
}

/// The reason why a pod does not start, if its status names one.
fn waits_for(status: &PodStatus) -> Option<String> {
    let conditions = status.conditions.iter().flatten();
    let mut unscheduled = conditions.filter(|it| it.type_ == "PodScheduled" && it.status == "False");
    if let Some(condition) = unscheduled.next() {
        let why = sentence(condition.reason.as_deref(), condition.message.as_deref());
        return Some(format!("{}. {NO_ROOM}", why.trim_end_matches('.')));
    }
    let waiting = |container: &ContainerStatus| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        let reason = waiting.reason.as_deref()?;
        (!BEGINS.contains(&reason)).then(|| sentence(Some(reason), waiting.message.as_deref()))
    };
    status.container_statuses.iter().flatten().find_map(waiting)
}

/// The reason why a pod failed.
fn ended_by(status: &PodStatus) -> Option<String> {
    if status.reason.is_some() || status.message.is_some() {
        return Some(sentence(status.reason.as_deref(), status.message.as_deref()));
    }
    let ended = |container: &ContainerStatus| {
        let ended = container.state.as_ref()?.terminated.as_ref()?;
        let code = format!("exit code {}", ended.exit_code);
        Some(sentence(ended.reason.as_deref(), Some(ended.message.as_deref().unwrap_or(&code))))
    };
    status.container_statuses.iter().flatten().find_map(ended)
}

fn sentence(reason: Option<&str>, message: Option<&str>) -> String {
    match (reason, message) {
        (Some(reason), Some(message)) => format!("{reason}: {message}"),
        (Some(text), None) | (None, Some(text)) => text.to_owned(),
        (None, None) => "no reason given".to_owned(),
    }
}

/// Advice for a pod that does not fit on its node.
const NO_ROOM: &str = "End other pods of the node, or let it ask for less: volumeAttributes mountpointContainerResourcesRequests... of the \
                       PersistentVolume, mountpointPod.resources of the chart";

/// The waiting reasons of every pod at its start, which are not worth an Event.
const BEGINS: [&str; 2] = ["ContainerCreating", "PodInitializing"];

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(status: serde_json::Value) -> Pod {
        serde_json::from_value(
            json!({"metadata": {"name": "mp-1", "namespace": "mount-s3"}, "status": status}),
        )
        .unwrap()
    }

    #[test]
    fn a_pod_that_does_not_start_says_why() {
        let pending = |more: serde_json::Value| {
            let mut status = json!({"phase": "Pending"});
            status.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            read(&pod(status), true, true).trouble
        };
        assert_eq!(pending(json!({})), None);
        assert_eq!(
            pending(json!({"conditions": [
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes: Insufficient memory"},
            ]})),
            Some(format!("Unschedulable: 0/1 nodes: Insufficient memory. {NO_ROOM}"))
        );
        let waiting = |reason: &str| {
            json!({"containerStatuses": [{
                "name": "mountpoint", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"waiting": {"reason": reason}},
            }]})
        };
        assert_eq!(pending(waiting("ContainerCreating")), None);
        assert_eq!(pending(waiting("ImagePullBackOff")), Some("ImagePullBackOff".to_owned()));
    }

    #[test]
    fn a_failed_pod_says_why() {
        let evicted = json!({"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."});
        assert_eq!(
            read(&pod(evicted), true, true).trouble.as_deref(),
            Some("Evicted: The node was low on resource: memory.")
        );
        let exited = json!({"phase": "Failed", "containerStatuses": [{
            "name": "mountpoint", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
        }]});
        let exited = read(&pod(exited), true, true);
        assert_eq!(exited.trouble.as_deref(), Some("OOMKilled: exit code 137"));
        assert!(exited.began, "it may have served before");
        let rejected = json!({"phase": "Failed", "reason": "Evicted", "message": "The node had condition: [DiskPressure]."});
        assert!(!read(&pod(rejected), true, true).began);
        assert!(read(&pod(json!({"phase": "Running"})), true, true).began);
    }

    #[test]
    fn a_mountpoint_pod_of_release_2_2_is_known_by_its_labels() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "mp-1", "labels": {
            "s3.csi.scality.com/mounted-by-csi-driver-version": "2.2.0",
            "s3.csi.scality.com/volume-name": "pv-1",
            "s3.csi.scality.com/pod-uid": "uid-1",
        }}}))
        .unwrap();
        let pod = read(&pod, true, true);
        assert!(pod.is_for("uid-1", "pv-1"));
        assert!(pod.takes("2.2.0") && !pod.takes("3.0.0"));
    }

    #[test]
    fn a_mounter_that_waits_or_began_after_the_mark_serves_nobody() {
        let running_after = |restarts: u32, state: serde_json::Value, status: i32| {
            let containers = json!([
                {"name": "other", "image": "i", "imageID": "", "ready": true, "restartCount": 9, "state": {"waiting": {}}},
                {"name": "mountpoint", "image": "i", "imageID": "", "ready": true, "restartCount": restarts, "state": state,
                 "lastState": {"terminated": {"exitCode": status}}},
            ]);
            let mut pod = pod(json!({"phase": "Running", "containerStatuses": containers}));
            let mark = [(pod::NEEDS_UNMOUNT, "true"), (pod::RESTARTS_WHEN_MARKED, "2")];
            pod.metadata.annotations =
                Some(mark.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
            pod.metadata.labels = Some([(pod::MOUNTED_BY_VERSION.to_owned(), "9.9.9".to_owned())].into());
            // The caches keep pods in this form.
            crate::prune::pod(&mut pod);
            read(&pod, false, false)
        };
        let running = |restarts, state| running_after(restarts, state, 1);
        let runs = || json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
        assert!(running(2, runs()).may_serve());
        assert!(!running(3, runs()).may_serve());
        for killed in [137, 75] {
            assert!(
                running_after(3, runs(), killed).may_serve(),
                "the node's holder may have brought the mount"
            );
        }
        assert!(!running(2, json!({"waiting": {"reason": "CrashLoopBackOff"}})).may_serve());
        assert!(!running(2, json!({"terminated": {"exitCode": 1}})).may_serve());
        assert!(read(&pod(json!({"phase": "Running"})), false, false).may_serve(), "nothing is known of it");
    }

    #[test]
    fn a_pod_with_a_stage_is_known_after_the_caches_have_reduced_it() {
        let has_stage = |volumes: serde_json::Value, labels: serde_json::Value| {
            let mut pod: Pod = serde_json::from_value(json!({
                "metadata": {"name": "mp-1", "labels": labels}, "spec": {"containers": [], "volumes": volumes},
            }))
            .unwrap();
            crate::prune::pod(&mut pod);
            read(&pod, false, false).has_stage
        };
        let ours = || json!({pod::MOUNTED_BY_VERSION: "9.9.9"});
        let stage =
            || json!([{"name": "comm", "emptyDir": {}}, {"name": "stage", "emptyDir": {"sizeLimit": "1Gi"}}]);
        assert!(has_stage(stage(), ours()));
        assert!(!has_stage(json!([{"name": "comm", "emptyDir": {}}]), ours()));
        assert!(!has_stage(stage(), json!({})), "a workload may name its volumes as it likes");
    }

    #[test]
    fn only_the_word_true_marks_a_pod() {
        let mut pod = pod(json!({"phase": "Running"}));
        let mark = |key: &str, value: &str| [(key.to_owned(), value.to_owned())].into();
        pod.metadata.annotations = Some(mark(pod::NEEDS_UNMOUNT, "true"));
        assert!(read(&pod, true, true).needs_unmount);
        pod.metadata.annotations = Some(mark(pod::NEEDS_UNMOUNT, "false"));
        assert!(!read(&pod, true, true).needs_unmount);
        pod.metadata.annotations = Some(mark(pod::NO_NEW_WORKLOAD, "true"));
        assert!(read(&pod, true, true).no_new_workload);
    }
}
