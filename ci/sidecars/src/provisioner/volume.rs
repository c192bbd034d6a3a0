//! A volume in upstream's form: the call from a claim and its class, the PersistentVolume from the answer. Pure.

use std::collections::BTreeMap;

use anyhow::{Context as _, bail};
use csi::proto::csi::volume_capability::{
    AccessMode, AccessType, BlockVolume, MountVolume, access_mode::Mode,
};
use csi::proto::csi::{CapacityRange, CreateVolumeRequest, Volume, VolumeCapability};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use serde_json::json;

use super::secrets::{PREFIX, Reference};

/// Annotation with the driver that created a volume.
pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// Finalizer that keeps the PersistentVolume until its bucket is deleted.
pub const FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";
/// Annotation with the name of the Secret for the deletion.
pub const DELETION_NAME: &str = "volume.kubernetes.io/provisioner-deletion-secret-name";
/// Annotation with the namespace of the Secret for the deletion.
pub const DELETION_NAMESPACE: &str = "volume.kubernetes.io/provisioner-deletion-secret-namespace";

/// The Secret for the deletion of a volume. Upstream's side-car writes both annotations on every volume, empty without a Secret.
#[must_use]
pub fn deletion_secret(volume: &PersistentVolume) -> Option<Reference> {
    let annotation =
        |key| volume.metadata.annotations.as_ref()?.get(key).filter(|text| !text.is_empty()).cloned();
    Some(Reference { namespace: annotation(DELETION_NAMESPACE)?, name: annotation(DELETION_NAME)? })
}

/// The name of a claim's volume.
///
/// # Errors
/// The claim has no UID.
pub fn name(claim: &PersistentVolumeClaim) -> anyhow::Result<String> {
    Ok(format!("pvc-{}", claim.metadata.uid.as_deref().context("the claim has no UID")?))
}

/// The call CreateVolume, without secrets.
///
/// # Errors
/// The claim requests something that no driver supports.
pub fn request(
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    volume: &str,
    with_metadata: bool,
) -> anyhow::Result<CreateVolumeRequest> {
    let spec = claim.spec.as_ref().context("the claim has no spec")?;
    let flags = class.mount_options.clone().unwrap_or_default();
    let access_type = match spec.volume_mode.as_deref() {
        Some("Block") => AccessType::Block(BlockVolume {}),
        _ => AccessType::Mount(MountVolume { mount_flags: flags, ..MountVolume::default() }),
    };
    let modes = spec.access_modes.iter().flatten().map(|it| mode(it));
    let volume_capabilities = modes
        .map(|mode| {
            let access_mode = Some(AccessMode { mode: mode?.into() });
            Ok(VolumeCapability { access_mode, access_type: Some(access_type.clone()) })
        })
        .collect::<anyhow::Result<_>>()?;
    let mut parameters: BTreeMap<_, _> = class.parameters.clone().unwrap_or_default();
    parameters.retain(|key, _| !key.starts_with(PREFIX));
    if with_metadata {
        let said = |text: &Option<String>| text.clone().unwrap_or_default();
        parameters.insert(format!("{PREFIX}pvc/name"), said(&claim.metadata.name));
        parameters.insert(format!("{PREFIX}pvc/namespace"), said(&claim.metadata.namespace));
        parameters.insert(format!("{PREFIX}pv/name"), volume.to_owned());
    }
    Ok(CreateVolumeRequest {
        name: volume.to_owned(),
        capacity_range: Some(CapacityRange { required_bytes: bytes(&requested(claim)?)?, limit_bytes: 0 }),
        volume_capabilities,
        parameters: parameters.into_iter().collect(),
        ..Default::default()
    })
}

/// The CSI access mode for a claim's, for a driver that supports SINGLE_NODE_MULTI_WRITER.
fn mode(text: &str) -> anyhow::Result<Mode> {
    Ok(match text {
        "ReadWriteOnce" => Mode::SingleNodeMultiWriter,
        "ReadWriteOncePod" => Mode::SingleNodeSingleWriter,
        "ReadOnlyMany" => Mode::MultiNodeReaderOnly,
        "ReadWriteMany" => Mode::MultiNodeMultiWriter,
        other => bail!("there is no access mode {other}"),
    })
}

fn requested(claim: &PersistentVolumeClaim) -> anyhow::Result<String> {
    let resources = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    let requests = resources.and_then(|it| it.requests.as_ref());
    Ok(requests.and_then(|it| it.get("storage")).context("the claim asks for no size")?.0.clone())
}

/// Parses a quantity of whole bytes: `10Gi`, `5G`, `42`.
fn bytes(quantity: &str) -> anyhow::Result<i64> {
    let end = quantity.find(|c: char| !c.is_ascii_digit()).unwrap_or(quantity.len());
    let (number, unit) = quantity.split_at(end);
    let number: i64 = number.parse().with_context(|| format!("{quantity:?} is not a size"))?;
    let factor: i64 = match unit {
        "" => 1,
        "k" => 1000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "T" => 1_000_000_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        _ => bail!("{quantity:?} has a unit that this stand-in does not know"),
    };
    number.checked_mul(factor).with_context(|| format!("{quantity:?} is too large"))
}

