# shellcheck shell=bash
# The namespace of Mountpoint Pods has no room by its quota: a new pod is told so, pods that end are detached meanwhile, and with room the
# pod starts.
# needs: nobody beside it
# shellcheck disable=SC2154 # given by ci/e2e
. ci/kubernetes/driver.bash

put_back() { cluster kubectl -n mount-s3 delete resourcequota full --ignore-not-found; }
trap put_back EXIT
volume data
workload leaving data
wait_pod leaving
# Pods that are there count, and stay.
cluster kubectl -n mount-s3 create quota full --hard=pods=0
in_force() { [ -n "$(cluster kubectl -n mount-s3 get resourcequota full -o 'jsonpath={.status.hard.pods}')" ]; }
until_ok "the quota in force" in_force
volume other
workload waiting other
until_ok "the pod that waits is told" event "exceeded quota"
equal "by this reason" MountpointPodRefused "$(kube get events -o 'jsonpath={range .items[*]}{.reason}: {.message}{"\n"}{end}' | sed -n 's/^\([^:]*\): .*exceeded quota.*/\1/p' | head -n 1)"
uid=$(uid_of leaving)
remove_pod leaving
none_mounted_below "$kubelet/pods/$uid/" || fail "the target of the pod that ended"
until_ok "its attachment gone, behind a refused pod" count_is 0 attachment data .metadata.name
until_ok "its Mountpoint Pod gone" count_is 0 mountpoint_pods data
put_back
wait_pod waiting
remove_pod waiting
