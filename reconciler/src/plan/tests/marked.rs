//! Marked Mountpoint Pods that no node driver ends: there is none on the node, or the mounter can't run. Such a pod is deleted, but never one
//! whose process may still serve a container.

use super::*;

/// A marked pod that no attachment names. `restarts_when_marked`: its container's restarts at the mark.
fn marked(restarts_when_marked: Option<u32>) -> MountpointPod {
    MountpointPod { needs_unmount: true, restarts_when_marked, named: false, used: false, ..pod("gone") }
}

/// Nobody uses the volume any more.
fn with(pod: MountpointPod) -> Facts {
    let mut facts = facts();
    facts.workloads.clear();
    facts.pods.insert("mp".into(), pod);
    facts
}

fn deleted() -> [Effect; 2] {
    let delete = Effect::DeletePod(version("mp", "uid-gone", "7"));
    [Effect::ConfirmUnnamed { pod: "mp".into() }, delete]
}

#[test]
fn without_a_driver_a_marked_pod_is_deleted_once_its_mounter_restarted() {
    assert_eq!(effects(&with(MountpointPod { restarts: 3, ..marked(Some(3)) })), []);
    assert_eq!(effects(&with(MountpointPod { restarts: 4, gave_up: true, ..marked(Some(3)) })), deleted());
}

/// Goal: a container that reads without an attachment keeps the mount that the node's holder brought along.
#[test]
fn a_marked_pod_whose_container_was_killed_may_serve_again() {
    let killed = MountpointPod { restarts: 4, ..marked(Some(3)) };
    assert_eq!(effects(&with(killed.clone())), []);
    assert_eq!(effects(&with(MountpointPod { restarts: 5, gave_up: true, ..killed })), deleted());
}

/// Goal: files that the bucket lacks do not go with the pod because its mounter waited in vain for another device.
#[test]
fn a_marked_pod_with_a_stage_is_not_deleted_whatever_its_container_does() {
    let with_stage = || MountpointPod { has_stage: true, ..marked(Some(3)) };
    assert_eq!(effects(&with(MountpointPod { restarts: 9, gave_up: true, ..with_stage() })), []);
    assert_eq!(effects(&with(MountpointPod { runs: false, ..with_stage() })), []);
    // The node has seen that no file waits, and told the mounter to end.
    let delete = Effect::DeletePod(version("mp", "uid-gone", "7"));
    assert_eq!(effects(&with(MountpointPod { phase: Phase::Succeeded, ..with_stage() })), [delete]);
}

#[test]
fn a_marked_pod_whose_container_does_not_run_is_deleted() {
    // CrashLoopBackOff: the phase is Running.
    assert_eq!(effects(&with(MountpointPod { runs: false, ..marked(Some(0)) })), deleted());
}

#[test]
fn a_marked_pod_that_may_serve_is_never_deleted_however_old_its_mark() {
    let mut facts = with(marked(Some(0)));
    facts.now += SignedDuration::from_hours(1000);
    assert_eq!(effects(&facts), []);
}

#[test]
fn a_pod_named_by_an_attachment_is_not_deleted_whatever_it_does() {
    for restarts in [0, 9] {
        let pod = MountpointPod { runs: false, restarts, named: true, ..marked(Some(0)) };
        assert_eq!(effects(&with(pod)), []);
    }
    let mut facts = served();
    facts.pods.insert("mp".into(), MountpointPod { runs: false, restarts: 9, ..marked(Some(0)) });
    facts.workloads.get_mut("w").unwrap().phase = Phase::Running;
    assert_eq!(effects(&facts), []);
}

#[test]
fn restarts_of_a_pod_marked_by_others_are_counted_from_now_on() {
    let noted = Effect::MarkNeedsUnmount { at: version("mp", "uid-gone", "7"), restarts: 5 };
    assert_eq!(effects(&with(MountpointPod { restarts: 5, ..marked(None) })), [noted]);
}
