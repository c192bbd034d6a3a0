# shellcheck shell=bash
# The engine is killed ten times in a row. A pod with HostToContainer reads again within three seconds each time: no back-off of the kubelet
# adds up. The mounter of the Mountpoint Pod starts the next engine, after two seconds at the latest, or at the fifth death gives the mount up and
# stays, and the driver mounts again on its own. The pod itself measures, by the kernel's clock: from the kill to the end of the first read that
# began after it.
# needs: nobody beside it
# shellcheck disable=SC2154,SC2016 # given by ci/e2e; programs are quoted
. ci/kubernetes/driver.bash

volume data
echo hello >"$scratch/hello"
s3_put hello.txt "$scratch/hello"
workload following data propagation=HostToContainer \
    script='while sleep 0.05; do read from rest </proc/uptime; grep -qx hello /data/hello.txt 2>/dev/null && read to rest </proc/uptime && echo $from $to; done'
wait_pod following
equal "it reads" hello "$(in_pod following cat /data/hello.txt)"
mountpoint=$(mountpoint_pods data)
# read_after TIME: how long after it the first read ended that began then or later.
read_after() { kube logs following --since=60s | awk -v kill="$1" 'NF == 2 && $1 >= kill && !took { took = sprintf("%.2f", $2 - kill) } END { print took; exit !took }'; }
for death in $(seq 10); do
    killed=$(engine)
    died=$(cluster run sh -c 'kill -KILL "$1" && cut -d " " -f 1 /proc/uptime' sh "$killed")
    until_ok "it reads after death $death" read_after "$died"
    took=$(read_after "$died")
    say "$took s from death $death to new I/O"
    awk -v took="$took" 'BEGIN { exit took > 3 }' || fail "death $death took $took s, and may take 3"
    until_ok "an engine after $killed" another_engine "$killed"
done
equal "the Mountpoint Pod" "$mountpoint" "$(mountpoint_pods data Running)"
equal "restarts of its container" 0 "$(cluster kubectl -n mount-s3 get pod "$mountpoint" -o 'jsonpath={.status.containerStatuses[0].restartCount}')"
told() { [ "$(kube get events --field-selector "involvedObject.name=following,reason=$1" -o name | wc -l)" = "$2" ]; }
until_ok "an Event each time the volume was mounted again" told VolumeEngineDied 2
until_ok "one Event that counts, for the other deaths" told VolumeEngineRestarted 1
layers=$(cluster run grep -c "$(uid_of following)/volumes/kubernetes.io~csi" /proc/self/mountinfo)
[ "$layers" -le 2 ] || fail "$layers mounts lie over one another at the target"
