//! Tests against a real API server: it accepts the CRD, it checks preconditions as the API in memory does, it supports the selectors.
//! Runs if `MOUNT_S3_APISERVER` names a kubeconfig.

mod fixtures;

use csi::contract::VERSION;
use csi::contract::attachment::MountpointS3PodAttachment;
use csi::contract::reason::Reason;
use csi::events::{Notice, Teller, WorkloadRef};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, ResourceExt as _};
use reconciler::apply::{Applier, Outcome};
use reconciler::crd;
use reconciler::facts::Group;
use reconciler::plan::{Effect, plan};
use serde_json::json;

async fn client() -> Option<Client> {
    let path = std::env::var_os("MOUNT_S3_APISERVER").unwrap_or_default();
    if !testkit::need("a kubeconfig, named by MOUNT_S3_APISERVER (ci/e2e sets it)", !path.is_empty()) {
        return None;
    }
    let kubeconfig = Kubeconfig::read_from(path).unwrap();
    let config =
        kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    Some(Client::try_from(config).unwrap())
}

#[tokio::test]
async fn a_real_api_server_takes_the_crd_the_pods_and_the_preconditions() {
    let Some(client) = client().await else { return };
    crd::install(client.clone()).await.unwrap();
    crd::install(client.clone()).await.unwrap();

    // A namespace of our own for both kinds of pods; on a node that does not exist, nothing is started.
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let namespace = Namespace {
        metadata: kube::api::ObjectMeta {
            generate_name: Some("reconciler-test-".into()),
            ..Default::default()
        },
        ..Namespace::default()
    };
    let namespace = namespaces.create(&PostParams::default(), &namespace).await.unwrap().name_any();
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let node = format!("no-node-{namespace}");
    let mut workload = fixtures::workload("w", &node, "pv");
    workload["metadata"] = json!({"name": "w", "namespace": namespace});
    workload["spec"]["containers"] = json!([{"name": "c", "image": "none"}]);
    workload["spec"]["automountServiceAccountToken"] = json!(false);
    let workload =
        pods.create(&PostParams::default(), &serde_json::from_value(workload).unwrap()).await.unwrap();
    let uid = workload.uid().unwrap();

    // The view that the product would have had of this cluster.
    let seen = fixtures::Cluster::new();
    let mut volume = fixtures::volume("pv");
    volume["spec"]["claimRef"]["namespace"] = json!(namespace);
    let mut claim = fixtures::claim("pv");
    claim["metadata"]["namespace"] = json!(namespace);
    seen.put("persistentvolumes", volume);
    seen.put("persistentvolumeclaims", claim);
    let group = Group { node: node.clone(), volume: "pv".into() };
    let attachments: Api<MountpointS3PodAttachment> = Api::all(client.clone());
    let look = async || {
        for (resource, name) in [("pods", ""), ("mountpoints3podattachments", "")] {
            for old in seen.all(resource) {
                let namespace = old["metadata"]["namespace"].as_str().unwrap_or(name);
                seen.remove(resource, namespace, old["metadata"]["name"].as_str().unwrap());
            }
        }
        for pod in pods.list(&ListParams::default()).await.unwrap() {
            seen.put_as_is("pods", serde_json::to_value(pod).unwrap());
        }
        let ours = ListParams::default().fields(&format!("spec.nodeName={node}"));
        for attachment in attachments.list(&ours).await.unwrap() {
            seen.put_as_is("mountpoints3podattachments", serde_json::to_value(attachment).unwrap());
        }
        let mut cache = seen.cache();
        cache.namespace.clone_from(&namespace);
        let mut effects = plan(&cache.facts(&group, VERSION, k8s_openapi::jiff::Timestamp::now())).effects;
        // A cluster with a scheduler has words of its own on pods whose node does not exist.
        effects.retain(|effect| !matches!(effect, Effect::Tell(_)));
        effects
    };

    let mut config = fixtures::config();
    config.namespace.clone_from(&namespace);
    let teller = Teller::new(client.clone(), "scality-csi-controller", "test");
    let applier = Applier::new(client.clone(), config, teller);
    let first = look().await;
    assert_eq!(first.len(), 2, "{first:#?}");
    for effect in &first {
        assert_eq!(applier.apply(effect).await.unwrap(), Outcome::Done);
    }
    assert_eq!(applier.apply(&first[0]).await.unwrap(), Outcome::Done, "its own pod is adopted");
    assert!(matches!(applier.apply(&first[1]).await.unwrap(), Outcome::Stale(_)), "the attachment exists");
    assert_eq!(look().await, []);
    let ask = Effect::ConfirmWorkloadsEnded { node: node.clone(), uids: [uid.clone()].into() };
    assert!(matches!(applier.apply(&ask).await.unwrap(), Outcome::Stale(_)));
    let at = WorkloadRef { namespace: namespace.clone(), name: "w".into(), uid };
    let notice =
        Notice { workload: at, reason: Reason::AttachedAgain, note: "a real API server takes it".into() };
    assert_eq!(applier.apply(&Effect::Tell(notice)).await.unwrap(), Outcome::Done);

    pods.delete("w", &DeleteParams::default().grace_period(0)).await.unwrap();
    let detach = look().await;
    for effect in &detach {
        assert_eq!(applier.apply(effect).await.unwrap(), Outcome::Done, "{effect:?}");
    }
    let again = applier.apply(detach.last().unwrap()).await.unwrap();
    assert!(matches!(again, Outcome::Stale(_)), "an old resource version is a conflict");
    // Mark, drop, delete; then the pod that never began.
    for _ in 0..2 {
        for effect in look().await {
            assert_eq!(applier.apply(&effect).await.unwrap(), Outcome::Done, "{effect:?}");
        }
    }
    assert_eq!(look().await, []);
    assert_eq!(pods.list(&ListParams::default()).await.unwrap().items.len(), 0);
    namespaces.delete(&namespace, &DeleteParams::default()).await.unwrap();
}
