//! This driver's volumes and the cluster's id, from the API server. Enters: a watch of PersistentVolumes. Leaves: records of the volumes
//! that the watch has shown, and by a list those of others: a watch may lag. Events on volumes.
//!
//! DeleteVolume gets only an id. The PersistentVolume has the volume's `onDelete`, store and region.
//!
//! Never here: a write to a volume.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::OnceLock;
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::{Namespace, ObjectReference, PersistentVolume};
use kube::api::ListParams;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt as _};
use mountpoint::sync::Arc;
use tokio::sync::watch;
use tracing::{info, warn};

use super::cluster::Cluster;
use super::on_delete::OnDelete;
use super::ownership::Recorded;
use crate::contract::reason::Reason;
use crate::contract::{DRIVER, volume};
use crate::watch::lasting;

/// Annotation that names the driver which created a volume.
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// The namespace whose UID is the cluster's id.
const NAMESPACE: &str = "kube-system";
/// The pause between two requests for the cluster's id.
const AGAIN: Duration = Duration::from_secs(10);

/// Most bytes of an Event's note; the API server refuses more, so a longer note is cut.
const NOTE_LIMIT: usize = 1024;
/// Volumes per page of a list.
const PAGE: u32 = 500;

/// The known volumes. Clones share their state.
#[derive(Clone)]
pub struct Volumes {
    view: watch::Receiver<View>,
    cluster: Arc<OnceLock<Cluster>>,
    api: Option<Api<PersistentVolume>>,
    recorder: Option<Recorder>,
}

#[derive(Clone, Debug, Default)]
struct View {
    volumes: BTreeMap<String, Recorded>,
    listing: BTreeMap<String, Recorded>,
}

impl Volumes {
    /// Volumes of a cluster without an API server: none is ever known.
    #[must_use]
    pub fn without_api(cluster: Cluster) -> Self {
        let view = watch::channel(View::default()).1;
        Self { view, cluster: Arc::new(OnceLock::from(cluster)), api: None, recorder: None }
    }

    /// Like [`Volumes::without_api`], but with these records by their handles.
    #[must_use]
    pub fn known_to_be(cluster: Cluster, volumes: BTreeMap<String, Recorded>) -> Self {
        let view = View { volumes, ..View::default() };
        Self { view: watch::channel(view).1, ..Self::without_api(cluster) }
    }

    /// Watches the volumes for the life of the process, and asks for the cluster's id unless it is `given`.
    #[must_use]
    pub fn follow(client: &Client, given: Option<Cluster>) -> Self {
        let (sender, view) = watch::channel(View::default());
        tokio::spawn(follow(Api::all(client.clone()), sender));
        let cluster = Arc::new(OnceLock::new());
        match given {
            Some(given) => drop(cluster.set(given)),
            None => drop(tokio::spawn(ask(Api::all(client.clone()), cluster.clone()))),
        }
        let reporter = Reporter { controller: DRIVER.to_owned(), instance: None };
        let recorder = Some(Recorder::new(client.clone(), reporter));
        Self { view, cluster, api: Some(Api::all(client.clone())), recorder }
    }

    /// The cluster; `None` until the API server has told its id.
    #[must_use]
    pub fn cluster(&self) -> Option<&Cluster> {
        self.cluster.get()
    }

    /// The record of the PersistentVolume with this handle, if the watch has shown it.
    #[must_use]
    pub fn known(&self, handle: &str) -> Option<Recorded> {
        self.view.borrow().volumes.get(handle).cloned()
    }

    /// The record of the PersistentVolume with this handle. If the watch has not shown it, the API server is asked: the volume may exist
    /// all the same, and its record decides about the data.
    ///
    /// # Errors
    /// The watch has not shown the volume, and the API server can't list the volumes now.
    pub async fn look_up(&self, handle: &str) -> kube::Result<Option<Recorded>> {
        let known = self.known(handle);
        let Some(api) = self.api.as_ref().filter(|_| known.is_none()) else { return Ok(known) };
        // A list without a resource version is read from etcd, not from the API server's cache.
        let mut page = ListParams::default().limit(PAGE);
        loop {
            let listed = api.list(&page).await?;
            let found = listed.items.iter().filter_map(read).find(|(it, _)| it == handle);
            match (found, listed.metadata.continue_.filter(|it| !it.is_empty())) {
                (Some((_, recorded)), _) => return Ok(Some(recorded)),
                (None, Some(token)) => page = page.continue_token(&token),
                (None, None) => return Ok(None),
            }
        }
    }

    /// Writes an Event on a PersistentVolume, which `kubectl describe pv` shows. A failure is logged.
    pub async fn tell(&self, volume: &str, reason: Reason, note: &str) {
        let Some(recorder) = &self.recorder else { return };
        let mut end = note.len().min(NOTE_LIMIT);
        while !note.is_char_boundary(end) {
            end -= 1;
        }
        let event = Event {
            type_: EventType::Warning,
            reason: reason.to_string(),
            note: Some(note[..end].to_owned()),
            action: "Delete".to_owned(),
            secondary: None,
        };
        let regarding = ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("PersistentVolume".into()),
            name: Some(volume.to_owned()),
            ..ObjectReference::default()
        };
        if let Err(error) = recorder.publish(&event, &regarding).await {
            warn!(volume, %error, "an Event was not written");
        }
    }
}

