# shellcheck shell=bash
# The manifests of docs/install.md, unchanged: with names, namespace `default` and image. No other scenario uses these names.
# shellcheck disable=SC2154,SC2034 # given by ci/e2e, and read by its functions

bucket="example-bucket"
# It is there already if the stores outlived an earlier run.
s3 GET "$bucket?list-type=2" || s3_bucket "$bucket"
printf 'apiVersion: v1\nkind: Secret\nmetadata: { name: example-keys, namespace: default }\nstringData: { access_key_id: %s, secret_access_key: %s }\n' \
    "$access_key" "$secret_key" | cluster kubectl apply -f -

remove_examples() {
    local example
    for example in static-volume own-credentials dynamic-volume; do
        cluster kubectl delete --ignore-not-found --timeout="${wait_s}s" --filename "helm/examples/$example.yaml"
    done
    cluster kubectl --namespace default delete --ignore-not-found secret example-keys
}
# Also when it fails half way: nothing of it lies in the scenario's own namespace.
trap remove_examples EXIT

for example in static-volume:example own-credentials:example-own-credentials; do
    pod=${example#*:}
    cluster kubectl apply --filename "helm/examples/${example%:*}.yaml"
    cluster kubectl --namespace default wait --for=condition=Ready "pod/$pod" --timeout="${wait_s}s" || {
        cluster kubectl --namespace default describe pod "$pod"
        fail "pod $pod of helm/examples/${example%:*}.yaml is not ready"
    }
done
cluster kubectl apply --filename helm/examples/dynamic-volume.yaml
says_dynamic() { [ "$(cluster kubectl --namespace example-dynamic logs pod/example)" = "Hello from a pod." ]; }
until_ok "the example with a claim says hello" says_dynamic
# A pod is Ready when its program has begun, which may have written nothing yet.
says() { [ "$(cluster kubectl --namespace default logs pod/example)" = "Hello from a pod." ]; }
until_ok "the first example says hello" says
equal "what it left in the bucket" "Hello from a pod." "$(s3_get hello.txt)"
has_started() { s3_keys | grep -x team-a/started; }
until_ok "the second example has written" has_started
equal "keys of the bucket: the second example is confined to its prefix" "hello.txt team-a/started" "$(s3_keys | tr '\n' ' ' | sed 's/ $//')"
cluster kubectl delete --timeout="${wait_s}s" --filename helm/examples/static-volume.yaml
# An administrator tries it again.
cluster kubectl apply --filename helm/examples/static-volume.yaml
until_ok "the first example says hello when it is applied again" says
cluster kubectl delete --timeout="${wait_s}s" --filename helm/examples/static-volume.yaml
equal "the object is there when the volume is gone" "Hello from a pod." "$(s3_get hello.txt)"
