# shellcheck shell=bash
# A Node is deleted under a pod that reads and writes, and the kubelet, started again, registers another Node of its name. Kubernetes deletes what
# belonged to the old one alone. The Mountpoint Pod is not deleted, its mount goes on, and a drain still needs no force.
# needs: a second node
# needs: its name
# shellcheck disable=SC2154 # given by ci/e2e
. ci/kubernetes/driver.bash
. ci/kubernetes/nodes.bash

# With the startup taint, which it has again when it is registered again.
cluster second down
cluster second up "--register-with-taints=$taint=:NoSchedule"
second_node_with_data
busy_workload busy data nodes="$(at "$second")"
wait_pod busy
pod=$(mountpoint_pods data)
of_pod() { cluster kubectl -n mount-s3 get pod "$pod" -o "jsonpath=$1"; }
node_uid() { cluster kubectl get node "$second" -o 'jsonpath={.metadata.uid}'; }
old=$(node_uid)
holds "its owners" "$old" "$(of_pod '{.metadata.ownerReferences[*].uid}')"
cluster kubectl delete node "$second"
# After 40 s without a Node, Kubernetes would delete its pods.
cluster second run systemctl kill --kill-whom=main --signal=KILL kubelet
kubelet_is_down() { ! cluster second run systemctl is-active --quiet kubelet; }
until_ok "the kubelet ended" kubelet_is_down
cluster second run systemctl start kubelet
is_another() { [ -n "$(node_uid)" ] && [ "$(node_uid)" != "$old" ]; }
until_ok "another Node of its name" is_another
until_ok "the driver of $second registered" registered_at "$second"
# The driver, which has run all the time, takes it away again.
until_ok "no taint is left" count_is 0 taints_of "$second"
# The garbage collector has judged the pod: it took the old Node from its owners.
is_freed() { [[ "$(of_pod '{.metadata.ownerReferences[*].uid}')" != *$old* ]]; }
until_ok "the old Node no owner of the Mountpoint Pod" is_freed
equal "when the Mountpoint Pod is deleted" "" "$(of_pod '{.metadata.deletionTimestamp}')"
equal "its controller" Namespace "$(of_pod '{.metadata.ownerReferences[?(@.controller==true)].kind}')"
noticed_nothing busy
cluster kubectl drain "$second" --ignore-daemonsets --delete-emptydir-data --dry-run=server --pod-selector=s3.csi.scality.com/mounted-by-csi-driver-version
remove_pod busy
until_ok "nothing of the volume is left" nodes_are data ""
