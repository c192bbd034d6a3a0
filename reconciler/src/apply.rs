//! Carries out effects by calls to the API server. Enters: an [`Effect`]. Leaves: success, or the finding that its facts are out of date.
//!
//! Never here: a decision. The call carries the effect's preconditions as UID and resource version, and the API server checks them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use csi::contract::attachment::MountpointS3PodAttachment;
use csi::contract::pod;
use csi::contract::reason::Reason;
use csi::events::{Notice, Teller, WorkloadRef};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Status;
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};

use crate::metrics::Metrics;
use crate::mountpoint_pod;
use crate::plan::{Effect, Version};
use crate::pod_spec::{self, Owners, PodConfig, PodRequest};

/// Time limit of a call. A call that takes longer has failed, but may still take effect. `plan::UNNAMED_FOR` relies on this limit.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// The pause after a status 429 in which the API server names no time.
const THROTTLED_REST: Duration = Duration::from_secs(1);

/// Carries out effects.
pub struct Applier {
    pub(crate) config: PodConfig,
    pub(crate) pods: Api<Pod>,
    pub(crate) all_pods: Api<Pod>,
    nodes: Api<Node>,
    namespaces: Api<Namespace>,
    attachments: Api<MountpointS3PodAttachment>,
    pub(crate) teller: Teller,
    metrics: Arc<Metrics>,
}

/// The result of an effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The effect was carried out, by this call or an earlier one.
    Done,
    /// The facts of the effect have changed: the rest of its plan is dropped. The text says what was found.
    Stale(String),
}

/// The reason why an effect failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server refused, or did not answer.
    #[error("{tried}: {source}")]
    Api {
        /// The effect that was tried.
        tried: String,
        /// The error that came back.
        source: Box<kube::Error>,
    },
    /// No answer in time.
    #[error("{tried}: the API server did not answer within {} s", CALL_TIMEOUT.as_secs())]
    TimedOut {
        /// The effect that was tried.
        tried: String,
    },
    /// The API server rejects this Mountpoint Pod; an administrator must change something.
    #[error("Mountpoint Pod {pod} for {namespace}/{name} was refused: {message}", namespace = workload.namespace, name = workload.name)]
    Refused {
        /// The Mountpoint Pod.
        pod: String,
        /// The workloads that wait for the pod.
        workload: WorkloadRef,
        /// The API server's words.
        message: String,
    },
}

impl Error {
    /// The kind of the error in one word, a label of the metrics.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Refused { .. } => "refused",
            Self::TimedOut { .. } => "timeout",
            Self::Api { .. } => "api",
        }
    }

    /// The pause that the API server asks for: `retryAfterSeconds` of its answer, as in `Retry-After`; one second after a status 429
    /// without it.
    #[must_use]
    pub fn rest(&self) -> Option<Duration> {
        let Self::Api { source, .. } = self else { return None };
        let kube::Error::Api(status) = &**source else { return None };
        let said = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
        match said {
            0 => (status.code == 429).then_some(THROTTLED_REST),
            seconds => Some(Duration::from_secs(seconds.into())),
        }
    }
}

impl Applier {
    /// An applier for the cluster of this client.
    #[must_use]
    pub fn new(client: Client, config: PodConfig, teller: Teller) -> Self {
        Self {
            pods: Api::namespaced(client.clone(), &config.namespace),
            all_pods: Api::all(client.clone()),
            nodes: Api::all(client.clone()),
            namespaces: Api::all(client.clone()),
            attachments: Api::all(client),
            config,
            teller,
            metrics: Arc::default(),
        }
    }

    /// The counters of applied effects.
    #[must_use]
    pub fn metrics(&self) -> Arc<Metrics> {
        Arc::clone(&self.metrics)
    }

    /// Whether headroom is configured: room reserved for Mountpoint Pods.
    #[must_use]
    pub fn reserves(&self) -> bool {
        self.config.headroom.is_some()
    }

    /// Carries out one effect.
    ///
    /// # Errors
    /// An error of the API server, or a timeout, after which the effect may still happen.
    pub async fn apply(&self, effect: &Effect) -> Result<Outcome, Error> {
        let began = Instant::now();
        let outcome = self.try_to(effect).await;
        if let Effect::CreatePod { request, .. } = effect {
            match &outcome {
                Ok(Outcome::Done) => self.metrics.pod_created(&request.name, began),
                Ok(Outcome::Stale(_)) => {}
                Err(error) => self.metrics.pod_not_created(error.reason()),
            }
        }
        outcome
    }

