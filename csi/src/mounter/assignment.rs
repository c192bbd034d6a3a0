//! The API server's facts about this node: which Mountpoint Pod serves a workload, and that pod's state. Enters: two watches.
//! Leaves: answers to waiting calls, and views that stay when the API server is unreachable.
//!
//! Never here: a write to the API server, polling, an end of the process. A missing CRD is reported as an error.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::pin::pin;

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use crate::contract::attachment::{AttachmentSpec, Identity, MountpointS3PodAttachment};
use crate::contract::upgrade::{self, Attempt};
use crate::contract::{engines_pod, pod};
use crate::error::{Error, ErrorKind, Result};
use crate::watch::lasting;

/// The views of this node's attachments and Mountpoint Pods.
#[derive(Clone, Debug)]
pub struct Assignments {
    namespace: String,
    attachments: watch::Receiver<View<AttachmentSpec>>,
    pods: watch::Receiver<View<MountpointPod>>,
}

impl Assignments {
    /// Watches the attachments of this node, and its pods in the namespace of Mountpoint Pods, while the tasks live.
    pub fn follow(client: &Client, node: &str, namespace: &str, tasks: &mut JoinSet<()>) -> Self {
        let (attachments_in, attachments) = watch::channel(View::default());
        let (pods_in, pods) = watch::channel(View::default());
        let api = Api::<MountpointS3PodAttachment>::all(client.clone());
        let here = node.to_owned();
        tasks.spawn(follow(api, format!("spec.nodeName={node}"), attachments_in, move |it| {
            // The server may ignore the field selector.
            (it.spec.node_name == here).then_some(it.spec)
        }));
        let api = Api::<Pod>::namespaced(client.clone(), namespace);
        let here = node.to_owned();
        tasks.spawn(follow(api, format!("spec.nodeName={node}"), pods_in, move |it| {
            let on_this_node = it.spec.as_ref().and_then(|spec| spec.node_name.as_ref()) == Some(&here);
            on_this_node.then(|| MountpointPod::of(&it))
        }));
        Self { namespace: namespace.to_owned(), attachments, pods }
    }

    /// Waits until the reconciler has assigned a Mountpoint Pod to a workload. Returns the pod's name.
    ///
    /// # Errors
    /// `Unavailable` at once if the CRD is missing, and at the deadline if the API server does not answer;
    /// `DeadlineExceeded` if no attachment names the workload before the deadline.
    pub async fn wait_for(&self, volume: &str, workload_uid: &str, deadline: Instant) -> Result<String> {
        wait(self.attachments.clone(), deadline, |view| assigned(view, volume, workload_uid)).await
    }

    /// The Mountpoint Pod that is assigned to the workload, according to the present view.
    #[must_use]
    pub fn known(&self, volume: &str, workload_uid: &str) -> Option<String> {
        match assigned(&self.attachments.borrow(), volume, workload_uid) {
            Step::Ready(pod) => Some(pod),
            Step::Wait(_) | Step::Fail(_) => None,
        }
    }

    /// The service account of the workload, and its role, from its attachment. The role may be empty.
    #[must_use]
    pub fn identity(&self, volume: &str, workload_uid: &str) -> Option<Identity> {
        let view = self.attachments.borrow();
        let mut ours = view.items.values().filter(|spec| spec.persistent_volume_name == volume);
        let spec = ours.find(|spec| spec.pod_of(workload_uid).is_some())?;
        spec.share_key().identity
    }

    /// Waits until the Mountpoint Pod runs.
    ///
    /// # Errors
    /// `Unavailable` at once if it has ended or is being deleted; at the deadline `DeadlineExceeded` with the reason why it does not run.
    pub async fn wait_running(&self, name: &str, deadline: Instant) -> Result<MountpointPod> {
        wait(self.pods.clone(), deadline, |view| running(view, name, &self.namespace)).await
    }

    /// Waits until the Mountpoint Pod can't serve. Returns the reason.
    pub async fn fails(&self, name: &str) -> Error {
        let mut view = self.pods.clone();
        loop {
            if let Step::Fail(error) = running(&view.borrow_and_update(), name, &self.namespace) {
                return error;
            }
            if view.changed().await.is_err() {
                return Error::new(ErrorKind::Unavailable, "the driver is stopping");
            }
        }
    }

    /// The Mountpoint Pod, according to the present view.
    #[must_use]
    pub fn pod(&self, name: &str) -> Option<MountpointPod> {
        self.pods.borrow().items.get(name).cloned()
    }

