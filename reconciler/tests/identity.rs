//! The identity of a Mountpoint Pod, and volumes that stand in pods: the contents of the caches become facts.

mod fixtures;

use std::collections::BTreeSet;

use csi::contract::attachment::Identity;
use csi::contract::pod;
use csi::contract::volume::inline_handle;
use fixtures::Cluster;
use k8s_openapi::jiff::Timestamp;
use reconciler::facts::{Group, Wants};
use reconciler::observed::Cache;
use reconciler::pod_spec::{self, Owners, PodRequest};
use serde_json::{Value, json};

/// A pod of this account with a volume that says `authenticationSource: pod`.
fn cluster() -> Cluster {
    let cluster = Cluster::new();
    let mut volume = fixtures::volume("pv");
    volume["spec"]["csi"]["volumeAttributes"]["authenticationSource"] = json!("pod");
    cluster.put("persistentvolumes", volume);
    cluster.put("persistentvolumeclaims", fixtures::claim("pv"));
    let mut pod = fixtures::workload("w", "n", "pv");
    pod["spec"]["serviceAccountName"] = json!("writer");
    cluster.put("pods", pod);
    cluster
}

fn account(name: &str, annotations: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"name": name, "namespace": "default", "annotations": annotations},
    })
}

fn wants(cache: &Cache, volume: &str) -> Wants {
    let group = Group { node: "n".into(), volume: volume.into() };
    let facts = cache.facts(&group, "1", Timestamp::UNIX_EPOCH);
    facts.workloads.into_values().next().unwrap().wants.unwrap()
}

#[test]
fn the_identity_is_the_workloads_account_and_its_annotated_role() {
    let cluster = cluster();
    let identity = |role: &str| Identity {
        namespace: "default".into(),
        service_account: "writer".into(),
        role: role.into(),
    };
    // Without a role no Mountpoint Pod is made, and the workload hears why.
    let without = wants(&cluster.cache(), "pv");
    let why = without.settings.unwrap_err();
    assert!(why.contains("default/writer") && why.contains("s3.csi.scality.com/role-arn"), "{why}");
    assert!(why.contains("podIdentity.agentUrl"), "{why}");
    // An agent may give keys by the account alone: none is needed then, and one that there is goes first.
    let with_agent = || wants(&Cache { agent: true, ..cluster.cache() }, "pv");
    assert!(with_agent().settings.is_ok() && with_agent().key.identity == Some(identity("")));
    cluster.put("serviceaccounts", account("writer", json!({"eks.amazonaws.com/role-arn": "arn:aws"})));
    assert_eq!(with_agent().key.identity, Some(identity("arn:aws")));
    let of_aws = wants(&cluster.cache(), "pv");
    assert!(of_aws.settings.is_ok() && of_aws.key.identity == Some(identity("arn:aws")));
    let both = json!({"eks.amazonaws.com/role-arn": "arn:aws", "s3.csi.scality.com/role-arn": " arn:ours\n"});
    cluster.put("serviceaccounts", account("writer", both));
    assert_eq!(wants(&cluster.cache(), "pv").key.identity, Some(identity("arn:ours")));
    // A Secret goes first, as on the node.
    cluster.edit("persistentvolumes", "", "pv", |volume| {
        volume["spec"]["csi"]["nodePublishSecretRef"] = json!({"name": "s", "namespace": "default"});
    });
    assert_eq!(wants(&cluster.cache(), "pv").key.identity, None);
}

#[test]
fn a_volume_with_mode_full_is_refused_unless_the_chart_allows_it() {
    let cluster = cluster();
    let refused = |options: Value, stages: bool| {
        cluster
            .edit("persistentvolumes", "", "pv", |volume| volume["spec"]["mountOptions"] = options.clone());
        wants(&Cache { stages, agent: true, ..cluster.cache() }, "pv").settings.err()
    };
    let why = refused(json!(["mode full"]), false).unwrap();
    assert!(why.contains("'mode full' is not allowed: it is experimental"), "{why}");
    assert!(why.contains("mountpointPod.stage.experimental=true"), "{why}");
    assert_eq!(refused(json!(["mode full"]), true), None);
    assert_eq!(refused(json!(["mode object"]), false), None);
    let why = refused(json!(["mode full", "commit disk"]), true).unwrap();
    assert!(why.contains("mountpointPod.stage.hostPath"), "{why}");
}

