# shellcheck shell=bash
# The engine is killed ten times in a row. A pod with HostToContainer reads again within three seconds each time: no back-off of the kubelet
# adds up, since the mounter of the Mountpoint Pod stays and the driver mounts again on its own.
# shellcheck disable=SC2154 # given by ci/e2e
. ci/kubernetes/driver.bash

volume data
echo hello >"$scratch/hello"
s3_put hello.txt "$scratch/hello"
workload following data propagation=HostToContainer
wait_pod following
equal "it reads" hello "$(in_pod following cat /data/hello.txt)"
engine() { cluster run pgrep -f "^/mountpoint-s3/bin/mount-s3 $bucket "; }
mountpoint=$(mountpoint_pods data)
reads() { [ "$(in_pod following cat /data/hello.txt 2>&1)" = hello ]; }
for death in $(seq 10); do
    killed=$(engine)
    start=$EPOCHREALTIME
    cluster run kill -KILL "$killed"
    is_another() { ! cluster run kill -0 "$killed" 2>/dev/null; }
    until_ok "engine $death is dead" is_another
    until_ok "it reads after death $death" reads
    took=$(awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }')
    say "$took s from death $death to new I/O"
    awk -v took="$took" 'BEGIN { exit took > 3 }' || fail "death $death took $took s, and must take at most 3"
done
equal "the Mountpoint Pod" "$mountpoint" "$(mountpoint_pods data Running)"
equal "restarts of its container" 0 "$(cluster kubectl -n mount-s3 get pod "$mountpoint" -o 'jsonpath={.status.containerStatuses[0].restartCount}')"
told() { [ "$(kube get events --field-selector involvedObject.name=following,reason=VolumeEngineDied -o name | wc -l)" = 10 ]; }
until_ok "an Event for each death" told
layers=$(cluster run grep -c "$(uid_of following)/volumes/kubernetes.io~csi" /proc/self/mountinfo)
[ "$layers" -le 2 ] || fail "$layers mounts lie over one another at the target"
