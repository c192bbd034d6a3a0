//! The startup taint, which keeps pods away from a new node until its driver can mount, if an administrator sets it. Enters: the
//! name of this node. Leaves: the node without that taint, once the kubelet has registered the driver.
//!
//! Never here: another taint, another node; an error that ends the process.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::CSINode;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::wait::await_condition;
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::contract::DRIVER;

/// The key of the taint; administrators choose its value and effect.
pub const KEY: &str = "s3.csi.scality.com/agent-not-ready";

/// Longest wait for the registration; after it a warning is logged. A driver that is not registered by then has other troubles.
const WITHIN: Duration = Duration::from_secs(600);
/// The pause after an error. Doubled, pods stay away from the node that much longer.
const RETRY: Duration = Duration::from_millis(500);

/// Removes the taint, at the start and after each registration of the driver by the kubelet: a Node that is deleted and registered again
/// has its taint again, and the driver's pod may not have noticed. Ends when the sender is dropped.
pub async fn keep_off(client: Client, node: String, mut registers: watch::Receiver<()>) {
    loop {
        remove(client.clone(), node.clone()).await;
        if registers.changed().await.is_err() {
            return;
        }
    }
}

/// Removes the taint once the kubelet has registered the driver. Logs the result.
async fn remove(client: Client, node: String) {
    match timeout(WITHIN, removed(&client, &node)).await {
        Ok(true) => tracing::info!(node, "the startup taint {KEY} is removed"),
        Ok(false) => tracing::debug!(node, "the node has no startup taint"),
        Err(_) => tracing::warn!(
            node,
            "the kubelet has not registered the driver within {WITHIN:?}, or the taint {KEY} could not be removed: look at the \
             side-car node-driver-registrar (kubectl get csinode {node} -o yaml)"
        ),
    }
}

async fn removed(client: &Client, node: &str) -> bool {
    let lists_us =
        |it: Option<&CSINode>| it.is_some_and(|it| it.spec.drivers.iter().any(|one| one.name == DRIVER));
    while let Err(error) = await_condition(Api::<CSINode>::all(client.clone()), node, lists_us).await {
        tracing::debug!(node, %error, "watching the CSINode");
        sleep(RETRY).await;
    }
    let nodes: Api<Node> = Api::all(client.clone());
    loop {
        let patched = match nodes.get(node).await.map(|found| without(&found)) {
            Ok(None) => return false,
            Ok(Some(patch)) => nodes.patch(node, &PatchParams::default(), &Patch::Merge(patch)).await,
            Err(error) => Err(error),
        };
        match patched {
            Ok(_) => return true,
            // A conflict means that another client changed the node: it is read again.
            Err(error) => tracing::debug!(node, %error, "removing the startup taint"),
        }
        sleep(RETRY).await;
    }
}

