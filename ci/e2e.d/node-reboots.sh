# shellcheck shell=bash
# A node's power is cut while pods read and write, and it starts again on its disks. Its workloads come back and read what was closed
# before; what was still being written is not there; no mount, attachment or Mountpoint Pod of before is left over.
# needs: a second node
# shellcheck disable=SC2154,SC2034,SC2016 # given by ci/e2e, and read by its functions; programs are quoted
. ci/kubernetes/driver.bash
. ci/kubernetes/nodes.bash

# The kubelet asks for a mount before the driver is there, and then after up to two minutes.
wait_s=240
second_node_with_data
volume apart
for pod in one two; do workload $pod data nodes="$(at "$second")"; done
workload other apart nodes="$(at "$second")"
workload here data nodes="$(at node)"
for pod in one two other here; do wait_pod $pod; done
in_pod one sh -c 'cat /data/random /data/random >/data/closed'
both=$(cat "$scratch/random" "$scratch/random" | sha256sum | cut -d ' ' -f 1)
# Both wait in the node when its power goes: a file that is open for writing, and one that is read.
in_pod two sh -c '(for i in 1 2 3 4 5 6; do cat /data/random; done; sleep 1000000) >/data/open 2>/dev/null </dev/null & sleep 1000000 </data/closed >/dev/null 2>&1 & sleep 1'
uploads() { s3 GET "$bucket?uploads=" | grep -o '<Key>[^<]*' || true; }
until_ok "its upload has begun" count_is 1 uploads
declare -A uids
for pod in one two other; do uids[$pod]=$(uid_of $pod); done
boot() { cluster kubectl get node "$second" -o 'jsonpath={.status.nodeInfo.bootID}'; }
before=$(boot)

cluster second off
in_pod here sh -c 'cmp /data/random /data/random && echo while >/data/while' || fail "a pod of the other node while the node was off"
cluster second on
[ "$before" != "$(boot)" ] || fail "the node has the boot id of before"
comes_back() {
    [ "$(field "pod/$1" '.status.containerStatuses[0].restartCount')" -ge 1 ] && pod_ready "$1"
}
for pod in one two other; do
    until_ok "$pod runs again" comes_back $pod
    until_ok "$pod can be asked" in_pod $pod true
    equal "$pod is the pod of before" "${uids[$pod]}" "$(uid_of $pod)"
    equal "what $pod reads" "$sum" "$(in_pod $pod sha256sum /data/random | cut -d ' ' -f 1)"
    equal "what $pod reads of what was closed" "$both" "$(in_pod $pod sha256sum /data/closed | cut -d ' ' -f 1)"
    in_pod $pod sh -c "echo again >/data/again-$pod"
    equal "what $pod writes" again "$(s3_get "again-$pod")"
done
refused "a file that was open when the power went" "No such file" in_pod one cat /data/open
until_ok "its upload is aborted" count_is 0 uploads
equal "what the other node wrote meanwhile" while "$(in_pod one cat /data/while)"
until_ok "attachments and Mountpoint Pods of data" nodes_are data "node $second"
until_ok "attachments and Mountpoint Pods of apart" nodes_are apart "$second"
# A source for each Mountpoint Pod, a target for each workload, each mounted once.
where=second
for pod in $(mountpoint_pods apart) $(mountpoint_pods data); do
    [ "$(cluster kubectl -n mount-s3 get pod "$pod" -o 'jsonpath={.spec.nodeName}')" = "$second" ] || continue
    equal "mounts of $pod" 1 "$(mounts_below "$plugin/mnt/$pod" | wc -l)"
done
equal "sources in all" 2 "$(mounts_below "$plugin/mnt/" | wc -l)"
for pod in one two other; do equal "mounts of $pod" 1 "$(mounts_below "$kubelet/pods/${uids[$pod]}/" | wc -l)"; done

kube delete pod one two other here --wait=false
for pod in one two other here; do until_ok "pod $pod gone" pod_gone $pod; done
for each in data apart; do until_ok "nothing of $each is left" nodes_are $each ""; done
until_ok "no mount is left" none_mounted_below "$kubelet"
for pod in one two other; do until_ok "no directory of $pod" is_missing "$kubelet/pods/${uids[$pod]}"; done
no_sources() { [ -z "$(cluster second run ls "$plugin/mnt")" ]; }
until_ok "no directory of a source" no_sources
