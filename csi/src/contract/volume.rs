//! The keys of a volume's attributes, as users write them into a PersistentVolume, and those that the kubelet adds.

/// The bucket; required.
pub const BUCKET_NAME: &str = "bucketName";
/// Only keys that begin so are the volume; ends in a slash. Volumes that the driver made in a bucket of many have it.
pub const PREFIX: &str = "prefix";
/// The region of the bucket, where it is not the driver's.
pub const REGION: &str = "region";
/// The store, where it is not the driver's: one of `s3.allowedEndpoints` of the chart.
pub const ENDPOINT_URL: &str = "endpointUrl";
/// A ConfigMap in the namespace of Mountpoint Pods with certificates that the volume's engine trusts besides (key `ca-bundle.crt`).
pub const CA_CONFIG_MAP: &str = "caBundleConfigMap";
/// What becomes of the data of a volume that the driver made, when it is deleted: `keep`, `fail`, `purge`.
pub const ON_DELETE: &str = "onDelete";
/// `true` for volumes that the driver made, as release 2.2 writes it; nobody reads it.
pub const DYNAMIC_PROVISIONING: &str = "dynamicProvisioning";
/// `driver` (default) or `secret`: whose credentials the mount uses.
pub const AUTHENTICATION_SOURCE: &str = "authenticationSource";
/// The service account of the Mountpoint Pod.
pub const POD_SERVICE_ACCOUNT: &str = "mountpointPodServiceAccountName";
/// CPU that the Mountpoint Pod asks for.
pub const REQUESTS_CPU: &str = "mountpointContainerResourcesRequestsCpu";
/// Memory that the Mountpoint Pod asks for.
pub const REQUESTS_MEMORY: &str = "mountpointContainerResourcesRequestsMemory";
/// CPU that the Mountpoint Pod is limited to.
pub const LIMITS_CPU: &str = "mountpointContainerResourcesLimitsCpu";
/// Memory that the Mountpoint Pod is limited to.
pub const LIMITS_MEMORY: &str = "mountpointContainerResourcesLimitsMemory";

/// The name of the workload's pod, from the kubelet (`podInfoOnMount`).
pub const CONTEXT_POD_NAME: &str = "csi.storage.k8s.io/pod.name";
/// Its namespace.
pub const CONTEXT_POD_NAMESPACE: &str = "csi.storage.k8s.io/pod.namespace";
/// The UID of the workload's pod, from the kubelet (`podInfoOnMount`).
pub const CONTEXT_POD_UID: &str = "csi.storage.k8s.io/pod.uid";

/// What the side-cars of Kubernetes add, and nobody reads.
const OF_OTHERS: [&str; 1] = ["storage.kubernetes.io/csiProvisionerIdentity"];
/// What the kubelet adds begins so.
const OF_KUBELET: &str = "csi.storage.k8s.io/";

/// Whether somebody reads this attribute, or wrote it on his own account.
#[must_use]
pub fn is_known(key: &str) -> bool {
    let ours = [
        BUCKET_NAME,
        PREFIX,
        REGION,
        ENDPOINT_URL,
        CA_CONFIG_MAP,
        ON_DELETE,
        DYNAMIC_PROVISIONING,
        AUTHENTICATION_SOURCE,
        POD_SERVICE_ACCOUNT,
        REQUESTS_CPU,
        REQUESTS_MEMORY,
        LIMITS_CPU,
        LIMITS_MEMORY,
    ];
    ours.contains(&key) || OF_OTHERS.contains(&key) || key.starts_with(OF_KUBELET)
}

/// Mount options as an attachment holds them: in the volume's order, joined by commas.
#[must_use]
pub fn joined_options(options: &[String]) -> String {
    options.join(",")
}
