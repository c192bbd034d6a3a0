//! The stand-in for csi-provisioner: creates volumes for claims, deletes released ones. Enters: claims, classes, volumes of an
//! API server; the driver's socket. Leaves: calls, PersistentVolumes, Events with upstream's reasons.
//!
//! Unlike upstream, it lists everything once a second: it is for clusters with a few claims.

pub mod secrets;
pub mod volume;

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use csi::proto::csi::DeleteVolumeRequest;
use csi::proto::csi::controller_client::ControllerClient;
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim, Secret};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Api, Client, Resource as _, ResourceExt as _};
use serde_json::json;

use self::secrets::{Claim, Reference, Use};
use crate::{driver, log};

/// Interval between two lists.
const LOOK: Duration = Duration::from_secs(1);
/// The first backoff after a failure; it doubles.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest backoff, as upstream's --retry-interval-max.
const PAUSE_MAX: Duration = Duration::from_secs(300);
const STORAGE_PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// A provisioner of one driver.
pub struct Provisioner {
    client: Client,
    socket: PathBuf,
    driver: String,
    timeout: Duration,
    with_metadata: bool,
    recorder: Recorder,
    /// Backoff of failed claims and volumes, by UID: the time of the next try, and the pause before it.
    pauses: HashMap<String, (Instant, Duration)>,
}

impl Provisioner {
    /// A provisioner for the driver at this socket.
    #[must_use]
    pub fn new(
        client: Client,
        socket: PathBuf,
        driver: String,
        timeout: Duration,
        with_metadata: bool,
    ) -> Self {
        let reporter = Reporter { controller: driver.clone(), instance: None };
        let recorder = Recorder::new(client.clone(), reporter);
        Self { client, socket, driver, timeout, with_metadata, recorder, pauses: HashMap::new() }
    }

