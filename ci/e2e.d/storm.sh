# shellcheck shell=bash
# Ten pods start and ten end while parts fail between their steps: the API server again and again, then the node's driver, then the kubelet.
# Each pod gets where it should, two pods that read and write all the time notice nothing, and at the end nothing is left.
# needs: nobody beside it
# needs: its name
# shellcheck disable=SC2154 # given by ci/e2e
. ci/kubernetes/driver.bash
. ci/kubernetes/faults.bash

put_back() { cluster kubectl get --raw /readyz >/dev/null 2>&1 || start_api_server; }
trap put_back EXIT
head -c 4194304 /dev/urandom >"$scratch/random"
s3_put random "$scratch/random"
sum=$(sha256sum <"$scratch/random")

# Half of the pods of a round share a volume with the round before and with a busy pod; each other one has a volume whose Mountpoint Pod
# is made for it.
all=(shared apart)
for i in 1 2 3 4 5; do all+=("even-$i" "odd-$i"); done
for each in "${all[@]}"; do volume "$each"; done
busy_workload busy-shared shared
busy_workload busy-apart apart
pods_of() { # ROUND: pairs of volume and pod
    local i own=even
    [ $(($1 % 2)) -eq 0 ] || own=odd
    for i in 1 2 3 4 5; do say "$own-$i:round-$1-own-$i" "shared:round-$1-shared-$i"; done
}

# round NUMBER FAULT...: the pods of this round start and those of the one before end, while the fault goes on.
round() {
    local number=$1 pair pods=() before=() uids=() start=$SECONDS
    shift
    mapfile -t pods < <(pods_of "$number")
    if [ "$number" -gt 0 ]; then mapfile -t before < <(pods_of $((number - 1))); fi
    for pair in "${before[@]}"; do uids+=("$(uid_of "${pair#*:}")"); done
    workloads "${pods[@]}"
    [ ${#before[@]} -eq 0 ] || kube delete pod "${before[@]#*:}" --wait=false
    "$@"
    for pair in "${pods[@]}"; do
        wait_pod "${pair#*:}"
        # A kubelet that has just started may not know the pod yet.
        until_ok "${pair#*:} can be asked" in_pod "${pair#*:}" true
        equal "what ${pair#*:} reads" "$sum" "$(in_pod "${pair#*:}" sha256sum /data/random | sed 's/ .*/  -/')"
    done
    for pair in "${before[@]}"; do until_ok "pod ${pair#*:} gone" pod_gone "${pair#*:}"; done
    for pair in "${uids[@]}"; do
        none_mounted_below "$kubelet/pods/$pair/" || fail "a target of a pod that ended"
        until_ok "no attachment names the workload $pair" nowhere_named "$pair"
    done
    for pair in busy-shared busy-apart; do noticed_nothing "$pair"; done
    say "round $number ($*): $((SECONDS - start)) s"
}
nowhere_named() { ! cluster kubectl get mountpoints3podattachments -o yaml | grep -F -- "$1"; }

# Between two failures it works for as long as a step or a few take.
api_server_fails() {
    local works
    for works in 0.1 0.3 0.6 1 1.5 2 3; do
        stop_part kube-apiserver
        sleep 1.5
        start_api_server
        sleep "$works"
    done
}
# Kubernetes starts it again after 0, 10 and 20 s.
driver_is_killed() {
    local after pid
    for after in 0.5 1 2; do
        sleep "$after"
        pid=$(driver_pid)
        cluster run kill -KILL "$pid"
        until_ok "the driver started again" another_driver "$pid"
    done
}
kubelet_is_killed() {
    local after
    for after in 0.5 1 2 4; do
        sleep "$after"
        stop_part kubelet
        sleep 1
        start_kubelet
    done
}

for each in busy-shared busy-apart; do wait_pod "$each"; done
round 0 true
serves=$(mountpoint_pods shared)
round 1 api_server_fails
round 2 driver_is_killed
round 3 kubelet_is_killed
equal "the Mountpoint Pod of all" "$serves" "$(mountpoint_pods shared)"

mapfile -t last < <(pods_of 3)
kube delete pod busy-shared busy-apart "${last[@]#*:}" --wait=false
for each in busy-shared busy-apart "${last[@]#*:}"; do until_ok "pod $each gone" pod_gone "$each"; done
for each in "${all[@]}"; do
    until_ok "no attachment of $each" count_is 0 attachment "$each" .metadata.name
    until_ok "no Mountpoint Pod of $each" count_is 0 mountpoint_pods "$each"
done
until_ok "no source is left" none_mounted_below "$plugin/mnt/"
