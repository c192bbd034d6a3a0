//! Decisions on hand-written pictures, then both watches against an API server in memory.

use std::time::Duration;

use serde_json::json;

use super::*;
use crate::mounter::testing::api::{Server, attachment, mountpoint_pod};

const NODE: &str = "worker-1";

fn specs(list: &[(&str, serde_json::Value)]) -> View<AttachmentSpec> {
    let mut view = View::default();
    view.apply(Event::Init);
    for (name, value) in list {
        let it: MountpointS3PodAttachment = serde_json::from_value(value.clone()).unwrap();
        view.apply(Event::InitApply(((*name).to_owned(), Some(it.spec))));
    }
    view.apply(Event::InitDone);
    view
}

fn pods(list: &[(&str, MountpointPod)]) -> View<MountpointPod> {
    let mut view = View::default();
    view.apply(Event::Init);
    for (name, pod) in list {
        view.apply(Event::InitApply(((*name).to_owned(), Some(pod.clone()))));
    }
    view.apply(Event::InitDone);
    view
}

fn ready<T>(step: Step<T>) -> T {
    match step {
        Step::Ready(it) => it,
        Step::Wait(error) | Step::Fail(error) => panic!("not ready: {error}"),
    }
}

fn waits<T>(step: Step<T>) -> Error {
    match step {
        Step::Wait(error) => error,
        Step::Fail(error) => panic!("gives up: {error}"),
        Step::Ready(_) => panic!("ready"),
    }
}

fn fails<T>(step: Step<T>) -> Error {
    match step {
        Step::Fail(error) => error,
        Step::Wait(error) => panic!("waits: {error}"),
        Step::Ready(_) => panic!("ready"),
    }
}

#[test]
fn the_pod_comes_from_the_attachment_that_names_volume_and_workload() {
    let view = specs(&[
        ("s3pa-x7k2p", attachment("s3pa-x7k2p", NODE, "pv-1", &[("mp-1", "uid-1"), ("mp-2", "uid-2")])),
        ("s3pa-other", attachment("s3pa-other", NODE, "pv-2", &[("mp-3", "uid-1")])),
    ]);
    assert_eq!(ready(assigned(&view, "pv-1", "uid-2")), "mp-2");
    assert_eq!(ready(assigned(&view, "pv-2", "uid-1")), "mp-3");
    let error = waits(assigned(&view, "pv-1", "uid-3"));
    assert_eq!(error.kind, ErrorKind::DeadlineExceeded);
    assert!(error.to_string().contains("uid-3") && error.to_string().contains("controller"), "{error}");
}

#[test]
fn a_missing_crd_is_said_at_once_and_an_unreachable_server_is_waited_for() {
    let mut view = View::<AttachmentSpec>::default();
    assert_eq!(waits(assigned(&view, "pv-1", "uid-1")).kind, ErrorKind::Unavailable);
    view.broken = Some(Broken::Other("connection refused".into()));
    let error = waits(assigned(&view, "pv-1", "uid-1"));
    assert!(error.to_string().contains("connection refused"), "{error}");
    view.broken = Some(Broken::MissingKind("things.example".into()));
    let error = fails(assigned(&view, "pv-1", "uid-1"));
    assert!(
        error.kind == ErrorKind::Unavailable && error.to_string().contains("kubectl get crd things.example")
    );
    view.apply(Event::Init);
    view.apply(Event::InitDone);
    assert_eq!(view.fault(), None, "installed meanwhile");
}

#[test]
fn what_was_known_is_used_while_the_api_server_is_gone() {
    let mut view = specs(&[("a", attachment("a", NODE, "pv-1", &[("mp-1", "uid-1")]))]);
    view.broken = Some(Broken::Other("gone".into()));
    assert_eq!(ready(assigned(&view, "pv-1", "uid-1")), "mp-1");
}

#[test]
fn a_list_replaces_all_that_was_known_and_only_when_it_is_whole() {
    let mut view = specs(&[("a", attachment("a", NODE, "pv-1", &[("mp-1", "uid-1")]))]);
    view.apply(Event::Init);
    assert_eq!(ready(assigned(&view, "pv-1", "uid-1")), "mp-1");
    view.apply(Event::InitDone);
    waits(assigned(&view, "pv-1", "uid-1"));
}

fn pod(phase: &str) -> MountpointPod {
    MountpointPod { uid: "pod-uid".into(), phase: phase.into(), ..MountpointPod::default() }
}

