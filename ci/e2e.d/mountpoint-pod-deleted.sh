# shellcheck shell=bash
# A Mountpoint Pod is deleted by hand. An Event asks the running workload to restart, and a new Mountpoint Pod serves later pods.
# shellcheck disable=SC2154 # given by ci/e2e
. ci/kubernetes/driver.bash

volume data
workload one data
wait_pod one
in_pod one sh -c 'echo before >/data/x'
old=$(mountpoint_pods data)
cluster kubectl -n mount-s3 delete pod "$old" --grace-period=1 --wait
new_pod() {
    local now
    now=$(mountpoint_pods data Running)
    if [ -z "$now" ] || [ "$now" = "$old" ]; then
        echo "Mountpoint Pods: $now"
        return 1
    fi
}
until_ok "another Mountpoint Pod" new_pod
until_ok "the workload is told" mount_refused one "MountpointPodLost: Mountpoint Pod $old "
words=$(mount_refused one "MountpointPodLost: Mountpoint Pod $old ")
holds "it names the new one" "$(mountpoint_pods data Running | grep -vxF "$old") takes its place" "$words"
holds "it says what to do" "must be restarted" "$words"
workload two data
wait_pod two
equal "a later pod reads" before "$(in_pod two cat /data/x)"
uids=("$(uid_of one)" "$(uid_of two)")
remove_pod one
workload three data
wait_pod three
equal "a pod that was restarted reads" before "$(in_pod three cat /data/x)"
uids+=("$(uid_of three)")
remove_pod two
remove_pod three
until_ok "no attachment is left" count_is 0 attachment data .metadata.name
until_ok "no Mountpoint Pod is left" count_is 0 mountpoint_pods data
until_ok "the source of the first pod gone" none_mounted_below "$plugin/mnt/$old"
until_ok "its directory gone" is_missing "$plugin/mnt/$old"
for each in "${uids[@]}"; do none_mounted_below "$kubelet/pods/$each/" || fail "a target of pod $each"; done
