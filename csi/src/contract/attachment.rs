//! `MountpointS3PodAttachment`: the workloads of each Mountpoint Pod, on one node for one volume. The reconciler writes it, the node
//! reads it. The shape is that of release 2.2.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::digest;

/// The label that names the release which made an attachment or a Mountpoint Pod.
pub const MOUNTED_BY_VERSION: &str = "s3.csi.scality.com/mounted-by-csi-driver-version";

/// The contents of an attachment. All fields but the last are the share key, frozen when the attachment was made; a later edit of
/// the volume's mount options does not change them.
#[derive(CustomResource, Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "s3.csi.scality.com",
    version = "v2",
    kind = "MountpointS3PodAttachment",
    plural = "mountpoints3podattachments",
    singular = "mountpoints3podattachment",
    shortname = "s3pa",
    doc = "Which workloads on one node are served by which Mountpoint Pods, for one volume.",
    status = "AttachmentStatus",
    derive = "PartialEq",
    selectable = ".spec.nodeName",
    selectable = ".spec.persistentVolumeName",
    selectable = ".spec.volumeID",
    selectable = ".spec.mountOptions",
    selectable = ".spec.workloadFSGroup",
    printcolumn = r#"{"name":"Node","type":"string","jsonPath":".spec.nodeName"}"#,
    printcolumn = r#"{"name":"PV Name","type":"string","jsonPath":".spec.persistentVolumeName"}"#,
    printcolumn = r#"{"name":"Mount Options","type":"string","jsonPath":".spec.mountOptions","priority":1}"#,
    printcolumn = r#"{"name":"Mountpoint Pods","type":"string","jsonPath":".spec.mountpointS3PodAttachments","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct AttachmentSpec {
    /// The node that the workloads run on.
    pub node_name: String,
    /// The PersistentVolume.
    pub persistent_volume_name: String,
    /// The volume handle of the PersistentVolume.
    #[serde(rename = "volumeID")]
    pub volume_id: String,
    /// The mount options of the PersistentVolume when the attachment was made, joined by commas.
    pub mount_options: String,
    /// The fsGroup of the workloads in decimal; empty when they have none.
    #[serde(rename = "workloadFSGroup")]
    pub workload_fs_group: String,
    /// `pod` if the Mountpoint Pods sign with the identity of the workloads' service account; absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authentication_source: Option<String>,
    /// Then the namespace of the workloads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload_namespace: Option<String>,
    /// The service account of the workloads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload_service_account_name: Option<String>,
    /// The role that this account had when the attachment was made.
    #[serde(default, rename = "workloadServiceAccountIAMRoleARN", skip_serializing_if = "Option::is_none")]
    pub workload_service_account_role: Option<String>,
    /// The workloads of each Mountpoint Pod, by its name.
    #[serde(rename = "mountpointS3PodAttachments")]
    pub mountpoint_pods: BTreeMap<String, Vec<WorkloadAttachment>>,
}

/// One workload that a Mountpoint Pod serves.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadAttachment {
    /// The UID of the workload's pod.
    #[serde(rename = "workloadPodUID")]
    pub workload_pod_uid: String,
    /// When the workload was attached.
    pub attachment_time: Time,
}

/// Declared for clients that watch the subresource; nothing is written there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct AttachmentStatus {}

/// The properties that workloads of one Mountpoint Pod have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShareKey {
    /// The node.
    pub node: String,
    /// The PersistentVolume's name.
    pub volume: String,
    /// The volume handle.
    pub handle: String,
    /// The volume's mount options, joined by commas.
    pub mount_options: String,
    /// The workload's fsGroup in decimal, or empty.
    pub fs_group: String,
    /// The workload's identity, if the Mountpoint Pod has it.
    pub identity: Option<Identity>,
}

/// The service account of workloads, and the role that it assumes at the store.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    /// The namespace.
    pub namespace: String,
    /// The service account's name.
    pub service_account: String,
    /// The role's ARN.
    pub role: String,
}

/// Value of [`AttachmentSpec::authentication_source`] in attachments with an [`Identity`].
const OF_POD: &str = "pod";

impl ShareKey {
    /// The name of a new attachment for this key. A second creator gets `AlreadyExists`. Never compute the name to find an attachment:
    /// older releases gave random names, and mount options can change.
    #[must_use]
    pub fn attachment_name(&self) -> String {
        let Self { node, volume, handle, mount_options, fs_group, identity } = self;
        let mut parts = vec![node.as_str(), volume, handle, mount_options, fs_group];
        if let Some(Identity { namespace, service_account, role }) = identity {
            parts.extend([OF_POD, namespace, service_account, role]);
        }
        format!("s3pa-{}", digest(&parts))
    }

    /// A new attachment that serves one workload.
    #[must_use]
    pub fn attachment(
        &self,
        mountpoint_pod: &str,
        workload: WorkloadAttachment,
    ) -> MountpointS3PodAttachment {
        let spec = AttachmentSpec {
            node_name: self.node.clone(),
            persistent_volume_name: self.volume.clone(),
            volume_id: self.handle.clone(),
            mount_options: self.mount_options.clone(),
            workload_fs_group: self.fs_group.clone(),
            authentication_source: self.identity.as_ref().map(|_| OF_POD.to_owned()),
            workload_namespace: self.identity.as_ref().map(|it| it.namespace.clone()),
            workload_service_account_name: self.identity.as_ref().map(|it| it.service_account.clone()),
            workload_service_account_role: self.identity.as_ref().map(|it| it.role.clone()),
            mountpoint_pods: BTreeMap::from([(mountpoint_pod.to_owned(), vec![workload])]),
        };
        let mut attachment = MountpointS3PodAttachment::new(&self.attachment_name(), spec);
        attachment.metadata.labels =
            Some(BTreeMap::from([(MOUNTED_BY_VERSION.to_owned(), super::VERSION.to_owned())]));
        attachment
    }
}