#[test]
fn each_state_of_a_mountpoint_pod_has_its_own_answer() {
    let unschedulable =
        MountpointPod { why: Some("Unschedulable: 0/1 nodes, Insufficient memory".into()), ..pod("Pending") };
    let view = pods(&[
        ("mp-running", pod("Running")),
        ("mp-pending", unschedulable),
        ("mp-failed", MountpointPod { why: Some("Evicted: disk".into()), ..pod("Failed") }),
        ("mp-ended", pod("Succeeded")),
        ("mp-marked", MountpointPod { needs_unmount: true, ..pod("Running") }),
        (
            "mp-crashing",
            MountpointPod { waits: Some("CrashLoopBackOff: back-off 10s".into()), ..pod("Running") },
        ),
        ("mp-pulling", MountpointPod { waits: Some("ImagePullBackOff: no image".into()), ..pod("Pending") }),
        ("mp-leaving", MountpointPod { leaving: true, ..pod("Pending") }),
    ]);
    let ask = |name| running(&view, name, "mount-s3");
    assert_eq!(ready(ask("mp-running")).uid, "pod-uid");
    let pending = waits(ask("mp-pending"));
    assert!(
        pending.kind == ErrorKind::DeadlineExceeded && pending.to_string().contains("Insufficient memory")
    );
    assert!(pending.to_string().contains("kubectl -n mount-s3 describe pod mp-pending"), "{pending}");
    let failed = fails(ask("mp-failed")).to_string();
    assert!(failed.contains("Evicted: disk") && failed.contains("logs mp-failed"), "{failed}");
    for (name, why) in [("mp-crashing", "CrashLoopBackOff"), ("mp-pulling", "no image")] {
        let error = fails(ask(name)).to_string();
        assert!(error.contains(why) && error.contains("does not run"), "{error}");
    }
    assert!(fails(ask("mp-ended")).to_string().contains("succeeded"));
    assert!(fails(ask("mp-marked")).to_string().contains("is being removed"));
    assert_eq!(fails(ask("mp-leaving")).kind, ErrorKind::Unavailable);
    assert!(waits(ask("mp-none")).to_string().contains("not on this node"));
    assert_eq!(waits(running(&View::default(), "mp-none", "n")).kind, ErrorKind::Unavailable);
}

