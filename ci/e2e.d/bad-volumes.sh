# shellcheck shell=bash
# If a volume can't be mounted, an Event on its pod names the error, the field and the remedy. Nothing stays mounted, and no secret is
# shown. csi/tests/node.rs and csi/src/mounter/pod test a target outside the kubelet's directory, which no kubelet asks for.
# shellcheck disable=SC2154,SC2034 # given by ci/e2e, and read by its functions
. ci/kubernetes/driver.bash

# A secret that must not be seen anywhere, in a volume whose keys are wrong.
hush=hush$(openssl rand -hex 12)
kube create secret generic wrong-keys --from-literal=access_key_id=WRONGKEYWRONGKEY --from-literal=secret_access_key="$hush"
kube create secret generic half-keys --from-literal=secret_access_key="$hush"

all=(no-bucket missing-bucket bad-option bad-value path-option wrong-keys wrong-secret half-keys bad-quantity too-large)
volume no-bucket attributes='{ region: us-east-1 }'
volume missing-bucket attributes="{ bucketName: $bucket-is-not-there }"
volume bad-option options='[allow-delete, allow-overwite]'
volume bad-value options='[part-size=many]'
volume path-option options='[spill-dir=/var/spill]'
volume wrong-keys attributes="{ bucketName: $bucket, authenticationSource: secret }" secret="{ name: wrong-keys, namespace: $namespace }"
# The key is known to the store, the secret is not its own.
kube create secret generic wrong-secret --from-literal=access_key_id="$access_key" --from-literal=secret_access_key="$hush"
volume wrong-secret attributes="{ bucketName: $bucket, authenticationSource: secret }" secret="{ name: wrong-secret, namespace: $namespace }"
volume half-keys attributes="{ bucketName: $bucket, authenticationSource: secret }" secret="{ name: half-keys, namespace: $namespace }"
volume bad-quantity attributes="{ bucketName: $bucket, mountpointContainerResourcesRequestsMemory: much }"
volume too-large attributes="{ bucketName: $bucket, mountpointContainerResourcesRequestsMemory: 900Ti }"
for each in "${all[@]}"; do workload "$each" "$each"; done
# One beside them is well: keys that are in use must not be seen either.
volume good
workload good good
wait_pod good

# told POD CODE WORD...: the kubelet's Event on the pod has this gRPC code and these words.
told() {
    local pod=$1 code=$2 words word
    shift 2
    until_ok "$pod: $code" mount_refused "$pod" "FailedMount: MountVolume.SetUp failed for volume \"$namespace-$pod\" : rpc error: code = $code desc = "
    words=$(mount_refused "$pod" "code = $code desc = ")
    say "$pod: $words"
    for word in "$@"; do holds "what $pod is told" "$word" "$words"; done
}
told no-bucket InvalidArgument "bucketName is missing: set it in spec.csi.volumeAttributes of PersistentVolume $namespace-no-bucket"
told bad-option InvalidArgument "'allow-overwite' is unknown, did you mean 'allow-overwrite'?" "fix the mountOptions of PersistentVolume $namespace-bad-option"
told bad-value InvalidArgument "--part-size" "fix the mountOptions of PersistentVolume $namespace-bad-value"
told path-option InvalidArgument "'spill-dir' is not allowed" "use 'cache'" "fix the mountOptions of PersistentVolume $namespace-path-option"
told half-keys InvalidArgument "the Secret of the volume (nodePublishSecretRef) is unusable: access_key_id is missing"
told missing-bucket FailedPrecondition "$bucket-is-not-there" "NoSuchBucket" "bucketName"
told wrong-keys FailedPrecondition "InvalidAccessKeyId" "nodePublishSecretRef"
told wrong-secret FailedPrecondition "SignatureDoesNotMatch" "nodePublishSecretRef"
# These get no Mountpoint Pod, or one that no node has room for: the reconciler says so.
until_ok "bad-quantity" mount_refused bad-quantity "VolumeRefused: no Mountpoint Pod is made: "
words=$(mount_refused bad-quantity "VolumeRefused: ")
for word in mountpointContainerResourcesRequestsMemory much "Correct PersistentVolume $namespace-bad-quantity"; do holds "what bad-quantity is told" "$word" "$words"; done
# A volume that every node refuses gets none, and the reconciler says so in the node's words.
for each in no-bucket bad-option bad-value path-option; do
    until_ok "$each by the reconciler" mount_refused "$each" "VolumeRefused: no Mountpoint Pod is made: "
    equal "Mountpoint Pods of $each" 0 "$(mountpoint_pods "$each" | wc -l)"
done
until_ok "too-large" mount_refused too-large "MountpointPodWaits: Mountpoint Pod "
words=$(mount_refused too-large "MountpointPodWaits: ")
for word in "Insufficient memory" "ask for less"; do holds "what too-large is told" "$word" "$words"; done

for each in "${all[@]}"; do none_mounted_below "$kubelet/pods/$(uid_of "$each")/" || fail "$each: its target"; done
for each in missing-bucket wrong-keys wrong-secret; do
    for pod in $(mountpoint_pods "$each"); do
        # The kubelet tries again all the time: between two attempts nothing is mounted.
        until_ok "the source of $pod is unmounted" none_mounted_below "$plugin/mnt/$pod"
    done
done
no_secret "$hush" "$secret_key"

# A Secret is corrected: the kubelet's next call mounts, by the container that has waited.
waiting=$(mountpoint_pods wrong-secret)
kube patch secret wrong-secret --patch-file /dev/stdin <<<"{\"stringData\":{\"secret_access_key\":\"$secret_key\"}}"
# The kubelet may come after two minutes.
wait_s=200
wait_pod wrong-secret
in_pod wrong-secret ls /data
ms=$(cluster kubectl -n kube-system logs daemonset/s3-csi-node -c s3-plugin --tail=-1 |
    awk -v target="$(target_of wrong-secret wrong-secret)" 'index($0, target) && / published / && !found++' | sed -n 's/.*took_ms=\([0-9]*\).*/\1/p')
[ -n "$ms" ] || fail "the driver's log does not say how long the publish took"
say "the first publish with the corrected Secret: $ms ms"
equal "the Mountpoint Pod is still the one that waited" "$waiting" "$(mountpoint_pods wrong-secret)"
equal "restarts of its container" 0 "$(cluster kubectl -n mount-s3 get pod "$waiting" -o 'jsonpath={.status.containerStatuses[0].restartCount}')"
kube delete pod "${all[@]}" --wait=false
for each in "${all[@]}"; do until_ok "pod $each gone" pod_gone "$each"; done
# A mounter whose engine refused waits in its container, so it ends as soon as nobody needs it any more.
for each in "${all[@]}"; do
    until_ok "$each: its attachments gone" count_is 0 attachment "$each" .metadata.name
    until_ok "$each: its Mountpoint Pods gone" count_is 0 mountpoint_pods "$each"
done
no_secret "$hush" "$secret_key"
