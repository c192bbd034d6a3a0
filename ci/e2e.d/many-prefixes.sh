# shellcheck shell=bash
# Seventy claims of one bucket, each with a prefix of its own, and seventy pods with them on one node, all at once: each reads what it wrote and
# nothing else, and the purge of the claims leaves an empty bucket. E2E_PODS makes it smaller.
# needs: nobody beside it
# needs: its name
# shellcheck disable=SC2154,SC2016 # given by ci/e2e; programs are quoted
. ci/kubernetes/driver.bash

pods=${E2E_PODS:-70}
# Each pod has a Mountpoint Pod.
room=$(cluster kubectl get node node -o 'jsonpath={.status.allocatable.pods}')
[ "$room" -ge $((2 * pods + 30)) ] || fail "the node takes $room pods: a cluster of an older tree? ci/cluster down"
# Limits are for waits, and a hundred and forty pods on two busy processors take their time.
wait_s=900
trap 'cluster kubectl delete storageclass "$namespace" --ignore-not-found' EXIT
kube apply -f - <<EOT
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: { name: $namespace }
provisioner: s3.csi.scality.com
mountOptions: [allow-delete, allow-overwrite]
parameters: { bucketName: $bucket, onDelete: purge }
EOT
numbers=$(seq "$pods")
for i in $numbers; do
    cat <<EOT
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: { name: data-$i, namespace: $namespace }
spec: { storageClassName: $namespace, accessModes: [ReadWriteMany], resources: { requests: { storage: 1Gi } } }
EOT
done | kube apply -f - >/dev/null
bound() { kube get pvc -o 'jsonpath={range .items[?(@.status.phase=="Bound")]}{.metadata.name}{"\n"}{end}'; }
start=$EPOCHREALTIME
say_after() { awk -v a="$start" -v b="$EPOCHREALTIME" -v what="$1" 'BEGIN { printf "%.1f s: %s\n", b - a, what }'; }
until_ok "$pods claims bound" count_is "$pods" bound
say_after "$pods claims bound"
prefixes() {
    cluster kubectl get pv -o 'jsonpath={range .items[*]}{.spec.claimRef.namespace} {.spec.csi.volumeHandle}{"\n"}{end}' | awk -v mine="$namespace" '$1 == mine { print $2 }' | sort -u
}
equal "volumes, no two alike" "$pods" "$(prefixes | wc -l)"

pairs=() names=()
for i in $numbers; do pairs+=("data-$i:pod-$i") names+=("pod-$i"); done
start=$EPOCHREALTIME
workloads "${pairs[@]}" >/dev/null
kube wait --for=condition=Ready --timeout="${wait_s}s" "${names[@]/#/pod/}" >/dev/null
say_after "$pods pods ready"
say "pods on the node: $(cluster kubectl get pods -A -o name --field-selector status.phase=Running | wc -l); its memory available: $(cluster run awk '$1 == "MemAvailable:" { print int($2 / 1024) }' /proc/meminfo) MiB"
equal "Mountpoint Pods" "$pods" "$(cluster kubectl -n mount-s3 get pods --field-selector status.phase=Running -o name | wc -l)"
for i in $numbers; do in_pod "pod-$i" sh -c "echo of-$i >/data/mine"; done
for i in $numbers; do
    equal "what pod $i sees" "mine of-$i" "$(in_pod "pod-$i" sh -c 'echo $(ls /data) $(cat /data/mine)')"
done
s3_keys >"$scratch/keys"
equal "keys in the bucket" "$pods" "$(grep -c '/mine$' "$scratch/keys")"
equal "and no other" "$pods" "$(wc -l <"$scratch/keys")"
say "memory of the node driver: $(cluster run sed -n 's/^VmRSS:[^0-9]*//p' "/proc/$(driver_pid)/status")"

start=$EPOCHREALTIME
kube delete pod "${names[@]}" --wait=false >/dev/null
until_ok "no pod is left" count_is 0 kube get pods -o name
until_ok "no Mountpoint Pod is left" count_is 0 cluster kubectl -n mount-s3 get pods -o name
until_ok "no attachment is left" count_is 0 cluster kubectl get mountpoints3podattachments -o name
until_ok "no source is left" none_mounted_below "$plugin/mnt/"
say_after "nothing of the pods is left"
kube delete pvc --all --wait=false >/dev/null
until_ok "no volume is left" count_is 0 prefixes
equal "keys in the bucket after the purge" "" "$(s3_keys)"
