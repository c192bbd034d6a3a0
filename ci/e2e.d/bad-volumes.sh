# shellcheck shell=bash
# A volume that can't be mounted says on its pod what is wrong and what to do, leaves nothing mounted, and shows no secret.
# shellcheck disable=SC2154 # given by ci/e2e
. ci/kubernetes/driver.bash

# A secret that must not be seen anywhere, in a volume whose keys are wrong.
hush=hush$(openssl rand -hex 12)
kube create secret generic wrong-keys --from-literal=access_key_id=WRONGKEYWRONGKEY --from-literal=secret_access_key="$hush"

volume no-bucket attributes='{ region: us-east-1 }'
volume missing-bucket attributes="{ bucketName: $bucket-is-not-there }"
volume bad-option options='[allow-delete, allow-overwite]'
volume bad-value options='[part-size=many]'
volume wrong-keys attributes="{ bucketName: $bucket, authenticationSource: secret }" \
    secret="{ name: wrong-keys, namespace: $namespace }"
for each in no-bucket missing-bucket bad-option bad-value wrong-keys; do workload $each $each; done

until_ok "no bucket" mount_refused no-bucket "code = InvalidArgument"
holds "it names the field" bucketName "$(mount_refused no-bucket "code = InvalidArgument")"
until_ok "an unknown option" mount_refused bad-option "code = InvalidArgument"
holds "it names the nearest option" allow-overwrite "$(mount_refused bad-option "code = InvalidArgument")"
until_ok "a bad value" mount_refused bad-value "code = InvalidArgument"
holds "it names the option" part-size "$(mount_refused bad-value "code = InvalidArgument")"
until_ok "a missing bucket" mount_refused missing-bucket "$bucket-is-not-there"
until_ok "wrong keys" mount_refused wrong-keys "code ="
holds "it says whose keys" "access key" "$(mount_refused wrong-keys "code =" | tr '[:upper:]' '[:lower:]')"

for each in no-bucket missing-bucket bad-option bad-value wrong-keys; do
    none_mounted_below "$kubelet/pods/$(uid_of $each)/" || fail "$each: its target"
done
for pod in $(mountpoint_pods missing-bucket) $(mountpoint_pods wrong-keys); do
    # The kubelet tries again all the time: between two attempts nothing is mounted.
    until_ok "the source of $pod is unmounted" none_mounted_below "$plugin/mnt/$pod"
    ! cluster kubectl -n mount-s3 logs "$pod" --tail=-1 | grep -F "$hush" || fail "the log of $pod shows the secret"
done
for each in no-bucket missing-bucket bad-option bad-value wrong-keys; do remove_pod $each; done
for each in no-bucket missing-bucket bad-option bad-value wrong-keys; do
    until_ok "$each: its attachments gone" count_is 0 attachment $each .metadata.name
    until_ok "$each: its Mountpoint Pods gone" count_is 0 mountpoint_pods $each
done
driver_logs >"$scratch/logs"
! grep -F "$hush" "$scratch/logs" || fail "a log of the driver shows the secret"
! grep -F "$secret_key" "$scratch/logs" || fail "a log of the driver shows its own secret"
