//! The names of Mountpoint Pods, and the words that the reconciler and the node write on them.

use super::digest;

/// The namespace of Mountpoint Pods, unless the chart says otherwise.
pub const NAMESPACE: &str = "mount-s3";
/// The container that runs the mounter.
pub const CONTAINER: &str = "mountpoint";
/// The container of the node's driver, in its own pod.
pub const DRIVER_CONTAINER: &str = "s3-plugin";
/// The volume that node and mounter share.
pub const COMM_VOLUME: &str = "comm";

/// The volume for files that outlive a container of the pod.
pub const STATE_VOLUME: &str = "state";
/// The mount point of [`STATE_VOLUME`]: the engine notes uploads in progress there, and the engine of the next container aborts them.
pub const STATE_DIRECTORY: &str = "/var/lib/mount-s3";

/// The port of a Mountpoint Pod where its engine serves metrics, by name.
pub const METRICS_PORT: &str = "metrics";
/// Variable of a Mountpoint Pod with a metrics port: its address.
pub const POD_ADDRESS: &str = "POD_IP";

/// Label of a cache's claim: its type.
pub const CLAIM_TYPE: &str = "s3.csi.scality.com/type";
/// The [`CLAIM_TYPE`] of a cache's claim.
pub const CLAIM_OF_CACHE: &str = "local-ephemeral-cache";

/// The volume with certificates to trust.
pub const CA_VOLUME: &str = "ca";
/// The mount point of that volume: the mounter hands each file `*.crt` of it to the engine, which trusts them besides the system's.
pub const CA_DIRECTORY: &str = "/etc/mount-s3/ca";
/// The key of a ConfigMap with certificates, in PEM, as release 2.2 has it.
pub const CA_KEY: &str = "ca-bundle.crt";

/// Annotation `"true"`: no workload is left; the node unmounts the source, the pod then ends by itself.
pub const NEEDS_UNMOUNT: &str = "s3.csi.scality.com/needs-unmount";
/// Annotation beside [`NEEDS_UNMOUNT`]: how often the mounter's container had begun again then. After another beginning no process of the pod
/// serves a mount, unless the container before was killed and the node's holder brought its mount. A pod that was marked by hand, or by an earlier release, has none at first.
pub const RESTARTS_WHEN_MARKED: &str = "s3.csi.scality.com/restarts-when-marked";
/// Annotation `"true"`, set by administrators: the pod keeps its workloads and takes no new ones.
pub const NO_NEW_WORKLOAD: &str = "s3.csi.scality.com/no-new-workload";
/// Annotation: the PersistentVolume. Free text, so never a label: a volume's name may be longer than a label.
pub const VOLUME_NAME: &str = "s3.csi.scality.com/volume-name";
/// Annotation: the volume handle.
pub const VOLUME_ID: &str = "s3.csi.scality.com/volume-id";
/// Annotation: the claim that the PersistentVolume was bound to when the pod was made, for metrics. Pods of release 2.2 and those of inline
/// volumes have none.
pub const CLAIM: &str = "s3.csi.scality.com/claim";
/// Annotation: the namespace of [`CLAIM`].
pub const CLAIM_NAMESPACE: &str = "s3.csi.scality.com/claim-namespace";
/// Annotation: the UID of the PersistentVolume. One that was deleted and made again under its name may name another bucket. Pods of
/// release 2.2 and those of inline volumes have none.
pub const VOLUME_UID: &str = "s3.csi.scality.com/volume-uid";
/// Annotation: the UID of the workload that the pod was made for.
pub const WORKLOAD_UID: &str = "s3.csi.scality.com/pod-uid";
/// Annotation: the source of the mounts' keys, if the volume fixes it. Pods of older releases, and pods of volumes without a Secret, lack
/// it.
pub const KEYS: &str = "s3.csi.scality.com/keys";
/// A value of [`KEYS`]: the keys of the Secret that the PersistentVolume names. To the node, an empty Secret looks like no Secret.
pub const KEYS_OF_SECRET: &str = "secret";
/// Annotation: [`spec_digest`] of the specification that the reconciler asked for. A pod that never began is replaced if it would now get
/// another specification. Pods of release 2.2 lack the annotation.
pub const SPEC: &str = "s3.csi.scality.com/spec";
/// Scheduling gate of a workload that is not scheduled before room is reserved for its Mountpoint Pods.
pub const HEADROOM_GATE: &str = "s3.csi.scality.com/reserve-headroom-for-mppod";
/// Label of a workload with headroom, with the workload's own UID, which attracts headroom pods.
pub const HEADROOM_FOR_WORKLOAD: &str = "s3.csi.scality.com/headroom-for-workload";
/// Label of a headroom pod: the UID of its workload.
pub const HEADROOM_FOR_POD: &str = "s3.csi.scality.com/headroom-for-pod";
/// Annotation of a headroom pod: the PersistentVolume.
pub const HEADROOM_FOR_VOLUME: &str = "s3.csi.scality.com/headroom-for-volume";
/// Label: the version of the engine.
pub const MOUNTPOINT_VERSION: &str = "s3.csi.scality.com/mountpoint-version";
/// Label: the release that made the pod; a workload joins only pods of the running release.
pub use super::attachment::MOUNTED_BY_VERSION;

/// The name of the Mountpoint Pod that a workload gets first (`attempt` 0), or after that name was used up by a pod that failed or is
/// leaving. The source directory has this name, too, so no two pods ever share a name.
#[must_use]
pub fn name(workload_uid: &str, volume: &str, driver_version: &str, attempt: u32) -> String {
    format!("mp-{}", digest(&[workload_uid, volume, driver_version, &attempt.to_string()]))
}

/// The digest of a specification, which is its JSON before the API server adds its defaults.
#[must_use]
pub fn spec_digest(spec: &str) -> String {
    digest(&[spec])
}

/// The name of the pod that holds room for the Mountpoint Pod of a workload and a volume.
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
