# shellcheck shell=bash
# `helm test` makes a volume, writes to it and reads it, twice; nothing is left of it. A second release is refused beside this one.
# needs: nobody beside it
# shellcheck disable=SC2154 # given by ci/e2e
. ci/kubernetes/driver.bash

# shellcheck disable=SC2119
trap release_driver EXIT
release_driver --set test.bucketName="$bucket" --set test.image.repository=lab.test/busybox --set-string test.image.tag=1 --set test.image.pullPolicy=Never
for turn in first second; do
    cluster helm test mount-s3 --namespace "$driver_namespace" --timeout "${wait_s}s" >"$scratch/$turn" 2>&1 || fail "the $turn test: $(cat "$scratch/$turn")"
done
no_volume() { [ -z "$(cluster kubectl get pv -o 'jsonpath={range .items[?(@.spec.storageClassName=="s3-csi-test-mount-s3")]}{.metadata.name}{end}')" ] || { echo "a volume is left"; return 1; }; }
until_ok "its volumes gone" no_volume
equal "what is left in the bucket" "" "$(s3_keys)"

# second_release NAME NAMESPACE: Helm renders the chart with a look into the cluster, and installs nothing.
second_release() {
    refused "the release $1 in $2" "the cluster has the driver s3.csi.scality.com already, by the release mount-s3 in the namespace $driver_namespace" \
        cluster helm install "$1" "$chart" --namespace "$2" --values ci/e2e.d/values.yaml
}
second_release other "$driver_namespace"
second_release mount-s3 "$namespace"
equal "the cluster's releases" mount-s3 "$(cluster helm list --all-namespaces --short)"
