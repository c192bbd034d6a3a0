//! An API server in memory that lists PersistentVolumes, and whose watches break.

use std::convert::Infallible;
use std::sync::Arc;

use csi::proto::csi::Volume;
use http::{Request, Response};
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::watch;

#[derive(Clone)]
pub(crate) struct Api(Arc<watch::Sender<State>>);

#[derive(Default)]
struct State {
    volumes: Vec<Value>,
    lists: bool,
    /// Watches that were refused.
    refused: usize,
}

impl Api {
    /// An API server that refuses all watches.
    pub(crate) fn start() -> Self {
        Self(Arc::new(watch::Sender::new(State { lists: true, ..State::default() })))
    }

    pub(crate) fn client(&self) -> kube::Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move { Ok::<_, Infallible>(api.answer(&request)) }
        });
        kube::Client::new(service, "default")
    }

    /// Waits until the volumes have been listed, and a watch of them was refused.
    pub(crate) async fn watch_broke(&self) {
        self.0.subscribe().wait_for(|state| state.refused > 0).await.unwrap();
    }

    /// Puts a volume as the provisioner writes it.
    pub(crate) fn put(&self, name: &str, volume: &Volume) {
        let csi = json!({"driver": "s3.csi.scality.com", "volumeHandle": volume.volume_id, "volumeAttributes": volume.volume_context});
        self.0.send_modify(|state| {
            state.volumes.push(json!({
                "apiVersion": "v1", "kind": "PersistentVolume",
                "metadata": {"name": name, "annotations": {"pv.kubernetes.io/provisioned-by": "s3.csi.scality.com"}},
                "spec": {"csi": csi},
            }));
        });
    }

    /// Whether lists are answered.
    pub(crate) fn lists(&self, lists: bool) {
        self.0.send_modify(|state| state.lists = lists);
    }

    fn answer(&self, request: &Request<Body>) -> Response<Body> {
        let watches = request.uri().query().is_some_and(|query| query.contains("watch="));
        if watches {
            self.0.send_modify(|state| state.refused += 1);
        }
        let state = self.0.borrow();
        let (code, body) = if watches || !state.lists {
            (
                503,
                json!({"kind": "Status", "status": "Failure", "code": 503, "reason": "ServiceUnavailable", "message": "not now"}),
            )
        } else {
            let metadata = json!({"resourceVersion": "5"});
            (200, json!({"apiVersion": "v1", "kind": "List", "metadata": metadata, "items": state.volumes}))
        };
        Response::builder().status(code).body(Body::from(body.to_string().into_bytes())).unwrap()
    }
}