/// The patch that removes the taint, with any effect; `None` if there is none. It fails if the node has changed since.
fn without(node: &Node) -> Option<Value> {
    let taints = node.spec.as_ref()?.taints.as_ref()?;
    let left: Vec<_> = taints.iter().filter(|taint| taint.key != KEY).collect();
    (left.len() < taints.len())
        .then(|| json!({"metadata": {"resourceVersion": node.resource_version()}, "spec": {"taints": left}}))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{Request, Response};
    use kube::client::Body;
    use mountpoint::sync::{Arc, Mutex};

    use super::*;

    fn node(taints: &Value) -> Value {
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "worker-1", "resourceVersion": "7"},
            "spec": {"taints": taints}})
    }

    fn taints() -> Value {
        json!([
            {"key": "dedicated", "value": "x", "effect": "NoSchedule"},
            {"key": KEY, "effect": "NoExecute"},
            {"key": KEY, "effect": "NoSchedule", "value": "true"},
        ])
    }

    #[test]
    fn only_the_startup_taint_goes_whatever_its_effect() {
        let of = |taints: &Value| without(&serde_json::from_value(node(taints)).unwrap());
        let left = json!([{"key": "dedicated", "value": "x", "effect": "NoSchedule"}]);
        let patch = json!({"metadata": {"resourceVersion": "7"}, "spec": {"taints": left}});
        assert_eq!(of(&taints()), Some(patch));
        assert_eq!(of(&left), None);
        assert_eq!(of(&Value::Null), None);
    }

    /// Goal: the taint stays until the kubelet lists the driver, and a node that was changed meanwhile is looked at again.
    #[tokio::test]
    async fn the_taint_goes_when_the_kubelet_has_registered_the_driver() {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&calls);
        let service = tower::service_fn(move |request: Request<Body>| {
            let seen = Arc::clone(&seen);
            async move {
                let call = format!("{} {}", request.method(), request.uri());
                let body = request.into_body().collect_bytes().await.unwrap();
                let before = seen.lock().len();
                seen.lock().push((call.clone(), String::from_utf8(body.to_vec()).unwrap()));
                let drivers = json!([{"name": DRIVER, "nodeID": "worker-1"}]);
                let csi_node = |drivers: &Value| {
                    json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSINode",
                    "metadata": {"name": "worker-1", "resourceVersion": "5"}, "spec": {"drivers": drivers}})
                };
                let (code, answer) = match call.as_str() {
                    it if it.contains("csinodes") && it.contains("watch=true") => {
                        (200, json!({"type": "MODIFIED", "object": csi_node(&drivers)}))
                    }
                    it if it.contains("csinodes") => (
                        200,
                        json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSINodeList",
                        "metadata": {"resourceVersion": "5"}, "items": [csi_node(&json!([]))]}),
                    ),
                    it if it.starts_with("GET") => (200, node(&taints())),
                    // The first attempt comes too late.
                    _ if before < 5 => (
                        409,
                        json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": 409,
                        "reason": "Conflict", "message": "changed"}),
                    ),
                    _ => (200, node(&json!([]))),
                };
                let body = Body::from(answer.to_string().into_bytes());
                Ok::<_, Infallible>(Response::builder().status(code).body(body).unwrap())
            }
        });
        assert!(removed(&Client::new(service, "default"), "worker-1").await);
        let calls = calls.lock();
        let first_patch = calls.iter().position(|(call, _)| call.starts_with("PATCH")).unwrap();
        let watched = calls.iter().position(|(call, _)| call.contains("watch=true")).unwrap();
        assert!(watched < first_patch, "{calls:?}");
        let patches: Vec<_> = calls.iter().filter(|(call, _)| call.starts_with("PATCH")).collect();
        assert_eq!(patches.len(), 2, "{calls:?}");
        assert!(patches[1].0.contains("/api/v1/nodes/worker-1"), "{patches:?}");
        assert!(patches[1].1.contains("dedicated") && !patches[1].1.contains(KEY), "{patches:?}");
    }

    /// Goal: a Node of the same name that comes with the taint while the driver runs does not keep it.
    #[tokio::test]
    async fn a_node_that_is_registered_again_with_the_taint_loses_it_again() {
        let now = Arc::new(Mutex::new(taints()));
        let of_store = Arc::clone(&now);
        let service = tower::service_fn(move |request: Request<Body>| {
            let now = Arc::clone(&of_store);
            async move {
                let answer = if request.uri().path().contains("csinodes") {
                    let driver = json!({"name": DRIVER, "nodeID": "worker-1"});
                    json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSINodeList", "metadata": {"resourceVersion": "5"},
                        "items": [{"metadata": {"name": "worker-1", "resourceVersion": "5"}, "spec": {"drivers": [driver]}}]})
                } else if request.method() == "PATCH" {
                    let body = request.into_body().collect_bytes().await.unwrap();
                    let patch: Value = serde_json::from_slice(&body).unwrap();
                    *now.lock() = patch["spec"]["taints"].clone();
                    node(&now.lock())
                } else {
                    node(&now.lock())
                };
                Ok::<_, Infallible>(Response::new(Body::from(answer.to_string().into_bytes())))
            }
        });
        let left = || now.lock().as_array().unwrap().len();
        let (registers, seen) = watch::channel(());
        let client = Client::new(service, "default");
        let task = tokio::spawn(keep_off(client, "worker-1".to_owned(), seen));
        testkit::until_async("the taint is gone", || left() == 1).await;
        *now.lock() = taints();
        registers.send_replace(());
        testkit::until_async("the taint is gone again", || left() == 1).await;
        drop(registers);
        task.await.unwrap();
    }
}
