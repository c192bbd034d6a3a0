//! The check for volumes in use, before an uninstall. Enters: the attachments, PersistentVolumes and pods of a cluster. Leaves: success if
//! none is in use, or a refusal that names the first uses and a remedy.
//!
//! Attachments name the workloads of Mountpoint Pods. Mounts by a node's systemd have no attachment: their pods name the volumes. Never
//! here: a write.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, ensure};
use csi::contract::DRIVER;
use csi::contract::attachment::MountpointS3PodAttachment;
use k8s_openapi::api::core::v1::{PersistentVolume, Pod};
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt as _};
use serde::de::DeserializeOwned;

use crate::mountpoint_pod;
use crate::observed::claims_of;

/// Most uses of each kind that the refusal names; it counts the rest.
const NAMED: usize = 5;
/// Objects per page of a list. Only the objects in use are kept.
const PAGE: u32 = 500;

/// Names of the driver's volumes, by the namespace and the name of their claim.
type Volumes = BTreeMap<(String, String), String>;

/// Succeeds if no workload uses a volume of the driver. `keep_by` is the command that keeps the driver after a refusal.
///
/// # Errors
/// The number of uses, the first of them, and a remedy; or an error of the API server.
pub async fn check_unused(client: Client, keep_by: Option<&str>) -> anyhow::Result<()> {
    let (mut attachments, mut attached) = (Vec::new(), BTreeSet::new());
    let listed = each(Api::all(client.clone()), |it: MountpointS3PodAttachment| {
        let workloads = it.spec.mountpoint_pods.values().flatten();
        attached.extend(workloads.map(|workload| workload.workload_pod_uid.clone()));
        attachments.push(format!(
            "PersistentVolume {} on node {}",
            it.spec.persistent_volume_name, it.spec.node_name
        ));
    });
    match listed.await {
        // Without the CRD there are no attachments: a driver that mounts by systemd has none.
        Err(kube::Error::Api(status)) if status.is_not_found() => {}
        other => other.context("listing attachments")?,
    }
    let (mut volumes, mut pods) = (Volumes::new(), Vec::new());
    let listed =
        each(Api::all(client.clone()), |volume: PersistentVolume| volumes.extend(claim_and_name(&volume)));
    listed.await.context("listing PersistentVolumes")?;
    let listed = each(Api::all(client), |pod: Pod| {
        if !pod.metadata.uid.as_ref().is_some_and(|uid| attached.contains(uid)) {
            pods.extend(used_by(&pod, &volumes));
        }
    });
    listed.await.context("listing pods")?;
    let kinds = [(attachments, "attachments"), (pods, "pods that no attachment names")];
    let found: Vec<_> = kinds.into_iter().filter_map(|(found, what)| in_words(&found, what)).collect();
    ensure!(
        found.is_empty(),
        "volumes are in use: {}. End the pods that use them ('kubectl get s3pa' lists attachments), or uninstall with --no-hooks: mounts then \
         keep working, and pods that use them can't end before the driver is installed again. {}",
        found.join("; "),
        keep_by.map_or_else(
            || "To keep the driver, roll back to its last revision of 'helm history'".to_owned(),
            |command| format!("To keep the driver: {command}")
        )
    );
    tracing::info!("no volume is in use");
    Ok(())
}

/// Lists all objects of a kind, page by page.
async fn each<K>(api: Api<K>, mut see: impl FnMut(K)) -> kube::Result<()>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let page = api.list(&params).await?;
        page.items.into_iter().for_each(&mut see);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(()),
        }
    }
}

/// The claim and the name of a volume; `None` if the volume is released. Then it still names its claim, but a new claim may have that name.
fn claim_and_name(volume: &PersistentVolume) -> Option<((String, String), String)> {
    let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
    if matches!(phase, Some("Released" | "Failed")) {
        return None;
    }
    let spec = volume.spec.as_ref()?;
    spec.csi.as_ref().filter(|csi| csi.driver == DRIVER)?;
    let claim = spec.claim_ref.as_ref()?;
    Some(((claim.namespace.clone()?, claim.name.clone()?), volume.name_any()))
}

/// The first volume of the driver that a pod uses, in words; `None` for a pod that is not on a node or has ended.
fn used_by(pod: &Pod, volumes: &Volumes) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let node = spec.node_name.as_ref().filter(|node| !node.is_empty())?;
    if mountpoint_pod::phase(pod).has_ended() {
        return None;
    }
    let namespace = pod.namespace().unwrap_or_default();
    let mut claimed = claims_of(pod).filter_map(|(claim, _)| volumes.get(&(namespace.clone(), claim)));
    let inline =
        || spec.volumes.iter().flatten().find(|it| it.csi.as_ref().is_some_and(|csi| csi.driver == DRIVER));
    let volume = match claimed.next() {
        Some(name) => format!("PersistentVolume {name}"),
        None => format!("volume {}", inline()?.name),
    };
    Some(format!("{namespace}/{} on node {node} with {volume}", pod.name_any()))
}

fn in_words(found: &[String], what: &str) -> Option<String> {
    let first: Vec<_> = found.iter().take(NAMED).map(String::as_str).collect();
    (!found.is_empty()).then(|| format!("{} {what}, such as {}", found.len(), first.join(", ")))
}
