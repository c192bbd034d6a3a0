# shellcheck shell=bash
# The reconciler that leads is killed again and again while pods start and end, and then etcd is. Each pod gets where it should, a pod that
# reads and writes all the time notices nothing, and at the end nothing is left.
# needs: nobody beside it
# needs: its name
# shellcheck disable=SC2154,SC2034 # given by ci/e2e, and read by its functions
. ci/kubernetes/driver.bash
. ci/kubernetes/faults.bash

put_back() {
    cluster run systemctl is-active --quiet etcd-node || cluster run systemctl start etcd-node
    until_ok "the API server" cluster kubectl get --raw /readyz
}
trap put_back EXIT
head -c 4194304 /dev/urandom >"$scratch/random"
s3_put random "$scratch/random"
sum=$(sha256sum <"$scratch/random")
all=(busy shared)
for i in 1 2 3 4 5; do all+=("own-$i"); done
for each in "${all[@]}"; do volume "$each"; done
busy_workload busy busy
wait_pod busy

# The process of the reconciler that holds the Lease. A container that Kubernetes starts again has the pod's name, and may go on at once.
leader_pid() {
    local holder pid
    holder=$(cluster kubectl -n kube-system get lease scality-csi-controller -o 'jsonpath={.spec.holderIdentity}')
    for pid in $(cluster run pgrep -f '^/bin/scality-csi-controller'); do
        if cluster run grep -qzx "POD_NAME=$holder" "/proc/$pid/environ"; then
            echo "$pid"
            return 0
        fi
    done
    echo "no process of $holder"
    return 1
}
kill_leader() {
    local pid
    pid=$(leader_pid) && cluster run kill -KILL "$pid"
}
leader_is_killed() {
    local after
    for after in 0.1 0.3 1 2; do
        sleep "$after"
        until_ok "the leader is killed" kill_leader
    done
}
etcd_is_killed() {
    local works
    for works in 0.3 1 3; do
        stop_part etcd-node
        sleep 1.5
        cluster run systemctl start etcd-node
        until_ok "the API server" cluster kubectl get --raw /readyz
        sleep "$works"
    done
}
nowhere_named() { ! cluster kubectl get mountpoints3podattachments -o yaml | grep -F -- "$1"; }
# round NAME FAULT: the pods of this round start while it lasts; then they end while it lasts again.
round() {
    local name=$1 fault=$2 pairs=() pods=() each uids=() start=$SECONDS
    for each in own-1 own-2 own-3 own-4 own-5 shared shared; do
        pairs+=("$each:$name-${#pairs[@]}") pods+=("$name-${#pods[@]}")
    done
    workloads "${pairs[@]}"
    "$fault"
    for each in "${pods[@]}"; do
        wait_pod "$each"
        until_ok "$each can be asked" in_pod "$each" true
        equal "what $each reads" "$sum" "$(in_pod "$each" sha256sum /data/random | sed 's/ .*/  -/')"
        uids+=("$(uid_of "$each")")
    done
    say "$name: all pods are there after $((SECONDS - start)) s"
    kube delete pod "${pods[@]}" --wait=false
    "$fault"
    for each in "${pods[@]}"; do until_ok "pod $each gone" pod_gone "$each"; done
    for each in "${uids[@]}"; do
        none_mounted_below "$kubelet/pods/$each/" || fail "a target of a pod that ended"
        until_ok "no attachment names the workload $each" nowhere_named "$each"
    done
    noticed_nothing busy
    say "$name: done after $((SECONDS - start)) s"
}
# A killed reconciler's container starts again after up to 40 s, and a Lease is free after 15.
wait_s=240
round leader leader_is_killed
round etcd etcd_is_killed
remove_pod busy
for each in "${all[@]}"; do
    until_ok "no attachment of $each" count_is 0 attachment "$each" .metadata.name
    until_ok "no Mountpoint Pod of $each" count_is 0 mountpoint_pods "$each"
done
until_ok "no source is left" none_mounted_below "$plugin/mnt/"
