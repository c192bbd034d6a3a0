# shellcheck shell=bash
# 10 GiB are read through a Mountpoint Pod with a memory limit of 256Mi, by four readers at once: the engine's memory follows the limit, and the
# kernel ends nothing.
# needs: its name
# shellcheck disable=SC2154,SC2016 # given by ci/e2e; the readers run in the pod
. ci/kubernetes/driver.bash

head -c $((256 << 20)) /dev/urandom >"$scratch/big"
for reader in 1 2 3 4; do s3_put "big-$reader" "$scratch/big"; done
rm "$scratch/big"
volume data attributes="{ bucketName: $bucket, mountpointContainerResourcesLimitsMemory: 256Mi }" options='[allow-delete, log-metrics]'
workload busy data
wait_pod busy
# Past the page cache, which is the reader's: 256 MiB ten times each.
in_pod busy sh -c '
    read_all() { for turn in 1 2 3 4 5 6 7 8 9 10; do dd if=/data/big-$1 of=/dev/null bs=1M iflag=direct || return 1; done; }
    for reader in 1 2 3 4; do (read_all $reader 2>/tmp/words-$reader && touch /tmp/read-$reader) & done
    wait
    ls /tmp/read-1 /tmp/read-2 /tmp/read-3 /tmp/read-4' || fail "reading: $(in_pod busy sh -c 'cat /tmp/words-*')"
pod=$(mountpoint_pods data)
# The log has each counter every five seconds, if it moved.
received() { cluster kubectl -n mount-s3 logs "$pod" | sed -n 's/.*s3\.bytes_received: .*= \([0-9]*\).*/\1/p' | tail -n 1; }
has_received() { [ "$(received)" -ge $((10 << 30)) ] || { echo "$(received) bytes were received"; return 1; }; }
until_ok "all of it came through the engine" has_received
of_pod() { cluster kubectl -n mount-s3 get pod "$pod" -o "jsonpath={$1}"; }
# An engine that dies is replaced in its container: only the log of the mounter counts deaths.
equal "how often the engine died" 0 "$(cluster kubectl -n mount-s3 logs "$pod" | grep -c 'the engine has died' || true)"
equal "its limit" 256Mi "$(of_pod '.spec.containers[0].resources.limits.memory')"
uid=$(of_pod .metadata.uid)
group=$(cluster run sh -c 'find /sys/fs/cgroup -type d \( -name "*$1*" -o -name "*$2*" \) -path "*memory*" | head -n 1' sh "${uid//-/_}" "$uid")
equal "the limit that the kernel keeps" $((256 << 20)) "$(cluster run cat "$group/memory.limit_in_bytes")"
say "of $(received) bytes received, the pod's group $group had $(cluster run cat "$group/memory.max_usage_in_bytes") at most"
remove_pod busy