/// An empty Secret looks to the node like no Secret.
#[test]
fn a_pod_says_that_its_keys_are_of_a_secret_as_its_volume_does() {
    let cluster = cluster();
    cluster.edit("persistentvolumes", "", "pv", |volume| {
        volume["spec"]["csi"]["volumeAttributes"]["authenticationSource"] = json!("driver");
    });
    let keys = || {
        let wants = wants(&cluster.cache(), "pv");
        let request = PodRequest {
            name: "mp-1".into(),
            node: "n".into(),
            volume: "pv".into(),
            volume_uid: wants.volume_uid,
            handle: wants.key.handle,
            workload_uid: "uid-of-w".into(),
            settings: wants.settings.unwrap(),
        };
        let pod = pod_spec::build(&fixtures::config(), &request, Owners::default());
        pod.metadata.annotations.unwrap().remove(pod::KEYS)
    };
    assert_eq!(keys(), None);
    cluster.edit("persistentvolumes", "", "pv", |volume| {
        volume["spec"]["csi"]["nodePublishSecretRef"] = json!({"name": "s", "namespace": "default"});
    });
    assert_eq!(keys().as_deref(), Some(pod::KEYS_OF_SECRET));
}

#[test]
fn a_volume_that_every_node_refuses_gets_no_mountpoint_pod() {
    let cluster = Cluster::new();
    cluster.put("persistentvolumes", fixtures::volume("pv"));
    cluster.put("persistentvolumeclaims", fixtures::claim("pv"));
    cluster.put("pods", fixtures::workload("w", "n", "pv"));
    let settings = || wants(&cluster.cache(), "pv").settings;
    let write =
        |edit: fn(&mut Value)| cluster.edit("persistentvolumes", "", "pv", |pv| edit(&mut pv["spec"]));
    assert!(settings().is_ok());
    write(|spec| spec["mountOptions"] = json!(["alow-delete"]));
    let why = settings().unwrap_err();
    assert!(why.contains("did you mean 'allow-delete'") && why.contains("PersistentVolume pv"), "{why}");
    write(|spec| spec["mountOptions"] = json!(["allow-delete"]));
    assert!(settings().is_ok(), "once it is mended");
    write(|spec| spec["csi"]["volumeAttributes"] = json!({"bucketNam": "bucket"}));
    assert!(settings().unwrap_err().contains("does not know"));
}

#[test]
fn an_account_that_changes_is_looked_at_for_the_pods_that_use_it() {
    let cluster = cluster();
    let read = |value: Value| serde_json::from_value(value).unwrap();
    let groups = |name: &str| cluster.cache().groups_of_account(&read(account(name, json!({}))));
    assert_eq!(groups("writer"), BTreeSet::from([Group { node: "n".into(), volume: "pv".into() }]));
    assert_eq!(groups("default"), BTreeSet::new());
    cluster.edit("pods", "default", "w", |pod| {
        pod["spec"].as_object_mut().unwrap().remove("serviceAccountName");
    });
    assert_eq!(groups("default").len(), 1, "a pod without an account has the namespace's");
}

#[test]
fn an_inline_volume_is_known_by_its_handle_and_configures_no_pod() {
    let cluster = Cluster::new();
    let mut pod = fixtures::workload("w", "n", "pv");
    let attributes = json!({"bucketName": "b", "mountpointPodServiceAccountName": "root",
        "mountOptions": "allow-delete,cache=/c,max-cache-size=1000000,region=r"});
    pod["spec"]["volumes"] = json!([
        {"name": "data", "csi": {"driver": "s3.csi.scality.com", "volumeAttributes": attributes}},
        {"name": "else", "csi": {"driver": "other"}},
    ]);
    cluster.put("pods", pod);
    let handle = inline_handle("uid-of-w", "data");
    let cache = cluster.cache();
    assert_eq!(cache.groups(), BTreeSet::from([Group { node: "n".into(), volume: handle.clone() }]));
    let wants = wants(&cache, &handle);
    assert_eq!((wants.key.handle, wants.key.mount_options.as_str()), (handle, "allow-delete,region=r"));
    let settings = wants.settings.unwrap();
    assert_eq!(
        (settings.service_account, settings.cache),
        (None, None),
        "no disk of the node, which no quota counts"
    );
    assert!(Cache { inline: false, ..cache }.groups().is_empty(), "unless the chart says so");
}
