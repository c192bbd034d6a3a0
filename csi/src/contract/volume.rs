//! The names of a volume's attributes: those that users write into a PersistentVolume, and those that the kubelet adds.

/// The bucket; required.
pub const BUCKET_NAME: &str = "bucketName";
/// The prefix of the volume's keys; ends in a slash. Volumes that the driver created in a shared bucket have it.
pub const PREFIX: &str = "prefix";
/// The region of the bucket, if it differs from the driver's.
pub const REGION: &str = "region";
/// The store, if it differs from the driver's: one of `s3.allowedEndpoints` of the chart.
pub const ENDPOINT_URL: &str = "endpointUrl";
/// A ConfigMap in the namespace of Mountpoint Pods with certificates that the volume's engine trusts besides the system's (key `ca-bundle.crt`).
pub const CA_CONFIG_MAP: &str = "caBundleConfigMap";
/// The fate of the data when a volume that the driver created is deleted: `keep`, `fail`, `purge`.
pub const ON_DELETE: &str = "onDelete";
/// `true` for volumes that the driver created, as in release 2.2; not read.
pub const DYNAMIC_PROVISIONING: &str = "dynamicProvisioning";
/// The source of the mount's credentials: `driver` (default), `secret` or `pod`.
pub const AUTHENTICATION_SOURCE: &str = "authenticationSource";
/// Value `pod` of [`AUTHENTICATION_SOURCE`]: the identity of the workload's service account.
pub const SOURCE_POD: &str = "pod";
/// The region of the token service for `pod`, if it differs from the bucket's.
pub const STS_REGION: &str = "stsRegion";
/// Annotations of a service account with the role that its workloads assume. This driver's annotation wins over AWS's.
pub const ROLE_ANNOTATIONS: [&str; 2] = ["s3.csi.scality.com/role-arn", "eks.amazonaws.com/role-arn"];
/// Prefix of attributes that set a variable of the engine's environment; one of [`ENGINE_VARIABLES`] follows.
pub const ENGINE_ENV: &str = "mountpointEnv.";
/// The names that may follow [`ENGINE_ENV`].
pub const ENGINE_VARIABLES: [&str; 3] = ["HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"];
/// The service account of the Mountpoint Pod.
pub const POD_SERVICE_ACCOUNT: &str = "mountpointPodServiceAccountName";
/// The CPU request of the Mountpoint Pod.
pub const REQUESTS_CPU: &str = "mountpointContainerResourcesRequestsCpu";
/// The memory request of the Mountpoint Pod.
pub const REQUESTS_MEMORY: &str = "mountpointContainerResourcesRequestsMemory";
/// The CPU limit of the Mountpoint Pod.
pub const LIMITS_CPU: &str = "mountpointContainerResourcesLimitsCpu";
/// The memory limit of the Mountpoint Pod.
pub const LIMITS_MEMORY: &str = "mountpointContainerResourcesLimitsMemory";

/// The kind of the Mountpoint Pod's volume for the local cache: `emptyDir` or `ephemeral`.
pub const CACHE: &str = "cache";
/// The size of an emptyDir for the cache.
pub const CACHE_SIZE_LIMIT: &str = "cacheEmptyDirSizeLimit";
/// `Memory` for an emptyDir of the cache in memory; without it the emptyDir is on the node's disk.
pub const CACHE_MEDIUM: &str = "cacheEmptyDirMedium";
/// The StorageClass of an ephemeral volume for the cache.
pub const CACHE_CLASS: &str = "cacheEphemeralStorageClassName";
/// The size of an ephemeral volume for the cache.
pub const CACHE_REQUEST: &str = "cacheEphemeralStorageResourceRequest";

/// Attributes that affect only Mountpoint Pods. Engines that the node's systemd runs have no such pod.
pub const OF_MOUNTPOINT_PODS: &[&str] = &[
    CA_CONFIG_MAP,
    POD_SERVICE_ACCOUNT,
    REQUESTS_CPU,
    REQUESTS_MEMORY,
    LIMITS_CPU,
    LIMITS_MEMORY,
    CACHE_MEDIUM,
    CACHE_CLASS,
    CACHE_REQUEST,
    CACHE,
    CACHE_SIZE_LIMIT,
];

/// Attributes without an effect on engines in the engines pod, which serves all volumes of a node and refuses certificates.
pub const OF_ONE_POD_EACH: &[&str] = OF_MOUNTPOINT_PODS.split_at(1).1;

/// Attributes without an effect in an engines pod that has a disk for caches: each volume gets a part of that disk, of the size it sets.
pub const OF_ONE_DISK_EACH: &[&str] = OF_ONE_POD_EACH.split_at(OF_ONE_POD_EACH.len() - 2).0;

/// The name of the workload's pod, from the kubelet (`podInfoOnMount`).
pub const CONTEXT_POD_NAME: &str = "csi.storage.k8s.io/pod.name";
/// The namespace of the workload's pod, from the kubelet (`podInfoOnMount`).
pub const CONTEXT_POD_NAMESPACE: &str = "csi.storage.k8s.io/pod.namespace";
/// The UID of the workload's pod, from the kubelet (`podInfoOnMount`).
pub const CONTEXT_POD_UID: &str = "csi.storage.k8s.io/pod.uid";
/// The name of the workload's service account, from the kubelet.
pub const CONTEXT_SERVICE_ACCOUNT: &str = "csi.storage.k8s.io/serviceAccount.name";
/// Tokens of that service account by audience, as JSON (`tokenRequests` of the CSIDriver).
pub const CONTEXT_TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";

