# shellcheck shell=bash
# A node is drained without force: its Mountpoint Pod is evicted beside its workloads, and goes on serving until they have ended. An Event tells them
# until when it serves at most.
# needs: nobody beside it
# shellcheck disable=SC2154 # given by ci/e2e
. ci/kubernetes/driver.bash

trap 'cluster kubectl uncordon "$node" >/dev/null' EXIT
node=$(cluster kubectl get nodes -o 'jsonpath={.items[0].metadata.name}')
volume data
workload busy data
wait_pod busy
in_pod busy sh -c 'echo before >/data/before'
pod=$(mountpoint_pods data)
# The stores and the driver's controllers stay: this lab has one node, and nowhere else for them.
cluster kubectl drain "$node" --ignore-daemonsets --delete-emptydir-data --timeout="${wait_s}s" \
    --pod-selector=s3.csi.scality.com/mounted-by-csi-driver-version >"$scratch/drain" 2>&1 &
drain=$!
is_leaving() { [ -n "$(cluster kubectl -n mount-s3 get pod "$pod" -o 'jsonpath={.metadata.deletionTimestamp}')" ]; }
until_ok "the Mountpoint Pod evicted" is_leaving
until_ok "its workload is told" mount_refused busy "MountpointPodEnds: Mountpoint Pod $pod "
ends=$(cluster kubectl -n mount-s3 get pod "$pod" -o 'jsonpath={.metadata.deletionTimestamp}' | tr TZ '  ')
holds "until when it serves" "until ${ends}UTC at the latest" "$(mount_refused busy "MountpointPodEnds: ")"
in_pod busy sh -c 'cat /data/before && echo while >/data/while'
equal "what was written while the node was drained" while "$(s3_get while)"
is_leaving || fail "the Mountpoint Pod did not outlive the reads of its workload"
remove_pod busy
wait $drain || fail "the drain: $(cat "$scratch/drain")"
until_ok "its attachment gone" count_is 0 attachment data .metadata.name
equal "what is left of it" "" "$(mountpoint_pods data)"
