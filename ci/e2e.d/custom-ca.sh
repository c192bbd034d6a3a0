# shellcheck shell=bash
# A store over TLS whose certificate an authority of the test's own signed: mounts and new buckets trust it by tls.caCertData of the chart,
# a single volume by its own caBundleConfigMap and endpointUrl. Without, and at an endpoint that nobody allowed, they say why not.
# needs: nobody beside it
# shellcheck disable=SC2154,SC2016 # given by ci/e2e; programs are quoted
. ci/kubernetes/driver.bash
. ci/kubernetes/gateway.bash

(
    cd "$scratch" || exit
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=lab-ca -keyout ca.key -out ca.crt
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=store -keyout tls.key -out tls.csr
    openssl x509 -req -in tls.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile <(say "subjectAltName=IP:$node_ip") -out tls.crt
)
kube create secret generic gateway --from-file="$scratch/tls.crt" --from-file="$scratch/tls.key"
gateway https 9012 --cert /gateway/tls.crt --key /gateway/tls.key
export CURL_CA_BUNDLE=$scratch/ca.crt
s3_bucket "$bucket"
put_back() {
    remove_class bucket
    cluster kubectl -n mount-s3 delete configmap "$namespace-ca" --ignore-not-found
    release_driver
}
trap put_back EXIT

# writes POD VOLUME: it is mounted, and its bytes reach the store.
writes() {
    workload "$1" "$2"
    wait_pod "$1"
    in_pod "$1" sh -c 'seq 1 100000 >/data/numbers && sha256sum </data/numbers' >"$scratch/$1"
}

release_driver --set "s3.endpointUrl=$endpoint" --set-file "tls.caCertData=$scratch/ca.crt"
volume static
writes static static
equal "the object's bytes" "$(cat "$scratch/static")" "$(s3_get numbers | sha256sum)"
class_and_claim bucket
made=$(cluster kubectl get pv "$(field pvc/bucket .spec.volumeName)" -o 'jsonpath={.spec.csi.volumeAttributes.bucketName}')
writes dynamic bucket
equal "the bytes in a bucket that was made" "$(cat "$scratch/dynamic")" "$(s3 GET "$made/numbers" | sha256sum)"
remove_pod static
remove_pod dynamic
s3 DELETE "$made/numbers"
kube delete pvc bucket --wait

# The store of the chart is another one; a volume names this one and its authority.
release_driver --set "s3.allowedEndpoints={$endpoint}"
cluster kubectl -n mount-s3 create configmap "$namespace-ca" --from-file="ca-bundle.crt=$scratch/ca.crt"
volume own attributes="{ bucketName: $bucket, endpointUrl: '$endpoint', caBundleConfigMap: $namespace-ca }"
writes own own
equal "the object's bytes, by the volume's own authority" "$(cat "$scratch/own")" "$(s3_get numbers | sha256sum)"

volume unknown attributes="{ bucketName: $bucket, endpointUrl: '$endpoint' }"
volume elsewhere attributes="{ bucketName: $bucket, endpointUrl: 'https://$node_ip:9013' }"
workload unknown unknown
workload elsewhere elsewhere
until_ok "an unknown authority is named" mount_refused unknown "certificate"
until_ok "an endpoint that nobody allowed is named" mount_refused elsewhere "nor in s3.allowedEndpoints"
kube delete pod unknown elsewhere --wait=false
remove_pod own
