# shellcheck shell=bash
# Helm upgrades the release and rolls it back, under a pod that reads and writes all the time. It notices nothing, and pods that start after
# each step get their volume. Both revisions are of this release: their values differ.
# needs: nobody beside it
# needs: its name
# shellcheck disable=SC2154 # given by ci/e2e
. ci/kubernetes/driver.bash

# shellcheck disable=SC2119 # as the others have it
put_back() { release_driver; }
trap put_back EXIT
head -c 4194304 /dev/urandom >"$scratch/random"
s3_put random "$scratch/random"
volume busy
volume data
busy_workload busy busy
wait_pod busy
# works WHAT POD
works() {
    workload "$2" data
    wait_pod "$2"
    equal "what $2 reads, $1" "$(sha256sum <"$scratch/random")" "$(in_pod "$2" sha256sum /data/random | sed 's/ .*/  -/')"
    noticed_nothing busy
}
revision_now() { cluster helm history mount-s3 --namespace kube-system --max 1 | awk 'NR == 2 { print $1 }'; }
level() { cluster kubectl -n kube-system get deployment s3-csi-controller -o 'jsonpath={.spec.template.spec.containers[?(@.name=="s3-pod-reconciler")].env[?(@.name=="LOG_LEVEL")].value}'; }
before=$(level)
revision=$(revision_now)
works "before" first
release_driver --set controller.logLevel=debug --set node.logLevel=5 --set csiDriver.inlineVolumes=false
equal "the upgrade's value" debug "$(level)"
works "after the upgrade" second
cluster helm rollback mount-s3 "$revision" --namespace kube-system --wait --timeout 180s
equal "the value of before" "$before" "$(level)"
works "after the rollback" third
cluster kubectl get crd mountpoints3podattachments.s3.csi.scality.com >/dev/null || fail "the CRD is gone"
for pod in first second third busy; do remove_pod "$pod"; done
for each in busy data; do
    until_ok "no attachment of $each" count_is 0 attachment "$each" .metadata.name
    until_ok "no Mountpoint Pod of $each" count_is 0 mountpoint_pods "$each"
done
