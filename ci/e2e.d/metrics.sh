# shellcheck shell=bash
# Engines, reconcilers and drivers of nodes serve their metrics, and an engine counts the bytes that its pod reads; and a reconciler with a Deployment and an account of its own makes Mountpoint Pods.
# needs: nobody beside it
# shellcheck disable=SC2154 # given by ci/e2e
. ci/kubernetes/driver.bash

# shellcheck disable=SC2119
trap release_driver EXIT
release_driver --set metrics.enginePort=9464 --set controller.split=true --set networkPolicy.enabled=true
# page NAMESPACE POD PORT: its page of metrics.
page() {
    local address
    address=$(cluster kubectl -n "$1" get pod "$2" -o 'jsonpath={.status.podIP}')
    cluster net curl --silent --show-error --fail --max-time 20 "http://$address:$3/metrics"
}
# pods LABEL: the driver's pods with it that run.
pods() { cluster kubectl -n "$driver_namespace" get pods --selector "app=$1" --field-selector status.phase=Running -o 'jsonpath={.items[*].metadata.name}'; }
# leader: the reconciler that works.
leader() {
    local pod
    for pod in $(pods s3-pod-reconciler); do
        # Not grep -q: it would end before curl has written all.
        if page "$driver_namespace" "$pod" 8080 | grep -x 'mount_s3_csi_leader 1' >/dev/null; then echo "$pod"; fi
    done
}
# Not one of the Deployment before, which may hold the Lease for a moment yet.
until_ok "one of the new reconcilers works" count_is 1 leader
volume data
workload busy data
wait_pod busy
in_pod busy sh -c 'echo hello >/data/hello && cat /data/hello'
holds "what the engine counts" "bucket=\"$bucket\"" "$(page mount-s3 "$(mountpoint_pods data)" 9464)"
attached="mount_s3_csi_attached_workloads{node=\"$(field pod/busy .spec.nodeName)\",persistentvolume=\"$namespace-data\",persistentvolumeclaim=\"data\",claim_namespace=\"$namespace\"} 1"
# Each sees it by a watch of its own, and counts a call when it is over.
has_line() { page "$1" "$2" "$3" | grep -xF -- "$4"; }
for pod in $(pods s3-pod-reconciler); do
    until_ok "workloads as $pod sees them" has_line "$driver_namespace" "$pod" 8080 "$attached"
done
until_ok "how long a pod took as its maker counts" has_line "$driver_namespace" "$(leader)" 8080 "mount_s3_csi_mountpoint_pod_creation_seconds_count 1"
published() { page "$driver_namespace" "$(pods s3-csi-node)" 9808 | grep -F 'mount_s3_csi_node_calls_total{call="NodePublishVolume",code="OK"}'; }
until_ok "the calls of the kubelet" published

# An object that is read once, from its beginning to its end: its bytes come from the store and go to the pod once, and others do not.
bytes=5242987
head -c $bytes /dev/urandom >"$scratch/counted"
s3_bucket "$bucket-counted"
s3 PUT "$bucket-counted/counted" --upload-file "$scratch/counted"
volume counted attributes="{ bucketName: $bucket-counted }"
workload reader counted
wait_pod reader
equal "what the pod reads" "$(sha256sum <"$scratch/counted")" "$(in_pod reader sha256sum /data/counted | sed 's|/data/counted|-|')"
counts() { page mount-s3 "$(mountpoint_pods counted)" 9464 | grep "^$1{" | grep -F "${2-}" | sed 's/.* //'; }
equal "bytes from the store" $bytes "$(counts s3_bytes_received_total)"
equal "bytes to the pod" $bytes "$(counts fuse_io_size_bytes_sum 'fuse_request="read"' | sed 's/\.0*$//')"
remove_pod reader
s3 DELETE "$bucket-counted/counted"

# The chart's policy lets nobody connect to a port of a Mountpoint Pod but that of its metrics. Networks may ignore policies, as the lab's does.
cluster kubectl -n mount-s3 apply -f - <<EOT
apiVersion: v1
kind: Pod
metadata: { name: $namespace-listens }
spec:
  terminationGracePeriodSeconds: 1
  securityContext: { runAsNonRoot: true, runAsUser: 1000, seccompProfile: { type: RuntimeDefault } }
  containers:
    - name: main
      image: $image
      command: [httpd, -f, -p, "7777"]
      securityContext: { allowPrivilegeEscalation: false, capabilities: { drop: [ALL] } }
EOT
cluster kubectl -n mount-s3 wait --for=condition=Ready "pod/$namespace-listens" --timeout="${wait_s}s"
address=$(cluster kubectl -n mount-s3 get pod "$namespace-listens" -o 'jsonpath={.status.podIP}')
until_ok "it listens" cluster run sh -c "grep -q ':1E61 .* 0A ' /proc/[0-9]*/net/tcp /proc/[0-9]*/net/tcp6"
if in_pod busy nc -w 5 "$address" 7777 </dev/null; then
    say "not shown: that a connection is refused under networkPolicy.enabled; the lab's network enforces no policy"
else
    say "a connection is refused under networkPolicy.enabled"
fi
cluster kubectl -n mount-s3 delete pod "$namespace-listens" --wait=false
remove_pod busy
until_ok "its attachment gone" count_is 0 attachment data .metadata.name
