# shellcheck shell=bash
# A node dies, and its Node object is deleted. Its pods, Mountpoint Pods and attachments go; a pod of the other node that shares the volume
# notices nothing. When the node comes back on its disks, nothing of before is left on it either, and it takes workloads as before.
# needs: a second node
# needs: its name
# shellcheck disable=SC2154,SC2034 # given by ci/e2e, and read by its functions
. ci/kubernetes/driver.bash
. ci/kubernetes/nodes.bash

# Kubernetes looks for pods of lost nodes every 20 s, and gives them 40 s more.
wait_s=240
second_node_with_data
busy_workload busy data nodes="$(at node)"
workload there data nodes="$(at "$second")"
wait_pod busy
wait_pod there
uid=$(uid_of there)
old=$(mountpoint_pods data | while read -r pod; do cluster kubectl -n mount-s3 get pod "$pod" -o 'jsonpath={.spec.nodeName} {.metadata.name}{"\n"}'; done | sed -n "s/^$second //p")

cluster second off
cluster kubectl delete node "$second"
started=$SECONDS
until_ok "pod there gone" pod_gone there
say "its workload is gone after $((SECONDS - started)) s"
until_ok "its attachment and its Mountpoint Pod gone" nodes_are data node
say "its attachment and its Mountpoint Pod are gone after $((SECONDS - started)) s"
noticed_nothing busy

cluster second on
until_ok "the driver of $second registered" registered_at "$second"
until_ok "the driver of $second ready" driver_ready_at "$second"
where=second
until_ok "no directory of the pod of before" is_missing "$kubelet/pods/$uid"
until_ok "no mount of before" none_mounted_below "$kubelet"
workload again data nodes="$(at "$second")"
wait_pod again
in_pod again cmp /data/random /data/random
in_pod again sh -c 'echo again >/data/again'
equal "what it writes" again "$(s3_get again)"
nodes_are data "node $second" || fail "after the node came back"
noticed_nothing busy
kube delete pod busy again --wait=false
for pod in busy again; do until_ok "pod $pod gone" pod_gone $pod; done
until_ok "nothing of the volume is left" nodes_are data ""
until_ok "the source's directory of before gone" is_missing "$plugin/mnt/$old"
