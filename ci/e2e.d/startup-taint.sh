# shellcheck shell=bash
# A node that begins with the startup taint takes no workload until its driver can mount, and then takes them. With the right to do that, the
# driver's account can change nothing else of its node, and nothing of another one.
# needs: nobody beside it
# shellcheck disable=SC2154 # given by ci/e2e
. ci/kubernetes/driver.bash

put_back() {
    cluster kubectl taint node node "$taint-" || true # it is gone, unless something failed
    cluster kubectl delete node "$namespace-other" --ignore-not-found
}
trap put_back EXIT
is_tainted() { taints_of node | grep -qx "$taint"; }
not_tainted() { ! is_tainted || { taints_of node; return 1; }; }

cluster kubectl taint node node "$taint=:NoSchedule"
volume data
workload late data
until_ok "the workload waits for the node" event "untolerated taint"
is_tainted || fail "a driver that was ready before took the taint away"
cluster kubectl -n kube-system rollout restart daemonset/s3-csi-node
cluster kubectl -n kube-system rollout status daemonset/s3-csi-node --timeout=120s
until_ok "the new driver took the taint away" not_tainted
wait_pod late
in_pod late sh -c 'echo hello >/data/greeting'
equal "the object" hello "$(s3_get greeting)"
remove_pod late

# A token as the driver's pod has it.
driver=$(cluster kubectl -n kube-system get pods -l app=s3-csi-node --field-selector status.phase=Running -o 'jsonpath={.items[0].metadata.name}')
uid=$(cluster kubectl -n kube-system get pod "$driver" -o 'jsonpath={.metadata.uid}')
token=$(cluster kubectl -n kube-system create token s3-csi-driver-sa --bound-object-kind Pod --bound-object-name "$driver" --bound-object-uid "$uid")
as_driver() { cluster kubectl --token="$token" "$@"; }
cluster kubectl create -f - <<EOT
apiVersion: v1
kind: Node
metadata: { name: $namespace-other }
spec: { taints: [{ key: $taint, effect: NoSchedule }] }
EOT
refused "the taint of another node" "may change that node only" as_driver patch node "$namespace-other" --type=merge -p '{"spec":{"taints":null}}'
refused "a label of its node" "change nothing else" as_driver label node node e2e=driver
refused "another taint of its node" "change nothing else" as_driver taint node node e2e=driver:NoSchedule
cluster kubectl taint node node "$taint=:NoSchedule"
as_driver patch node node --type=merge -p '{"spec":{"taints":null}}'
not_tainted || fail "the driver's account can't take away its own taint"