/// Attributes that Kubernetes' side-cars add, and this driver ignores.
const OF_OTHERS: [&str; 1] = ["storage.kubernetes.io/csiProvisionerIdentity"];
/// The prefix of attributes that the kubelet adds.
pub const OF_KUBELET: &str = "csi.storage.k8s.io/";

/// `true` for an inline volume, which has no PersistentVolume.
pub const CONTEXT_EPHEMERAL: &str = "csi.storage.k8s.io/ephemeral";
/// Mount options of an inline volume, separated by commas: such a volume has no field for them.
pub const MOUNT_OPTIONS: &str = "mountOptions";
/// The only attributes of an inline volume: authors of pods are not administrators.
pub const OF_INLINE: [&str; 3] = [BUCKET_NAME, PREFIX, MOUNT_OPTIONS];

/// Mount options that an inline volume may not have. With these an author of pods could take any amount of the node's disk
/// or memory, past the quota of the namespace, or send the engine's metrics anywhere. Sorted.
pub const NOT_INLINE: [&str; 10] = [
    "cache",
    "commit",
    "max-cache-size",
    "max-threads",
    "memory-target",
    "mode",
    "otlp-endpoint",
    "otlp-export-interval",
    "sandbox",
    "stage-size",
];

/// The handle that the kubelet gives an inline volume. Mountpoint Pods and attachments use it in place of a PersistentVolume's name.
#[must_use]
pub fn inline_handle(pod_uid: &str, name_in_pod: &str) -> String {
    use sha2::Digest as _;
    let digest = sha2::Sha256::new().chain_update(pod_uid).chain_update(name_in_pod).finalize();
    format!("csi-{}", base16ct::lower::encode_string(&digest))
}

/// Parses the attribute [`MOUNT_OPTIONS`] of an inline volume.
#[must_use]
pub fn inline_options(attribute: Option<&str>) -> Vec<String> {
    let items = attribute.unwrap_or_default().split(',').map(str::trim);
    items.filter(|item| !item.is_empty()).map(str::to_owned).collect()
}

/// The options of an inline volume that its Mountpoint Pod gets. The node refuses a volume with others, and names them.
#[must_use]
pub fn allowed_inline(options: Vec<String>) -> Vec<String> {
    let allowed = |option: &String| !NOT_INLINE.contains(&name_and_value(option).0);
    options.into_iter().filter(allowed).collect()
}

/// Name and value of a mount option in any of its forms: `name`, `--name value`, `name=value`.
pub(super) fn name_and_value(option: &str) -> (&str, &str) {
    let option = option.trim().trim_start_matches('-');
    let cut = option.find(|c: char| c == '=' || c.is_whitespace()).unwrap_or(option.len());
    (&option[..cut], option[cut..].trim_start_matches(|c: char| c == '=' || c.is_whitespace()).trim_end())
}

/// Whether a region can be a part of a host name.
#[must_use]
pub fn is_region(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
}

/// Whether the driver reads this attribute, or Kubernetes wrote it for its own use.
#[must_use]
pub fn is_known(key: &str) -> bool {
    let ours = [
        BUCKET_NAME,
        PREFIX,
        REGION,
        ENDPOINT_URL,
        ON_DELETE,
        DYNAMIC_PROVISIONING,
        AUTHENTICATION_SOURCE,
        STS_REGION,
    ];
    ours.contains(&key)
        || OF_MOUNTPOINT_PODS.contains(&key)
        || key.starts_with(ENGINE_ENV)
        || OF_OTHERS.contains(&key)
        || key.starts_with(OF_KUBELET)
}

/// Mount options in the form of an attachment: in their order, joined by commas.
#[must_use]
pub fn joined_options(options: &[String]) -> String {
    options.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inline_volume_has_the_kubelets_handle_and_options_by_commas() {
        // The kubelet 1.34 computes this: SHA-256 of both texts, one after the other.
        let wanted = "csi-936a185caaa266bb9cbe981e9e05cb78cd732b0b3280eb944412bb6f8f8f07af";
        assert_eq!(inline_handle("hello", "world"), wanted);
        assert_eq!(inline_options(Some(" allow-delete, region=r,,")), ["allow-delete", "region=r"]);
        assert_eq!(inline_options(None), Vec::<String>::new());
        let greedy =
            "cache=/x, --max-cache-size 5,memory-target=1,mode=full,commit fsync,--stage-size=9,allow-delete";
        assert_eq!(allowed_inline(inline_options(Some(greedy))), ["allow-delete"]);
    }

    #[test]
    fn certificates_are_refused_and_caches_of_a_shared_disk_have_a_size() {
        assert!(OF_ONE_POD_EACH.contains(&CACHE) && !OF_ONE_POD_EACH.contains(&CA_CONFIG_MAP));
        assert!(OF_ONE_DISK_EACH.contains(&CACHE_CLASS) && OF_ONE_DISK_EACH.contains(&LIMITS_MEMORY));
        for works in [CACHE, CACHE_SIZE_LIMIT] {
            assert!(!OF_ONE_DISK_EACH.contains(&works), "{works}");
        }
    }
}
