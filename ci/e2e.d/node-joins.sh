# shellcheck shell=bash
# A node joins with the startup taint. Its driver arrives, registers and takes the taint away; only then a workload that waits for the node
# runs there, and has its volume.
# needs: a second node
# shellcheck disable=SC2154,SC2034 # given by ci/e2e, and read by its functions
. ci/kubernetes/driver.bash
. ci/kubernetes/nodes.bash

begin() { workload waits data nodes="$(at "$second")"; }
# The kubelet and the controller that evicts have copies of their own of a taint NoExecute. Either may be older than the scheduler's, and then
# ends a pod that was just sent there; whoever made the pod makes another. That is Kubernetes', and only that is forgiven here.
# One read of the pod says whether it ended and whether it is ready: it may end between two.
runs() {
    local is
    is=$(kube get pod waits --ignore-not-found \
        -o 'jsonpath={.metadata.deletionTimestamp}/{.status.phase}/{.status.reason}/{.status.conditions[?(@.type=="Ready")].status}') || return 1
    case $is in
        /Running//True) return ;;
        "") event "TaintManagerEviction: Marking for deletion Pod $namespace/waits" || { echo "pod waits is gone, and was not evicted for a taint"; return 1; } ;;
        /Failed/TaintToleration/*) ;;
        /Failed/* | /Succeeded/*) fail "pod waits ended instead of being ready: $is, $(field pod/waits .status.message)" ;;
        *) echo "pod waits is not ready: $is"; return 1 ;;
    esac
    ! taints_of "$second" | grep -xF "$taint" || fail "pod waits was sent to a node that still has the taint"
    kube delete pod waits --ignore-not-found
    begin
    return 1
}

cluster second down
volume data
begin
until_ok "there is no such node" event "affinity/selector"
equal "attachments before the node is there" "" "$(attachment data .metadata.name)"
cluster second up "--register-with-taints=$taint=:NoExecute"
# A new node starts each of its containers for the first time.
wait_s=240
until_ok "pod waits ready" runs
! taints_of "$second" | grep -xF "$taint" || fail "a workload runs beside the taint"
equal "its node" "$second" "$(field pod/waits .spec.nodeName)"
in_pod waits sh -c 'echo hello >/data/greeting'
equal "the object" hello "$(s3_get greeting)"
registered_at "$second" || fail "the driver is not registered"
# Kubernetes looks every 5 s whether its own not-ready:NoExecute may go, which this pod tolerates.
until_ok "no taint is left" count_is 0 taints_of "$second"
until_ok "attachments and Mountpoint Pods" nodes_are data "$second"
ran=$(driver_at "$second" '.status.containerStatuses[?(@.name=="s3-plugin")].state.running.startedAt')
scheduled=$(field pod/waits '.status.conditions[?(@.type=="PodScheduled")].lastTransitionTime')
[[ $ran && ! $scheduled < $ran ]] || fail "the workload was sent there at $scheduled, and the driver ran from $ran on"
remove_pod waits
until_ok "nothing of the volume is left" nodes_are data ""
