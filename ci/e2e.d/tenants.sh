# shellcheck shell=bash
# Two tenants with accounts of their own on a store that keeps versions (versitygw), by one class whose Secrets are templates: each has a
# bucket of its own account and is denied the other's. A purge takes all versions and delete markers of its bucket, and no more.
# needs: nobody beside it
# needs: its name
# shellcheck disable=SC2154,SC2016 # given by ci/e2e; templates are quoted
. ci/kubernetes/driver.bash
. ci/kubernetes/gateway.bash

gateway http 9011 --iam-dir /iam --iam-cache-disable
put_back() {
    remove_class tenants
    release_driver
}
trap put_back EXIT
release_driver --set "s3.endpointUrl=$endpoint"
kube apply -f - <<EOT
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: { name: $namespace-tenants }
provisioner: s3.csi.scality.com
mountOptions: [allow-delete, allow-overwrite]
parameters:
  onDelete: purge
  csi.storage.k8s.io/provisioner-secret-name: keys-of-\${pvc.name}
  csi.storage.k8s.io/provisioner-secret-namespace: \${pvc.namespace}
  csi.storage.k8s.io/node-publish-secret-name: keys-of-\${pvc.name}
  csi.storage.k8s.io/node-publish-secret-namespace: \${pvc.namespace}
EOT
declare -A made
# as TENANT METHOD PATH [CURL-OPTION]...: a request with the tenant's keys. A store tells that it refuses by the status 403.
as() {
    local access_key=TENANT$1 secret_key=$1$secret_key
    shift
    s3 "$@"
}
versions_of() { s3 GET "$1?versions=" | grep -oE '<(Version|DeleteMarker)>' | sort | uniq -c | tr -s ' \n' ' '; }
for tenant in one two; do
    account "TENANT$tenant" "$tenant$secret_key" userplus
    kube create secret generic "keys-of-$tenant" --from-literal="access_key_id=TENANT$tenant" --from-literal="secret_access_key=$tenant$secret_key"
    kube apply -f - <<EOT
apiVersion: v1
kind: PersistentVolumeClaim
metadata: { name: $tenant }
spec: { storageClassName: $namespace-tenants, accessModes: [ReadWriteMany], resources: { requests: { storage: 1Gi } } }
EOT
    until_ok "claim $tenant bound" field_is "pvc/$tenant" .status.phase Bound
    made[$tenant]=$(cluster kubectl get pv "$(field "pvc/$tenant" .spec.volumeName)" -o 'jsonpath={.spec.csi.volumeAttributes.bucketName}')
    s3 PUT "${made[$tenant]}?versioning=" --data \
        '<VersioningConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Status>Enabled</Status></VersioningConfiguration>'
    workload "$tenant" "$tenant"
    wait_pod "$tenant"
    in_pod "$tenant" sh -c "echo first >/data/of-$tenant && echo second >/data/of-$tenant && echo x >/data/gone && rm /data/gone"
    as "$tenant" GET "${made[$tenant]}?list-type=2" | grep -q "<Key>of-$tenant<" || fail "$tenant does not see its own bucket"
    holds "versions of $tenant" "1 <DeleteMarker> 3 <Version>" "$(versions_of "${made[$tenant]}")"
done
refused "one lists the bucket of two" "403" as one GET "${made[two]}?list-type=2"
refused "two reads an object of one" "403" as two GET "${made[one]}/of-one"
refused "two deletes the bucket of one" "403" as two DELETE "${made[one]}"

# A volume that names the other's bucket with one's own keys.
volume thief attributes="{ bucketName: ${made[two]} }" secret="{ name: keys-of-one, namespace: $namespace }"
workload thief thief
until_ok "the mount of another's bucket is refused" mount_refused thief "AccessDenied"
kube delete pod thief --wait=false

remove_pod one
kube delete pvc one --wait=false
bucket_is_gone() { ! s3 HEAD "$1" --head >/dev/null 2>&1 || { echo "the bucket $1 is still there"; return 1; }; }
until_ok "the bucket of one purged and gone" bucket_is_gone "${made[one]}"
equal "what two has" second "$(in_pod two cat /data/of-two)"
holds "versions of two, later" "1 <DeleteMarker> 3 <Version>" "$(versions_of "${made[two]}")"
remove_pod two
kube delete pvc two --wait=false
until_ok "the bucket of two purged and gone" bucket_is_gone "${made[two]}"
