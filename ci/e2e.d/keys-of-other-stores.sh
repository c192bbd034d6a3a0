# shellcheck shell=bash
# Access keys as stores other than AWS hand them out, with `_`, `!`, `@` and points, by each route of the chart: the driver's Secret, the Secret of a volume,
# and the Secret of a class, which makes a bucket and deletes it. A key with a comma is refused, and not shown. The fourth route, variables of the
# driver's process, is not the chart's: a test has it (keys_are_printable_and_what_breaks_a_signature_or_a_file_is_refused).
# needs: nobody beside it
# shellcheck disable=SC2154,SC2016 # given by ci/e2e; programs are quoted
. ci/kubernetes/driver.bash

own_key=$access_key own_secret=$secret_key
access_key='min_io!u@x.1' secret_key="s3cr%t;#[]=,/~!$own_secret"
keys() { kube create secret generic "$1" --dry-run=client -o yaml --from-literal="access_key_id=$2" --from-literal="secret_access_key=$secret_key"; }
keys odd "$access_key" | kube create -f -
keys comma 'HUSH,x' | kube create -f -
kube apply -f - <<EOT
apiVersion: v1
kind: Pod
metadata: { name: store }
spec:
  hostNetwork: true
  terminationGracePeriodSeconds: 1
  containers:
    - name: store
      image: lab.test/stores:1
      command: [/bin/s3server, /data, --listen, "0.0.0.0:9023", --access-key, "$access_key"]
      env: [{ name: S3SERVER_SECRET_KEY, valueFrom: { secretKeyRef: { name: odd, key: secret_access_key } } }]
      readinessProbe: { tcpSocket: { port: 9023 }, periodSeconds: 1 }
      volumeMounts: [{ name: data, mountPath: /data }]
  volumes: [{ name: data, emptyDir: {} }]
EOT
wait_pod store
# of_driver ID SECRET: the driver's own keys.
of_driver() {
    cluster kubectl -n "$driver_namespace" create secret generic s3-secret --dry-run=client -o yaml \
        --from-literal="access_key_id=$1" --from-literal="secret_access_key=$2" | cluster kubectl replace -f -
}
put_back() {
    cluster kubectl delete storageclass "$namespace-odd" --ignore-not-found
    of_driver "$own_key" "$own_secret"
    release_driver
}
trap put_back EXIT
endpoint=http://$node_ip:9023
s3_bucket "$bucket"
of_driver "$access_key" "$secret_key"
release_driver --set "s3.endpointUrl=$endpoint"
# The pods read the Secret from a volume, which the kubelet brings up to date.
cluster kubectl -n "$driver_namespace" rollout restart daemonset/s3-csi-node deployment/s3-csi-controller
driver_is_settled

volume of-driver
volume of-volume attributes="{ bucketName: $bucket, authenticationSource: secret }" secret="{ name: odd, namespace: $namespace }"
volume of-comma attributes="{ bucketName: $bucket, authenticationSource: secret }" secret="{ name: comma, namespace: $namespace }"
for each in of-driver of-volume of-comma; do workload "$each" "$each"; done
for each in of-driver of-volume; do
    wait_pod "$each"
    in_pod "$each" sh -c "echo hello >/data/$each"
done
equal "both wrote" "of-driver of-volume" "$(s3_keys | tr '\n' ' ' | sed 's/ $//')"
until_ok "a key with a comma is refused" mount_refused of-comma "access_key_id may hold only"
! mount_refused of-comma HUSH >/dev/null || fail "the key is shown"

kube apply -f - <<EOT
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: { name: $namespace-odd }
provisioner: s3.csi.scality.com
mountOptions: [allow-delete]
parameters:
  onDelete: keep
  csi.storage.k8s.io/provisioner-secret-name: odd
  csi.storage.k8s.io/provisioner-secret-namespace: $namespace
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: { name: claimed, namespace: $namespace }
spec: { storageClassName: $namespace-odd, accessModes: [ReadWriteMany], resources: { requests: { storage: 1Gi } } }
EOT
until_ok "the claim bound" field_is pvc/claimed .status.phase Bound
made=$(cluster kubectl get pv "$(field pvc/claimed .spec.volumeName)" -o 'jsonpath={.spec.csi.volumeAttributes.bucketName}')
s3 HEAD "$made" --head >/dev/null || fail "the bucket $made"
kube delete pvc claimed --wait=false
bucket_is_gone() { ! s3 HEAD "$made" --head >/dev/null 2>&1 || { echo "the bucket $made is still there"; return 1; }; }
until_ok "the bucket gone again" bucket_is_gone
kube delete pod of-comma --wait=false
for each in of-driver of-volume; do remove_pod "$each"; done
