# shellcheck shell=bash
# A node under disk pressure rejects each new Mountpoint Pod at once. They are made again with pauses and not in a loop, one Event of the
# workload counts, and once the disk has room again the pod starts.
# A cluster of its own: under disk pressure the kubelet ends what else runs on a node.
# needs: no driver
# needs: nobody beside it
# needs: its name
# shellcheck disable=SC2154,SC2034 # given by ci/e2e, and read by its functions
. ci/kubernetes/driver.bash
. ci/kubernetes/faults.bash

cluster() { "$top/ci/cluster" --state "$scratch/cluster" "$@"; }
finish_here() {
    local status=$?
    trap - EXIT
    [ $status -eq 0 ] || cluster logs "$logs/$name/node" || true
    cluster down || status=1
    exit $status
}
trap finish_here EXIT
with_driver=1
cluster up
load_images
start_stores
read_keys
cluster kubectl create namespace "$namespace"
s3_bucket "$bucket"
install_driver
volume data

# pressure on|off. The disk never has so much room, and always has as much as before. The kubelet takes 100% for "no threshold".
pressure() {
    local room=99 state=True
    [ "$1" = on ] || room=1 state=False
    cluster run sed -i "s/nodefs.available: .*/nodefs.available: \"$room%\"/" /etc/kubernetes/kubelet.yaml
    stop_part kubelet
    start_kubelet
    until_ok "DiskPressure is $state" under_pressure "$state"
}
under_pressure() { [ "$(cluster kubectl get node node -o 'jsonpath={.status.conditions[?(@.type=="DiskPressure")].status}')" = "$1" ]; }
# By default it lasts five minutes after its cause.
cluster run sh -c 'echo "evictionPressureTransitionPeriod: 1s" >>/etc/kubernetes/kubelet.yaml'
pressure on

# A pod that the kubelet admits even so; its Mountpoint Pod is none of that kind.
pods_made() { cluster kubectl -n "$driver_namespace" logs -l app=s3-csi-controller --all-containers --tail=-1 | grep -c "creating Mountpoint Pod .* for $namespace/waits: done" || true; }
made_at_least() { [ "$(pods_made)" -ge "$1" ] || { echo "$(pods_made) Mountpoint Pods were made"; return 1; }; }
workload waits data priority=system-node-critical tolerations='[{ operator: Exists }]'
until_ok "Mountpoint Pods are made anew" made_at_least 4
started=$SECONDS
words=$(mount_refused waits "MountpointPodNotServing")
holds "the Event has the kubelet's reason" "DiskPressure" "$words"
equal "it is one Event" 1 "$(wc -l <<<"$words")"
# The fifth comes 40 s after the fourth, the sixth 80 s after that.
sleep 60
[ "$(pods_made)" -le 5 ] || fail "$(pods_made) Mountpoint Pods were made: that is a loop"
say "$(pods_made) Mountpoint Pods, the last in $((SECONDS - started)) s"
counts() { kube get events.events.k8s.io -o 'jsonpath={range .items[?(@.reason=="MountpointPodNotServing")]}{.series.count}{"\n"}{end}'; }
[ "$(counts)" -ge 2 ] || fail "the Event does not count: $(counts)"
none_mounted_below "$kubelet" || fail "something is mounted"

pressure off
# The kubelet has thrown away images that nothing used.
load_images
wait_s=200
wait_pod waits
in_pod waits sh -c 'echo hello >/data/greeting'
equal "the object" hello "$(s3_get greeting)"
remove_pod waits
until_ok "no attachment is left" count_is 0 attachment data .metadata.name
until_ok "no Mountpoint Pod is left" count_is 0 mountpoint_pods data