    /// The view of this node's Mountpoint Pods, with its changes.
    #[must_use]
    pub fn pods(&self) -> watch::Receiver<View<MountpointPod>> {
        self.pods.clone()
    }

    /// The reason why new mounts can't be made now, for the readiness page: the API server is unreachable, or the CRD is missing.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        let fault = self.attachments.borrow().fault();
        fault.or_else(|| self.pods.borrow().fault())
    }
}

/// Watches the pods of one of the chart's DaemonSets on this node, while the tasks live.
pub(super) fn follow_app(
    client: &Client,
    node: &str,
    namespace: &str,
    app: &'static str,
    tasks: &mut JoinSet<()>,
) -> watch::Receiver<View<MountpointPod>> {
    let (pods_in, pods) = watch::channel(View::default());
    let api = Api::<Pod>::namespaced(client.clone(), namespace);
    let here = node.to_owned();
    tasks.spawn(follow(api, format!("spec.nodeName={node}"), pods_in, move |it| {
        let on_this_node = it.spec.as_ref().and_then(|spec| spec.node_name.as_ref()) == Some(&here);
        let is_of_app = it.labels().get("app").is_some_and(|label| label == app);
        (on_this_node && is_of_app).then(|| MountpointPod::of(&it))
    }));
    pods
}

/// The state of a Mountpoint Pod, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountpointPod {
    /// The pod's UID, which is in the path of its comm directory.
    pub uid: String,
    /// The phase: `Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`.
    pub phase: String,
    /// Whether the pod is marked: no workload is left, so its source must be unmounted.
    pub needs_unmount: bool,
    /// Whether the pod's volume names a Secret: its mounts use no other credentials.
    pub keys_of_secret: bool,
    /// The PersistentVolume for which the pod was created.
    pub volume: Option<String>,
    /// The claim of the volume when the pod was created; empty without one, and for pods of an earlier release.
    pub claim: String,
    /// The claim's namespace.
    pub claim_namespace: String,
    /// Whether the pod is being deleted.
    pub leaving: bool,
    /// The reason why the pod's container does not run after an attempt to start it: no image, a crash, an invalid configuration.
    pub waits: Option<String>,
    /// The reason why it does not run or has died, in Kubernetes' words.
    pub why: Option<String>,
    /// The reconciler's last step of an upgrade in place.
    pub upgrade: Option<Attempt>,
    /// The digest of the chart's template that an engines pod was made from.
    pub revision: Option<String>,
}

impl MountpointPod {
    fn of(it: &Pod) -> Self {
        let status = it.status.as_ref();
        let says = |key: &str, value: &str| it.annotations().get(key).is_some_and(|said| said == value);
        Self {
            uid: it.uid().unwrap_or_default(),
            phase: status.and_then(|status| status.phase.clone()).unwrap_or_default(),
            needs_unmount: says(pod::NEEDS_UNMOUNT, "true"),
            keys_of_secret: says(pod::KEYS, pod::KEYS_OF_SECRET),
            volume: it.annotations().get(pod::VOLUME_NAME).cloned(),
            claim: it.annotations().get(pod::CLAIM).cloned().unwrap_or_default(),
            claim_namespace: it.annotations().get(pod::CLAIM_NAMESPACE).cloned().unwrap_or_default(),
            leaving: it.metadata.deletion_timestamp.is_some(),
            waits: status.and_then(waits),
            why: why(it),
            upgrade: it
                .annotations()
                .get(upgrade::ANNOTATION)
                .and_then(|text| serde_json::from_str(text).ok()),
            revision: it.annotations().get(engines_pod::REVISION).cloned(),
        }
    }
}

/// The waiting reasons of every container at its start.
const BEGINS: [&str; 2] = ["ContainerCreating", "PodInitializing"];

fn waits(status: &PodStatus) -> Option<String> {
    status.container_statuses.iter().flatten().find_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        let reason = waiting.reason.as_deref().filter(|reason| !BEGINS.contains(reason))?;
        let mut said = sentence(Some(reason), waiting.message.as_deref());
        if let Some(last) = container.last_state.as_ref().and_then(|last| last.terminated.as_ref()) {
            let code = format!("exit code {}", last.exit_code);
            said.push_str(&format!("; it ended last with {}", sentence(last.reason.as_deref(), Some(&code))));
        }
        Some(said)
    })
}

