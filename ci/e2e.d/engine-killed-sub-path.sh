# shellcheck shell=bash
# The mounter gives a mount up while a container reads by a subPath. Its bind goes with the dead mount, so that the container can start again.
# shellcheck disable=SC2154 # given by ci/e2e
. ci/kubernetes/driver.bash

seq 1 1000 >"$scratch/numbers"
volume data
s3_put folder/numbers.txt "$scratch/numbers"
# The first process of a container hears no signal that it does not take.
pod_of 'persistentVolumeClaim: { claimName: data }' below script='trap exit TERM; sleep 2147483647 & wait' |
    sed 's|mountPath: /data|mountPath: /data, subPath: folder|; s|mountPropagation: [A-Za-z]*|mountPropagation: None|' | kube apply -f -
wait_pod below
equal "it reads" 1000 "$(in_pod below sh -c 'wc -l </data/numbers.txt')"
give_up
refused "it looks at a dead mount" "not connected" in_pod below stat /data/numbers.txt
told() { kube get events --field-selector involvedObject.name=below -o 'jsonpath={.items[*].reason}' | grep -q VolumeEngineDied; }
until_ok "an Event tells to restart it" told
# The container ends, and the kubelet starts it again in the same pod.
in_pod below kill 1 || true
reads() { [ "$(in_pod below sh -c 'wc -l </data/numbers.txt')" = 1000 ]; }
until_ok "the container started again reads" reads
# The kubelet writes the count a moment later.
started_again() { [ "$(kube get pod below -o 'jsonpath={.status.containerStatuses[0].restartCount}')" = 1 ]; }
until_ok "it is the same pod, started again" started_again
