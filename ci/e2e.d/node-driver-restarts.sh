# shellcheck shell=bash
# The node driver is replaced while pods read and write. They notice nothing, and afterwards pods start and end as before.
# needs: nobody beside it
# shellcheck disable=SC2154,SC2016 # given by ci/e2e; the loop runs in the pod
. ci/kubernetes/driver.bash

volume data
workload busy data
wait_pod busy
in_pod busy sh -c 'dd if=/dev/urandom of=/tmp/random bs=1M count=8 && cp /tmp/random /data/random' 2>/dev/null
# Reads and writes until told to stop; the first error ends it with a word.
kube exec busy -- sh -c '
    n=0
    until [ -e /tmp/stop ]; do
        cmp /tmp/random /data/random && cp /tmp/random "/data/copy-$((n % 3))" || { echo "failed at round $n"; exit 1; }
        n=$((n + 1))
    done
    echo "$n rounds"' >"$scratch/busy" 2>&1 &
loop=$!
cluster kubectl -n kube-system rollout restart daemonset/s3-csi-node
cluster kubectl -n kube-system rollout status daemonset/s3-csi-node --timeout="${wait_s}s"
workload later data
wait_pod later
in_pod busy touch /tmp/stop
wait $loop || fail "reading and writing while the driver restarted: $(cat "$scratch/busy")"
grep -qE '^[1-9][0-9]* rounds' "$scratch/busy" || fail "it never read and wrote: $(cat "$scratch/busy")"
equal "they share the Mountpoint Pod that was there" 1 "$(mountpoint_pods data | wc -l)"
in_pod later cmp /data/random /data/copy-0
uid=$(uid_of busy)
remove_pod busy
none_mounted_below "$kubelet/pods/$uid/" || fail "the target of a mount that the driver before made"
remove_pod later
until_ok "the Mountpoint Pod gone" count_is 0 mountpoint_pods data
