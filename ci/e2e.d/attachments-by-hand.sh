# shellcheck shell=bash
# Attachments that somebody writes by hand. One that makes no sense is refused by its schema, one that names nobody is removed, one that
# claims a workload of another changes nothing. What is taken out of an attachment of ours, or deleted, comes back while the workload reads.
# shellcheck disable=SC2154 # given by ci/e2e
. ci/kubernetes/driver.bash

head -c 1000000 /dev/urandom >"$scratch/random"
s3_put random "$scratch/random"
volume data
volume other
busy_workload one data
busy_workload beside other
wait_pod one
wait_pod beside
uid=$(uid_of one)
serving=$(mountpoint_pods data)
ours() { attachment data .metadata.name | grep -v "^by-hand-"; }
attached() { [ "$(attachment data ".spec.mountpointS3PodAttachments.${serving}[*].workloadPodUID" | xargs)" = "$uid" ]; }
until_ok "the workload is attached" attached
node=$(field pod/one .spec.nodeName)

# by_hand NAME VOLUME MOUNTPOINT-POD UID
by_hand() {
    cluster kubectl apply -f - <<EOT
apiVersion: s3.csi.scality.com/v2
kind: MountpointS3PodAttachment
metadata: { name: by-hand-$1-$namespace }
spec:
  nodeName: $node
  persistentVolumeName: $namespace-$2
  volumeID: $namespace-$2
  mountOptions: allow-delete
  workloadFSGroup: ""
  mountpointS3PodAttachments: { $3: [{ workloadPodUID: $4, attachmentTime: "2026-01-01T00:00:00Z" }] }
EOT
}
by_hand_gone() { ! cluster kubectl get mountpoints3podattachment "by-hand-$1-$namespace" 2>/dev/null; }

refused "an attachment without a node" "spec.nodeName" cluster kubectl create -f - <<EOT
apiVersion: s3.csi.scality.com/v2
kind: MountpointS3PodAttachment
metadata: { name: by-hand-bare-$namespace }
spec: { persistentVolumeName: x, volumeID: x, mountOptions: "", workloadFSGroup: "", mountpointS3PodAttachments: {} }
EOT
by_hand nobody nothing mp-nobody nobody
until_ok "an attachment of nobody is removed" by_hand_gone nobody
by_hand claims data mp-nobody "$uid"
until_ok "a second attachment of the workload is removed" by_hand_gone claims
attached || fail "its own attachment is no longer there"
until_ok "the workload is told of it" mount_refused one "AttachedTwice: MountpointS3PodAttachment by-hand-claims-"
noticed_nothing one

again() { mount_refused one "AttachedAgain: this pod ran without an attachment; Mountpoint Pod $serving "; }
cluster kubectl patch mountpoints3podattachment "$(ours)" --type merge --patch "{\"spec\":{\"mountpointS3PodAttachments\":{\"$serving\":null}}}"
until_ok "the workload is attached again, and told" again
until_ok "as before" attached
noticed_nothing one
cluster kubectl delete mountpoints3podattachment "$(ours)"
until_ok "a deleted attachment comes back" attached
noticed_nothing one
noticed_nothing beside
equal "the Mountpoint Pod is still the one" "$serving" "$(mountpoint_pods data)"
remove_pod one
remove_pod beside
for each in data other; do
    until_ok "no attachment of $each" count_is 0 attachment "$each" .metadata.name
    until_ok "no Mountpoint Pod of $each" count_is 0 mountpoint_pods "$each"
done
