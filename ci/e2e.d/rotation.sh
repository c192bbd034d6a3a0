# shellcheck shell=bash
# Keys change while pods write: the driver's Secret and the Secret of a volume get new keys, the store forgets the old ones half a minute
# later, and no write fails. Nothing is restarted. The controller service makes a bucket with the new keys.
# needs: nobody beside it
# shellcheck disable=SC2154,SC2016 # given by ci/e2e; programs are quoted
. ci/kubernetes/driver.bash
. ci/kubernetes/gateway.bash

gateway http 9011 --iam-dir /iam --iam-cache-disable
s3_bucket "$bucket"
for id in OLDDRIVER NEWDRIVER OLDVOLUME NEWVOLUME; do account "$id" "$id$secret_key"; done

# keys_are NAMESPACE SECRET ID
keys_are() {
    printf '{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "%s", "namespace": "%s"}, "stringData": {"access_key_id": "%s", "secret_access_key": "%s"}}' \
        "$2" "$1" "$3" "$3$secret_key" | cluster kubectl apply -f -
}
put_back() {
    printf '{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s3-secret", "namespace": "%s"}, "stringData": {"access_key_id": "%s", "secret_access_key": "%s"}}' \
        "$driver_namespace" "$access_key" "$secret_key" | cluster kubectl apply -f -
    remove_class bucket
    release_driver
}
trap put_back EXIT
keys_are "$driver_namespace" s3-secret OLDDRIVER
keys_are "$namespace" own OLDVOLUME
release_driver --set "s3.endpointUrl=$endpoint"

volume of-driver attributes="{ bucketName: $bucket, prefix: of-driver/ }"
volume of-volume attributes="{ bucketName: $bucket, prefix: of-volume/ }" secret="{ name: own, namespace: $namespace }"
# writer VOLUME: a pod that writes all the time, and says each time how that went.
writer() { workload "$1" "$1" script='while :; do date >/data/beat && echo beat; sleep 0.2; done'; }
writer of-driver
writer of-volume
wait_pod of-driver
wait_pod of-volume
comm_of() { printf '%s/pods/%s/volumes/kubernetes.io~empty-dir/comm' "$kubelet" "$(cluster kubectl -n mount-s3 get pod "$(mountpoint_pods "$1")" -o 'jsonpath={.metadata.uid}')"; }
# file_has VOLUME ID: what the engine reads.
file_has() { cluster run sh -c "cat $(comm_of "$1")/credentials/*-credentials" | grep -F "aws_access_key_id=$2" >/dev/null || { echo "$1: not $2 yet"; return 1; }; }
beats() { kube logs "$1" | grep -c '^beat$'; }
file_has of-driver OLDDRIVER
file_has of-volume OLDVOLUME
driver_pods() { cluster kubectl -n "$driver_namespace" get pods -l app.kubernetes.io/instance=mount-s3 -o 'jsonpath={range .items[*]}{.metadata.uid} {.status.containerStatuses[*].restartCount}{"\n"}{end}' | sort; }
before=$(driver_pods)

keys_are "$driver_namespace" s3-secret NEWDRIVER
keys_are "$namespace" own NEWVOLUME
changed=$SECONDS
until_ok "the volume's new keys in its Mountpoint Pod" file_has of-volume NEWVOLUME
say "the volume's keys came after $((SECONDS - changed)) s"
until_ok "the driver's new keys in the Mountpoint Pod" file_has of-driver NEWDRIVER
say "the driver's keys came after $((SECONDS - changed)) s"
# The engine looks at its files with each request, at most every 5 s; 10 s are promised.
sleep 10
forget_account OLDDRIVER
forget_account OLDVOLUME
for each in of-driver of-volume; do
    count=$(beats "$each")
    more_beats() { [ "$(beats "$each")" -ge $((count + 10)) ]; }
    until_ok "$each writes on" more_beats
    equal "$each: what it says besides" "" "$(kube logs "$each" | grep -v '^beat$' || true)"
done
equal "both wrote" "of-driver/beat of-volume/beat" "$(s3_keys | tr '\n' ' ' | sed 's/ $//')"
equal "nothing was restarted" "$before" "$(driver_pods)"

class_and_claim bucket
made=$(cluster kubectl get pv "$(field pvc/bucket .spec.volumeName)" -o 'jsonpath={.spec.csi.volumeAttributes.bucketName}')
s3 HEAD "$made" --head >/dev/null || fail "the bucket $made, made with the new keys"
kube delete pvc bucket --wait=false
bucket_is_gone() { ! s3 HEAD "$made" --head >/dev/null 2>&1; }
until_ok "the bucket gone again" bucket_is_gone
remove_pod of-driver
remove_pod of-volume
