//! Carries out steps by calls to the API server. A step with outdated facts fails, and the next run plans again.

use csi::contract::pod;
use csi::contract::reason::Reason;
use csi::events::{Notice, WorkloadRef};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::{Step, plan};
use crate::apply::{Applier, CALL_TIMEOUT, is_refusal, unchanged, with_version};
use crate::leader::Leadership;
use crate::observed::Cache;
use crate::plan::Version;
use crate::pod_spec;

/// Plans once and carries out the steps. Returns whether some workload still waits, or a step failed.
pub async fn reserve(cache: &Cache, applier: &Applier, leadership: &Leadership) -> bool {
    let (steps, mut again) = plan(&cache.headroom(Timestamp::now()));
    for step in &steps {
        if !leadership.holds() {
            return true;
        }
        match tokio::time::timeout(CALL_TIMEOUT, applier.step(step)).await {
            Ok(Ok(())) => tracing::debug!(?step, "headroom: done"),
            // The object was replaced, is gone, or exists already.
            Ok(Err(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => {
                tracing::debug!(?step, reason = status.reason, "headroom: old facts");
                again = true;
            }
            Ok(Err(error)) => {
                tracing::warn!(?step, %error, "headroom: a step failed");
                again = true;
            }
            Err(_) => {
                tracing::warn!(
                    ?step,
                    "headroom: the API server did not answer within {} s",
                    CALL_TIMEOUT.as_secs()
                );
                again = true;
            }
        }
    }
    again
}

impl Applier {
    async fn step(&self, step: &Step) -> kube::Result<()> {
        match step {
            Step::Label(at, version) => {
                self.patch(at, version, json!({"labels": {pod::HEADROOM_FOR_WORKLOAD: at.uid}}), None).await
            }
            Step::Unlabel(at, version) => {
                self.patch(at, version, json!({"labels": {pod::HEADROOM_FOR_WORKLOAD: null}}), None).await
            }
            Step::Ungate(at, version, others) => {
                let others: Vec<_> = others.iter().map(|name| json!({"name": name})).collect();
                self.patch(at, version, json!({}), Some(json!({"schedulingGates": others}))).await
            }
            Step::Create(request) => {
                let Some(pod) = pod_spec::headroom_pod(&self.config, request) else { return Ok(()) };
                let made = self.pods.create(&PostParams::default(), &pod).await;
                if let Err(kube::Error::Api(status)) = &made
                    && is_refusal(status)
                {
                    let note = format!(
                        "no room is reserved for the Mountpoint Pod of PersistentVolume {}, and the pod is not scheduled: the API \
                         server refused the headroom pod, as a quota or an admission policy of its namespace may do: {}",
                        request.volume, status.message
                    );
                    let workload = request.workload.clone();
                    self.teller.tell(&Notice { workload, reason: Reason::HeadroomRefused, note }).await;
                }
                made.map(|_| ())
            }
            Step::Delete(version) => self.pods.delete(&version.name, &unchanged(version)).await.map(|_| ()),
            Step::Tell(notice) => {
                self.teller.tell(notice).await;
                Ok(())
            }
        }
    }

    async fn patch(
        &self,
        at: &WorkloadRef,
        version: &Version,
        metadata: Value,
        spec: Option<Value>,
    ) -> kube::Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.all_pods.clone().into_client(), &at.namespace);
        let patch = with_version(version, metadata, spec);
        pods.patch(&at.name, &PatchParams::default(), &Patch::Merge(patch)).await.map(|_| ())
    }
}
