# shellcheck shell=bash
# No reconciler works: before it has made the Mountpoint Pod, and between that pod and its attachment. What is mounted goes on and is
# unmounted; a new pod is told why it waits, and starts when a reconciler is back, with the Mountpoint Pod that was made for it.
# needs: nobody beside it
# shellcheck disable=SC2154,SC2016,SC2034 # given by ci/e2e, and read by its functions; programs are quoted
. ci/kubernetes/driver.bash

controllers() { # HOW-MANY
    cluster kubectl -n "$driver_namespace" scale deployment/s3-csi-controller --replicas="$1"
    cluster kubectl -n "$driver_namespace" rollout status deployment/s3-csi-controller --timeout="${wait_s}s"
    [ "$1" -gt 0 ] || until_ok "no controller pod" count_is 0 cluster kubectl -n "$driver_namespace" get pods -l app=s3-csi-controller -o name
}
policy=$namespace-no-attachments
put_back() {
    cluster kubectl delete validatingadmissionpolicy,validatingadmissionpolicybinding "$policy" --ignore-not-found
    controllers 2
}
trap put_back EXIT

volume data
for pod in before leaving; do
    workload $pod data
    wait_pod $pod
done
in_pod before sh -c 'echo hello >/data/greeting'

# Killed before the Mountpoint Pod.
controllers 0
volume other
workload first other
until_ok "the pod that waits is told" mount_refused first "no reconciler works"
equal "a pod that runs reads" hello "$(in_pod before cat /data/greeting)"
in_pod before sh -c 'echo later >/data/later'
uid=$(uid_of leaving)
remove_pod leaving
none_mounted_below "$kubelet/pods/$uid/" || fail "the target of the pod that ended"
# The Mountpoint Pod is there already.
workload second data
until_ok "nor is a pod attached to one that serves" mount_refused second "no reconciler works"
controllers 2
# The kubelet asks again for a mount that was refused after up to two minutes.
wait_s=240
wait_pod first
wait_pod second
equal "the second pod reads" later "$(in_pod second cat /data/later)"

# Killed between Mountpoint Pod and attachment: the API server takes no new attachment, until both are gone.
cluster kubectl apply -f - <<EOT
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: { name: $policy }
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules: [{ apiGroups: [s3.csi.scality.com], apiVersions: ["*"], operations: [CREATE], resources: [mountpoints3podattachments] }]
  validations: [{ expression: "false", message: "none now" }]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: { name: $policy }
spec: { policyName: $policy, validationActions: [Deny] }
EOT
attachment_refused() {
    local words
    words=$(cluster kubectl create --dry-run=server -f - 2>&1 <<EOT
apiVersion: s3.csi.scality.com/v2
kind: MountpointS3PodAttachment
metadata: { name: $namespace-trial }
spec: { nodeName: node, persistentVolumeName: x, volumeID: x, mountOptions: "", workloadFSGroup: "", mountpointS3PodAttachments: {} }
EOT
    )
    [[ $words == *"none now"* ]] || { echo "$words"; return 1; }
}
until_ok "attachments are refused" attachment_refused
volume third
workload third third
until_ok "the Mountpoint Pod" count_is 1 mountpoint_pods third Running
mountpoint=$(mountpoint_pods third)
controllers 0
equal "no attachment" "" "$(attachment third .metadata.name)"
until_ok "the pod between them is told" mount_refused third "no reconciler works"
cluster kubectl delete validatingadmissionpolicy,validatingadmissionpolicybinding "$policy"
attachment_taken() { ! attachment_refused; }
until_ok "attachments are taken again" attachment_taken
controllers 2
wait_pod third
equal "the Mountpoint Pod that was made for it" "$mountpoint" "$(mountpoint_pods third)"
for pod in before first second third; do remove_pod $pod; done
