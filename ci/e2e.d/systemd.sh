# shellcheck shell=bash
# Architecture v1, node.mounter: systemd. The nine steps of a claim as its page has them; then the engine is killed, the driver is replaced,
# and the release is upgraded to Mountpoint Pods, each under a pod that uses the volume. The mount goes on until that pod ends.
# needs: nobody beside it
# shellcheck disable=SC2154,SC2016 # given by ci/e2e; programs are quoted
. ci/kubernetes/driver.bash
. ci/kubernetes/gateway.bash

put_back() {
    remove_class data
    release_driver
}
trap put_back EXIT
release_driver --set node.mounter=systemd
# Mounts that are read would go with it.
equal "the namespace of Mountpoint Pods" Active "$(cluster kubectl get namespace mount-s3 -o 'jsonpath={.status.phase}')"
equal "the engine is installed for everybody to run" 755 "$(cluster run stat --format=%a /opt/mountpoint-s3-csi/bin/mount-s3)"

# 1 to 5: the class and the claim; the provisioner calls CreateVolume, which makes a bucket; the volume is bound.
class_and_claim data
volume=$(field pvc/data .spec.volumeName)
made=$(cluster kubectl get pv "$volume" -o 'jsonpath={.spec.csi.volumeAttributes.bucketName}')
s3 HEAD "$made" --head >/dev/null || fail "there is no bucket $made"

# 6: a pod comes, and the kubelet calls. 7: the driver has systemd start a service.
units() { cluster run systemctl list-units --all --plain --no-legend 'mount-s3-*' | awk '{ print $1 }'; }
of_unit() { cluster run systemctl show --value --property "$2" "$1"; } # UNIT PROPERTY
workload writer data propagation=HostToContainer
wait_pod writer
writer=$(uid_of writer)
unit=$(units)
equal "one service" 1 "$(wc -l <<<"$unit")"
equal "it is up, and says so" "active mounted" "$(of_unit "$unit" ActiveState) $(of_unit "$unit" StatusText)"
target=$kubelet/pods/$writer/volumes/kubernetes.io~csi/$volume/mount
equal "one process, which mounts at the target" "$target" "$(mounts_below "$kubelet/pods/$writer/")"
# 8: with the driver's keys, which are in no property of the service and no argument.
holds "its variables" "AWS_SHARED_CREDENTIALS_FILE=" "$(of_unit "$unit" Environment)"
[[ $(cluster run systemctl show "$unit") != *"$secret_key"* ]] || fail "systemd shows the secret key"
equal "keys are root's alone" "640 root root" "$(cluster run sh -c "stat --format='%a %U %G' $plugin/$writer-*-s3-csi-credentials")"
# 9: files are objects.
in_pod writer sh -c 'echo hello >/data/greeting.txt'
equal "the object" hello "$(s3 GET "$made/greeting.txt")"

# systemd starts a crashed engine again.
old=$(of_unit "$unit" MainPID)
cluster run kill -9 "$old"
reads_again() { [ "$(in_pod writer cat /data/greeting.txt 2>&1)" = hello ]; }
until_ok "the pod reads after a crash" reads_again
[ "$(of_unit "$unit" MainPID)" != "$old" ] || fail "it is the same engine"
# A driver that is replaced takes no mount with it, and its successor unmounts.
engine=$(of_unit "$unit" MainPID)
cluster kubectl -n "$driver_namespace" rollout restart daemonset/s3-csi-node
cluster kubectl -n "$driver_namespace" rollout status daemonset/s3-csi-node --timeout="${wait_s}s"
equal "the engine after the driver" "$engine" "$(of_unit "$unit" MainPID)"
workload reader data
wait_pod reader
equal "another pod has a service of its own" "2 hello" "$(units | wc -l) $(in_pod reader cat /data/greeting.txt)"
reader=$(uid_of reader)
remove_pod reader
none_mounted_below "$kubelet/pods/$reader/" || fail "the target of the pod that is gone"
until_ok "its service gone" count_is 1 units
cluster run sh -c "! ls $plugin/$reader-* 2>/dev/null" || fail "the keys of the pod that is gone"

# Settings that need Mountpoint Pods are refused, or said to have no effect.
volume certificates attributes="{ bucketName: $bucket, caBundleConfigMap: mine }"
workload certificates certificates
wait_pod certificates
until_ok "certificates of a volume have no effect" event "caBundleConfigMap"
remove_pod certificates
volume identity attributes="{ bucketName: $bucket, authenticationSource: pod }"
workload identity identity
until_ok "a role of the workload is refused" mount_refused identity "authenticationSource: pod needs Mountpoint Pods"
kube delete pod identity --wait=false
until_ok "pod identity gone" pod_gone identity

# The upgrade. A pod that was there keeps its mount; one that comes now has a Mountpoint Pod.
release_driver
in_pod writer sh -c 'cat /data/greeting.txt && echo later >/data/later.txt'
equal "the engine after the upgrade" "$engine" "$(of_unit "$unit" MainPID)"
workload next data
wait_pod next
equal "the next pod reads" later "$(in_pod next cat /data/later.txt)"
equal "and has no service" "$unit" "$(units)"
of_volume() { cluster kubectl -n mount-s3 get pods -o name | grep -c . || true; }
equal "but a Mountpoint Pod" 1 "$(of_volume)"
remove_pod writer
none_mounted_below "$kubelet/pods/$writer/" || fail "the target of the pod that ends after the upgrade"
until_ok "its service gone, too" count_is 0 units
# The keys go with the driver's next sweep, within two minutes.
remove_pod next
kube delete pvc data --wait=false
s3 DELETE "$made/greeting.txt"
s3 DELETE "$made/later.txt"