#[test]
fn a_pods_reason_is_its_containers_before_its_conditions() {
    let unschedulable =
        json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node"});
    let of = |status: serde_json::Value| {
        let it = json!({"metadata": {"name": "mp-1", "uid": "u", "annotations": {pod::NEEDS_UNMOUNT: "true"}},
            "status": status});
        MountpointPod::of(&serde_json::from_value(it).unwrap())
    };
    let pending = of(json!({"phase": "Pending", "conditions": [unschedulable]}));
    assert_eq!(pending.why.as_deref(), Some("Unschedulable: no node"));
    assert!(pending.needs_unmount && !pending.leaving && pending.uid == "u");
    let waiting = json!([{"name": "mountpoint", "image": "", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no image"}}}]);
    let pulling =
        of(json!({"phase": "Pending", "conditions": [unschedulable], "containerStatuses": waiting}));
    assert_eq!(pulling.why.as_deref(), Some("ImagePullBackOff: no image"));
    assert_eq!((pulling.waits, pending.waits), (pulling.why, None));
    let crashing = json!([{"name": "mountpoint", "image": "", "imageID": "", "ready": false, "restartCount": 3,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]);
    let crashing = of(json!({"phase": "Running", "containerStatuses": crashing}));
    let said = "CrashLoopBackOff; it ended last with OOMKilled: exit code 137";
    assert_eq!(crashing.waits.as_deref(), Some(said));
    let begins = json!([{"name": "mountpoint", "image": "", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"waiting": {"reason": "ContainerCreating"}}}]);
    assert_eq!(of(json!({"phase": "Pending", "containerStatuses": begins})).waits, None);
    assert_eq!(of(json!({"phase": "Failed", "reason": "Evicted"})).why.as_deref(), Some("Evicted"));
    assert_eq!(of(json!({"phase": "Running"})).why, None);
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

#[tokio::test]
async fn who_waits_is_woken_by_the_watch_and_by_nothing_else() {
    let server = Server::start();
    let mut tasks = JoinSet::new();
    let assignments = Assignments::follow(&server.client(), NODE, "mount-s3", &mut tasks);
    let waiting = assignments.wait_for("pv-1", "uid-1", soon());
    let acting = async {
        server.watched(2).await;
        server.attachments().put("a", attachment("a", NODE, "pv-1", &[("mp-0", "uid-0")]));
        server.attachments().put("a", attachment("a", NODE, "pv-1", &[("mp-0", "uid-0"), ("mp-1", "uid-1")]));
    };
    let (pod, ()) = tokio::join!(waiting, acting);
    assert_eq!(pod.unwrap(), "mp-1");
    assert_eq!(assignments.known("pv-1", "uid-1").as_deref(), Some("mp-1"));

    server.pods().put("mp-1", mountpoint_pod("mp-1", "pod-uid", NODE, "Pending"));
    let waiting = assignments.wait_running("mp-1", soon());
    let acting = async {
        server.pods().put("mp-elsewhere", mountpoint_pod("mp-elsewhere", "u", "worker-2", "Running"));
        server.pods().put("mp-1", mountpoint_pod("mp-1", "pod-uid", NODE, "Running"));
    };
    let (pod, ()) = tokio::join!(waiting, acting);
    assert_eq!(pod.unwrap().uid, "pod-uid");
    assert_eq!(assignments.pod("mp-elsewhere"), None);
    assert_eq!(assignments.fault(), None);

    server.attachments().remove("a");
    let mut view = assignments.attachments.clone();
    view.wait_for(|view| view.items.is_empty()).await.unwrap();
    let soon = Instant::now() + Duration::from_millis(10);
    let error = assignments.wait_for("pv-1", "uid-1", soon).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::DeadlineExceeded);
}

#[tokio::test]
async fn a_server_without_selectors_is_asked_for_all_and_other_nodes_dropped() {
    let server = Server::start();
    server.attachments().refuse_selectors();
    server.attachments().put("a", attachment("a", "worker-2", "pv-1", &[("mp-2", "uid-1")]));
    server.attachments().put("b", attachment("b", NODE, "pv-1", &[("mp-1", "uid-1")]));
    let mut tasks = JoinSet::new();
    let assignments = Assignments::follow(&server.client(), NODE, "mount-s3", &mut tasks);
    assert_eq!(assignments.wait_for("pv-1", "uid-1", soon()).await.unwrap(), "mp-1");
    assert_eq!(assignments.attachments.borrow().items.len(), 1);
}

#[tokio::test]
async fn a_missing_crd_is_a_fault_that_goes_when_it_is_installed() {
    let server = Server::start();
    server.attachments().hide(true);
    let mut tasks = JoinSet::new();
    let assignments = Assignments::follow(&server.client(), NODE, "mount-s3", &mut tasks);
    let error = assignments.wait_for("pv-1", "uid-1", soon()).await.unwrap_err();
    assert!(
        error.kind == ErrorKind::Unavailable && error.to_string().contains("CustomResourceDefinition"),
        "{error}"
    );
    assert!(assignments.fault().unwrap().contains("CustomResourceDefinition"));
    server.attachments().put("a", attachment("a", NODE, "pv-1", &[("mp-1", "uid-1")]));
    server.attachments().hide(false);
    let mut view = assignments.attachments.clone();
    view.wait_for(|view| view.synced).await.unwrap();
    assert_eq!(assignments.wait_for("pv-1", "uid-1", soon()).await.unwrap(), "mp-1");
    assert_eq!(assignments.fault(), None);
}

#[tokio::test]
async fn changes_during_a_long_pause_of_a_watch_are_seen_despite_a_status_410() {
    let server = Server::start();
    let mut tasks = JoinSet::new();
    let assignments = Assignments::follow(&server.client(), NODE, "mount-s3", &mut tasks);
    server.watched(2).await;
    let ours = attachment("a", NODE, "pv-1", &[("mp-1", "uid-1")]);
    server.attachments().put_and_compact("a", ours);
    assert_eq!(assignments.wait_for("pv-1", "uid-1", soon()).await.unwrap(), "mp-1");
    server.pods().put_and_compact("mp-1", mountpoint_pod("mp-1", "pod-uid", NODE, "Running"));
    assert_eq!(assignments.wait_running("mp-1", soon()).await.unwrap().uid, "pod-uid");
    assert_eq!(assignments.fault(), None);
}
