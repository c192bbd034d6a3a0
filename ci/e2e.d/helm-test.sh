# shellcheck shell=bash
# `helm test` makes a volume, writes to it and reads it, twice; nothing is left of it.
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
