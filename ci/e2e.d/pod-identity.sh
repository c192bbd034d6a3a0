# shellcheck shell=bash
# Volumes with authenticationSource: pod: a workload's service account takes a role by its token, from a token service that checks signature,
# audience, expiry and subject by the API server's keys. Pods of one account share a Mountpoint Pod, another account's gets its own;
# an account without a role, and one that the role does not trust, are told so. The driver's keys are never used. Then the same by TLS with an
# authority of the chart's, directly and through a volume's proxy.
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
fronts=/run/$namespace
put_back() {
    cluster run systemctl stop "$namespace-tls" "$namespace-proxy" || true # they may not have begun
    cluster run rm -rf "$fronts"
    release_driver
}
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

# The same service over TLS, by an authority of the test's own: the chart's certificates count there, and a volume's proxy.
(
    cd "$scratch" || exit
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=lab-ca -keyout ca.key -out ca.crt
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=sts -keyout tls.key -out tls.csr
    openssl x509 -req -in tls.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile <(say "subjectAltName=IP:$node_ip") -out tls.crt
)
cluster run mkdir -m 700 "$fronts"
for file in "$scratch/tls.crt" "$scratch/tls.key" "$top/ci/kubernetes/front.py"; do
    cluster run sh -c "cat >$fronts/${file##*/}" <"$file"
done
# front KIND PORT [ARGUMENT]...
front() {
    cluster run systemd-run --quiet --collect --unit="$namespace-$1" -p "StandardOutput=append:$fronts/$1.log" -p "StandardError=append:$fronts/$1.log" \
        python3 "$fronts/front.py" "$@"
    until_ok "something listens at $2" cluster net bash -c ": </dev/tcp/$node_ip/$2"
}
front tls 9016 9015 "$fronts/tls.crt" "$fronts/tls.key"
front proxy 9017
over_tls=(--set "s3.endpointUrl=$endpoint" --set "podIdentity.stsEndpointUrl=https://$node_ip:9016" --set podIdentity.audience=lab-store)
volume trusting attributes="{ bucketName: $bucket, authenticationSource: pod }"
volume proxied attributes="{ bucketName: $bucket, authenticationSource: pod, mountpointEnv.HTTPS_PROXY: 'http://$node_ip:9017' }"

release_driver "${over_tls[@]}"
workload doubting trusting account=writer
until_ok "an unknown authority is named" mount_refused doubting "certificate"
kube delete pod doubting --wait=false
# The next pod of this account would join its Mountpoint Pod, which keeps what it was made with.
until_ok "pod doubting gone" pod_gone doubting
until_ok "its Mountpoint Pod gone" count_is 0 mountpoint_pods trusting

release_driver "${over_tls[@]}" --set-file "tls.caCertData=$scratch/ca.crt"
workload six trusting account=writer
wait_pod six
equal "keys by TLS" hello "$(in_pod six cat /data/greeting)"
tunnels() { cluster run cat "$fronts/proxy.log"; }
equal "tunnels that nobody asked for" "" "$(tunnels)"
workload seven proxied account=writer
wait_pod seven
equal "keys by TLS through a proxy" hello "$(in_pod seven cat /data/greeting)"
equal "the tunnels, of which the store needs none" "CONNECT $node_ip:9016" "$(tunnels | sort -u)"
for pod in six seven; do remove_pod "$pod"; done
