# shellcheck shell=bash
# The node's driver is killed between any two steps of a publish and of an unpublish: before each of its calls of the kernel that changes
# something. The driver that follows finishes; pods that run notice nothing, and nothing is left.
# needs: nobody beside it
# needs: its name
# shellcheck disable=SC2154 # given by ci/e2e
. ci/kubernetes/driver.bash

head -c 1048576 /dev/urandom >"$scratch/random"
s3_put random "$scratch/random"
volume beside
busy_workload busy beside
wait_pod busy

driver_ready() { cluster kubectl -n "$driver_namespace" rollout status daemonset/s3-csi-node --timeout=1s; }
# kill_before CALL: the driver's next call of this name is its last; it is not made. The process `killer` ends with the driver.
kill_before() {
    victim=$(driver_pid)
    cluster run timeout "$wait_s" strace -f -p "$victim" -e "trace=/^$1\$" -e "inject=/^$1\$:signal=KILL" -o /run/killed 2>"$scratch/strace" &
    killer=$!
    until_ok "the driver is watched" grep -q attached "$scratch/strace"
}
# After a few deaths Kubernetes would wait longer than this test: the pod is made anew.
dies() {
    wait "$killer" || true
    until_ok "dead before $1" is_missing "/proc/$victim"
    say "killed before $1: $(cluster run tail -n 2 /run/killed | tr '\n' ' ')"
    cluster kubectl -n "$driver_namespace" delete pod -l app=s3-csi-node --wait=false
    until_ok "another driver" another_driver "$victim"
    until_ok "it is ready" driver_ready
}

# Keys are written; the Mountpoint Pod is noted; its mounter is reached; the device is mounted out of sight; it is handed over and served; the
# source is in its place. Of the calls that others make, too, the first is the publish's own.
steps=(renameat rename fsopen sendmsg move_mount mount)
for call in "${steps[@]}"; do
    step=${call/_/-}
    volume "$step"
    kill_before "$call"
    workload "$step" "$step"
    dies "$call"
    wait_pod "$step"
    equal "what the pod of $call reads" "$(sha256sum <"$scratch/random")" "$(in_pod "$step" sha256sum /data/random | sed 's/ .*/  -/')"
    equal "mounts at its target" 1 "$(mounts_below "$(target_of "$step" "$step")" | wc -l)"
done
noticed_nothing busy

# The target is unmounted; its directory is removed.
for call in umount2 rmdir; do
    pod=mount
    [ "$call" = umount2 ] || pod=fsopen
    uid=$(uid_of "$pod")
    kill_before "$call"
    kube delete pod "$pod" --wait=false
    dies "$call"
    until_ok "pod $pod gone" pod_gone "$pod"
    none_mounted_below "$kubelet/pods/$uid/" || fail "the target of $pod"
    # Sources are unmounted and removed, too.
    until_ok "its Mountpoint Pod gone" count_is 0 mountpoint_pods "$pod"
done
noticed_nothing busy
for pod in renameat rename sendmsg move-mount busy; do remove_pod "$pod"; done
for each in beside "${steps[@]/_/-}"; do
    until_ok "no attachment of $each" count_is 0 attachment "$each" .metadata.name
    until_ok "no Mountpoint Pod of $each" count_is 0 mountpoint_pods "$each"
done
until_ok "no source is left" none_mounted_below "$plugin/mnt/"
