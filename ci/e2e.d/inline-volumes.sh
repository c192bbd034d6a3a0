# shellcheck shell=bash
# Volumes that stand in a pod's own manifest: refused until the chart allows them, then mounted with the pod's Secret and with nothing else.
# The CSIDriver is made anew, since Kubernetes can't change its modes.
# needs: nobody beside it
# shellcheck disable=SC2154,SC2016 # given by ci/e2e; programs are quoted
. ci/kubernetes/driver.bash

# switch on|off: as docs/credentials.md says.
switch() {
    cluster kubectl delete csidriver s3.csi.scality.com
    release_driver --set "csiDriver.inlineVolumes=$([ "$1" = on ] && echo true || echo false)"
}
put_back() { switch off; }
trap put_back EXIT

kube create secret generic own --from-literal="access_key_id=$access_key" --from-literal="secret_access_key=$secret_key"
# inline POD SECRET ATTRIBUTES: maps of YAML.
inline() { pod_with "csi: { driver: s3.csi.scality.com, nodePublishSecretRef: $2, volumeAttributes: $3 }" "$1"; }
inline early '{ name: own }' "{ bucketName: $bucket }"
until_ok "inline volumes are off" event "Ephemeral"
kube delete pod early --wait=false
until_ok "pod early gone" pod_gone early

switch on
inline good '{ name: own }' "{ bucketName: $bucket, prefix: part/, mountOptions: 'allow-delete,allow-overwrite' }"
wait_pod good
in_pod good sh -c 'echo hello >/data/greeting && echo again >/data/greeting'
equal "the object" again "$(s3_get part/greeting)"
handles() { cluster kubectl get mountpoints3podattachments -o 'jsonpath={range .items[*]}{.spec.persistentVolumeName}{"\n"}{end}' | grep -c '^csi-'; }
equal "one attachment of an inline volume" 1 "$(handles)"
inline other '{ name: own }' "{ bucketName: $bucket, prefix: part/ }"
wait_pod other
equal "another pod reads it" again "$(in_pod other cat /data/greeting)"
equal "by a Mountpoint Pod of its own" 2 "$(handles)"
inline keyless null "{ bucketName: $bucket }"
until_ok "without a Secret it is refused" mount_refused keyless "an inline volume never uses the driver's keys"
inline greedy '{ name: own }' "{ bucketName: $bucket, endpointUrl: 'http://evil.test' }"
until_ok "an endpoint is refused" mount_refused greedy "bucketName, prefix, mountOptions, and not endpointUrl"
kube delete pod keyless greedy --wait=false
remove_pod good
remove_pod other
none_left() { [ "$(handles || true)" = 0 ]; }
for each in keyless greedy; do until_ok "pod $each gone" pod_gone "$each"; done
until_ok "their attachments gone" none_left
