# shellcheck shell=bash
# The kernel kills the engine of a Mountpoint Pod that is out of memory, while pods read: its limit is lowered below what it uses. Readers
# get an error and no wrong byte, and an Event that names the cause. A pod with HostToContainer reads again with the next engine, and so does a
# pod that is started anew.
# needs: its name
# shellcheck disable=SC2154,SC2016 # given by ci/e2e; programs are quoted
. ci/kubernetes/driver.bash

head -c 268435456 /dev/urandom >"$scratch/big"
sum=$(sha256sum <"$scratch/big")
s3_put big "$scratch/big"
volume data
workload plain data
workload following data propagation=HostToContainer
wait_pod plain
wait_pod following
mountpoint=$(mountpoint_pods data)
engine() { cluster run pgrep -f "^/mountpoint-s3/bin/mount-s3 $bucket "; }
killed=$(engine)
folder=/sys/fs/cgroup/memory$(cluster run sed -n 's/^[0-9]*:memory://p' "/proc/$killed/cgroup")
# As many bytes as it uses now: reading takes more.
before=$(cluster run cat "$folder/memory.limit_in_bytes")
lower() { cluster run sh -c 'cat "$1/memory.usage_in_bytes" >"$1/memory.limit_in_bytes"' sh "$folder"; }
until_ok "a limit where it is" lower
dies() { ! cluster run kill -0 "$killed"; }
said=$(in_pod plain sh -c 'sha256sum </data/big' 2>&1) && [ "$said" = "$sum" ] && fail "it read 256 MiB with no memory"
[[ $said != *"  -"* ]] || fail "a sum of wrong bytes: $said"
until_ok "the engine was killed" dies
cluster run sh -c 'echo "$2" >"$1/memory.limit_in_bytes"' sh "$folder" "$before"
says_why() { kube get events --field-selector involvedObject.name=following,reason=VolumeEngineDied -o 'jsonpath={.items[*].message}' | grep "out of memory"; }
until_ok "an Event says why" says_why

reads() { [ "$(in_pod "$1" sh -c 'sha256sum </data/big' 2>&1)" = "$sum" ]; }
until_ok "the pod with HostToContainer reads again" reads following
remove_pod plain
workload plain data
wait_pod plain
until_ok "a pod that was started anew reads" reads plain
equal "the Mountpoint Pod" "$mountpoint" "$(mountpoint_pods data Running)"
say "restarts of its container: $(cluster kubectl -n mount-s3 get pod "$mountpoint" -o 'jsonpath={.status.containerStatuses[0].restartCount}')"
for pod in plain following; do remove_pod $pod; done
until_ok "no attachment is left" count_is 0 attachment data .metadata.name
until_ok "no Mountpoint Pod is left" count_is 0 mountpoint_pods data
