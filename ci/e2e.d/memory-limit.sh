# shellcheck shell=bash
# 10 GiB are read through a Mountpoint Pod with a memory limit of 256Mi, by four readers at once: the engine's memory follows the limit, and the
# kernel ends nothing.
# needs: its name
# shellcheck disable=SC2154,SC2016 # given by ci/e2e; the readers run in the pod
. ci/kubernetes/driver.bash

head -c $((1 << 30)) /dev/urandom >"$scratch/big"
s3_put big "$scratch/big"
rm "$scratch/big"
volume data attributes="{ bucketName: $bucket, mountpointContainerResourcesLimitsMemory: 256Mi }"
workload busy data
wait_pod busy
# Past the page cache, which is the reader's: 2.5 GiB each.
in_pod busy sh -c '
    read_all() { for turn in 1 2 3; do dd if=/data/big of=/dev/null bs=1M count=$((turn < 3 ? 1024 : 512)) iflag=direct || return 1; done; }
    for reader in 1 2 3 4; do (read_all 2>/tmp/words-$reader && touch /tmp/read-$reader) & done
    wait
    ls /tmp/read-1 /tmp/read-2 /tmp/read-3 /tmp/read-4' || fail "reading: $(in_pod busy sh -c 'cat /tmp/words-*')"
pod=$(mountpoint_pods data)
of_pod() { cluster kubectl -n mount-s3 get pod "$pod" -o "jsonpath={$1}"; }
equal "how often the engine ended" 0 "$(of_pod '.status.containerStatuses[0].restartCount')"
equal "its limit" 256Mi "$(of_pod '.spec.containers[0].resources.limits.memory')"
uid=$(of_pod .metadata.uid)
group=$(cluster run sh -c 'find /sys/fs/cgroup -type d -name "*$1*" -path "*memory*" | head -n 1' sh "${uid//-/_}")
[ -n "$group" ] || group=$(cluster run sh -c 'find /sys/fs/cgroup -type d -name "*$1*" -path "*memory*" | head -n 1' sh "$uid")
say "most memory of the pod, in bytes: $(cluster run sh -c 'cat "$1"/memory.max_usage_in_bytes "$1"/memory.peak 2>/dev/null || true' sh "$group")"
remove_pod busy
s3_delete big
