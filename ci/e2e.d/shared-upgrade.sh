# shellcheck shell=bash
# The chart is upgraded to another image with node.mounter: shared. The engines pods stay, and the driver says that they are outdated; pods read on, and
# new ones are mounted by the mounters of before. When an administrator deletes the engines pod, its successor has the new image, and volumes are
# mounted again. A driver of before works with mounters of after, too.
# needs: nobody beside it
# needs: its name
# shellcheck disable=SC2154,SC2016 # given by ci/e2e; programs are quoted
. ci/kubernetes/driver.bash

put_back() { release_driver; }
trap put_back EXIT
shared=(--set node.mounter=shared --set shared.experimental=true)
repository=lab.test/mountpoint-s3-csi-driver
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
cluster run ctr -n k8s.io images tag --force "$repository:$version" "$repository:next"
release_driver "${shared[@]}"
seq 1 200000 >"$scratch/numbers"
sum=$(sha256sum <"$scratch/numbers")
for it in one two three; do
    s3_put $it/numbers.txt "$scratch/numbers"
    volume $it attributes="{ bucketName: $bucket, prefix: $it/ }"
done
workload first one propagation=HostToContainer
wait_pod first
engines() { cluster kubectl -n "$driver_namespace" get pods -l app=s3-csi-engines -o "jsonpath={.items[*]$1}"; }
image_of_engines() { engines .spec.containers[0].image; }
image_of_driver() { cluster kubectl -n "$driver_namespace" get pods -l app=s3-csi-node -o 'jsonpath={.items[*].spec.containers[?(@.name=="s3-plugin")].image}'; }
pod=$(engines .metadata.uid)
outdated_is() {
    local page
    page=$(cluster net curl -fsS "http://$(cluster kubectl -n "$driver_namespace" get pods -l app=s3-csi-node -o 'jsonpath={.items[0].status.podIP}'):9808/metrics") || return 1
    grep '^mount_s3_csi_node_engines_pod_outdated{' <<<"$page" | grep -q " $1\$" || { grep outdated <<<"$page"; return 1; }
}
until_ok "the engines pod is of this chart" outdated_is 0

in_pod first sh -c 'while ! test -e /tmp/stop; do sha256sum </data/numbers.txt || exit 1; sleep 0.05; done' >"$scratch/reads" 2>&1 &
reading=$!
gets_on() { [ "$(wc -l <"$scratch/reads")" -gt "$1" ]; }
# Helm 4 waits for pods that nobody replaces yet, unless it is asked to wait as Helm 3 does.
release_driver "${shared[@]}" --wait=legacy --set image.tag=next
equal "the driver's image" "$repository:next" "$(image_of_driver)"
equal "the image of the engines" "$repository:$version" "$(image_of_engines)"
equal "the engines pod" "$pod" "$(engines .metadata.uid)"
until_ok "the engines pod is outdated" outdated_is 1
read_by() { in_pod "$1" sha256sum /data/numbers.txt | sed 's|/data/numbers.txt|-|'; }
reads() { equal "what $1 reads" "$sum" "$(read_by "$1")"; }
reads_again() { [ "$(read_by "$1" 2>&1)" = "$sum" ]; }
workload second one
workload other two propagation=HostToContainer
for it in second other; do
    wait_pod $it
    reads $it
done
in_pod second sh -c 'echo written >/data/written'
equal "the object" written "$(s3 GET "$bucket/one/written")"
until_ok "the first pod reads on" gets_on "$(wc -l <"$scratch/reads")"
in_pod first touch /tmp/stop
wait $reading || fail "the reader ended with an error: $(tail -n 1 "$scratch/reads")"
equal "reads, all right" "$sum" "$(sort -u "$scratch/reads")"

cluster kubectl -n "$driver_namespace" delete pod -l app=s3-csi-engines --grace-period=5
is_next() { [ "$(image_of_engines)" = "$repository:next" ] && [ "$(engines .status.phase)" = Running ]; }
until_ok "an engines pod of the new image" is_next
for it in first other; do until_ok "$it reads again" reads_again $it; done
until_ok "the engines pod is of this chart" outdated_is 0

# The upgrade is taken back, and the engines of after stay.
pod=$(engines .metadata.uid)
release_driver "${shared[@]}" --wait=legacy
equal "the driver's image" "$repository:$version" "$(image_of_driver)"
until_ok "the engines pod is of another chart" outdated_is 1
workload third three
wait_pod third
for it in first other third; do reads $it; done
equal "the engines pod" "$pod" "$(engines .metadata.uid)"
for it in first second other third; do remove_pod $it; done
none() { [ -z "$(mounts_below "$plugin/mnt/")" ] || { mounts_below "$plugin/mnt/"; return 1; }; }
wait_s=300 until_ok "all sources have left" none
