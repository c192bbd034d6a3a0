# shellcheck shell=bash
# Helpers for scenarios that need a store of their own, besides scenario.bash: a versitygw with several accounts, or with a certificate.
# shellcheck disable=SC2154,SC2034 # namespace and the like are given by ci/e2e; functions of scenario.bash read the rest

# gateway SCHEME PORT [ARGUMENT]...: versitygw on the node's own address; s3 and its like speak to it from now on. The files of the
# Secret `gateway` of the namespace are in /gateway.
gateway() {
    local scheme=$1 port=$2 arguments=
    shift 2
    [ $# -eq 0 ] || arguments=$(printf ', "%s"' "$@")
    kube create secret generic root --from-literal="access_key_id=$access_key" --from-literal="secret_access_key=$secret_key"
    kube apply -f - <<EOT
apiVersion: v1
kind: Pod
metadata: { name: gateway }
spec:
  hostNetwork: true
  terminationGracePeriodSeconds: 1
  containers:
    - name: gateway
      image: lab.test/stores:1
      command: [/bin/versitygw, --port, ":$port"$arguments, posix, --versioning-dir, /versions, /data]
      env:
        - { name: ROOT_ACCESS_KEY, valueFrom: &id { secretKeyRef: { name: root, key: access_key_id } } }
        - { name: ROOT_SECRET_KEY, valueFrom: &secret { secretKeyRef: { name: root, key: secret_access_key } } }
        - { name: ADMIN_ACCESS_KEY, valueFrom: *id }
        - { name: ADMIN_SECRET_KEY, valueFrom: *secret }
        - { name: ADMIN_ENDPOINT_URL, value: "$scheme://$node_ip:$port" }
      readinessProbe: { tcpSocket: { port: $port }, periodSeconds: 1 }
      volumeMounts:
        - { name: data, mountPath: /data }
        - { name: versions, mountPath: /versions }
        - { name: iam, mountPath: /iam }
        - { name: gateway, mountPath: /gateway }
  volumes:
    - { name: data, emptyDir: {} }
    - { name: versions, emptyDir: {} }
    - { name: iam, emptyDir: {} }
    - { name: gateway, secret: { secretName: gateway, optional: true } }
EOT
    wait_pod gateway
    store=gateway endpoint=$scheme://$node_ip:$port
}

# account ID SECRET [ROLE]: by default it may use every bucket of the gateway; a `userplus` makes buckets and uses its own. forget_account ID.
account() { in_pod gateway /bin/versitygw admin create-user --access "$1" --secret "$2" --role "${3:-admin}"; }
forget_account() { in_pod gateway /bin/versitygw admin delete-user --access "$1"; }

# class_and_claim NAME: a bucket of the claim's own, by the controller service.
class_and_claim() {
    kube apply -f - <<EOT
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: { name: $namespace-$1 }
provisioner: s3.csi.scality.com
mountOptions: [allow-delete, allow-overwrite]
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: { name: $1 }
spec: { storageClassName: $namespace-$1, accessModes: [ReadWriteMany], resources: { requests: { storage: 1Gi } } }
EOT
    until_ok "claim $1 bound" field_is "pvc/$1" .status.phase Bound
}
remove_class() { cluster kubectl delete storageclass "$namespace-$1" --ignore-not-found; }
