# shellcheck shell=bash
# A node that has room for one Mountpoint Pod. Of two workloads the one that reserved it gets it: its headroom pod holds the room until its
# Mountpoint Pod preempts it, and no other pod gives way. The other workload is told what is missing.
# needs: nobody beside it
# needs: its name
# shellcheck disable=SC2154 # given by ci/e2e
. ci/kubernetes/driver.bash

put_back() {
    cluster kubectl -n mount-s3 delete resourcequota full --ignore-not-found
    # shellcheck disable=SC2119 # as the others have it
    release_driver
}
trap put_back EXIT
release_driver --set experimental.reserveHeadroomForMountpointPods=true --set mountpointPod.headroomImage.repository=lab.test/pause \
    --set-string mountpointPod.headroomImage.tag=1 --set mountpointPod.headroomImage.pullPolicy=Never

# Memory that pods may still ask for on the node, in MiB.
free_mib() {
    { cluster kubectl get nodes -o json; cluster kubectl get pods -A -o json; } | python3 -c '
import json, sys
units = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "": 1}
def amount(text):
    number = text.rstrip("KMGi")
    return int(number) * units[text[len(number):]]
decoder, text = json.JSONDecoder(), sys.stdin.read()
nodes, end = decoder.raw_decode(text)
pods = decoder.raw_decode(text[end:].lstrip())[0]["items"]
free = amount(nodes["items"][0]["status"]["allocatable"]["memory"])
for pod in pods:
    if pod["status"].get("phase") in ("Succeeded", "Failed"): continue
    for container in pod["spec"]["containers"]:
        free -= amount(container.get("resources", {}).get("requests", {}).get("memory", "0"))
print(free // 2**20)'
}
asks='{ bucketName: @bucket@, mountpointContainerResourcesRequestsMemory: 300Mi }'
volume data attributes="$asks"
volume other attributes="$asks"
printf 'hello' >"$scratch/hello"
s3_put hello "$scratch/hello"
apply - rest="$(($(free_mib) - 400))" <<'POD'
apiVersion: v1
kind: Pod
metadata: { name: filler }
spec:
  terminationGracePeriodSeconds: 1
  containers:
    - { name: main, image: @image@, command: [sh, -c, "sleep 2147483647 & wait"], resources: { requests: { memory: @rest@Mi } } }
POD
wait_pod filler
filler=$(uid_of filler)

# A second gate, so that each step can be seen.
pod_of "persistentVolumeClaim: { claimName: data }" reserved |
    sed 's|^spec:$|spec:\n  schedulingGates: [{ name: s3.csi.scality.com/reserve-headroom-for-mppod }, { name: example.com/later }]|' | kube apply -f -
until_ok "our gate gone" field_is pod/reserved '.spec.schedulingGates[*].name' example.com/later
uid=$(uid_of reserved)
headroom() { cluster kubectl -n mount-s3 get pods -l "s3.csi.scality.com/headroom-for-pod=$uid" -o 'jsonpath={range .items[*]}{.metadata.name}={.status.phase}{"\n"}{end}'; }
equal "one headroom pod, which waits for its workload" Pending "$(headroom | sed 's/.*=//')"
label='.metadata.labels.s3\.csi\.scality\.com/headroom-for-workload'
equal "the workload's label" "$uid" "$(field pod/reserved "$label")"
# Nothing else of a pod may be changed by the reconciler's account.
as_reconciler() { kube --as=system:serviceaccount:kube-system:s3-csi-driver-controller-sa "$@"; }
refused "a label" "may change the label" as_reconciler label pod filler team=x
refused "an image" "take away the gate" as_reconciler patch pod filler -p '{"spec": {"containers": [{"name": "main", "image": "evil.test/x"}]}}'
refused "another gate" "take away the gate" as_reconciler patch pod reserved --type=json -p '[{"op": "remove", "path": "/spec/schedulingGates"}]'
# The Mountpoint Pod does not come before the room is held.
cluster kubectl -n mount-s3 create quota full --hard=pods=0
in_force() { [ -n "$(cluster kubectl -n mount-s3 get resourcequota full -o 'jsonpath={.status.hard.pods}')" ]; }
until_ok "the quota in force" in_force
kube patch pod reserved --type=json -p '[{"op": "remove", "path": "/spec/schedulingGates"}]'
holds_room() { headroom | grep '=Running$'; }
until_ok "the room is held" holds_room
name_of_headroom=$(headroom | sed 's/=.*//')
until_ok "no Mountpoint Pod yet" mount_refused reserved "exceeded quota"
cluster kubectl -n mount-s3 delete resourcequota full
wait_pod reserved
equal "what it reads" hello "$(in_pod reserved cat /data/hello)"
preempted() { cluster kubectl -n mount-s3 get events --field-selector "involvedObject.name=$name_of_headroom,reason=Preempted" -o name | grep .; }
until_ok "the headroom pod gave way" preempted
mapfile -t serving < <(mountpoint_pods data)
equal "Mountpoint Pods" 1 "${#serving[@]}"
equal "its class" mount-s3-preempting "$(cluster kubectl -n mount-s3 get pod "${serving[0]}" -o 'jsonpath={.spec.priorityClassName}')"
until_ok "no headroom pod is left" count_is 0 headroom
until_ok "the label gone" field_is pod/reserved "$label" ""

workload plain other
until_ok "who reserved nothing is told" mount_refused plain "Insufficient memory"
equal "the pod beside them is still there" "$filler Running" "$(uid_of filler) $(field pod/filler .status.phase)"
kube delete pod plain --wait=false
until_ok "pod plain gone" pod_gone plain
remove_pod reserved
for each in data other; do
    until_ok "no attachment of $each" count_is 0 attachment "$each" .metadata.name
    until_ok "no Mountpoint Pod of $each" count_is 0 mountpoint_pods "$each"
done
