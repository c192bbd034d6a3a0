# shellcheck shell=bash
# The kernel kills the engine of a Mountpoint Pod that is out of memory, while a pod without mount propagation reads: its limit is lowered below
# what it uses. With the limit as it was, the next engine goes on: the read ends without an error and with the right bytes. An Event names the cause.
# needs: its name
# shellcheck disable=SC2154,SC2016 # given by ci/e2e; programs are quoted
. ci/kubernetes/driver.bash

head -c 268435456 /dev/urandom >"$scratch/big"
sum=$(sha256sum <"$scratch/big")
s3_put big "$scratch/big"
volume data
workload plain data
wait_pod plain
mountpoint=$(mountpoint_pods data)
killed=$(engine)
folder=/sys/fs/cgroup/memory$(cluster run sed -n 's/^[0-9]*:memory://p' "/proc/$killed/cgroup")
# The limit is what it uses now: reading takes more.
before=$(cluster run cat "$folder/memory.limit_in_bytes")
lower() { cluster run sh -c 'cat "$1/memory.usage_in_bytes" >"$1/memory.limit_in_bytes"' sh "$folder"; }
until_ok "a limit where it is" lower
dies() { ! cluster run kill -0 "$killed"; }
# Raised within milliseconds of the death, inside the node: the next engine would meet the low limit. At most 12,000 looks.
cluster run sh -c 'n=0; while [ $((n += 1)) -lt 12000 ] && kill -0 "$3" 2>/dev/null; do sleep 0.01; done
    echo "$2" >"$1/memory.limit_in_bytes"' sh "$folder" "$before" "$killed" &
raised=$!
in_pod plain sh -c 'sha256sum </data/big' >"$scratch/read" 2>&1 &
reader=$!
until_ok "the engine was killed" dies
wait $raised
wait $reader || {
    cluster kubectl -n mount-s3 logs "$mountpoint" --tail 50 >&2
    fail "the read failed: $(cat "$scratch/read")"
}
equal "the bytes that were read meanwhile" "$sum" "$(cat "$scratch/read")"
says_why() { kube get events --field-selector involvedObject.name=plain,reason=VolumeEngineRestarted -o 'jsonpath={.items[*].message}' | grep "out of memory"; }
until_ok "an Event says why" says_why
equal "the Mountpoint Pod" "$mountpoint" "$(mountpoint_pods data Running)"
say "restarts of its container: $(cluster kubectl -n mount-s3 get pod "$mountpoint" -o 'jsonpath={.status.containerStatuses[0].restartCount}')"
remove_pod plain
until_ok "no attachment is left" count_is 0 attachment data .metadata.name
until_ok "no Mountpoint Pod is left" count_is 0 mountpoint_pods data
