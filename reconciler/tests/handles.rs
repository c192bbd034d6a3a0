//! Two PersistentVolumes with one handle: their cached states become facts of both.

mod fixtures;

use std::collections::BTreeSet;

use fixtures::Cluster;
use k8s_openapi::jiff::Timestamp;
use reconciler::facts::Group;
use serde_json::json;

/// Workload `name` on a node, with PersistentVolume `pv-NAME` of this handle.
fn add(cluster: &Cluster, name: &str, node: &str, handle: &str) {
    let volume = format!("pv-{name}");
    let mut object = fixtures::volume(&volume);
    object["spec"]["csi"]["volumeHandle"] = json!(handle);
    cluster.put("persistentvolumes", object);
    cluster.put("persistentvolumeclaims", fixtures::claim(&volume));
    cluster.put("pods", fixtures::workload(name, node, &volume));
}

fn group(node: &str, volume: &str) -> Group {
    Group { node: node.into(), volume: volume.into() }
}

#[test]
fn volumes_of_one_handle_are_facts_of_each_other_where_pods_use_both() {
    let cluster = Cluster::new();
    add(&cluster, "a", "n", "same");
    add(&cluster, "b", "n", "same");
    add(&cluster, "c", "n", "else");
    add(&cluster, "far", "m", "same");
    let twins = |node: &str, volume: &str| {
        cluster
            .cache()
            .facts(&group(node, volume), "1", Timestamp::UNIX_EPOCH)
            .twins
            .into_iter()
            .collect::<Vec<_>>()
    };
    assert_eq!(twins("n", "pv-a"), ["pv-b"]);
    assert_eq!(twins("n", "pv-b"), ["pv-a"]);
    assert!(twins("n", "pv-c").is_empty());
    assert!(twins("m", "pv-far").is_empty(), "on its node it is the only one");
    cluster.edit("pods", "default", "b", |pod| pod["status"]["phase"] = json!("Succeeded"));
    assert!(twins("n", "pv-a").is_empty(), "the other one has ended");
}

#[test]
fn a_pod_is_looked_at_for_all_volumes_with_its_volumes_handle() {
    let cluster = Cluster::new();
    add(&cluster, "a", "n", "same");
    add(&cluster, "b", "n", "same");
    let cache = cluster.cache();
    let b = cache.pods.state().into_iter().find(|pod| pod.metadata.name.as_deref() == Some("b")).unwrap();
    assert_eq!(cache.groups_of_pod(&b), BTreeSet::from([group("n", "pv-a"), group("n", "pv-b")]));
}
