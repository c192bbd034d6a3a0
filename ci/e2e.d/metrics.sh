# shellcheck shell=bash
# Engines, reconcilers and drivers of nodes serve their metrics; and a reconciler with a Deployment and an account of its own makes Mountpoint Pods.
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
remove_pod busy
until_ok "its attachment gone" count_is 0 attachment data .metadata.name