/// Kubernetes' first reason: of a container that can't start, of a condition that is false, or the pod's own message.
fn why(it: &Pod) -> Option<String> {
    let status = it.status.as_ref()?;
    let containers = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
    let waiting = containers.filter_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        let reason = waiting.reason.as_deref().filter(|reason| !BEGINS.contains(reason))?;
        Some(sentence(Some(reason), waiting.message.as_deref()))
    });
    let conditions = status.conditions.iter().flatten().filter_map(|condition| {
        let is_said = condition.status == "False" && condition.message.is_some();
        is_said.then(|| sentence(condition.reason.as_deref(), condition.message.as_deref()))
    });
    let own = || {
        let is_said = status.reason.is_some() || status.message.is_some();
        is_said.then(|| sentence(status.reason.as_deref(), status.message.as_deref()))
    };
    waiting.chain(own()).chain(conditions).next()
}

fn sentence(reason: Option<&str>, message: Option<&str>) -> String {
    match (reason, message) {
        (Some(reason), Some(message)) => format!("{reason}: {message}"),
        (one, other) => one.or(other).unwrap_or_default().to_owned(),
    }
}

/// A view of watched objects, by name.
#[derive(Clone, Debug)]
pub struct View<T> {
    /// The objects.
    pub items: BTreeMap<String, T>,
    /// Whether all objects were listed once: then an object that is missing here does not exist.
    pub synced: bool,
    listing: BTreeMap<String, T>,
    broken: Option<Broken>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Broken {
    /// The server does not have this kind.
    MissingKind(String),
    /// Any other error, in the client's words.
    Other(String),
}

impl<T> Default for View<T> {
    fn default() -> Self {
        Self { items: BTreeMap::new(), synced: false, listing: BTreeMap::new(), broken: None }
    }
}

impl<T> View<T> {
    fn apply(&mut self, event: Event<(String, Option<T>)>) {
        // A list in progress does not show that the server is reachable.
        if !matches!(event, Event::Init) {
            self.broken = None;
        }
        match event {
            Event::Init => self.listing.clear(),
            Event::InitApply((name, item)) => {
                self.listing.extend(item.map(|item| (name, item)));
            }
            Event::InitDone => {
                self.items = std::mem::take(&mut self.listing);
                self.synced = true;
            }
            Event::Apply((name, Some(item))) => {
                self.items.insert(name, item);
            }
            Event::Apply((name, None)) | Event::Delete((name, _)) => {
                self.items.remove(&name);
            }
        }
    }

