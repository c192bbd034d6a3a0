# shellcheck shell=bash
# Thirty pods with thirty volumes start at once: within 60 s all run, and then nothing of them is left.
# needs: nobody beside it
# needs: its name
# shellcheck disable=SC2154 # given by ci/e2e
. ci/kubernetes/driver.bash

printf 'hello' >"$scratch/hello"
s3_put hello "$scratch/hello"
pairs=() names=()
for i in $(seq 30); do
    volume "data-$i"
    pairs+=("data-$i:pod-$i") names+=("pod-$i")
done
start=$EPOCHREALTIME
workloads "${pairs[@]}"
say_after() { awk -v a="$start" -v b="$EPOCHREALTIME" -v what="$1" 'BEGIN { printf "%.1f s after the first pod: %s\n", b - a, what }'; }
kube wait --for=condition=Ready --timeout=600s "${names[@]/#/pod/}"
took=$((${EPOCHREALTIME%.*} - ${start%.*}))
say_after "all thirty are ready"
[ "$took" -le 60 ] || fail "thirty pods took $took s"
equal "Mountpoint Pods" 30 "$(for i in $(seq 30); do mountpoint_pods "data-$i"; done | sort -u | wc -l)"
for each in "${names[@]}"; do equal "what $each reads" hello "$(in_pod "$each" cat /data/hello)"; done
say "memory of the node driver: $(cluster run sed -n 's/^VmRSS:[^0-9]*//p' "/proc/$(driver_pid)/status")"
start=$EPOCHREALTIME
kube delete pod "${names[@]}" --wait=false
for each in "${names[@]}"; do until_ok "pod $each gone" pod_gone "$each"; done
for i in $(seq 30); do
    until_ok "no attachment of data-$i" count_is 0 attachment "data-$i" .metadata.name
    until_ok "no Mountpoint Pod of data-$i" count_is 0 mountpoint_pods "data-$i"
done
say_after "nothing of them is left (counted from their deletion)"
until_ok "no source is left" none_mounted_below "$plugin/mnt/"
