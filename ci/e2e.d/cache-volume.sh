# shellcheck shell=bash
# A volume's cache lies in a volume of its Mountpoint Pod, on disk or in memory, with the size that the volume says; and the engine's memory
# follows the pod's limit.
# shellcheck disable=SC2154 # given by ci/e2e
. ci/kubernetes/driver.bash

head -c 5000000 /dev/urandom >"$scratch/random"
s3_put random "$scratch/random"
sum=$(sha256sum <"$scratch/random")
# cached VOLUME: kilobytes in its pod's cache, as the node sees the volume.
cached() {
    local uid
    uid=$(cluster kubectl -n mount-s3 get pod "$(mountpoint_pods "$1")" -o 'jsonpath={.metadata.uid}')
    cluster run du -sk "$kubelet/pods/$uid/volumes/kubernetes.io~empty-dir/local-cache" | cut -f 1
}
has_cached() { [ "$(cached "$1")" -ge 4000 ] || { echo "$(cached "$1") kB are cached"; return 1; }; }
volume disk attributes="{ bucketName: $bucket, cache: emptyDir, cacheEmptyDirSizeLimit: 1Gi, mountpointContainerResourcesLimitsMemory: 256Mi }"
volume memory attributes="{ bucketName: $bucket, cache: emptyDir, cacheEmptyDirMedium: Memory, cacheEmptyDirSizeLimit: 64Mi }"
for it in disk memory; do workload "$it" "$it"; done
for it in disk memory; do
    wait_pod "$it"
    equal "what $it reads" "$sum" "$(in_pod "$it" sha256sum /data/random | sed 's|/data/random|-|')"
    until_ok "the cache of $it filled" has_cached "$it"
done
limits() { cluster kubectl -n mount-s3 get pod "$(mountpoint_pods "$1")" -o 'jsonpath={.spec.volumes[?(@.name=="local-cache")].emptyDir}'; }
equal "the volume on disk" '{"sizeLimit":"1Gi"}' "$(limits disk)"
equal "the volume in memory" '{"medium":"Memory","sizeLimit":"64Mi"}' "$(limits memory)"
log_of() { cluster kubectl -n mount-s3 logs "$(mountpoint_pods "$1")"; }
holds "what the engine on disk was started with" "--max-cache-size=972" "$(log_of disk)"
holds "what the engine in memory was started with" "--max-cache-size=60" "$(log_of memory)"
holds "the memory of a pod with a limit" '"--memory-target=192"' "$(cluster kubectl -n mount-s3 get pod "$(mountpoint_pods disk)" -o 'jsonpath={.spec.containers[0].args}')"

volume wrong attributes="{ bucketName: $bucket, cache: ephemeral }"
workload wrong wrong
until_ok "who writes half of it is told" event cacheEphemeralStorageClassName
