# shellcheck shell=bash
# EKS Pod Identity: with podIdentity.agentUrl an account without a role's annotation gets its keys of an agent at 169.254.170.23, which checks
# the token by the API server's keys. A role's annotation goes first, an account without an association is told, and the driver's keys are
# never used. The agent is this repository's, at the address of EKS's.
# needs: nobody beside it
# needs: its name
# shellcheck disable=SC2154,SC2016 # given by ci/e2e; programs are quoted
. ci/kubernetes/driver.bash

# A store that knows the accounts' key alone.
secret=$secret_key
access_key=OFACCOUNT secret_key=OFACCOUNT$secret
agent=169.254.170.23
arn=arn:aws:iam::000000000000:role/none
kube create secret generic store --from-literal="secret=$secret_key"
kube create secret generic sts --from-literal="secret=$secret"
put_back() {
    release_driver
    cluster net ip address delete "$agent/32" dev lo || true # it may not be there
}
trap put_back EXIT
cluster net ip address add "$agent/32" dev lo
kube apply -f - <<EOT
apiVersion: v1
kind: Pod
metadata: { name: store }
spec:
  hostNetwork: true
  terminationGracePeriodSeconds: 1
  containers:
    - name: store
      image: lab.test/stores:1
      command: [/bin/s3server, /data, --listen, "0.0.0.0:9014", --access-key, $access_key]
      env: [{ name: S3SERVER_SECRET_KEY, valueFrom: { secretKeyRef: { name: store, key: secret } } }]
      readinessProbe: { tcpSocket: { port: 9014 }, periodSeconds: 1 }
      volumeMounts: [{ name: data, mountPath: /data }]
  volumes: [{ name: data, emptyDir: {} }]
---
apiVersion: v1
kind: Pod
metadata: { name: agent }
spec:
  hostNetwork: true
  terminationGracePeriodSeconds: 1
  containers:
    - name: agent
      image: lab.test/stores:1
      command: [/bin/sts, --listen, "0.0.0.0:9018", --association, "system:serviceaccount:$namespace:writer=$access_key"]
      env: [{ name: STS_SECRET, valueFrom: { secretKeyRef: { name: sts, key: secret } } }]
      readinessProbe: { tcpSocket: { port: 9018 }, periodSeconds: 1 }
EOT
wait_pod store
wait_pod agent
endpoint=http://$node_ip:9014
s3_bucket "$bucket"
release_driver --set "s3.endpointUrl=$endpoint" --set "podIdentity.agentUrl=http://$agent:9018/v1/credentials" --set "podIdentity.stsEndpointUrl=http://$node_ip:9018"
audiences() { cluster kubectl get csidriver s3.csi.scality.com -o 'jsonpath={.spec.tokenRequests[*].audience}'; }
equal "the audiences of tokens" "sts.amazonaws.com pods.eks.amazonaws.com" "$(audiences)"

for account in writer stranger; do kube create serviceaccount "$account"; done
volume data attributes="{ bucketName: $bucket, authenticationSource: pod }"
workload one data account=writer
wait_pod one
in_pod one sh -c 'echo hello >/data/greeting'
workload two data account=writer
wait_pod two
equal "both pods of the account see it" hello "$(in_pod two cat /data/greeting)"
equal "and share a Mountpoint Pod" 1 "$(mountpoint_pods data | wc -l)"
equal "the attachment names the account" writer "$(attachment data .spec.workloadServiceAccountName)"
equal "and no role" "" "$(attachment data .spec.workloadServiceAccountIAMRoleARN)"
for pod in $(mountpoint_pods data); do
    comm=$kubelet/pods/$(cluster kubectl -n mount-s3 get pod "$pod" -o 'jsonpath={.metadata.uid}')/volumes/kubernetes.io~empty-dir/comm
    cluster run sh -c "test -s $comm/credentials/*-agent-token" || fail "$pod has no token for the agent"
    ! cluster run sh -c "cat $comm/credentials/*-credentials" 2>/dev/null || fail "$pod has keys in a file"
done

workload three data account=stranger
until_ok "an account without an association is told" mount_refused three "NoCredentials"
holds "what it is told" "podIdentity.agentUrl" "$(mount_refused three NoCredentials)"
kube delete pod three --wait=false
until_ok "pod three gone" pod_gone three
# The token service of this lab knows no role.
kube annotate serviceaccount stranger "s3.csi.scality.com/role-arn=$arn"
workload four data account=stranger
with_role() { attachment data .spec.workloadServiceAccountIAMRoleARN | grep -qxF "$arn"; }
until_ok "a role's annotation goes first" with_role
until_ok "that role gives no keys" mount_refused four "NoCredentials"
kube delete pod four --wait=false
until_ok "pod four gone" pod_gone four
for pod in one two; do remove_pod "$pod"; done
