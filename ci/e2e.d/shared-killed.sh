# shellcheck shell=bash
# All engines of an engines pod die. Its first process is killed, so that its container starts anew, then the pod
# is deleted. Each time all volumes are mounted again; a pod with HostToContainer reads on, one without is told by an Event. A container with a
# subPath starts again in its pod.
# needs: nobody beside it
# shellcheck disable=SC2154,SC2016 # given by ci/e2e; programs are quoted
. ci/kubernetes/driver.bash

put_back() { release_driver; }
trap put_back EXIT
release_driver --set node.mounter=shared --set shared.experimental=true
echo hello >"$scratch/hello"
s3_put hello.txt "$scratch/hello"
s3_put other/hello.txt "$scratch/hello"
volume one
volume two attributes="{ bucketName: $bucket, prefix: other/ }"
workload following one propagation=HostToContainer
workload other two propagation=HostToContainer
workload plain two
# The first process of a container hears no signal that it does not take.
pod_of 'persistentVolumeClaim: { claimName: one }' below script='trap exit TERM; sleep 2147483647 & wait' |
    sed 's|mountPath: /data|mountPath: /data, subPath: other|' | kube apply -f -
for it in following other plain below; do wait_pod $it; done
reads() { [ "$(in_pod "$1" cat /data/hello.txt 2>&1)" = hello ]; }
for it in following other plain below; do until_ok "$it reads" reads $it; done
engines() { cluster run pgrep -f "^/mountpoint-s3/bin/mount-s3 $bucket " | sort | tr '\n' ' '; }
engines_pod() { cluster kubectl -n "$driver_namespace" get pods -l app=s3-csi-engines -o "jsonpath={.items[*].$1}"; }
died() { [ "$(kube get events --field-selector "involvedObject.name=$1,reason=VolumeEngineDied" -o name | wc -l)" -ge "$2" ]; }

before=$(engines)
cluster run pkill -KILL -f '^/bin/scality-s3-csi-mounter --many'
other_engines() { local now; now=$(engines) && [ "$(wc -w <<<"$now")" = 2 ] && [ "$now" != "$before" ]; }
start=$EPOCHREALTIME
until_ok "two other engines" other_engines
for it in following other; do until_ok "$it reads after the death of the container" reads $it; done
say "$(awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }') s from the death of the container to reads"
has_restarted() { local times; times=$(engines_pod 'status.containerStatuses[0].restartCount') && echo "$times times" && [ "$times" = 1 ]; }
until_ok "one restart of the container" has_restarted
for it in following other plain below; do until_ok "an Event tells $it" died $it 1; done
refused "the container with a subPath looks at a dead mount" "not connected" in_pod below stat /data/hello.txt
# It ends, and the kubelet starts it again in the same pod.
in_pod below kill 1 || true
until_ok "the container with a subPath, started again, reads" reads below
until_ok "it is the same pod, started again" field_is pod/below '.status.containerStatuses[0].restartCount' 1

before=$(engines)
uid=$(engines_pod metadata.uid)
start=$EPOCHREALTIME
cluster kubectl -n "$driver_namespace" delete pod -l app=s3-csi-engines --grace-period=5
until_ok "two other engines" other_engines
for it in following other; do until_ok "$it reads after the death of the pod" reads $it; done
say "$(awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }') s from the death of the pod to reads"
[ "$(engines_pod metadata.uid)" != "$uid" ] || fail "it is the same pod"
for it in following other plain below; do until_ok "another Event tells $it" died $it 2; done
for it in following other plain below; do remove_pod $it; done
none() { [ -z "$(mounts_below "$plugin/mnt/")" ] || { mounts_below "$plugin/mnt/"; return 1; }; }
wait_s=300 until_ok "all sources have left" none
