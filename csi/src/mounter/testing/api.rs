//! An API server of three kinds in memory: lists and watches attachments and pods like the real one, has Leases, forgets events, and
//! fails on command.

use std::collections::BTreeMap;
use std::convert::Infallible;

use http::{Request, Response};
use kube::client::Body;
use mountpoint::sync::Arc;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::contract::VERSION;

/// The server, in this process and without a socket. Clones share its state.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    attachments: Kind,
    pods: Kind,
    leases: Kind,
    watches: watch::Sender<usize>,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self {
            attachments: Kind::new(),
            pods: Kind::new(),
            leases: Kind::new(),
            watches: watch::Sender::new(0),
        }
    }

    pub(crate) fn client(&self) -> kube::Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move { Ok::<_, Infallible>(server.answer(request).await) }
        });
        kube::Client::new(service, "default")
    }

    pub(crate) fn attachments(&self) -> &Kind {
        &self.attachments
    }

    pub(crate) fn pods(&self) -> &Kind {
        &self.pods
    }

    pub(crate) fn leases(&self) -> &Kind {
        &self.leases
    }

    /// Waits until this many watches have begun.
    pub(crate) async fn watched(&self, count: usize) {
        self.watches.subscribe().wait_for(|begun| *begun >= count).await.unwrap();
    }

    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let path = request.uri().path();
        if let Some((_, name)) = path.split_once("/leases/") {
            return self.leases.one(name);
        }
        let kind = if path.ends_with("/pods") { &self.pods } else { &self.attachments };
        let query: BTreeMap<&str, &str> = request
            .uri()
            .query()
            .unwrap_or_default()
            .split('&')
            .filter_map(|it| it.split_once('='))
            .collect();
        let selector = query.get("fieldSelector").map(|it| it.replace("%3D", "="));
        if let Some(refusal) = kind.refusal(selector.is_some()) {
            return refusal;
        }
        let node = selector.as_deref().and_then(|it| it.strip_prefix("spec.nodeName="));
        if query.get("watch") == Some(&"true") {
            self.watches.send_modify(|begun| *begun += 1);
            let since = query.get("resourceVersion").and_then(|it| it.parse().ok()).unwrap_or(0);
            if kind.has_forgotten(since) {
                return refused(410, "Expired");
            }
            return response(200, kind.news(since, node).await);
        }
        let state = kind.0.borrow();
        let items: Vec<&Value> = state.objects.values().filter(|it| is_on(it, node)).collect();
        let list = json!({"apiVersion": "v1", "kind": "List", "items": items,
            "metadata": {"resourceVersion": state.revision.to_string()}});
        response(200, list.to_string())
    }
}

/// The objects of one kind.
#[derive(Clone, Debug)]
pub(crate) struct Kind(Arc<watch::Sender<State>>);

#[derive(Debug, Default)]
struct State {
    revision: u64,
    objects: BTreeMap<String, Value>,
    log: Vec<(u64, &'static str, Value)>,
    /// The version up to which events are forgotten: a watch from an earlier version is refused.
    compacted: u64,
    hidden: bool,
    refuses_selectors: bool,
}

impl Kind {
    fn new() -> Self {
        Self(Arc::new(watch::Sender::new(State { revision: 1, ..State::default() })))
    }

    pub(crate) fn put(&self, name: &str, object: Value) {
        self.0.send_modify(|state| state.put(name, object));
    }

    /// Changes an object and forgets all events, as a server does while no watch is open: a watch that begins again is refused,
    /// and must list.
    pub(crate) fn put_and_compact(&self, name: &str, object: Value) {
        self.0.send_modify(|state| {
            state.put(name, object);
            state.log.clear();
            state.compacted = state.revision;
        });
    }

    pub(crate) fn remove(&self, name: &str) {
        self.0.send_modify(|state| {
            state.revision += 1;
            if let Some(mut object) = state.objects.remove(name) {
                object["metadata"]["resourceVersion"] = state.revision.to_string().into();
                state.log.push((state.revision, "DELETED", object));
            }
        });
    }