    pub(super) fn fault(&self) -> Option<String> {
        match &self.broken {
            Some(Broken::MissingKind(kind)) => Some(missing(kind)),
            Some(Broken::Other(error)) => Some(format!("the API server can't be watched: {error}")),
            None if !self.synced => Some("the API server has not answered yet".to_owned()),
            None => None,
        }
    }
}

fn missing(kind: &str) -> String {
    format!(
        "the API server does not know {kind}: is its CustomResourceDefinition installed? (kubectl get crd {kind})"
    )
}

/// The next step of a wait, given the present view.
#[derive(Debug)]
pub(super) enum Step<T> {
    /// The result.
    Ready(T),
    /// The result may still come. At the deadline, this is the error.
    Wait(Error),
    /// The result will not come.
    Fail(Error),
}

fn assigned(view: &View<AttachmentSpec>, volume: &str, workload_uid: &str) -> Step<String> {
    let ours = view.items.values().filter(|spec| spec.persistent_volume_name == volume);
    if let Some(pod) = ours.filter_map(|spec| spec.pod_of(workload_uid)).next() {
        return Step::Ready(pod.to_owned());
    }
    match (&view.broken, view.fault()) {
        (Some(Broken::MissingKind(_)), Some(fault)) => Step::Fail(Error::new(ErrorKind::Unavailable, fault)),
        (_, Some(fault)) => Step::Wait(Error::new(
            ErrorKind::Unavailable,
            format!("no Mountpoint Pod is known for volume {volume}: {fault}"),
        )),
        (_, None) => Step::Wait(Error::new(
            ErrorKind::DeadlineExceeded,
            format!(
                "no MountpointS3PodAttachment assigns a Mountpoint Pod to volume {volume} of pod UID {workload_uid} on this \
                 node: is the driver's controller running, and what does its log say? (kubectl get pods -A | grep \
                 s3-csi-controller; kubectl get s3pa)"
            ),
        )),
    }
}

fn running(view: &View<MountpointPod>, name: &str, namespace: &str) -> Step<MountpointPod> {
    let look = format!("kubectl -n {namespace} describe pod {name}");
    let log = format!("kubectl -n {namespace} logs {name}");
    let Some(pod) = view.items.get(name) else {
        return Step::Wait(match view.fault() {
            Some(fault) => {
                Error::new(ErrorKind::Unavailable, format!("Mountpoint Pod {name} is not known: {fault}"))
            }
            None => Error::new(
                ErrorKind::DeadlineExceeded,
                format!("Mountpoint Pod {name} is not on this node: not scheduled yet, or deleted ({look})"),
            ),
        });
    };
    let why = pod.why.as_deref().map(|why| format!(": {why}")).unwrap_or_default();
    let gone = |text: String| Step::Fail(Error::new(ErrorKind::Unavailable, text));
    match pod.phase.as_str() {
        "Failed" | "Succeeded" => {
            let phase = pod.phase.to_lowercase();
            gone(format!("Mountpoint Pod {name} has {phase}{why} ({log}); the controller replaces it"))
        }
        _ if pod.needs_unmount || pod.leaving => {
            gone(format!("Mountpoint Pod {name} is being removed; the controller will assign another one"))
        }
        // The kubelet calls again; an error now says more than a call that times out.
        _ if pod.waits.is_some() => {
            let waits = pod.waits.as_deref().unwrap_or_default();
            gone(format!("the container of Mountpoint Pod {name} does not run: {waits} ({look}; {log})"))
        }
        "Running" => Step::Ready(pod.clone()),
        phase => {
            let phase = if phase.is_empty() { "Pending" } else { phase };
            let text = format!("Mountpoint Pod {name} is {}{why} ({look})", phase.to_lowercase());
            Step::Wait(Error::new(ErrorKind::DeadlineExceeded, text))
        }
    }
}

/// Decides again at each change of the view, until there is a result or the deadline.
pub(super) async fn wait<T, S>(
    mut view: watch::Receiver<View<T>>,
    deadline: Instant,
    decide: impl Fn(&View<T>) -> Step<S>,
) -> Result<S> {
    loop {
        let step = decide(&view.borrow_and_update());
        let error = match step {
            Step::Ready(found) => return Ok(found),
            Step::Fail(error) => return Err(error),
            Step::Wait(error) => error,
        };
        match timeout_at(deadline, view.changed()).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Err(Error::new(ErrorKind::Unavailable, "the driver is stopping")),
            Err(_elapsed) => return Err(error),
        }
    }
}

/// Keeps a view up to date with the API server, through all errors. If the server refuses the field selector, all objects are
/// watched.
async fn follow<K, T>(
    api: Api<K>,
    fields: String,
    view: watch::Sender<View<T>>,
    keep: impl Fn(K) -> Option<T> + Send,
) where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
    T: Send + Sync,
{
    let kind = format!("{}.{}", K::plural(&()), K::group(&()));
    let mut config = watcher::Config::default().fields(&fields);
    loop {
        let mut events = pin!(lasting(api.clone(), config.clone()).default_backoff());
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    let event = facts(event, &keep);
                    view.send_modify(|view| view.apply(event));
                }
                Err(error) if status(&error) == Some(400) && config.field_selector.is_some() => {
                    tracing::warn!("{kind} can't be selected by {fields} ({error}): watching all");
                    config = watcher::Config::default();
                    break;
                }
                Err(error) => {
                    let broken = match status(&error) {
                        Some(404) => Broken::MissingKind(kind.clone()),
                        _ => Broken::Other(error.to_string()),
                    };
                    let news = view.send_if_modified(|view| {
                        let is_new = view.broken.as_ref() != Some(&broken);
                        view.broken = Some(broken);
                        is_new
                    });
                    if news {
                        tracing::warn!("watching {kind}: {error}");
                    }
                }
            }
        }
    }
}

fn facts<K: Resource<DynamicType = ()>, T>(
    event: Event<K>,
    keep: impl Fn(K) -> Option<T>,
) -> Event<(String, Option<T>)> {
    let named = |it: K| (it.name_any(), keep(it));
    match event {
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
        Event::InitApply(it) => Event::InitApply(named(it)),
        Event::Apply(it) => Event::Apply(named(it)),
        Event::Delete(it) => Event::Delete(named(it)),
    }
}

/// The HTTP status with which the API server refused.
fn status(error: &watcher::Error) -> Option<u16> {
    let (watcher::Error::InitialListFailed(error)
    | watcher::Error::WatchStartFailed(error)
    | watcher::Error::WatchFailed(error)) = error
    else {
        return None;
    };
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
