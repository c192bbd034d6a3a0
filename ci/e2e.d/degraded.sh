# shellcheck shell=bash
# No reconciler works: before it has made the Mountpoint Pod, and between that pod and its attachment. What is mounted goes on and is
# unmounted; a new pod is told why it waits, and starts when a reconciler is back, with the Mountpoint Pod that was made for it.
# needs: nobody beside it
# shellcheck disable=SC2154,SC2016,SC2034 # given by ci/e2e, and read by its functions; programs are quoted
. ci/kubernetes/driver.bash
. ci/kubernetes/faults.bash

put_back() {
    remove_refusal
    controllers 2
}
trap put_back EXIT

volume data
for pod in before leaving; do
    workload $pod data
    wait_pod $pod
done
in_pod before sh -c 'echo hello >/data/greeting'

# Killed before the Mountpoint Pod.
controllers 0
volume other
workload first other
until_ok "the pod that waits is told" mount_refused first "no reconciler works"
equal "a pod that runs reads" hello "$(in_pod before cat /data/greeting)"
in_pod before sh -c 'echo later >/data/later'
uid=$(uid_of leaving)
remove_pod leaving
none_mounted_below "$kubelet/pods/$uid/" || fail "the target of the pod that ended"
# The Mountpoint Pod is there already.
workload second data
until_ok "nor is a pod attached to one that serves" mount_refused second "no reconciler works"
controllers 2
# The kubelet asks again for a mount that was refused after up to two minutes.
wait_s=240
wait_pod first
wait_pod second
equal "the second pod reads" later "$(in_pod second cat /data/later)"

# Killed between Mountpoint Pod and attachment: the API server takes no new attachment, until both are gone.
refuse_attachments
volume third
workload third third
until_ok "the Mountpoint Pod" count_is 1 mountpoint_pods third Running
mountpoint=$(mountpoint_pods third)
controllers 0
equal "no attachment" "" "$(attachment third .metadata.name)"
until_ok "the pod between them is told" mount_refused third "no reconciler works"
take_attachments
controllers 2
wait_pod third
equal "the Mountpoint Pod that was made for it" "$mountpoint" "$(mountpoint_pods third)"
for pod in before first second third; do remove_pod $pod; done
