# shellcheck shell=bash
# Volumes with authenticationSource: pod: a workload's service account takes a role by its token, from a token service that checks signature,
# audience, expiry and subject by the API server's keys. Pods of one account share a Mountpoint Pod, another account's gets its own;
# an account without a role, and one that the role does not trust, are told so. The driver's keys are never used.
# needs: nobody beside it
# shellcheck disable=SC2154,SC2016 # given by ci/e2e; programs are quoted
. ci/kubernetes/driver.bash

# A store that knows the roles' keys alone.
secret=$secret_key
access_key=OFROLE secret_key=OFROLE$secret
kube create secret generic store --from-literal="secret=$secret_key"
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
      command: [/bin/s3server, /data, --listen, "0.0.0.0:9014", --access-key, $access_key]
      env: [{ name: S3SERVER_SECRET_KEY, valueFrom: { secretKeyRef: { name: store, key: secret } } }]
      readinessProbe: { tcpSocket: { port: 9014 }, periodSeconds: 1 }
      volumeMounts: [{ name: data, mountPath: /data }]
  volumes: [{ name: data, emptyDir: {} }]
EOT
wait_pod store
endpoint=http://$node_ip:9014
s3_bucket "$bucket"
arn=arn:aws:iam::000000000000:role
subject=system:serviceaccount:$namespace
kube create secret generic sts --from-literal="secret=$secret"
kube apply -f - <<EOT
apiVersion: v1
kind: Pod
metadata: { name: sts }
spec:
  hostNetwork: true
  terminationGracePeriodSeconds: 1
  containers:
    - name: sts
      image: lab.test/stores:1
      command: [/bin/sts, --listen, "0.0.0.0:9015", --audience, lab-store, --role, "$arn/writer=$subject:writer=$access_key", --role, "$arn/reader=$subject:reader=$access_key"]
      env: [{ name: STS_SECRET, valueFrom: { secretKeyRef: { name: sts, key: secret } } }]
      readinessProbe: { tcpSocket: { port: 9015 }, periodSeconds: 1 }
EOT
wait_pod sts
put_back() { release_driver; }
trap put_back EXIT
# Another audience than the default.
release_driver --set "s3.endpointUrl=$endpoint" --set "podIdentity.stsEndpointUrl=http://$node_ip:9015" --set podIdentity.audience=lab-store

# account_of NAME ROLE; pod_as POD ACCOUNT: with the volume at /data.
account_of() {
    kube create serviceaccount "$1"
    [ -z "$2" ] || kube annotate serviceaccount "$1" "s3.csi.scality.com/role-arn=$arn/$2"
}
pod_as() { workload "$1" data account="$2"; }
account_of writer writer
account_of reader reader
account_of stranger writer
account_of nobody ""
volume data attributes="{ bucketName: $bucket, authenticationSource: pod }"

pod_as one writer
wait_pod one
pod_as two writer
wait_pod two
in_pod one sh -c 'echo hello >/data/greeting'
equal "both pods of the account see it" hello "$(in_pod two cat /data/greeting)"
equal "and share a Mountpoint Pod" 1 "$(mountpoint_pods data | wc -l)"
for field in authenticationSource=pod workloadNamespace="$namespace" workloadServiceAccountName=writer workloadServiceAccountIAMRoleARN="$arn/writer"; do
    equal "the attachment's ${field%%=*}" "${field#*=}" "$(attachment data ".spec.${field%%=*}")"
done
pod_as three reader
wait_pod three
equal "another account sees the bucket by its own role" hello "$(in_pod three cat /data/greeting)"
equal "in a Mountpoint Pod of its own" 2 "$(mountpoint_pods data | wc -l)"

# Before the next one: the kubelet publishes a volume to one pod at a time, and a call that waits for an attachment takes two minutes.
pod_as four stranger
until_ok "an account that the role does not trust is told" mount_refused four "the role's trust in that account"
pod_as five nobody
until_ok "an account without a role is told" event "s3.csi.scality.com/role-arn"
# A role that an account gets while its pod waits.
kube annotate serviceaccount nobody "s3.csi.scality.com/role-arn=$arn/none"
named() { attachment data .spec.workloadServiceAccountName | grep -qx nobody; }
until_ok "the role of an account that got one" named
kube delete pod four five --wait=false

# Mounts have no keys in files, the driver's least of all.
for pod in $(mountpoint_pods data); do
    comm=$kubelet/pods/$(cluster kubectl -n mount-s3 get pod "$pod" -o 'jsonpath={.metadata.uid}')/volumes/kubernetes.io~empty-dir/comm
    ! cluster run sh -c "cat $comm/credentials/*-credentials" 2>/dev/null || fail "$pod has keys in a file"
done
for pod in one two three; do remove_pod "$pod"; done