    async fn try_to(&self, effect: &Effect) -> Result<Outcome, Error> {
        let tried = || describe(effect);
        match tokio::time::timeout(CALL_TIMEOUT, self.call(effect)).await {
            Err(_) => Err(Error::TimedOut { tried: tried() }),
            Ok(Ok(outcome)) => Ok(outcome),
            Ok(Err(kube::Error::Api(status))) => match effect {
                Effect::CreatePod { request, workload } if is_refusal(&status) => {
                    let (pod, message) = (request.name.clone(), status.message.clone());
                    let note = format!(
                        "Mountpoint Pod {pod} was refused by the API server, as a quota or an admission policy of its namespace may \
                         do: {message}"
                    );
                    let workload = workload.clone();
                    let notice =
                        Notice { workload: workload.clone(), reason: Reason::MountpointPodRefused, note };
                    self.teller.tell(&notice).await;
                    Err(Error::Refused { pod, workload, message })
                }
                _ if status.code == 409 => Ok(Outcome::Stale(format!("{}: {}", tried(), status.message))),
                _ if status.code == 404 => Ok(gone(effect, &status)),
                _ => Err(Error::Api { tried: tried(), source: Box::new(kube::Error::Api(status)) }),
            },
            Ok(Err(source)) => Err(Error::Api { tried: tried(), source: Box::new(source) }),
        }
    }

    async fn call(&self, effect: &Effect) -> kube::Result<Outcome> {
        match effect {
            Effect::ConfirmWorkloadsEnded { node, uids } => self.confirm_workloads_ended(node, uids).await,
            Effect::ConfirmPodEnded { pod } => self.confirm_pod_ended(pod).await,
            Effect::ConfirmUnnamed { pod } => self.confirm_unnamed(pod).await,
            Effect::ConfirmUnattached { uids } => self.confirm_unattached(uids).await,
            Effect::MarkNeedsUnmount { at, restarts } => {
                let words =
                    json!({pod::NEEDS_UNMOUNT: "true", pod::RESTARTS_WHEN_MARKED: restarts.to_string()});
                let patch = with_version(at, json!({"annotations": words}), None);
                self.pods
                    .patch(&at.name, &PatchParams::default(), &Patch::Merge(patch))
                    .await
                    .map(|_| Outcome::Done)
            }
            Effect::CreatePod { request, .. } => self.create_pod(request).await,
            Effect::CreateAttachment(attachment) => {
                self.attachments.create(&PostParams::default(), attachment).await.map(|_| Outcome::Done)
            }
            Effect::UpdateAttachment { at, entries, annotations } => {
                let metadata = match annotations.is_empty() {
                    true => json!({}),
                    false => json!({"annotations": annotations}),
                };
                // A merge patch: an entry with the value null is removed, and fields that we do not know stay.
                let spec = json!({"mountpointS3PodAttachments": entries});
                let patch = with_version(at, metadata, Some(spec));
                let params = PatchParams::default();
                self.attachments.patch(&at.name, &params, &Patch::Merge(patch)).await.map(|_| Outcome::Done)
            }
            Effect::DeleteAttachment(at) => {
                self.attachments.delete(&at.name, &unchanged(at)).await.map(|_| Outcome::Done)
            }
            Effect::DeletePod(at) => self.pods.delete(&at.name, &unchanged(at)).await.map(|_| Outcome::Done),
            Effect::Tell(notice) => {
                self.teller.tell(notice).await;
                Ok(Outcome::Done)
            }
        }
    }

    async fn create_pod(&self, request: &PodRequest) -> kube::Result<Outcome> {
        let node = self.nodes.get_metadata_opt(&request.node).await?.and_then(|it| it.uid());
        let namespace =
            self.namespaces.get_metadata_opt(&self.config.namespace).await?.and_then(|it| it.uid());
        let owners = Owners { namespace: namespace.as_deref(), node: node.as_deref() };
        let pod = pod_spec::build(&self.config, request, owners);
        match self.pods.create(&PostParams::default(), &pod).await {
            Ok(_) => Ok(Outcome::Done),
            Err(kube::Error::Api(status)) if status.is_already_exists() => {
                let found = self.pods.get(&request.name).await?;
                let read = mountpoint_pod::read(&found, false, false);
                let fits = read.is_for(&request.workload_uid, &request.volume)
                    && read.is_of(request.volume_uid.as_deref())
                    && read.takes(csi::contract::VERSION)
                    && pod_spec::node_of(&found) == Some(&request.node);
                let name = &request.name;
                Ok(if fits { Outcome::Done } else { Outcome::Stale(format!("the name {name} is taken")) })
            }
            Err(error) => Err(error),
        }
    }

