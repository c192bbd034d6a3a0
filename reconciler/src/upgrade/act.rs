//! Carries out steps by calls to the API server. A step with outdated facts fails, and the next run plans again.

use csi::contract::pod;
use csi::contract::upgrade::ANNOTATION;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::{Step, plan};
use crate::apply::{Applier, CALL_TIMEOUT, with_version};
use crate::leader::Leadership;
use crate::observed::Cache;

/// Plans once and carries out the steps. `release_namespace` is the namespace of the drivers; `None`: no upgrade begins.
pub async fn upgrade(
    cache: &Cache,
    applier: &Applier,
    leadership: &Leadership,
    release_namespace: Option<&str>,
) {
    let image = release_namespace.map(|_| applier.config.image.as_str());
    let facts = cache.upgrades(image, release_namespace.unwrap_or_default(), Timestamp::now());
    for step in plan(&facts) {
        if !leadership.holds() {
            return;
        }
        let name = &step.at.name;
        match tokio::time::timeout(CALL_TIMEOUT, applier.write(&step)).await {
            Ok(Ok(())) => {
                tracing::info!(image = step.image, attempt = ?step.attempt, "upgrading Mountpoint Pod {name}");
                for notice in &step.notices {
                    applier.teller.tell(notice).await;
                }
            }
            // The pod was replaced or changed, or is gone.
            Ok(Err(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => {
                tracing::debug!(reason = status.reason, "upgrading Mountpoint Pod {name}: old facts");
            }
            Ok(Err(error)) => tracing::warn!(%error, "upgrading Mountpoint Pod {name} failed"),
            Err(_) => tracing::warn!(
                "upgrading Mountpoint Pod {name}: the API server did not answer within {} s",
                CALL_TIMEOUT.as_secs()
            ),
        }
    }
}

impl Applier {
    /// Patches image and annotation of a Mountpoint Pod in one write.
    async fn write(&self, step: &Step) -> kube::Result<()> {
        let attempt = step.attempt.as_ref().and_then(|it| serde_json::to_string(it).ok());
        let image = step.image.as_ref();
        // A strategic merge finds the container by its name.
        let spec = image.map(|image| json!({"containers": [{"name": pod::CONTAINER, "image": image}]}));
        let patch = with_version(&step.at, json!({"annotations": {ANNOTATION: attempt}}), spec);
        let params = PatchParams::default();
        self.pods.patch(&step.at.name, &params, &Patch::Strategic(patch)).await.map(|_| ())
    }
}