    /// Answers as if the kind's CRD were not installed, or the server were gone.
    pub(crate) fn hide(&self, hidden: bool) {
        self.0.send_modify(|state| state.hidden = hidden);
    }

    /// Refuses field selectors, like a server that does not support these fields.
    pub(crate) fn refuse_selectors(&self) {
        self.0.send_modify(|state| state.refuses_selectors = true);
    }

    fn has_forgotten(&self, since: u64) -> bool {
        since < self.0.borrow().compacted
    }

    fn one(&self, name: &str) -> Response<Body> {
        let state = self.0.borrow();
        if state.hidden {
            return refused(403, "Forbidden");
        }
        state.objects.get(name).map_or_else(|| refused(404, "NotFound"), |it| response(200, it.to_string()))
    }

    fn refusal(&self, selects: bool) -> Option<Response<Body>> {
        let state = self.0.borrow();
        let (code, reason) = match (state.hidden, state.refuses_selectors && selects) {
            (true, _) => (404, "NotFound"),
            (_, true) => (400, "BadRequest"),
            _ => return None,
        };
        Some(refused(code, reason))
    }

    /// Waits for changes after the version `since`, and answers with all of them, one per line. Then the connection ends, and the client
    /// asks for the next ones. The answer is empty if they are forgotten.
    async fn news(&self, since: u64, node: Option<&str>) -> String {
        let fresh = |state: &State| -> String {
            let news = state.log.iter().filter(|(revision, ..)| *revision > since);
            news.filter(|(_, _, object)| is_on(object, node))
                .map(|(_, what, object)| format!("{}\n", json!({"type": what, "object": object})))
                .collect()
        };
        let mut state = self.0.subscribe();
        let ends = |state: &State| !fresh(state).is_empty() || since < state.compacted;
        let state = state.wait_for(ends).await.unwrap();
        fresh(&state)
    }
}

impl State {
    fn put(&mut self, name: &str, mut object: Value) {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = self.revision.to_string().into();
        let old = self.objects.insert(name.to_owned(), object.clone());
        self.log.push((self.revision, if old.is_some() { "MODIFIED" } else { "ADDED" }, object));
    }
}

fn is_on(object: &Value, node: Option<&str>) -> bool {
    node.is_none_or(|node| object["spec"]["nodeName"] == node)
}

fn refused(code: u16, reason: &str) -> Response<Body> {
    let status = json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code,
        "reason": reason, "message": format!("the server says {reason}"), "metadata": {}});
    response(code, status.to_string())
}

fn response(code: u16, body: String) -> Response<Body> {
    Response::builder().status(code).body(Body::from(body.into_bytes())).unwrap()
}

/// An attachment with these pairs of Mountpoint Pod and workload UID.
pub(crate) fn attachment(name: &str, node: &str, volume: &str, pairs: &[(&str, &str)]) -> Value {
    let mut pods = json!({});
    for (pod, uid) in pairs {
        pods[*pod] = json!([{"workloadPodUID": uid, "attachmentTime": "2025-06-01T10:00:00Z"}]);
    }
    json!({
        "apiVersion": "s3.csi.scality.com/v2",
        "kind": "MountpointS3PodAttachment",
        "metadata": {"name": name, "labels": {"s3.csi.scality.com/mounted-by-csi-driver-version": VERSION}},
        "spec": {"nodeName": node, "persistentVolumeName": volume, "volumeID": volume, "mountOptions": "",
            "workloadFSGroup": "", "mountpointS3PodAttachments": pods},
    })
}

/// The reconciler's Lease, with a duration of one second.
pub(crate) fn lease(renewed: &str) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "scality-csi-controller", "namespace": "kube-system"},
        "spec": {"holderIdentity": "reconciler-1", "leaseDurationSeconds": 1, "renewTime": renewed},
    })
}

/// A Mountpoint Pod.
pub(crate) fn mountpoint_pod(name: &str, uid: &str, node: &str, phase: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "uid": uid, "namespace": "mount-s3", "annotations": {}},
        "spec": {"nodeName": node, "containers": []},
        "status": {"phase": phase},
    })
}
