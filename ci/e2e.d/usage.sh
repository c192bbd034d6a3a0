# shellcheck shell=bash
# The node's driver tells what each volume's Mountpoint Pod uses, as its engine says; scrapes at once share one question, and an engine that was started
# again is asked anew.
# needs: nobody beside it
# needs: its name
# shellcheck disable=SC2154,SC2016 # given by ci/e2e; programs are quoted
. ci/kubernetes/driver.bash

volume data attributes="{ bucketName: $bucket, mountpointContainerResourcesLimitsMemory: 256Mi }"
workload busy data
wait_pod busy
in_pod busy sh -c 'echo hello >/data/hello && cat /data/hello'
driver() { cluster kubectl -n "$driver_namespace" get pods --selector app=s3-csi-node --field-selector status.phase=Running -o 'jsonpath={.items[0].status.podIP}'; }
# value METRIC: of the scenario's volume.
value() {
    local line
    line=$(cluster net curl --silent --show-error --fail --max-time 20 "http://$(driver):9808/metrics" | grep "^mount_s3_csi_volume_$1{" | grep -F "persistentvolume=\"$namespace-data\"") ||
        { echo "the driver has no $1 of the volume"; return 1; }
    printf '%s\n' "${line##* }"
}
is_positive() { awk -v value="$(value "$1")" 'BEGIN { exit !(value > 0) }' || { echo "$1 is $(value "$1")"; return 1; }; }
for each in memory_bytes cpu_seconds_total; do until_ok "$each is above 0" is_positive "$each"; done
equal "the limit of its memory" 268435456 "$(value memory_limit_bytes)"
before=$(value cpu_seconds_total)
in_pod busy sh -c 'for i in $(seq 200); do echo "$i" >/data/more; done'
has_grown() { awk -v now="$(value cpu_seconds_total)" -v before="$before" 'BEGIN { exit !(now > before) }' || { echo "still $before s"; return 1; }; }
until_ok "its CPU has grown" has_grown

killed=$(engine)
cluster run kill -KILL "$killed"
until_ok "the next engine" another_engine "$killed"
until_ok "memory_bytes of the next engine" is_positive memory_bytes
remove_pod busy
