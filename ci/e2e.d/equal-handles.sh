# shellcheck shell=bash
# Two PersistentVolumes with one volumeHandle. While a pod uses the first, a pod with the second is refused on the node, and an Event on each
# names both volumes. Without the first the second is mounted.
# shellcheck disable=SC2154,SC2034 # given by ci/e2e, and read by its functions
. ci/kubernetes/driver.bash

volume one
volume two handle="$namespace-one"
workload one one
wait_pod one
in_pod one sh -c 'echo hello >/data/greeting'
workload two two
until_ok "the second is refused" mount_refused two "PersistentVolumes $namespace-two and $namespace-one have the same volumeHandle \"$namespace-one\""
holds "by this code" "code = FailedPrecondition" "$(mount_refused two "have the same volumeHandle")"
for pod in one two; do
    until_ok "$pod: the Event" mount_refused "$pod" "VolumeHandleNotUnique: PersistentVolumes "
    for volume in one two; do holds "what $pod is told" "$namespace-$volume" "$(mount_refused "$pod" VolumeHandleNotUnique)"; done
done
none_mounted_below "$kubelet/pods/$(uid_of two)/" || fail "the target of the second"
equal "the first reads on" hello "$(in_pod one cat /data/greeting)"
# A driver that starts anew knows it from the kubelet's notes; tested in csi/src/node/claims.rs.
remove_pod one
# The kubelet asks again for a mount that was refused after up to two minutes.
wait_s=240
wait_pod two
equal "the second reads" hello "$(in_pod two cat /data/greeting)"
remove_pod two
for each in one two; do
    until_ok "no attachment of $each" count_is 0 attachment "$each" .metadata.name
    until_ok "no Mountpoint Pod of $each" count_is 0 mountpoint_pods "$each"
done
