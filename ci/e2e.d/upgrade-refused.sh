# shellcheck shell=bash
# The chart is upgraded with mountpointPod.upgradeInPlace to an image whose engine goes on with no mount: for one volume it refuses at once, for the other
# it hangs. Both Mountpoint Pods get the image before again, with their mounts: pods without mount propagation read on, without an error or a wrong byte.
# No Event says that a pod was upgraded.
# needs: nobody beside it
# needs: its name
# shellcheck disable=SC2154,SC2016 # given by ci/e2e; programs are quoted
. ci/kubernetes/driver.bash
. ci/kubernetes/parts.bash

trap release_driver EXIT
repository=lab.test/mountpoint-s3-csi-driver
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
locked need_node_packages
busybox=$packages/usr/bin/busybox
[ -f "$busybox" ] || busybox=/usr/bin/busybox
cat >"$scratch/refuses" <<'EOT'
#!/bin/busybox sh
echo "this engine goes on with no mount" >&2
case "$*" in *at-once/*) exit 1 ;; esac
exec /bin/busybox sleep 600
EOT
DRIVER_REGISTRY=lab.test/refuses HOST_ENGINE=$release/mount-s3 ci/images --out "$scratch" driver -- \
    --file "$busybox:/bin/busybox:755" --file "$scratch/refuses:/mountpoint-s3/bin/mount-s3:755"
cluster load "$scratch/driver.tar"
cluster run ctr -n k8s.io images tag --force "lab.test/refuses/mountpoint-s3-csi-driver:$version" "$repository:refuses"

seq 1 200000 >"$scratch/numbers"
sum=$(sha256sum <"$scratch/numbers")
for volume in at-once late; do
    s3_put "$volume/numbers.txt" "$scratch/numbers"
    volume $volume options="[allow-delete, prefix $volume/]"
    workload $volume $volume
done
for volume in at-once late; do wait_pod $volume; done
at_once=$(mountpoint_pods at-once) late=$(mountpoint_pods late)
for pod in "$at_once" "$late"; do until_ok "the mount of $pod held" holder_says "$pod held"; done
mounts=$(mounts_below "$plugin/mnt")
image_of() { cluster kubectl -n mount-s3 get pod "$1" -o 'jsonpath={.spec.containers[0].image}'; }
has_image() { [ "$(image_of "$1")" = "$repository:$2" ] || { image_of "$1"; return 1; }; }
told() { cluster kubectl -n "$1" get events --field-selector "involvedObject.name=$2,reason=$3" -o name | grep -q .; }

# Prints a line for each read, and its error if one fails.
readers=()
for volume in at-once late; do
    in_pod $volume sh -c 'while ! test -e /tmp/stop; do sha256sum </data/numbers.txt || exit 1; sleep 0.05; done' >"$scratch/reads-$volume" 2>&1 &
    readers+=($!)
done
release_driver --set image.tag=refuses --set mountpointPod.upgradeInPlace=true
for pair in "at-once $at_once" "late $late"; do
    read -r volume pod <<<"$pair"
    until_ok "$volume is told" told "$namespace" "$volume" MountpointPodUpgradeTakenBack
    until_ok "the image before in $pod" has_image "$pod" "$version"
    gets_on() { [ "$(wc -l <"$scratch/reads-$volume")" -gt "$1" ]; }
    until_ok "$volume reads on" gets_on "$(($(wc -l <"$scratch/reads-$volume") + 5))"
done
for pair in "at-once ${readers[0]}" "late ${readers[1]}"; do
    read -r volume reader <<<"$pair"
    in_pod "$volume" touch /tmp/stop
    wait "$reader" || fail "the reader of $volume ended with an error: $(tail -n 1 "$scratch/reads-$volume")"
    equal "reads of $volume, all right" "$sum" "$(sort -u "$scratch/reads-$volume")"
done
for pair in "$namespace at-once" "$namespace late" "mount-s3 $at_once" "mount-s3 $late"; do
    read -r space pod <<<"$pair"
    ! told "$space" "$pod" MountpointPodUpgraded || fail "$pod counts as upgraded"
done
equal "the Mountpoint Pods" "$at_once $late" "$(mountpoint_pods at-once Running) $(mountpoint_pods late Running)"
equal "their mounts" "$mounts" "$(mounts_below "$plugin/mnt")"
for pod in at-once late; do remove_pod $pod; done
for volume in at-once late; do until_ok "no Mountpoint Pod is left" count_is 0 mountpoint_pods $volume; done
