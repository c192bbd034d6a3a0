# shellcheck shell=bash
# The kernel reads cached files of Mountpoint Pods by itself: the engine takes no CPU for them, before the node's driver is replaced and after,
# and after deaths of engine and container. A file that is open while the driver is replaced goes on.
# needs: nobody beside it
# needs: its name
# shellcheck disable=SC2154,SC2016 # given by ci/e2e; programs are quoted
. ci/kubernetes/driver.bash

mib=64 rounds=16
head -c $((mib << 20)) /dev/urandom >"$scratch/random"
s3_put random "$scratch/random"
sum=$(sha256sum <"$scratch/random")
volume data attributes="{ bucketName: $bucket, cache: emptyDir, cacheEmptyDirSizeLimit: 1Gi }"
workload reader data
wait_pod reader
# Time of CPU of the engine, in ticks of 10 ms.
ticks() { cluster run awk '{ print $14 + $15 }' "/proc/$(engine)/stat"; }
read_gib() { in_pod reader sh -c "for round in $(seq -s ' ' $rounds); do cat /data/random >/dev/null || exit 1; done"; }
# 0.02 s for a GiB are two ticks.
is_free() {
    local before took
    before=$(ticks)
    read_gib
    took=$(($(ticks) - before))
    echo "$took" >"$scratch/took"
    [ "$took" -le 2 ] || { echo "the engine took $took ticks of CPU for $((mib * rounds)) MiB from its cache"; return 1; }
}
until_ok "cached files cost the engine nothing" is_free
say "the engine took $(cat "$scratch/took") ticks of 10 ms for $((mib * rounds)) MiB"
equal "what the pod reads" "$sum" "$(in_pod reader sha256sum /data/random | sed 's|/data/random|-|')"

# Holds the file open, and reads it all once more when told to.
kube exec reader -- sh -c 'exec 3</data/random; until [ -e /tmp/go ]; do sleep 0.1; done; cat <&3 | sha256sum' >"$scratch/held" 2>&1 &
held=$!
uid=$(cluster kubectl -n mount-s3 get pod "$(mountpoint_pods data)" -o 'jsonpath={.metadata.uid}')
cluster kubectl -n kube-system rollout restart daemonset/s3-csi-node
cluster kubectl -n kube-system rollout status daemonset/s3-csi-node --timeout="${wait_s}s"
in_pod reader touch /tmp/go
wait $held || fail "reading a file that was open while the driver was replaced"
equal "what was open" "$sum" "$(cat "$scratch/held")"
until_ok "cached files cost the engine nothing after the driver's restart" is_free

# Nobody scrapes the driver here: it dials the next engine by itself.
kill_engine
until_ok "cached files cost the next engine nothing" is_free
until_ok "the mount held" holder_says "$(mountpoint_pods data) held"
kill_container
until_ok "an engine of the next container" another_engine "$killed"
until_ok "cached files cost the engine of the next container nothing" is_free
equal "what the pod reads in the end" "$sum" "$(in_pod reader sha256sum /data/random | sed 's|/data/random|-|')"
equal "it is the same Mountpoint Pod" "$uid" "$(cluster kubectl -n mount-s3 get pod "$(mountpoint_pods data)" -o 'jsonpath={.metadata.uid}')"
remove_pod reader
