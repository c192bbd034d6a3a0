//! A Mountpoint Pod that never began gets a successor after the chart changes, and no workload joins it. Facts, plan and calls are the
//! product's, against the API in memory.

mod fixtures;

use csi::contract::{VERSION, pod};
use csi::events::Teller;
use fixtures::{Cluster, NAMESPACE};
use reconciler::apply::Applier;
use reconciler::facts::{Facts, Group};
use reconciler::leader::Leadership;
use reconciler::main_loop::{Again, carry_out};
use reconciler::pod_spec::{PodConfig, Resources};
use serde_json::{Value, json};

fn asking_for(memory: &str) -> PodConfig {
    let resources = Resources { requests_memory: Some(memory.into()), ..Resources::default() };
    PodConfig { resources, ..fixtures::config() }
}

fn facts(cluster: &Cluster) -> Facts {
    let group = Group { node: "node".into(), volume: "pv".into() };
    cluster.cache().facts(&group, VERSION, cluster.now())
}

async fn act(cluster: &Cluster, config: &PodConfig, facts: Facts) -> Again {
    let teller = Teller::new(cluster.client(), "scality-csi-controller", "test");
    let applier = Applier::new(cluster.client(), config.clone(), teller);
    carry_out(&applier, &Leadership::forever(), facts).await
}

/// Looks and acts with these settings until nothing changes.
async fn settle(cluster: &Cluster, config: &PodConfig) {
    loop {
        let before = cluster.revision();
        act(cluster, config, facts(cluster)).await.unwrap();
        if cluster.revision() == before {
            return;
        }
    }
}

/// Two workloads wait for a Mountpoint Pod that asks for 64Gi.
async fn stuck() -> Cluster {
    let cluster = Cluster::new();
    cluster.put("persistentvolumes", fixtures::volume("pv"));
    cluster.put("persistentvolumeclaims", fixtures::claim("pv"));
    for name in ["w", "w2"] {
        cluster.put("pods", fixtures::workload(name, "node", "pv"));
        settle(&cluster, &asking_for("64Gi")).await;
    }
    assert_eq!(requests(&cluster), ["64Gi"]);
    cluster
}

fn requests(cluster: &Cluster) -> Vec<String> {
    let request = |pod: &Value| pod["spec"]["containers"][0]["resources"]["requests"]["memory"].clone();
    cluster.mountpoint_pods().iter().map(|pod| request(pod).as_str().unwrap().to_owned()).collect()
}

fn first() -> String {
    pod::name("uid-of-w", "pv", VERSION, 0)
}

#[tokio::test]
async fn lower_resources_of_the_chart_reach_a_pod_that_does_not_fit_its_node() {
    let cluster = stuck().await;
    settle(&cluster, &asking_for("1Gi")).await;
    assert_eq!(requests(&cluster), ["1Gi"], "both share the new one, and the old one is gone");
    let entries = cluster.attachments()[0]["spec"]["mountpointS3PodAttachments"].clone();
    let named: Vec<_> = entries.as_object().unwrap().values().collect();
    assert!(named.len() == 1 && named[0].as_array().unwrap().len() == 2, "{entries}");
    let revision = cluster.revision();
    settle(&cluster, &asking_for("1Gi")).await;
    assert_eq!(cluster.revision(), revision, "once");
}

#[tokio::test]
async fn a_mountpoint_pod_that_began_keeps_what_it_was_made_with() {
    let cluster = stuck().await;
    cluster.edit("pods", NAMESPACE, &first(), |pod| pod["status"]["phase"] = json!("Running"));
    let revision = cluster.revision();
    settle(&cluster, &asking_for("1Gi")).await;
    assert_eq!((requests(&cluster), cluster.revision()), (vec!["64Gi".to_owned()], revision));
}

#[tokio::test]
async fn a_mountpoint_pod_that_began_behind_the_facts_keeps_its_workloads() {
    let cluster = stuck().await;
    let old = facts(&cluster);
    let attached = cluster.attachments();
    cluster.edit("pods", NAMESPACE, &first(), |pod| pod["status"]["phase"] = json!("Running"));
    act(&cluster, &asking_for("1Gi"), old).await.unwrap_err();
    assert_eq!(cluster.attachments(), attached);
    let pods = cluster.mountpoint_pods();
    let marked = pods.iter().find(|pod| !pod["metadata"]["annotations"][pod::NEEDS_UNMOUNT].is_null());
    assert_eq!(marked, None);
}

#[tokio::test]
async fn a_running_workload_that_lost_its_pod_gets_one_by_the_new_settings() {
    let cluster = stuck().await;
    let status = |it: &mut Value, phase: &str| it["status"]["phase"] = json!(phase);
    for name in ["w", "w2"] {
        cluster.edit("pods", "default", name, |it| status(it, "Running"));
    }
    cluster.edit("pods", NAMESPACE, &first(), |it| status(it, "Failed"));
    settle(&cluster, &asking_for("64Gi")).await;
    assert_eq!(requests(&cluster), ["64Gi"], "a node has no room for the next one, either");
    cluster.wait(600);
    settle(&cluster, &asking_for("1Gi")).await;
    assert_eq!(requests(&cluster), ["1Gi"]);
    let entries = cluster.attachments()[0]["spec"]["mountpointS3PodAttachments"].clone();
    let named: Vec<_> = entries.as_object().unwrap().values().collect();
    assert!(named.len() == 1 && named[0].as_array().unwrap().len() == 2, "{entries}");
}

#[tokio::test]
async fn a_mountpoint_pod_that_does_not_say_what_it_was_made_with_is_left() {
    let cluster = stuck().await;
    cluster.edit("pods", NAMESPACE, &first(), |it| {
        it["metadata"]["annotations"].as_object_mut().unwrap().remove(pod::SPEC);
    });
    settle(&cluster, &asking_for("1Gi")).await;
    assert_eq!(requests(&cluster), ["64Gi"]);
}

#[tokio::test]
async fn a_pod_that_is_right_for_one_of_its_workloads_is_not_remade() {
    let cluster = Cluster::new();
    cluster.put("persistentvolumes", fixtures::volume("pv"));
    cluster.put("persistentvolumeclaims", fixtures::claim("pv"));
    for (name, memory) in [("w", "8Gi"), ("w2", "16Gi")] {
        let mut workload = fixtures::workload(name, "node", "pv");
        workload["spec"]["containers"] =
            json!([{"name": "c", "resources": {"requests": {"memory": memory}}}]);
        cluster.put("pods", workload);
    }
    let group = Group { node: "node".into(), volume: "pv".into() };
    for _ in 0..5 {
        let mut cache = cluster.cache();
        cache.share_percent = 50;
        let facts = cache.facts(&group, VERSION, cluster.now());
        carry_out(&cluster.applier(), &Leadership::forever(), facts).await.unwrap();
    }
    assert_eq!(cluster.mountpoint_pods().len(), 1);
}
