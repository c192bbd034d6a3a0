//! Room for Mountpoint Pods, by the main loop on the API in memory.

mod fixtures;

use csi::contract::{VERSION, pod};
use csi::events::Teller;
use fixtures::{Cluster, NAMESPACE};
use reconciler::apply::Applier;
use reconciler::leader::Leadership;
use reconciler::main_loop::MainLoop;
use reconciler::pod_spec::{HeadroomConfig, PodConfig};
use serde_json::{Value, json};
use testkit::until_async;

fn gated(name: &str, claim: &str) -> Value {
    let mut pod = fixtures::workload(name, "", claim);
    pod["spec"]["schedulingGates"] = json!([{"name": "example.com/quota"}, {"name": pod::HEADROOM_GATE}]);
    pod
}

fn applier(cluster: &Cluster, headroom: bool) -> Applier {
    let headroom = headroom.then(|| HeadroomConfig {
        image: "pause".into(),
        pull_policy: None,
        labels: [("team".to_owned(), "storage".to_owned())].into(),
        priority_class: "headroom".into(),
        preempting_class: "preempting".into(),
    });
    let config = PodConfig { priority_class: Some("critical".into()), headroom, ..fixtures::config() };
    Applier::new(cluster.client(), config, Teller::new(cluster.client(), "scality-csi-controller", "test"))
}

fn workload(cluster: &Cluster, name: &str) -> Value {
    cluster.get("pods", "default", name).unwrap()
}

/// Runs the loop while `test` lasts.
async fn with_controller(cluster: &Cluster, headroom: bool, test: impl AsyncFnOnce()) {
    let main_loop =
        MainLoop::new(&cluster.client(), NAMESPACE, applier(cluster, headroom), Leadership::forever());
    let mut health = main_loop.health();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(main_loop.run(async {
        let _ = stopped.await;
    }));
    health.wait_for(|health| health.ready).await.unwrap();
    test().await;
    drop(stop);
    running.await.unwrap();
}

#[tokio::test]
async fn a_gated_workload_gets_room_its_place_and_its_pod_by_preemption() {
    let cluster = Cluster::new();
    cluster.put("pods", gated("w", "late"));
    let room = pod::headroom_name("uid-of-w", "late");
    with_controller(&cluster, true, async || {
        // The volume is made while the workload waits.
        cluster.put("persistentvolumes", fixtures::volume("late"));
        cluster.put("persistentvolumeclaims", fixtures::claim("late"));
        let gates = || workload(&cluster, "w")["spec"]["schedulingGates"].clone();
        until_async("our gate is gone", || gates() == json!([{"name": "example.com/quota"}])).await;
        let held = cluster.get("pods", NAMESPACE, &room).expect("the room is held before the gate goes");
        assert_eq!(held["spec"]["priorityClassName"], "headroom");
        let label =
            &held["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0];
        assert_eq!(label["labelSelector"]["matchLabels"], workload(&cluster, "w")["metadata"]["labels"]);
        assert_eq!(label["namespaces"], json!(["default"]));

        cluster.edit("pods", "default", "w", |pod| {
            pod["spec"]["nodeName"] = json!("node");
            pod["spec"].as_object_mut().unwrap().remove("schedulingGates");
        });
        let name = pod::name("uid-of-w", "late", VERSION, 0);
        until_async("there is a Mountpoint Pod", || cluster.get("pods", NAMESPACE, &name).is_some()).await;
        let made = cluster.get("pods", NAMESPACE, &name).unwrap();
        assert_eq!(made["spec"]["priorityClassName"], "preempting");
        assert!(cluster.get("pods", NAMESPACE, &room).is_some(), "nobody else is let in meanwhile");

        cluster.edit("pods", "default", "w", |pod| pod["status"]["phase"] = json!("Running"));
        until_async("the room is given back", || cluster.get("pods", NAMESPACE, &room).is_none()).await;
        let labels = || workload(&cluster, "w")["metadata"]["labels"].clone();
        until_async("the label is gone", || labels().get(pod::HEADROOM_FOR_WORKLOAD).is_none()).await;
        // A pod without the gate is served as ever.
        cluster.put("persistentvolumes", fixtures::volume("plain"));
        cluster.put("persistentvolumeclaims", fixtures::claim("plain"));
        cluster.put("pods", fixtures::workload("plain", "node", "plain"));
        let name = pod::name("uid-of-plain", "plain", VERSION, 0);
        until_async("there is a Mountpoint Pod", || cluster.get("pods", NAMESPACE, &name).is_some()).await;
        assert_eq!(cluster.get("pods", NAMESPACE, &name).unwrap()["spec"]["priorityClassName"], "critical");
    })
    .await;
}

#[tokio::test]
async fn a_headroom_pod_that_is_refused_is_told_and_the_workload_waits() {
    let cluster = Cluster::new();
    cluster.put("persistentvolumes", fixtures::volume("pv"));
    cluster.put("persistentvolumeclaims", fixtures::claim("pv"));
    cluster.lock().refuse_pods = Some((403, "exceeded quota: full".into()));
    cluster.put("pods", gated("w", "pv"));
    with_controller(&cluster, true, async || {
        let said = || {
            cluster
                .all("events")
                .iter()
                .any(|it| it["note"].as_str().unwrap_or_default().contains("exceeded quota: full"))
        };
        until_async("the refusal is reported", said).await;
        assert_eq!(workload(&cluster, "w")["spec"]["schedulingGates"][1]["name"], pod::HEADROOM_GATE);
        cluster.lock().refuse_pods = None;
        // Another change of the pod, and it is tried again.
        cluster.edit("pods", "default", "w", |pod| pod["metadata"]["annotations"] = json!({"turn": "x"}));
        let gates = || workload(&cluster, "w")["spec"]["schedulingGates"].as_array().unwrap().len();
        until_async("our gate is gone", || gates() == 1).await;
    })
    .await;
}

#[tokio::test]
async fn without_leave_of_the_chart_no_workload_is_changed() {
    let cluster = Cluster::new();
    cluster.put("persistentvolumes", fixtures::volume("pv"));
    cluster.put("persistentvolumeclaims", fixtures::claim("pv"));
    cluster.put("pods", gated("w", "pv"));
    cluster.put("pods", fixtures::workload("beside", "node", "pv"));
    with_controller(&cluster, false, async || {
        until_async("there is an attachment", || cluster.attachments().len() == 1).await;
    })
    .await;
    let calls = cluster.lock().calls.clone();
    assert!(!calls.iter().any(|call| call.contains("hr-") || call.contains("/w")), "{calls:?}");
    assert_eq!(cluster.mountpoint_pods().len(), 1);
}