    /// Works until the process ends, while `may_work` returns true: otherwise another replica works.
    pub async fn run(&mut self, may_work: impl Fn() -> bool) {
        loop {
            if may_work()
                && let Err(error) = self.look().await
            {
                log(format_args!("looking for claims and volumes: {error:#}"));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn look(&mut self) -> anyhow::Result<()> {
        let classes = Api::<StorageClass>::all(self.client.clone()).list(&ListParams::default()).await?;
        let claims =
            Api::<PersistentVolumeClaim>::all(self.client.clone()).list(&ListParams::default()).await?;
        for claim in claims {
            let class = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_ref());
            let class =
                classes.iter().find(|it| Some(&it.name_any()) == class && it.provisioner == self.driver);
            if let Some(class) = class
                && self.is_ours_to_make(&claim, class)
                && self.is_due(&claim.uid().unwrap_or_default())
            {
                let ended = self.provision(&claim, class).await;
                self.note(&claim.uid().unwrap_or_default(), ended.is_ok());
                if let Err(error) = ended {
                    let class = class.name_any();
                    let note = format!("failed to provision volume with StorageClass \"{class}\": {error:#}");
                    self.tell(&claim.object_ref(&()), "ProvisioningFailed", &note).await;
                }
            }
        }
        let volumes = Api::<PersistentVolume>::all(self.client.clone()).list(&ListParams::default()).await?;
        for volume in volumes {
            if self.is_ours_to_delete(&volume) && self.is_due(&volume.uid().unwrap_or_default()) {
                let ended = self.delete(&volume).await;
                self.note(&volume.uid().unwrap_or_default(), ended.is_ok());
                if let Err(error) = ended {
                    self.tell(&volume.object_ref(&()), "VolumeFailedDelete", &format!("{error:#}")).await;
                }
            }
        }
        Ok(())
    }

    fn is_ours_to_make(&self, claim: &PersistentVolumeClaim, class: &StorageClass) -> bool {
        let waits = class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer");
        let annotations = claim.annotations();
        claim.spec.as_ref().is_some_and(|spec| spec.volume_name.is_none())
            && claim.metadata.deletion_timestamp.is_none()
            && annotations.get(STORAGE_PROVISIONER) == Some(&self.driver)
            && (!waits || annotations.contains_key(SELECTED_NODE))
    }

    fn is_ours_to_delete(&self, volume: &PersistentVolume) -> bool {
        let policy = volume.spec.as_ref().and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
        let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
        volume.annotations().get(volume::PROVISIONED_BY) == Some(&self.driver)
            && policy == Some("Delete")
            && matches!(phase, Some("Released" | "Failed"))
    }

    async fn provision(&self, claim: &PersistentVolumeClaim, class: &StorageClass) -> anyhow::Result<()> {
        let name = volume::name(claim)?;
        let parameters = class.parameters.clone().unwrap_or_default();
        let of = Claim {
            name: claim.name_any(),
            namespace: claim.namespace().unwrap_or_default(),
            annotations: claim.annotations().clone(),
        };
        let provisioner = Use::Provisioner.resolve(&parameters, &of, &name)?;
        let node_publish = Use::NodePublish.resolve(&parameters, &of, &name)?;
        let mut call = volume::request(claim, class, &name, self.with_metadata)?;
        call.secrets = self.secrets(provisioner.as_ref()).await?;
        let answer = tokio::time::timeout(self.timeout, async {
            self.controller().await?.create_volume(call).await.map_err(said)
        });
        let made =
            answer.await.context("DeadlineExceeded")??.into_inner().volume.context("no volume came")?;
        let object =
            volume::object(&self.driver, claim, class, made, provisioner.as_ref(), node_publish.as_ref())?;
        match Api::all(self.client.clone()).create(&PostParams::default(), &object).await {
            Ok(_) => log(format_args!("{name} is made")),
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(error).context("writing the PersistentVolume"),
        }
        Ok(())
    }

    async fn delete(&self, object: &PersistentVolume) -> anyhow::Result<()> {
        let reference = volume::deletion_secret(object);
        let csi =
            object.spec.as_ref().and_then(|spec| spec.csi.as_ref()).context("it is not a CSI volume")?;
        let call = DeleteVolumeRequest {
            volume_id: csi.volume_handle.clone(),
            secrets: self.secrets(reference.as_ref()).await?,
        };
        let answer = tokio::time::timeout(self.timeout, async {
            self.controller().await?.delete_volume(call).await.map_err(said)
        });
        answer.await.context("DeadlineExceeded")??;
        let api = Api::<PersistentVolume>::all(self.client.clone());
        api.delete(&object.name_any(), &DeleteParams::default()).await?;
        let finalizers: Vec<_> = object.finalizers().iter().filter(|it| *it != volume::FINALIZER).collect();
        let patch = Patch::Merge(json!({ "metadata": { "finalizers": finalizers } }));
        match api.patch(&object.name_any(), &PatchParams::default(), &patch).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(error).context("taking the finalizer off"),
        }
        log(format_args!("{} is deleted", object.name_any()));
        Ok(())
    }

    async fn controller(&self) -> anyhow::Result<ControllerClient<tonic::transport::Channel>> {
        Ok(ControllerClient::new(driver::connect(&self.socket, self.timeout).await?))
    }

    async fn secrets(&self, of: Option<&Reference>) -> anyhow::Result<HashMap<String, String>> {
        let Some(Reference { namespace, name }) = of else { return Ok(HashMap::new()) };
        let found = Api::<Secret>::namespaced(self.client.clone(), namespace).get(name).await;
        let data = found.with_context(|| format!("getting the Secret {namespace}/{name}"))?.data;
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).context("a Secret is not text");
        data.unwrap_or_default().into_iter().map(|(key, value)| Ok((key, text(value.0)?))).collect()
    }

    async fn tell(&self, on: &ObjectReference, reason: &str, note: &str) {
        log(format_args!("{reason}: {}: {note}", on.name.as_deref().unwrap_or_default()));
        let event = Event {
            type_: EventType::Warning,
            reason: reason.to_owned(),
            note: Some(note.chars().take(1000).collect()),
            action: reason.to_owned(),
            secondary: None,
        };
        if let Err(error) = self.recorder.publish(&event, on).await {
            log(format_args!("an Event was not written: {error}"));
        }
    }

    fn is_due(&self, uid: &str) -> bool {
        self.pauses.get(uid).is_none_or(|(until, _)| Instant::now() >= *until)
    }

    fn note(&mut self, uid: &str, is_well: bool) {
        if is_well {
            self.pauses.remove(uid);
            return;
        }
        let pause = self.pauses.get(uid).map_or(PAUSE, |(_, pause)| (*pause * 2).min(PAUSE_MAX));
        self.pauses.insert(uid.to_owned(), (Instant::now() + pause, pause));
    }
}

/// An error of the driver in upstream's form.
fn said(status: tonic::Status) -> anyhow::Error {
    anyhow::anyhow!("rpc error: code = {:?} desc = {}", status.code(), status.message())
}