/// The PersistentVolume for CreateVolume's answer.
///
/// # Errors
/// The claim has no spec or UID, or the answer has no volume.
pub fn object(
    driver: &str,
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    made: Volume,
    provisioner: Option<&Reference>,
    node_publish: Option<&Reference>,
) -> anyhow::Result<PersistentVolume> {
    let spec = claim.spec.as_ref().context("the claim has no spec")?;
    let name = name(claim)?;
    let policy = class.reclaim_policy.as_deref().unwrap_or("Delete");
    let capacity = if made.capacity_bytes > 0 { made.capacity_bytes.to_string() } else { requested(claim)? };
    let mut attributes: BTreeMap<_, _> = made.volume_context.into_iter().collect();
    attributes.insert("storage.kubernetes.io/csiProvisionerIdentity".into(), format!("stand-in-{driver}"));
    let secret = provisioner.map_or(("", ""), |it| (it.namespace.as_str(), it.name.as_str()));
    let annotations =
        json!({ PROVISIONED_BY: driver, DELETION_NAMESPACE: secret.0, DELETION_NAME: secret.1 });
    let finalizers = if policy == "Delete" { json!([FINALIZER]) } else { json!([]) };
    let mut csi = json!({ "driver": driver, "volumeHandle": made.volume_id, "volumeAttributes": attributes });
    if let (Some(Reference { namespace, name }), Some(map)) = (node_publish, csi.as_object_mut()) {
        map.insert("nodePublishSecretRef".into(), json!({ "namespace": namespace, "name": name }));
    }
    let object = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": { "name": name, "annotations": annotations, "finalizers": finalizers },
        "spec": {
            "accessModes": spec.access_modes,
            "capacity": { "storage": capacity },
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": claim.metadata.namespace,
                "name": claim.metadata.name,
                "uid": claim.metadata.uid,
            },
            "csi": csi,
            "mountOptions": class.mount_options,
            "persistentVolumeReclaimPolicy": policy,
            "storageClassName": class.metadata.name,
            "volumeMode": spec.volume_mode.as_deref().unwrap_or("Filesystem"),
        },
    });
    Ok(serde_json::from_value(object)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(modes: &[&str], mode: &str) -> PersistentVolumeClaim {
        let claim = json!({
            "metadata": { "name": "data", "namespace": "team-a", "uid": "u-1" },
            "spec": { "accessModes": modes, "volumeMode": mode, "resources": { "requests": { "storage": "10Gi" } } },
        });
        serde_json::from_value(claim).unwrap()
    }

    fn class() -> StorageClass {
        let class = json!({
            "metadata": { "name": "s3" },
            "provisioner": "s3.csi.scality.com",
            "mountOptions": ["allow-delete"],
            "parameters": { "onDelete": "purge", "csi.storage.k8s.io/provisioner-secret-name": "keys" },
        });
        serde_json::from_value(class).unwrap()
    }

    #[test]
    fn a_claim_becomes_a_call_without_the_side_car_s_own_parameters() {
        let call =
            request(&claim(&["ReadWriteOnce", "ReadWriteMany"], "Filesystem"), &class(), "pvc-u-1", true)
                .unwrap();
        assert_eq!((call.name.as_str(), call.capacity_range.unwrap().required_bytes), ("pvc-u-1", 10 << 30));
        let mut keys: Vec<_> = call.parameters.keys().map(String::as_str).collect();
        keys.sort_unstable();
        let metadata =
            ["csi.storage.k8s.io/pv/name", "csi.storage.k8s.io/pvc/name", "csi.storage.k8s.io/pvc/namespace"];
        assert_eq!(keys, [&metadata[..], &["onDelete"]].concat());
        let modes: Vec<_> =
            call.volume_capabilities.iter().map(|it| it.access_mode.unwrap().mode()).collect();
        assert_eq!(modes, [Mode::SingleNodeMultiWriter, Mode::MultiNodeMultiWriter]);
        let plain = request(&claim(&["ReadOnlyMany"], "Block"), &class(), "pvc-u-1", false).unwrap();
        assert_eq!(plain.parameters.len(), 1);
        assert!(matches!(plain.volume_capabilities[0].access_type, Some(AccessType::Block(_))));
    }

    #[test]
    fn an_answer_becomes_a_volume_that_is_bound_to_its_claim() {
        let made = Volume { volume_id: "b-x".into(), capacity_bytes: 5, ..Volume::default() };
        let of = |name: &str| Reference { namespace: "team-a".into(), name: name.into() };
        let claim = claim(&["ReadWriteMany"], "Filesystem");
        let bare = object("d", &claim, &class(), made.clone(), None, None).unwrap();
        assert_eq!(bare.metadata.annotations.as_ref().unwrap()[DELETION_NAME], "");
        assert_eq!(deletion_secret(&bare), None);
        let volume = object("d", &claim, &class(), made, Some(&of("p")), Some(&of("n"))).unwrap();
        assert_eq!(deletion_secret(&volume), Some(of("p")));
        let annotations = volume.metadata.annotations.unwrap();
        assert_eq!((annotations[PROVISIONED_BY].as_str(), annotations[DELETION_NAME].as_str()), ("d", "p"));
        assert_eq!(volume.metadata.finalizers.unwrap(), [FINALIZER]);
        let spec = volume.spec.unwrap();
        assert_eq!(spec.claim_ref.unwrap().uid.as_deref(), Some("u-1"));
        let csi = spec.csi.unwrap();
        assert_eq!(csi.node_publish_secret_ref.unwrap().name.as_deref(), Some("n"));
        assert_eq!(spec.mount_options.unwrap(), ["allow-delete"]);
        assert_eq!(spec.persistent_volume_reclaim_policy.as_deref(), Some("Delete"));
    }

    #[test]
    fn sizes_are_read_as_kubernetes_writes_them() {
        for (text, wanted) in [("1Gi", 1 << 30), ("5G", 5_000_000_000), ("42", 42)] {
            assert_eq!(bytes(text).unwrap(), wanted);
        }
        assert!(bytes("1.5Gi").is_err() && bytes("").is_err() && bytes("9999999Ti").is_err());
    }
}
