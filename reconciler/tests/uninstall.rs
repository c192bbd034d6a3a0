//! Refusals of an uninstall: by attachments, and by pods whose volumes a node's systemd has mounted. Against the API in memory.

mod fixtures;

use csi::contract::VERSION;
use fixtures::Cluster;
use reconciler::facts::Group;
use reconciler::leader::Leadership;
use reconciler::main_loop::carry_out;
use reconciler::uninstall::check_unused;
use serde_json::{Value, json};

/// A volume with its claim, and no pod.
fn cluster() -> Cluster {
    let cluster = Cluster::new();
    cluster.put("persistentvolumes", fixtures::volume("pv"));
    cluster.put("persistentvolumeclaims", fixtures::claim("pv"));
    cluster
}

async fn refusal(cluster: &Cluster) -> String {
    let keep_by = Some("helm rollback mount-s3 3 --namespace kube-system");
    check_unused(cluster.client(), keep_by).await.map_or_else(|error| error.to_string(), |()| String::new())
}

#[tokio::test]
async fn an_uninstall_is_refused_by_name_while_a_volume_is_in_use() {
    let cluster = cluster();
    assert_eq!(refusal(&cluster).await, "");
    cluster.put("pods", fixtures::workload("w", "node", "pv"));
    let group = Group { node: "node".into(), volume: "pv".into() };
    let facts = cluster.cache().facts(&group, VERSION, cluster.now());
    carry_out(&cluster.applier(), &Leadership::forever(), facts).await.unwrap();
    let refusal = refusal(&cluster).await;
    for words in [
        "1 attachments",
        "PersistentVolume pv on node node",
        "--no-hooks",
        "keep the driver: helm rollback mount-s3 3 ",
    ] {
        assert!(refusal.contains(words), "{refusal}");
    }
    assert!(!refusal.contains("no attachment names"), "each use once: {refusal}");
}

#[tokio::test]
async fn an_uninstall_is_refused_while_a_pod_has_a_volume_that_systemd_mounted() {
    let cluster = cluster();
    cluster.put("pods", fixtures::workload("w", "node", "pv"));
    let said = "1 pods that no attachment names, such as default/w on node node with PersistentVolume pv";
    let refused = refusal(&cluster).await;
    assert!(refused.contains(said), "{refused}");
    cluster.edit("pods", "default", "w", |pod| pod["status"]["phase"] = json!("Succeeded"));
    assert_eq!(refusal(&cluster).await, "", "it has ended");
}

#[tokio::test]
async fn no_uninstall_is_refused_for_a_volume_that_its_claim_has_left() {
    let cluster = cluster();
    cluster.put("pods", fixtures::workload("w", "node", "pv"));
    for (phase, refused) in [("Bound", true), ("Released", false), ("Failed", false)] {
        cluster.edit("persistentvolumes", "", "pv", |it| it["status"] = json!({"phase": phase}));
        assert_eq!(!refusal(&cluster).await.is_empty(), refused, "{phase}");
    }
}

#[tokio::test]
async fn an_uninstall_is_refused_while_a_pod_uses_an_inline_or_claimed_volume() {
    let own: [(Value, &str); 2] = [
        (
            json!({"name": "v", "csi": {"driver": "s3.csi.scality.com"}}),
            "default/w on node node with volume v",
        ),
        (json!({"name": "v", "ephemeral": {}}), "default/w on node node with PersistentVolume pv"),
    ];
    for (volume, said) in own {
        let cluster = cluster();
        cluster.edit("persistentvolumes", "", "pv", |it| it["spec"]["claimRef"]["name"] = json!("w-v"));
        let mut workload = fixtures::workload("w", "node", "none");
        workload["spec"]["volumes"] = json!([volume]);
        cluster.put("pods", workload);
        let refused = refusal(&cluster).await;
        assert!(refused.contains(said), "{refused}");
    }
}

#[tokio::test]
async fn other_drivers_and_unscheduled_pods_refuse_no_uninstall() {
    let cluster = cluster();
    let mut waits = fixtures::workload("waits", "node", "pv");
    waits["spec"]["nodeName"] = Value::Null;
    cluster.put("pods", waits);
    let mut others = fixtures::volume("others");
    others["spec"]["csi"]["driver"] = json!("other");
    cluster.put("persistentvolumes", others);
    cluster.put("persistentvolumeclaims", fixtures::claim("others"));
    cluster.put("pods", fixtures::workload("w", "node", "others"));
    assert_eq!(refusal(&cluster).await, "");
}
