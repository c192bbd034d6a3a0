# shellcheck shell=bash
# A cluster that looks like OpenShift: it has the API group config.openshift.io, and a stand-in for the security constraint restricted-v2 gives
# each Mountpoint Pod a user and a group of the namespace's range and refuses fixed ones. Mountpoint Pods name neither, and mounts work by theirs. The node's account alone may use `privileged`.
# needs: nobody beside it
# shellcheck disable=SC2154 # given by ci/e2e
. ci/kubernetes/driver.bash

range=1000650000
restart_reconciler() {
    cluster kubectl -n kube-system rollout restart deployment/s3-csi-controller
    driver_is_settled
}
put_back() {
    cluster kubectl delete crd clusterversions.config.openshift.io --ignore-not-found
    cluster kubectl delete mutatingadmissionpolicybinding,mutatingadmissionpolicy,validatingadmissionpolicybinding,validatingadmissionpolicy \
        "$namespace-scc" --ignore-not-found
    cluster kubectl delete clusterrole system:openshift:scc:privileged --ignore-not-found
    release_driver
    restart_reconciler
}
trap put_back EXIT
cluster kubectl apply -f - <<EOT
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: { name: clusterversions.config.openshift.io }
spec:
  group: config.openshift.io
  names: { kind: ClusterVersion, plural: clusterversions, singular: clusterversion }
  scope: Cluster
  versions: [{ name: v1, served: true, storage: true, schema: { openAPIV3Schema: { type: object } } }]
---
apiVersion: admissionregistration.k8s.io/v1beta1
kind: MutatingAdmissionPolicy
metadata: { name: $namespace-scc }
spec:
  failurePolicy: Fail
  reinvocationPolicy: Never
  matchConstraints: { resourceRules: [{ apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods] }] }
  matchConditions:
    - name: of-the-namespace
      expression: request.namespace == "mount-s3"
    - name: group-not-named
      expression: "!has(object.spec.securityContext) || !has(object.spec.securityContext.fsGroup)"
    - name: user-not-named
      expression: object.spec.containers.all(it, !has(it.securityContext) || !has(it.securityContext.runAsUser))
  mutations:
    - patchType: ApplyConfiguration
      applyConfiguration:
        expression: >-
          Object{ spec: Object.spec{
            securityContext: Object.spec.securityContext{ fsGroup: $range },
            containers: object.spec.containers.map(it, Object.spec.containers{
              name: it.name, securityContext: Object.spec.containers.securityContext{ runAsUser: $range } }) } }
---
apiVersion: admissionregistration.k8s.io/v1beta1
kind: MutatingAdmissionPolicyBinding
metadata: { name: $namespace-scc }
spec: { policyName: $namespace-scc }
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: { name: $namespace-scc }
spec:
  failurePolicy: Fail
  matchConstraints: { resourceRules: [{ apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods] }] }
  matchConditions: [{ name: of-the-namespace, expression: request.namespace == "mount-s3" }]
  validations:
    - expression: >-
        has(object.spec.securityContext.fsGroup) && object.spec.securityContext.fsGroup == $range
        && object.spec.containers.all(it, has(it.securityContext.runAsUser) && it.securityContext.runAsUser == $range)
      message: not in the range of this namespace
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: { name: $namespace-scc }
spec: { policyName: $namespace-scc, validationActions: [Deny] }
EOT

# try USER: makes no pod.
try() {
    cluster kubectl -n mount-s3 create --dry-run=server -o json -f - <<EOT
apiVersion: v1
kind: Pod
metadata: { name: trial }
spec:
  securityContext: { $1 }
  containers:
    - name: main
      image: $image
      securityContext: { runAsNonRoot: true, allowPrivilegeEscalation: false, capabilities: { drop: [ALL] }, seccompProfile: { type: RuntimeDefault } }
EOT
}
# Policies take effect a moment after they were made.
refuses_fixed() { ! try "fsGroup: 1000" 2>"$scratch/words" && grep -q "not in the range" "$scratch/words"; }
gives_its_own() { try "" | grep -q "\"runAsUser\": $range"; }
until_ok "a fixed group is refused" refuses_fixed
until_ok "a pod without one gets the namespace's" gives_its_own
until_ok "the API group" cluster kubectl get --raw /apis/config.openshift.io

# OpenShift has this role; the chart binds the node's account to it.
cluster kubectl apply -f - <<EOT
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: { name: system:openshift:scc:privileged }
rules: [{ apiGroups: [security.openshift.io], resources: [securitycontextconstraints], resourceNames: [privileged], verbs: [use] }]
EOT
# may_use_privileged NAMESPACE ACCOUNT: true or false.
may_use_privileged() {
    cluster kubectl create -o 'jsonpath={.status.allowed}' -f - <<EOT
apiVersion: authorization.k8s.io/v1
kind: SubjectAccessReview
spec:
  user: system:serviceaccount:$1:$2
  groups: [system:serviceaccounts, "system:serviceaccounts:$1", system:authenticated]
  resourceAttributes: { namespace: $1, group: security.openshift.io, resource: securitycontextconstraints, name: privileged, verb: use }
EOT
}
equal "the node's account may use privileged without the value" false "$(may_use_privileged "$driver_namespace" s3-csi-driver-sa)"
release_driver --set openshift.bindPrivilegedSCC=true
equal "the node's account may use privileged" true "$(may_use_privileged "$driver_namespace" s3-csi-driver-sa)"
for account in "$driver_namespace default" "mount-s3 default" "$namespace default"; do
    # shellcheck disable=SC2086 # two words
    equal "$account may use privileged" false "$(may_use_privileged $account)"
done
restart_reconciler

volume data
workload one data
wait_pod one
in_pod one sh -c 'echo hello >/data/greeting && cat /data/greeting'
equal "the object" hello "$(s3_get greeting)"
pod=$(mountpoint_pods data)
of_pod() { cluster kubectl -n mount-s3 get pod "$pod" -o "jsonpath={$1}"; }
equal "the group of the Mountpoint Pod" $range "$(of_pod .spec.securityContext.fsGroup)"
equal "the user of its container" $range "$(of_pod '.spec.containers[0].securityContext.runAsUser')"
engine=$(cluster run sh -c "grep -lz '^/mountpoint-s3/bin/mount-s3' /proc/[0-9]*/cmdline | cut -d/ -f3 | while read -r it; do if grep -q '^Uid:.$range' /proc/\$it/status; then echo \$it; fi; done")
[ -n "$engine" ] || fail "no engine runs as user $range"
uid=$(uid_of one)
remove_pod one
none_mounted_below "$kubelet/pods/$uid/" || fail "the target of the pod that ended"
until_ok "its Mountpoint Pod gone" count_is 0 mountpoint_pods data