impl AttachmentSpec {
    /// The share key for which the attachment was created.
    #[must_use]
    pub fn share_key(&self) -> ShareKey {
        ShareKey {
            node: self.node_name.clone(),
            volume: self.persistent_volume_name.clone(),
            handle: self.volume_id.clone(),
            mount_options: self.mount_options.clone(),
            fs_group: self.workload_fs_group.clone(),
            identity: self.identity(),
        }
    }

    fn identity(&self) -> Option<Identity> {
        self.authentication_source.as_deref().filter(|it| *it == OF_POD)?;
        Some(Identity {
            namespace: self.workload_namespace.clone().unwrap_or_default(),
            service_account: self.workload_service_account_name.clone().unwrap_or_default(),
            role: self.workload_service_account_role.clone().unwrap_or_default(),
        })
    }

    /// The Mountpoint Pod that serves this workload; `None` if the attachment does not name the workload.
    #[must_use]
    pub fn pod_of(&self, workload_uid: &str) -> Option<&str> {
        self.mountpoint_pods
            .iter()
            .find(|(_, workloads)| workloads.iter().any(|it| it.workload_pod_uid == workload_uid))
            .map(|(pod, _)| pod.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> ShareKey {
        ShareKey {
            node: "worker-1".into(),
            volume: "pv-1".into(),
            handle: "handle-1".into(),
            mount_options: "allow-delete,region=us-east-1".into(),
            fs_group: "1000".into(),
            identity: None,
        }
    }

    fn identity() -> Identity {
        Identity {
            namespace: "team".into(),
            service_account: "writer".into(),
            role: "arn:aws:iam::1:role/w".into(),
        }
    }

    #[test]
    fn an_attachment_of_a_service_account_says_whose_identity_it_has() {
        let key = ShareKey { identity: Some(identity()), ..key() };
        let attachment = key.attachment("mp-1", workload("uid-1"));
        let spec = serde_json::to_value(&attachment.spec).unwrap();
        for (field, value) in [
            ("authenticationSource", "pod"),
            ("workloadNamespace", "team"),
            ("workloadServiceAccountName", "writer"),
            ("workloadServiceAccountIAMRoleARN", "arn:aws:iam::1:role/w"),
        ] {
            assert_eq!(spec[field], value, "{field}");
        }
        let read: AttachmentSpec = serde_json::from_value(spec).unwrap();
        assert_eq!(read.share_key(), key);
        assert_ne!(key.attachment_name(), self::key().attachment_name());
        for other in [
            Identity { namespace: "x".into(), ..identity() },
            Identity { service_account: "x".into(), ..identity() },
            Identity { role: "x".into(), ..identity() },
        ] {
            let other = ShareKey { identity: Some(other), ..self::key() };
            assert_ne!(other.attachment_name(), key.attachment_name());
        }
    }

    fn workload(uid: &str) -> WorkloadAttachment {
        let time = serde_json::from_str("\"2024-01-01T00:00:00Z\"").unwrap();
        WorkloadAttachment { workload_pod_uid: uid.into(), attachment_time: time }
    }

    #[test]
    fn an_attachment_has_the_shape_that_release_2_2_reads() {
        let attachment = key().attachment("mp-1", workload("uid-1"));
        assert_eq!(
            serde_json::to_value(&attachment).unwrap(),
            serde_json::json!({
                "apiVersion": "s3.csi.scality.com/v2",
                "kind": "MountpointS3PodAttachment",
                "metadata": {
                    "name": "s3pa-4b425e3548778ec4857af4bcf2e81172f39118f4799add37107bad89",
                    "labels": {"s3.csi.scality.com/mounted-by-csi-driver-version": crate::contract::VERSION},
                },
                "spec": {
                    "nodeName": "worker-1",
                    "persistentVolumeName": "pv-1",
                    "volumeID": "handle-1",
                    "mountOptions": "allow-delete,region=us-east-1",
                    "workloadFSGroup": "1000",
                    "mountpointS3PodAttachments": {
                        "mp-1": [{"workloadPodUID": "uid-1", "attachmentTime": "2024-01-01T00:00:00Z"}],
                    },
                },
            })
        );
    }

    #[test]
    fn an_attachment_of_release_2_2_is_read() {
        let text = r#"{"apiVersion":"s3.csi.scality.com/v2","kind":"MountpointS3PodAttachment",
            "metadata":{"name":"s3pa-x7k2p","generateName":"s3pa-"},
            "spec":{"nodeName":"n","persistentVolumeName":"p","volumeID":"v","mountOptions":"","workloadFSGroup":"",
            "mountpointS3PodAttachments":{"mp-a":[],"mp-b":[{"workloadPodUID":"u","attachmentTime":"2025-06-01T10:00:00Z"}]}}}"#;
        let attachment: MountpointS3PodAttachment = serde_json::from_str(text).unwrap();
        assert_eq!(attachment.spec.pod_of("u"), Some("mp-b"));
        assert_eq!(attachment.spec.pod_of("other"), None);
        assert_eq!(attachment.spec.share_key().volume, "p");
    }

    #[test]
    fn every_field_of_the_share_key_changes_the_name() {
        let name = key().attachment_name();
        let edits: [fn(&mut ShareKey); 5] = [
            |key| key.node.push('x'),
            |key| key.volume.push('x'),
            |key| key.handle.push('x'),
            |key| key.mount_options.push('x'),
            |key| key.fs_group.push('1'),
        ];
        for edit in edits {
            let mut other = key();
            edit(&mut other);
            assert_ne!(other.attachment_name(), name);
        }
    }
}
