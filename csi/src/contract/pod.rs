//! The names of Mountpoint Pods, and the labels and annotations that the reconciler and the node write on them.

use super::digest;

/// The namespace of Mountpoint Pods, unless the chart sets another.
pub const NAMESPACE: &str = "mount-s3";
/// The container that runs the mounter.
pub const CONTAINER: &str = "mountpoint";
/// The container of the node's driver, in the driver's pod.
pub const DRIVER_CONTAINER: &str = "s3-plugin";
/// The volume for the comm directory, which node and mounter share.
pub const COMM_VOLUME: &str = "comm";

/// The volume for files that outlive a container of the pod.
pub const STATE_VOLUME: &str = "state";
/// The mount point of [`STATE_VOLUME`]: the engine records uploads in progress there, and the engine of the next container aborts them.
pub const STATE_DIRECTORY: &str = "/var/lib/mount-s3";

/// The name of the port on which the engine of a Mountpoint Pod serves metrics.
pub const METRICS_PORT: &str = "metrics";
/// Environment variable with the IP address of a Mountpoint Pod that has a metrics port.
pub const POD_ADDRESS: &str = "POD_IP";

/// Label of a claim for a cache: its type.
pub const CLAIM_TYPE: &str = "s3.csi.scality.com/type";
/// Value of [`CLAIM_TYPE`] for the claim of a cache.
pub const CLAIM_OF_CACHE: &str = "local-ephemeral-cache";

/// The volume with certificates to trust.
pub const CA_VOLUME: &str = "ca";
/// The mount point of that volume. The mounter passes each file `*.crt` in it to the engine, which trusts them besides the system's.
pub const CA_DIRECTORY: &str = "/etc/mount-s3/ca";
/// The key with the certificates (PEM) in a ConfigMap, as in release 2.2.
pub const CA_KEY: &str = "ca-bundle.crt";

/// Annotation `"true"`: no workload is left. The node unmounts the source, and the pod then ends by itself.
pub const NEEDS_UNMOUNT: &str = "s3.csi.scality.com/needs-unmount";
/// Annotation beside [`NEEDS_UNMOUNT`]: the number of restarts of the mounter's container when the mark was written. After a further
/// restart no process of the pod serves a mount, unless the container before was killed and the node's holder passed on its mount. A pod
/// that was marked by hand or by an earlier release does not have it at first.
pub const RESTARTS_WHEN_MARKED: &str = "s3.csi.scality.com/restarts-when-marked";
/// Annotation `"true"`, set by administrators: the pod keeps its workloads and takes no new ones.
pub const NO_NEW_WORKLOAD: &str = "s3.csi.scality.com/no-new-workload";
/// Annotation: the PersistentVolume. Free text, so never a label: a volume's name may be longer than a label.
pub const VOLUME_NAME: &str = "s3.csi.scality.com/volume-name";
/// Annotation: the volume handle.
pub const VOLUME_ID: &str = "s3.csi.scality.com/volume-id";
/// Annotation: the claim to which the PersistentVolume was bound when the pod was created, for metrics. Pods of release 2.2 and of inline
/// volumes do not have it.
pub const CLAIM: &str = "s3.csi.scality.com/claim";
/// Annotation: the namespace of [`CLAIM`].
pub const CLAIM_NAMESPACE: &str = "s3.csi.scality.com/claim-namespace";
/// Annotation: the UID of the PersistentVolume. A volume that was deleted and created again under its name may have another bucket. Pods of
/// release 2.2 and of inline volumes do not have it.
pub const VOLUME_UID: &str = "s3.csi.scality.com/volume-uid";
/// Annotation: the UID of the workload for which the pod was created.
pub const WORKLOAD_UID: &str = "s3.csi.scality.com/pod-uid";
/// Annotation: the source of the mount's credentials, if the volume fixes it. Pods of older releases, and of volumes without a Secret, do
/// not have it.
pub const KEYS: &str = "s3.csi.scality.com/keys";
/// Value of [`KEYS`]: the Secret that the PersistentVolume names. The node needs it to tell an empty Secret from none.
pub const KEYS_OF_SECRET: &str = "secret";
/// Annotation: [`spec_digest`] of the specification that the reconciler requested. A pod that never started is replaced if it would now get
/// another specification. Pods of release 2.2 do not have it.
pub const SPEC: &str = "s3.csi.scality.com/spec";
/// Scheduling gate of a workload: it is not scheduled before room is reserved for its Mountpoint Pods.
pub const HEADROOM_GATE: &str = "s3.csi.scality.com/reserve-headroom-for-mppod";
/// Label of a workload with headroom: its own UID. Headroom pods have an affinity to it.
pub const HEADROOM_FOR_WORKLOAD: &str = "s3.csi.scality.com/headroom-for-workload";
/// Label of a headroom pod: the UID of its workload.
pub const HEADROOM_FOR_POD: &str = "s3.csi.scality.com/headroom-for-pod";
/// Annotation of a headroom pod: the PersistentVolume for whose Mountpoint Pod it reserves room.
pub const HEADROOM_FOR_VOLUME: &str = "s3.csi.scality.com/headroom-for-volume";
/// Label: the version of the engine.
pub const MOUNTPOINT_VERSION: &str = "s3.csi.scality.com/mountpoint-version";
/// Label: the release that created the pod; a workload joins only pods of the running release.
pub use super::attachment::MOUNTED_BY_VERSION;

/// The name of a workload's Mountpoint Pod. `attempt` is 0 for the first one, and grows when a pod with the name before failed or is about
/// to end. The source directory has this name, too, so a name is never used twice.
#[must_use]
pub fn name(workload_uid: &str, volume: &str, driver_version: &str, attempt: u32) -> String {
    format!("mp-{}", digest(&[workload_uid, volume, driver_version, &attempt.to_string()]))
}

/// The digest of a specification, given as JSON before the API server adds its defaults.
#[must_use]
pub fn spec_digest(spec: &str) -> String {
    digest(&[spec])
}

/// The name of the headroom pod for the Mountpoint Pod of a workload and a volume.
#[must_use]
pub fn headroom_name(workload_uid: &str, volume: &str) -> String {
    format!("hr-{}", digest(&[workload_uid, volume]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_label_and_each_attempt_has_its_own() {
        let first = name("uid", "pv", "1.0.0", 0);
        assert_eq!(first, name("uid", "pv", "1.0.0", 0));
        assert_ne!(first, name("uid", "pv", "1.0.0", 1));
        assert!(
            first.len() <= 63
                && first.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        );
    }
}
