# shellcheck shell=bash
# Claims of a class get buckets and prefixes: made, written to by a pod, and deleted, kept or purged as the class says; for two tenants by
# templated Secrets, each with a bucket of its own; a missing Secret keeps the claim Pending with an Event.
# shellcheck disable=SC2154,SC2016 # given by ci/e2e; programs and templates are quoted
. ci/kubernetes/driver.bash

# class NAME KEY=VALUE...: a StorageClass of this scenario with these parameters; reclaimPolicy and volumeBindingMode stand beside them.
class() {
    local class=$namespace-$1 pair policy=Delete binding=Immediate parameters=
    shift
    for pair in "$@"; do
        case $pair in
            reclaimPolicy=*) policy=${pair#*=} ;;
            volumeBindingMode=*) binding=${pair#*=} ;;
            *) parameters+="  ${pair%%=*}: '${pair#*=}'"$'\n' ;;
        esac
    done
    kube apply -f - <<EOT
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: { name: $class }
provisioner: s3.csi.scality.com
reclaimPolicy: $policy
volumeBindingMode: $binding
mountOptions: [allow-delete, allow-overwrite]
parameters:
${parameters:-  onDelete: keep}
EOT
}
# wants NAME CLASS: a claim.
wants() {
    kube apply -f - <<EOT
apiVersion: v1
kind: PersistentVolumeClaim
metadata: { name: $1 }
spec: { storageClassName: $namespace-$2, accessModes: [ReadWriteMany], resources: { requests: { storage: 1Gi } } }
EOT
}
bound() { until_ok "claim $1 bound" field_is "pvc/$1" .status.phase Bound; }
volume_of() { field "pvc/$1" .spec.volumeName; }
attribute() { cluster kubectl get pv "$1" -o "jsonpath={.spec.csi.volumeAttributes.$2}"; } # PV KEY
volume_is_gone() { ! cluster kubectl get pv "$1" >/dev/null 2>&1 || { cluster kubectl describe pv "$1"; return 1; }; }
bucket_is_gone() { ! s3 HEAD "$1" --head >/dev/null 2>&1 || { echo "the bucket $1 is still there"; return 1; }; }
keys_of() { s3 GET "$1?list-type=2" | grep -oE '<Key>[^<]*' | cut -c6- | tr '\n' ' ' | sed 's/ $//' || true; }
# gone CLAIM: deletes it and waits for its volume.
gone() {
    local volume
    volume=$(volume_of "$1")
    kube delete pvc "$1" --wait=false
    until_ok "the volume of $1 gone" volume_is_gone "$volume"
}
trap 'cluster kubectl get storageclass -o name | grep -F "/$namespace-" | xargs -r "$top/ci/cluster" ${cluster_state:+--state "$cluster_state"} kubectl delete' EXIT

# A bucket for each claim, by template; data is kept.
class bucket 'bucketNameTemplate=${pvc.namespace}-${pvc.name}'
wants data bucket
bound data
volume=$(volume_of data)
made=$(attribute "$volume" bucketName)
equal "the bucket is named by the template" "$namespace-data" "$made"
workload writer data
wait_pod writer
in_pod writer sh -c 'echo hello >/data/greeting.txt'
equal "the bucket has what the pod wrote" greeting.txt "$(keys_of "$made")"
remove_pod writer
gone data
equal "a bucket with data stays" greeting.txt "$(keys_of "$made")"
s3 DELETE "$made/greeting.txt"
s3 DELETE "$made"

# An empty bucket goes; Retain leaves the volume; WaitForFirstConsumer waits for a pod.
class empty onDelete=fail
wants empty empty
bound empty
made=$(attribute "$(volume_of empty)" bucketName)
gone empty
until_ok "the empty bucket gone" bucket_is_gone "$made"
many=(1 2 3 4 5 6 7 8 9 10)
for i in "${many[@]}"; do wants "many-$i" empty; done
for i in "${many[@]}"; do bound "many-$i"; done
equal "buckets of ten claims at once" 10 "$(for i in "${many[@]}"; do attribute "$(volume_of "many-$i")" bucketName; echo; done | sort -u | grep -c .)"
volumes=()
for i in "${many[@]}"; do volumes+=("$(volume_of "many-$i")"); done
kube delete pvc "${many[@]/#/many-}" --wait=false
for volume in "${volumes[@]}"; do until_ok "the volume $volume gone" volume_is_gone "$volume"; done
class late volumeBindingMode=WaitForFirstConsumer reclaimPolicy=Retain onDelete=purge
wants late late
sleep 3
equal "nobody uses the claim yet" Pending "$(field pvc/late .status.phase)"
workload late late
wait_pod late
volume=$(volume_of late) made=$(attribute "$(volume_of late)" bucketName)
in_pod late sh -c 'echo kept >/data/kept.txt'
remove_pod late
kube delete pvc late --wait=false
until_ok "the volume released" cluster kubectl wait --for=jsonpath='{.status.phase}'=Released "pv/$volume" --timeout=1s
equal "a retained volume keeps its data" kept.txt "$(keys_of "$made")"
cluster kubectl delete pv "$volume"
s3 DELETE "$made/kept.txt"
s3 DELETE "$made"

# A prefix for each claim; purge ends at its slash.
class prefix "bucketName=$bucket" 'prefixTemplate=${pvc.namespace}/${pv.name}' onDelete=purge
wants one prefix
wants two prefix
bound one
bound two
one=$(volume_of one) two=$(volume_of two)
for claim in one two; do
    workload "$claim" "$claim"
    wait_pod "$claim"
    in_pod "$claim" sh -c "echo $claim >/data/file"
done
equal "each sees its own" "one two" "$(in_pod one cat /data/file) $(in_pod two cat /data/file)"
echo neighbour >"$scratch/neighbour"
s3_put "$namespace/$one-neighbour" "$scratch/neighbour"
remove_pod one
gone one
left=$(printf '%s\n' "$namespace/$one-neighbour" "$namespace/$two/file" | LC_ALL=C sort)
equal "only the prefix is purged" "$left" "$(s3_keys | LC_ALL=C sort)"
remove_pod two
gone two

# Keys by a template; a Secret that is missing is named.
class tenants 'csi.storage.k8s.io/provisioner-secret-name=keys-of-${pvc.name}' 'csi.storage.k8s.io/provisioner-secret-namespace=${pvc.namespace}' \
    'csi.storage.k8s.io/node-publish-secret-name=keys-of-${pvc.name}' 'csi.storage.k8s.io/node-publish-secret-namespace=${pvc.namespace}'
wants tenant tenants
until_ok "the missing Secret named" event "keys-of-tenant"
equal "without its Secret the claim waits" Pending "$(field pvc/tenant .status.phase)"
kube create secret generic keys-of-tenant --from-literal="access_key_id=$access_key" --from-literal="secret_access_key=$secret_key"
bound tenant
volume=$(volume_of tenant)
equal "the node has the tenant's Secret" keys-of-tenant "$(cluster kubectl get pv "$volume" -o 'jsonpath={.spec.csi.nodePublishSecretRef.name}')"
equal "and the deletion" keys-of-tenant "$(cluster kubectl get pv "$volume" -o 'jsonpath={.metadata.annotations.volume\.kubernetes\.io/provisioner-deletion-secret-name}')"
workload tenant tenant
wait_pod tenant
remove_pod tenant
gone tenant

# The claim says what is wrong.
class wrong bucketNamePrefix=x
wants wrong wrong
until_ok "the unknown parameter named" event "bucketNameTemplate"
kube delete pvc wrong --wait=false
