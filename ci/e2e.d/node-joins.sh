# shellcheck shell=bash
# A node joins with the startup taint. Its driver arrives, registers and takes the taint away; only then a workload that waits for the node
# runs there, and has its volume.
# needs: a second node
# shellcheck disable=SC2154 # given by ci/e2e
. ci/kubernetes/driver.bash
. ci/kubernetes/nodes.bash

cluster second down
volume data
workload waits data nodes="$(at "$second")"
until_ok "there is no such node" event "affinity/selector"
equal "attachments before the node is there" "" "$(attachment data .metadata.name)"
cluster second up --register-with-taints=s3.csi.scality.com/agent-not-ready=:NoExecute
wait_pod waits
equal "its node" "$second" "$(field pod/waits .spec.nodeName)"
in_pod waits sh -c 'echo hello >/data/greeting'
equal "the object" hello "$(s3_get greeting)"
registered_at "$second" || fail "the driver is not registered"
equal "the taints that are left" "" "$(cluster kubectl get node "$second" -o 'jsonpath={.spec.taints}')"
nodes_are data "$second" || fail "of the volume"
ran=$(driver_at "$second" '.status.containerStatuses[?(@.name=="s3-plugin")].state.running.startedAt')
scheduled=$(field pod/waits '.status.conditions[?(@.type=="PodScheduled")].lastTransitionTime')
[[ $ran && ! $scheduled < $ran ]] || fail "the workload was sent there at $scheduled, and the driver ran from $ran on"
remove_pod waits
until_ok "nothing of the volume is left" nodes_are data ""
