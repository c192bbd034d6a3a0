# shellcheck shell=bash
# The chart is upgraded to another image with mountpointPod.upgradeInPlace. A pod without mount propagation reads on while its Mountpoint Pod gets that
# image: no error, no wrong byte, the same mount. A pod that writes keeps the image of its Mountpoint Pod, and its file is stored whole; after that its
# Mountpoint Pod gets the image, too.
# needs: nobody beside it
# shellcheck disable=SC2154,SC2016 # given by ci/e2e; programs are quoted
. ci/kubernetes/driver.bash

trap release_driver EXIT
repository=lab.test/mountpoint-s3-csi-driver
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
cluster run ctr -n k8s.io images tag --force "$repository:$version" "$repository:next"
seq 1 200000 >"$scratch/numbers"
sum=$(sha256sum <"$scratch/numbers")
s3_put numbers.txt "$scratch/numbers"
for volume in reads writes; do
    volume $volume
    workload $volume $volume
done
for volume in reads writes; do wait_pod $volume; done
reader=$(mountpoint_pods reads) writer=$(mountpoint_pods writes)
for pod in "$reader" "$writer"; do until_ok "the mount of $pod held" holder_says "$pod held"; done
mounts=$(mounts_below "$plugin/mnt")
image_of() { cluster kubectl -n mount-s3 get pod "$1" -o 'jsonpath={.spec.containers[0].image}'; }
has_image() { [ "$(image_of "$1")" = "$repository:$2" ] || { image_of "$1"; return 1; }; }
told() { cluster kubectl -n "$1" get events --field-selector "involvedObject.name=$2,reason=$3" -o name | grep -q .; }

# Prints a line for each read, and its error if one fails.
in_pod reads sh -c 'while ! test -e /tmp/stop; do sha256sum </data/numbers.txt || exit 1; sleep 0.05; done' >"$scratch/reads" 2>&1 &
reading=$!
in_pod writes sh -c '(echo half; while ! test -e /tmp/enough; do sleep 0.1; done; echo more) >/data/written && echo stored || echo failed' >"$scratch/writes" 2>&1 &
writing=$!
has_begun() { in_pod writes test -e /data/written; }
until_ok "a file is being written" has_begun

release_driver --set image.tag=next --set mountpointPod.upgradeInPlace=true
until_ok "another image in the reader's pod" has_image "$reader" next
until_ok "the reader's pod is told" told "$namespace" reads MountpointPodUpgraded
until_ok "the reader's Mountpoint Pod is told" told mount-s3 "$reader" MountpointPodUpgraded
gets_on() { [ "$(wc -l <"$scratch/reads")" -gt "$1" ]; }
until_ok "the reader reads on" gets_on "$(wc -l <"$scratch/reads")"
until_ok "the writer holds its upgrade back" told mount-s3 "$writer" MountpointPodUpgradeHeldBack
equal "the image under the writer" "$repository:$version" "$(image_of "$writer")"
in_pod writes touch /tmp/enough
wait "$writing" || true
equal "the file that was being written" stored "$(tail -n 1 "$scratch/writes")"
equal "its bytes" "half more" "$(s3_get written | tr '\n' ' ' | sed 's/ $//')"
# The reconciler waits five minutes, unless it finds no earlier attempt.
cluster kubectl -n mount-s3 annotate pod "$writer" s3.csi.scality.com/upgrade-
until_ok "another image under the writer" has_image "$writer" next
until_ok "the writer's Mountpoint Pod is told" told mount-s3 "$writer" MountpointPodUpgraded
in_pod writes sh -c 'echo again >/data/written2'
equal "Events of engines that died" "" "$(kube get events --field-selector reason=VolumeEngineDied -o name)$(kube get events --field-selector reason=VolumeEngineRestarted -o name)"

in_pod reads touch /tmp/stop
wait "$reading" || fail "the reader ended with an error: $(tail -n 1 "$scratch/reads")"
equal "reads, all right" "$sum" "$(sort -u "$scratch/reads")"
equal "the Mountpoint Pods" "$reader $writer" "$(mountpoint_pods reads Running) $(mountpoint_pods writes Running)"
equal "their mounts" "$mounts" "$(mounts_below "$plugin/mnt")"
for pod in "$reader" "$writer"; do
    equal "restarts of $pod" 2 "$(cluster kubectl -n mount-s3 get pod "$pod" -o 'jsonpath={.status.containerStatuses[0].restartCount}')"
done
for pod in reads writes; do remove_pod $pod; done
for volume in reads writes; do until_ok "no Mountpoint Pod is left" count_is 0 mountpoint_pods $volume; done
