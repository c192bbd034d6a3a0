# shellcheck shell=bash
# A volume is used on two nodes at once, through a Mountpoint Pod on each. A pod that moves to the other node finds its data, and nothing of
# it is left where it was. A volume that Kubernetes allows on one node only is mounted there and nowhere else.
# needs: a second node
# shellcheck disable=SC2154 # given by ci/e2e
. ci/kubernetes/driver.bash
. ci/kubernetes/nodes.bash

second_node
volume data
workload here data nodes="$(at node)"
workload there data nodes="$(at "$second")"
wait_pod here
wait_pod there
nodes_are data "node $second" || fail "of a volume on two nodes"
# reads POD FILE SUM: what the other node wrote is seen after at most the time that names are kept.
reads() {
    local is
    is=$(in_pod "$1" sha256sum "/data/$2" | cut -d ' ' -f 1)
    [ "$is" = "$3" ] || { echo "$1 reads $2 as $is instead of $3"; return 1; }
}
for round in 1 2; do
    for pair in here:there there:here; do
        from=${pair%:*} to=${pair#*:}
        sum=$(in_pod "$from" sh -c "dd if=/dev/urandom of=/tmp/random bs=1M count=8 2>/dev/null && cp /tmp/random /data/from-$from && sha256sum /tmp/random" | cut -d ' ' -f 1)
        until_ok "$to reads what $from wrote, round $round" reads "$to" "from-$from" "$sum"
    done
done
uid=$(uid_of here)
remove_pod here
until_ok "only the other node's is left" nodes_are data "$second"
none_mounted_below "$kubelet/pods/$uid/" || fail "the target of a pod that ended"
until_ok "the other pod reads on" reads there from-there "$sum"

volume moves
workload mover moves nodes="$(at node)"
wait_pod mover
sum=$(in_pod mover sh -c 'seq 1 200000 >/data/numbers && sha256sum /data/numbers' | cut -d ' ' -f 1)
old=$(mountpoint_pods moves)
remove_pod mover
workload mover moves nodes="$(at "$second")"
wait_pod mover
reads mover numbers "$sum" || fail "after it moved"
in_pod mover sh -c 'echo moved >/data/moved'
equal "what it wrote there" moved "$(s3_get moved)"
until_ok "nothing of it is left where it was" nodes_are moves "$second"
none_mounted_below "$plugin/mnt/$old" || fail "the source on the first node"
until_ok "the source's directory on the first node gone" is_missing "$plugin/mnt/$old"

volume stays affinity="{ required: { nodeSelectorTerms: [{ matchExpressions: [{ key: kubernetes.io/hostname, operator: In, values: [$second] }] }] } }"
workload allowed stays
workload elsewhere stays nodes="$(at node)"
wait_pod allowed
equal "its node" "$second" "$(field pod/allowed .spec.nodeName)"
in_pod allowed sh -c 'echo x >/data/x'
until_ok "the other pod is told" event "PersistentVolume's node affinity"
nodes_are stays "$second" || fail "of a volume with node affinity"

kube delete pod there mover allowed elsewhere --wait=false
for pod in there mover allowed elsewhere; do until_ok "pod $pod gone" pod_gone $pod; done
for each in data moves stays; do until_ok "nothing of $each is left" nodes_are $each ""; done
where=second until_ok "no source is left" none_mounted_below "$plugin/mnt/"