    async fn confirm_workloads_ended(&self, node: &str, uids: &BTreeSet<String>) -> kube::Result<Outcome> {
        let on_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let alive = self.all_pods.list(&on_node).await?.items.into_iter().find(|pod| {
            pod.uid().is_some_and(|uid| uids.contains(&uid)) && !mountpoint_pod::phase(pod).has_ended()
        });
        Ok(alive.map_or(Outcome::Done, |pod| Outcome::Stale(format!("pod {} is there", pod.name_any()))))
    }

    async fn confirm_pod_ended(&self, name: &str) -> kube::Result<Outcome> {
        let found = self.pods.get_opt(name).await?;
        let alive = found.is_some_and(|pod| !mountpoint_pod::phase(&pod).has_ended());
        Ok(if alive { Outcome::Stale(format!("Mountpoint Pod {name} is there")) } else { Outcome::Done })
    }

    async fn confirm_unattached(&self, uids: &BTreeSet<String>) -> kube::Result<Outcome> {
        let all = self.attachments.list(&ListParams::default()).await?;
        let named = all.items.iter().find(|it| uids.iter().any(|uid| it.spec.pod_of(uid).is_some()));
        Ok(named.map_or(Outcome::Done, |it| {
            Outcome::Stale(format!("attachment {} names one of {uids:?}", it.name_any()))
        }))
    }

    async fn confirm_unnamed(&self, name: &str) -> kube::Result<Outcome> {
        let all = self.attachments.list(&ListParams::default()).await?;
        let named = all.items.iter().find(|it| it.spec.mountpoint_pods.contains_key(name));
        Ok(named
            .map_or(Outcome::Done, |it| Outcome::Stale(format!("attachment {} names {name}", it.name_any()))))
    }
}

/// Adds UID and resource version to a patch: the API server then refuses it if the object was changed or replaced.
pub(crate) fn with_version(at: &Version, mut metadata: Value, spec: Option<Value>) -> Value {
    metadata["uid"] = json!(at.uid);
    metadata["resourceVersion"] = json!(at.resource_version);
    let mut patch = json!({"metadata": metadata});
    if let Some(spec) = spec {
        patch["spec"] = spec;
    }
    patch
}

pub(crate) fn unchanged(at: &Version) -> DeleteParams {
    DeleteParams {
        preconditions: Some(Preconditions {
            uid: Some(at.uid.clone()),
            resource_version: Some(at.resource_version.clone()),
        }),
        ..DeleteParams::default()
    }
}

/// The outcome if the object of the effect is not found: a deletion is done, any other effect is stale.
fn gone(effect: &Effect, status: &Status) -> Outcome {
    match effect {
        Effect::DeleteAttachment(_) | Effect::DeletePod(_) => Outcome::Done,
        _ => Outcome::Stale(format!("{}: {}", describe(effect), status.message)),
    }
}

/// Whether the API server refuses the object itself, so a retry does not help: a quota, a policy, a missing service account, a forbidden
/// value.
pub(crate) fn is_refusal(status: &Status) -> bool {
    matches!(status.code, 400 | 403 | 422)
}

/// The action of an effect, in words for logs and errors.
#[must_use]
pub fn describe(effect: &Effect) -> String {
    match effect {
        Effect::ConfirmWorkloadsEnded { node, uids } => format!("looking on node {node} for pods {uids:?}"),
        Effect::ConfirmPodEnded { pod } => format!("looking for Mountpoint Pod {pod}"),
        Effect::ConfirmUnnamed { pod } => format!("looking for attachments that name {pod}"),
        Effect::ConfirmUnattached { uids } => format!("looking for attachments that name workloads {uids:?}"),
        Effect::MarkNeedsUnmount { at, .. } => format!("telling Mountpoint Pod {} to unmount", at.name),
        Effect::CreatePod { request, workload } => {
            format!("creating Mountpoint Pod {} for {}/{}", request.name, workload.namespace, workload.name)
        }
        Effect::CreateAttachment(it) => format!("creating attachment {}", it.name_any()),
        Effect::UpdateAttachment { at, entries, .. } => {
            let entries: Vec<_> = entries
                .iter()
                .map(|(pod, now)| match now {
                    None => format!("{pod} dropped"),
                    Some(now) => format!("{pod} for {}", now.len()),
                })
                .collect();
            format!("updating attachment {} ({})", at.name, entries.join(", "))
        }
        Effect::DeleteAttachment(at) => format!("deleting attachment {}", at.name),
        Effect::DeletePod(at) => format!("deleting Mountpoint Pod {}", at.name),
        Effect::Tell(notice) => format!("telling {}/{}", notice.workload.namespace, notice.workload.name),
    }
}
