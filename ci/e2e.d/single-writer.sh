# shellcheck shell=bash
# Volumes for one node or one pod. Two pods of a node write to a ReadWriteOnce volume. Of a ReadWriteOncePod volume the first pod has it alone: the
# scheduler keeps the second one waiting, and the kubelet refuses one that came past the scheduler; once the first has ended, the second gets it. The
# driver's own refusal of a second target (csi/tests/node.rs) lies behind these two.
# shellcheck disable=SC2154,SC2016 # given by ci/e2e; programs are quoted
. ci/kubernetes/driver.bash

volume node-alone modes='[ReadWriteOnce]' attributes="{ bucketName: $bucket, prefix: node/ }"
volume pod-alone modes='[ReadWriteOncePod]' attributes="{ bucketName: $bucket, prefix: pod/ }"
workload one node-alone
workload two node-alone
workload first pod-alone
for pod in one two first; do wait_pod "$pod"; done
in_pod one sh -c 'echo of-one >/data/one'
in_pod two sh -c 'echo of-two >/data/two'
equal "what one sees of two" of-two "$(in_pod one cat /data/two)"
equal "what two sees of one" of-one "$(in_pod two cat /data/one)"
in_pod first sh -c 'echo of-first >/data/first'

workload second pod-alone
until_ok "the scheduler keeps the second pod waiting" mount_refused second "ReadWriteOncePod"
node=$(field pod/first .spec.nodeName)
pod_of "persistentVolumeClaim: { claimName: pod-alone }" third | sed "s/^spec:/spec:\n  nodeName: $node/" | kube apply -f -
until_ok "the kubelet refuses a pod that came past the scheduler" mount_refused third "ReadWriteOncePod"
none_mounted_below "$kubelet/pods/$(uid_of third)/" || fail "the refused pod's target"
in_pod first sh -c 'echo more >/data/more'

kube delete pod third --wait=false
until_ok "pod third gone" pod_gone third
remove_pod first
wait_pod second
equal "what the second pod reads" of-first "$(in_pod second cat /data/first)"
for pod in one two second; do remove_pod "$pod"; done