async fn follow(api: Api<PersistentVolume>, view: watch::Sender<View>) {
    let mut events = pin!(lasting(api, watcher::Config::default()).default_backoff());
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => view.send_modify(|view| view.apply(event)),
            Err(error) => warn!(%error, "the API server can't be watched for PersistentVolumes"),
        }
    }
}

async fn ask(api: Api<Namespace>, cluster: Arc<OnceLock<Cluster>>) {
    loop {
        match api.get(NAMESPACE).await.map(|it| it.uid()) {
            Ok(Some(uid)) => {
                let known = cluster.get_or_init(|| Cluster::new(&uid));
                info!(cluster = known.mark(), "this cluster's volumes are known by its mark");
                return;
            }
            Ok(None) => warn!("the namespace {NAMESPACE} has no UID"),
            Err(error) => warn!(%error, "the API server does not say the UID of the namespace {NAMESPACE}"),
        }
        tokio::time::sleep(AGAIN).await;
    }
}

impl View {
    fn apply(&mut self, event: watcher::Event<PersistentVolume>) {
        match event {
            watcher::Event::Init => self.listing.clear(),
            watcher::Event::InitApply(it) => self.listing.extend(read(&it)),
            watcher::Event::InitDone => self.volumes = std::mem::take(&mut self.listing),
            watcher::Event::Apply(it) => self.volumes.extend(read(&it)),
            watcher::Event::Delete(it) => {
                if let Some((handle, recorded)) = read(&it)
                    && self.volumes.get(&handle).is_some_and(|known| known.name == recorded.name)
                {
                    self.volumes.remove(&handle);
                }
            }
        }
    }
}

/// The handle and the record of a volume; `None` if it belongs to another driver.
fn read(it: &PersistentVolume) -> Option<(String, Recorded)> {
    let csi = it.spec.as_ref()?.csi.as_ref().filter(|csi| csi.driver == DRIVER)?;
    let attribute = |key| csi.volume_attributes.as_ref().and_then(|it| it.get(key)).cloned();
    let recorded = Recorded {
        name: it.name_any(),
        provisioned_by_us: it.annotations().get(PROVISIONED_BY).is_some_and(|by| by == DRIVER),
        on_delete: attribute(volume::ON_DELETE).and_then(|it| OnDelete::parse(&it)),
        endpoint_url: attribute(volume::ENDPOINT_URL),
        region: attribute(volume::REGION),
    };
    Some((csi.volume_handle.clone(), recorded))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use kube::client::Body;
    use serde_json::json;

    use super::*;

    fn volume(name: &str, driver: &str) -> PersistentVolume {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": name, "annotations": {PROVISIONED_BY: driver}},
            "spec": {"csi": {"driver": driver, "volumeHandle": "handle-1",
                             "volumeAttributes": {"bucketName": "b", "onDelete": "purge", "region": "eu-west-1"}}},
        }))
        .unwrap()
    }

    #[test]
    fn volumes_of_this_driver_are_known_by_handle_while_they_exist() {
        let mut view = View::default();
        view.apply(watcher::Event::Init);
        view.apply(watcher::Event::InitApply(volume("pv-1", DRIVER)));
        assert!(view.volumes.is_empty());
        view.apply(watcher::Event::InitDone);
        let wanted = Recorded {
            name: "pv-1".into(),
            provisioned_by_us: true,
            on_delete: Some(OnDelete::Purge),
            endpoint_url: None,
            region: Some("eu-west-1".into()),
        };
        assert_eq!(view.volumes.get("handle-1"), Some(&wanted));
        view.apply(watcher::Event::Delete(volume("pv-2", DRIVER)));
        assert!(view.volumes.contains_key("handle-1"), "another volume with this handle went");
        view.apply(watcher::Event::Delete(volume("pv-1", DRIVER)));
        view.apply(watcher::Event::Apply(volume("pv-3", "other.driver")));
        assert!(view.volumes.is_empty());
    }

    /// Goal: a volume that was made while the watch was away for too long is known. Method: the first list is empty, the watch that follows is
    /// refused with the status 410, and the next list has a volume.
    #[tokio::test]
    async fn volumes_are_known_after_the_watch_was_refused_with_the_status_410() {
        let lists = Arc::new(AtomicUsize::new(0));
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let lists = lists.clone();
            async move {
                let watches = request.uri().query().is_some_and(|query| query.contains("watch="));
                let answer = match (watches, lists.load(Ordering::Acquire)) {
                    (false, done) => {
                        lists.store(done + 1, Ordering::Release);
                        let items = if done == 0 { vec![] } else { vec![volume("pv-1", DRIVER)] };
                        let metadata = json!({"resourceVersion": "5"});
                        (
                            200,
                            json!({"apiVersion": "v1", "kind": "List", "metadata": metadata, "items": items}),
                        )
                    }
                    (true, 1) => {
                        let said = "too old resource version";
                        (
                            410,
                            json!({"kind": "Status", "status": "Failure", "code": 410, "reason": "Expired", "message": said}),
                        )
                    }
                    (true, _) => std::future::pending().await,
                };
                let body = Body::from(answer.1.to_string().into_bytes());
                Ok::<_, Infallible>(http::Response::builder().status(answer.0).body(body).unwrap())
            }
        });
        let client = Client::new(service, "default");
        let mut view = Volumes::follow(&client, Some(Cluster::new("uid-1"))).view;
        let known = view.wait_for(|view| view.volumes.contains_key("handle-1"));
        tokio::time::timeout(Duration::from_secs(60), known).await.expect("it lists again").unwrap();
    }
}
