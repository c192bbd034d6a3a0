# shellcheck shell=bash
# The kubelet's word on a volume's use. A mounted bucket has room and a size, so that alerts of full disks stay silent. While its engine does not
# answer, the driver calls the volume abnormal, the kubelet answers as quickly as before, and other pods start; afterwards all is as it was. With
# the mount of one pod dead for good, the driver calls that one abnormal, and the claim keeps the room that its other pods see.
# shellcheck disable=SC2154,SC2016 # given by ci/e2e; programs are quoted
. ci/kubernetes/driver.bash

volume data
workload reader data
wait_pod reader
in_pod reader sh -c 'echo hello >/data/hello'
node=$(field pod/reader .spec.nodeName)
# stat_of NAME: the kubelet asks once a minute.
stat_of() {
    local line
    line=$(cluster kubectl get --raw "/api/v1/nodes/$node/proxy/metrics" | grep "^kubelet_volume_stats_$1{" | grep "namespace=\"$namespace\"" | grep 'persistentvolumeclaim="data"') ||
        { echo "the kubelet has no $1 of the claim"; return 1; }
    printf '%s\n' "${line##* }"
}
is_positive() { awk -v value="$(stat_of "$1")" 'BEGIN { exit !(value > 0) }' || { echo "$1 is $(stat_of "$1")"; return 1; }; }
for each in capacity_bytes available_bytes inodes inodes_free; do until_ok "$each is above 0" is_positive "$each"; done
until_ok "used_bytes is said" stat_of used_bytes

stopped=$(engine)
go_on() { cluster run kill -CONT "$stopped" || true; }
trap go_on EXIT
cluster run kill -STOP "$stopped"
abnormal() { cluster kubectl -n "$driver_namespace" logs daemonset/s3-csi-node -c s3-plugin --since=5m | grep "volume condition" | grep -F -- "$1"; }
until_ok "the driver calls the volume abnormal" abnormal "the mount at $(target_of reader data) did not answer within"
start=$SECONDS
for _ in 1 2 3; do cluster kubectl get --raw "/api/v1/nodes/$node/proxy/stats/summary" >/dev/null; done
say "three summaries of the kubelet took $((SECONDS - start)) s"
[ $((SECONDS - start)) -lt 30 ] || fail "the kubelet is slow while a mount hangs"
volume beside attributes="{ bucketName: $bucket, prefix: beside/ }"
workload other beside
wait_pod other

cluster run kill -CONT "$stopped"
trap - EXIT
equal "what the pod reads" hello "$(in_pod reader cat /data/hello)"
until_ok "available_bytes is above 0 again" is_positive available_bytes

# Two groups, two Mountpoint Pods of one volume. The first one's ends, and without the volume's Secret the kubelet asks for no other mount.
kube create secret generic keys --from-literal=access_key_id="$access_key" --from-literal=secret_access_key="$secret_key"
volume keyed attributes="{ bucketName: $bucket, authenticationSource: secret }" secret="{ name: keys, namespace: $namespace }"
workload dead keyed security='{ fsGroup: 2000 }'
wait_pod dead
of_dead=$(mountpoint_pods keyed)
workload lives keyed security='{ fsGroup: 3000 }'
wait_pod lives
equal "Mountpoint Pods of the volume" 2 "$(mountpoint_pods keyed | wc -l)"
kube delete secret keys
cluster kubectl -n mount-s3 delete pod "$of_dead" --grace-period=1 --wait
refused "a look at the dead mount" "not connected" in_pod dead stat /data/hello
wait_s=300 until_ok "the driver calls the dead mount abnormal" abnormal "the engine of the mount at $(target_of dead keyed) is gone"
since=$(date --utc +%Y-%m-%dT%H:%M:%SZ)
# The kubelet's figures of the dead pod's own volume, asked for after $since.
has_room() {
    cluster kubectl get --raw "/api/v1/nodes/$node/proxy/stats/summary" | jq -e --arg uid "$(uid_of dead)" --arg since "$since" \
        '.pods[] | select(.podRef.uid == $uid).volume[] | select(.pvcRef.name == "keyed" and .time > $since) | .availableBytes > 0'
}
wait_s=300 until_ok "the dead mount has the room that the living one says" has_room
refused "a later look at the dead mount" "not connected" in_pod dead stat /data/hello
equal "what the pod beside it reads" hello "$(in_pod lives cat /data/hello)"
start=$SECONDS
for _ in 1 2 3; do cluster kubectl get --raw "/api/v1/nodes/$node/proxy/stats/summary" >/dev/null; done
[ $((SECONDS - start)) -lt 30 ] || fail "the kubelet is slow while a mount is dead"
for pod in reader other dead lives; do remove_pod "$pod"; done
