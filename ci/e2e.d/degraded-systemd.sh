# shellcheck shell=bash
# No reconciler works, and node.degraded is systemd: a unit of the node mounts the volume. Three cases: it went before it made the Mountpoint Pod,
# between that pod and its attachment, and it comes back while systemd mounts. Each pod is told, reads and writes, and keeps its mount while the
# reconciler is back; what the reconciler made for it meanwhile serves nobody and ends with it.
# needs: nobody beside it
# needs: its name
# shellcheck disable=SC2154,SC2016,SC2034 # given by ci/e2e, and read by its functions; programs are quoted
. ci/kubernetes/driver.bash
. ci/kubernetes/faults.bash
. ci/kubernetes/fronts.bash

put_back() {
    remove_refusal
    controllers 2
    # shellcheck disable=SC2119
    release_driver
    end_front
}
trap put_back EXIT
front holds 9017 9000 "$fronts/hold"
release_driver --set node.degraded=systemd --set "s3.allowedEndpoints={http://$node_ip:9017}"
# The kubelet asks again for a mount that was refused after up to two minutes.
wait_s=240
units() { cluster run systemctl list-units --all --plain --no-legend 'mount-s3-*' | awk '{ print $1 }'; }
main_pid() { cluster run systemctl show --value --property MainPID "$1"; }
writes_and_reads() { equal "what $1 wrote" "$2" "$(in_pod "$1" sh -c "echo '$2' >/data/of-$1 && cat /data/of-$1")"; }
# by_systemd POD: it was told, systemd has one unit, and nothing but its mount is at the pod's target.
by_systemd() {
    until_ok "$1 is told" mount_refused "$1" MountedBySystemd
    unit=$(units)
    equal "one unit for $1" 1 "$(grep -c . <<<"$unit")"
    equal "one mount of $1" 1 "$(mounts_below "$kubelet/pods/$(uid_of "$1")/" | wc -l)"
    engine=$(main_pid "$unit")
}
# keeps POD: its mount is still the one of before.
keeps() {
    equal "the engine of $1" "$engine" "$(main_pid "$unit")"
    equal "one mount of $1" 1 "$(mounts_below "$kubelet/pods/$(uid_of "$1")/" | wc -l)"
    writes_and_reads "$1" later
}
# leaves POD VOLUME: it ends, and nothing of it is left.
leaves() {
    local uid
    uid=$(uid_of "$1")
    remove_pod "$1"
    none_mounted_below "$kubelet/pods/$uid/" || fail "the target of $1"
    until_ok "no unit after $1" count_is 0 units
    until_ok "no attachment after $1" count_is 0 attachment "$2" .metadata.name
    until_ok "no Mountpoint Pod after $1" count_is 0 mountpoint_pods "$2"
}

# 1: killed before the Mountpoint Pod.
volume data
controllers 0
workload first data
wait_pod first
writes_and_reads first hello
by_systemd first
controllers 2
# A pod that comes now has a Mountpoint Pod, of which the first one knows nothing.
workload next data
wait_pod next
equal "the next pod reads what the first one wrote" hello "$(in_pod next cat /data/of-first)"
equal "Mountpoint Pods" 1 "$(mountpoint_pods data Running | wc -l)"
keeps first
remove_pod next
leaves first data
say "passed: before the Mountpoint Pod"

# 2: between Mountpoint Pod and attachment.
refuse_attachments
volume second
workload second second
until_ok "the Mountpoint Pod" count_is 1 mountpoint_pods second Running
controllers 0
equal "no attachment" "" "$(attachment second .metadata.name)"
wait_pod second
writes_and_reads second hello
by_systemd second
take_attachments
controllers 2
keeps second
none_mounted_below "$plugin/mnt/" || fail "the Mountpoint Pod serves"
leaves second second
say "passed: between Mountpoint Pod and attachment"

# 3: back during the mount. The engine's first request is held, and with it the mount.
volume third attributes="{ bucketName: $bucket, endpointUrl: \"http://$node_ip:9017\" }"
controllers 0
cluster run sh -c "printf 'before 1' >$fronts/hold"
workload third third
is_held() { noted | grep -q '^held '; }
until_ok "systemd's mount waits for its store" is_held
controllers 2
is_known() { [ -n "$(attachment third .metadata.name)" ] || { echo "no attachment yet"; return 1; }; }
until_ok "the reconciler knows the pod" is_known
cluster run rm "$fronts/hold"
wait_pod third
writes_and_reads third hello
say "the third pod's units: $(units | wc -l); sources: $(mounts_below "$plugin/mnt/" | wc -l)"
equal "one mount of third" 1 "$(mounts_below "$kubelet/pods/$(uid_of third)/" | wc -l)"
by_systemd third
none_mounted_below "$plugin/mnt/" || fail "a Mountpoint Pod serves beside systemd"
keeps third
leaves third third
say "passed: back during the mount"
