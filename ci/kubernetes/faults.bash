# shellcheck shell=bash
# Helpers for scenarios that end parts of Kubernetes, besides scenario.bash.
# shellcheck disable=SC2154 # given by ci/e2e

# stop_part UNIT: ends a part of ci/kubernetes/components by SIGKILL. What it started goes on. systemd keeps the unit, as failed.
stop_part() {
    cluster run systemctl kill --kill-whom=main --signal=KILL "$1"
    until_ok "$1 ended" part_is_down "$1"
}
part_is_down() { ! cluster run systemctl is-active --quiet "$1" || { echo "$1 is active"; return 1; }; }

start_api_server() {
    cluster run systemctl start kube-apiserver
    until_ok "the API server" cluster kubectl get --raw /readyz
}
start_kubelet() { cluster run systemctl start kubelet; }

# controllers HOW-MANY: so many pods with reconciler and controller service, and no other one that ends.
controllers() {
    cluster kubectl -n "$driver_namespace" scale deployment/s3-csi-controller --replicas="$1"
    cluster kubectl -n "$driver_namespace" rollout status deployment/s3-csi-controller --timeout="${wait_s}s"
    [ "$1" -gt 0 ] || until_ok "no controller pod" count_is 0 cluster kubectl -n "$driver_namespace" get pods -l app=s3-csi-controller -o name
}

# The API server takes no new attachment, until take_attachments.
refuse_attachments() {
    cluster kubectl apply -f - <<EOT
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: { name: $namespace-no-attachments }
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules: [{ apiGroups: [s3.csi.scality.com], apiVersions: ["*"], operations: [CREATE], resources: [mountpoints3podattachments] }]
  validations: [{ expression: "false", message: "none now" }]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: { name: $namespace-no-attachments }
spec: { policyName: $namespace-no-attachments, validationActions: [Deny] }
EOT
    until_ok "attachments are refused" attachment_refused
}
remove_refusal() {
    cluster kubectl delete validatingadmissionpolicy,validatingadmissionpolicybinding "$namespace-no-attachments" --ignore-not-found
}
take_attachments() {
    remove_refusal
    until_ok "attachments are taken again" attachment_taken
}
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
attachment_taken() { ! attachment_refused; }
