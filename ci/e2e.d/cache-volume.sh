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

# A volume of its own, made with the Mountpoint Pod and gone with it. Here a folder of the node stands for what a provisioner would make.
class=$namespace-cache
folder=/var/tmp/$class
cluster run mkdir -m 777 "$folder"
cluster kubectl apply -f - <<EOT
apiVersion: v1
kind: PersistentVolume
metadata: { name: $class }
spec:
  capacity: { storage: 1Gi }
  accessModes: [ReadWriteOnce]
  storageClassName: $class
  persistentVolumeReclaimPolicy: Retain
  hostPath: { path: $folder }
EOT
volume own attributes="{ bucketName: $bucket, cache: ephemeral, cacheEphemeralStorageClassName: $class, cacheEphemeralStorageResourceRequest: 1Gi }"
workload own own
wait_pod own
equal "what own reads" "$sum" "$(in_pod own sha256sum /data/random | sed 's|/data/random|-|')"
in_folder() { [ "$(cluster run du -sk "$folder" | cut -f 1)" -ge 4000 ] || { echo "nothing is cached in $folder"; return 1; }; }
until_ok "the cache in a volume of its own filled" in_folder
claims() { cluster kubectl -n mount-s3 get pvc --selector s3.csi.scality.com/type=local-ephemeral-cache -o name; }
count_is 1 claims || fail "the claim of the cache"
remove_pod own
until_ok "the claim of the cache gone" count_is 0 claims
cluster kubectl delete pv "$class"

volume wrong attributes="{ bucketName: $bucket, cache: ephemeral }"
workload wrong wrong
until_ok "who writes half of it is told" event cacheEphemeralStorageClassName
