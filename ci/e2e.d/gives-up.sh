# shellcheck shell=bash
# The engine is killed five times in a row, and the mounter gives the mount up: pods get an error at once and no wrong byte, and nobody hangs. The
# driver mounts again. A pod with HostToContainer propagation gets the new mount within seconds; a pod without it needs a restart. An Event
# tells both.
# shellcheck disable=SC2154,SC2016 # given by ci/e2e; the program is quoted
. ci/kubernetes/driver.bash

seq 1 200000 >"$scratch/numbers"
sum=$(sha256sum <"$scratch/numbers")
volume data
s3_put numbers.txt "$scratch/numbers"
workload plain data
workload following data propagation=HostToContainer
wait_pod plain
wait_pod following
for pod in plain following; do equal "$pod reads" "$sum" "$(in_pod $pod sh -c 'sha256sum </data/numbers.txt')"; done

mountpoint=$(mountpoint_pods data)
first=$(engine)
give_up
start=$EPOCHREALTIME
# With the device closed by its last holder the kernel answers ENOTCONN; nobody hangs.
refused "plain looks at a dead mount" "not connected" in_pod plain stat /data/numbers.txt
say_after() { awk -v a="$start" -v b="$EPOCHREALTIME" -v what="$1" 'BEGIN { printf "%.1f s after the last kill: %s\n", b - a, what }'; }
say_after "the pod without propagation has seen the error"

reads() { [ "$(in_pod "$1" sh -c 'sha256sum </data/numbers.txt')" = "$sum" ]; }
until_ok "the pod with HostToContainer reads again" reads following
say_after "the pod with HostToContainer reads again"
told() { kube get events --field-selector "involvedObject.name=$1,reason=VolumeEngineDied" -o name | grep -q .; }
for pod in plain following; do until_ok "an Event tells $pod" told $pod; done
refused "the pod without still looks at the dead mount" "not connected" in_pod plain stat /data/numbers.txt
remove_pod plain
workload plain data
wait_pod plain
equal "after its restart it reads" "$sum" "$(in_pod plain sh -c 'sha256sum </data/numbers.txt')"
[ "$(engine)" != "$first" ] || fail "the engine that was killed lives"
equal "attachments" 1 "$(attachment data .metadata.name | wc -l)"
equal "processes in uninterruptible sleep on this mount" "" "$(cluster run sh -c 'ps -eo state=,args= | grep "^D.*$1" || true' sh "$bucket")"
say "served by $(mountpoint_pods data), before by $mountpoint"
