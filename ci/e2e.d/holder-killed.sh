# shellcheck shell=bash
# The holder of the node is killed while pods read: they notice nothing, and the mounters register with the next one. Then it is killed together with the
# container of the Mountpoint Pod: nobody holds the device, so pods get an error within seconds and nobody hangs, and the driver mounts again.
# needs: nobody beside it
# shellcheck disable=SC2154,SC2016 # given by ci/e2e; programs are quoted
. ci/kubernetes/driver.bash

volume data
seq 1 200000 >"$scratch/numbers"
sum=$(sha256sum <"$scratch/numbers")
s3_put numbers.txt "$scratch/numbers"
workload plain data
workload following data propagation=HostToContainer
for pod in plain following; do wait_pod $pod; done
mountpoint=$(mountpoint_pods data)
until_ok "the mount held" holder_says "$mountpoint held"
holder_pid() { cluster run pgrep -xf /bin/scality-s3-csi-holder; }
another_holder() {
    local now
    now=$(holder_pid) || { echo "no holder runs"; return 1; }
    [ "$now" != "$1" ] || { echo "the holder is still $1"; return 1; }
}
reads() { [ "$(in_pod "$1" sh -c 'sha256sum </data/numbers.txt')" = "$sum" ]; }

engine=$(engine) holder=$(holder_pid)
cluster run kill -KILL "$holder"
for pod in plain following; do equal "$pod reads without a holder" "$sum" "$(in_pod $pod sh -c 'sha256sum </data/numbers.txt')"; done
until_ok "another holder" another_holder "$holder"
until_ok "the mount held again" holder_says "$mountpoint held"
equal "the engine" "$engine" "$(engine)"
kill_container
until_ok "the pod without propagation reads on" reads plain
until_ok "the mount held by the next container" holder_says "$mountpoint held"

cluster run kill -KILL "$(holder_pid)"
kill_container
refused "a reader of a mount that nobody holds" "not connected" in_pod plain stat /data/numbers.txt
until_ok "the pod with HostToContainer reads again" reads following
told() { kube get events --field-selector "involvedObject.name=$1,reason=VolumeEngineDied" -o name | grep -q .; }
for pod in plain following; do until_ok "an Event tells $pod" told $pod; done
until_ok "the new mount held" holder_says "$mountpoint held"
equal "processes in uninterruptible sleep on this mount" "" "$(cluster run sh -c 'ps -eo state=,args= | grep "^D.*$1" || true' sh "$bucket")"
