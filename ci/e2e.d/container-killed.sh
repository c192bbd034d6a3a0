# shellcheck shell=bash
# The container of a Mountpoint Pod is killed as a whole, mounter and engine together, as the kernel does with cgroup v2 when it is out of memory (the
# lab has cgroup v1). The holder in the node pod brings the mount to the next container: pods that read see no error and no wrong byte, with mount
# propagation or without, by a subPath or not. A file that is being written fails. One Event counts the deaths.
# shellcheck disable=SC2154 # given by ci/e2e
. ci/kubernetes/driver.bash

seq 1 200000 >"$scratch/numbers"
sum=$(sha256sum <"$scratch/numbers")
volume data
s3_put folder/numbers.txt "$scratch/numbers"
workload plain data
workload following data propagation=HostToContainer
pod_of 'persistentVolumeClaim: { claimName: data }' below | sed 's|mountPath: /data|mountPath: /data/folder, subPath: folder|' | kube apply -f -
for pod in plain following below; do wait_pod $pod; done
mountpoint=$(mountpoint_pods data)
until_ok "the mount held" holder_says "$mountpoint held"
mounts=$(mounts_below "$plugin/mnt/$mountpoint")

# Each prints a line for each read, and its error if one fails.
readers=()
for pod in plain following below; do
    in_pod $pod sh -c 'while ! test -e /tmp/stop; do sha256sum </data/folder/numbers.txt || exit 1; sleep 0.05; done' >"$scratch/reads.$pod" 2>&1 &
    readers+=($!)
done
in_pod plain sh -c '(echo half; while ! test -e /tmp/killed; do sleep 0.1; done; echo more) >/data/written && echo stored || echo failed' \
    >"$scratch/writer" 2>"$scratch/writer.error" &
writer=$!
has_begun() { in_pod plain test -e /data/written; }
until_ok "a file is being written" has_begun
# Until then the driver calls no mount hung, and dials no engine.
is_forgotten() { cluster run test ! -e "$kubelet/pods/$uid/volumes/kubernetes.io~empty-dir/comm/mount.state"; }
uid=$(cluster kubectl -n mount-s3 get pod "$mountpoint" -o 'jsonpath={.metadata.uid}')
gets_on() { [ "$(wc -l <"$scratch/reads.$1")" -gt "$2" ]; }
# The kubelet starts the second container at once, and the third after ten seconds.
for death in 1 2; do
    until_ok "the mount held" holder_says "$mountpoint held"
    start=$EPOCHREALTIME
    kill_container
    for pod in plain following below; do until_ok "$pod reads on after death $death" gets_on $pod "$(wc -l <"$scratch/reads.$pod")"; done
    say "$(awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }') s from death $death of the container to reads of all pods"
    until_ok "another engine than $killed" another_engine "$killed"
    until_ok "no state is left" is_forgotten
done
in_pod plain touch /tmp/killed
wait "$writer" || true
equal "the file that was being written" failed "$(tail -n 1 "$scratch/writer")"
for pod in plain following below; do in_pod $pod touch /tmp/stop; done
for reader in "${readers[@]}"; do wait "$reader" || fail "a reader ended with an error"; done
for pod in plain following below; do equal "reads of $pod, all right" "$sum" "$(sort -u "$scratch/reads.$pod")"; done
told() { [ "$(kube get events --field-selector "involvedObject.name=$1,reason=VolumeEngineRestarted" -o name | wc -l)" = 1 ]; }
for pod in plain following below; do until_ok "one Event tells $pod" told $pod; done
holds "it says where to look" "Was it out of memory?" "$(mount_refused plain VolumeEngineRestarted)"
equal "Events of a volume that was mounted again" "" "$(kube get events --field-selector reason=VolumeEngineDied -o name)"
equal "the Mountpoint Pod" "$mountpoint" "$(mountpoint_pods data Running)"
equal "its source" "$mounts" "$(mounts_below "$plugin/mnt/$mountpoint")"
equal "restarts of its container" 2 "$(cluster kubectl -n mount-s3 get pod "$mountpoint" -o 'jsonpath={.status.containerStatuses[0].restartCount}')"
for pod in plain following below; do remove_pod $pod; done
until_ok "no Mountpoint Pod is left" count_is 0 mountpoint_pods data
until_ok "nothing held" holder_lacks "$mountpoint"
