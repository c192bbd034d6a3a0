# shellcheck shell=bash
# The engine is killed ten times in a row. A pod with HostToContainer reads again within three seconds, half of the times at least: no back-off
# of the kubelet adds up. The mounter of the Mountpoint Pod starts the next engine, or at the fifth death gives the mount up and stays, and the
# driver mounts again on its own. On a busy machine single ones take
# longer, but never until the kubelet's next call, which comes after ten seconds here.
# needs: nobody beside it
# shellcheck disable=SC2154 # given by ci/e2e
. ci/kubernetes/driver.bash

volume data
echo hello >"$scratch/hello"
s3_put hello.txt "$scratch/hello"
workload following data propagation=HostToContainer
wait_pod following
equal "it reads" hello "$(in_pod following cat /data/hello.txt)"
mountpoint=$(mountpoint_pods data)
reads() { [ "$(in_pod following cat /data/hello.txt 2>&1)" = hello ]; }
times=()
for death in $(seq 10); do
    killed=$(engine)
    start=$EPOCHREALTIME
    cluster run kill -KILL "$killed"
    is_another() { ! cluster run kill -0 "$killed" 2>/dev/null; }
    until_ok "engine $death is dead" is_another
    until_ok "it reads after death $death" reads
    took=$(awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }')
    say "$took s from death $death to new I/O"
    awk -v took="$took" 'BEGIN { exit took > 8 }' || fail "death $death took $took s, and must take at most 8"
    times+=("$took")
done
middle=$(printf '%s\n' "${times[@]}" | sort -n | sed -n 5p)
awk -v middle="$middle" 'BEGIN { exit middle > 3 }' || fail "half of the deaths took over $middle s, and may take 3"
equal "the Mountpoint Pod" "$mountpoint" "$(mountpoint_pods data Running)"
equal "restarts of its container" 0 "$(cluster kubectl -n mount-s3 get pod "$mountpoint" -o 'jsonpath={.status.containerStatuses[0].restartCount}')"
told() { [ "$(kube get events --field-selector "involvedObject.name=following,reason=$1" -o name | wc -l)" = "$2" ]; }
until_ok "an Event each time the volume was mounted again" told VolumeEngineDied 2
until_ok "one Event that counts, for the other deaths" told VolumeEngineRestarted 1
layers=$(cluster run grep -c "$(uid_of following)/volumes/kubernetes.io~csi" /proc/self/mountinfo)
[ "$layers" -le 2 ] || fail "$layers mounts lie over one another at the target"
