# shellcheck shell=bash
# Release 2.2 is upgraded by the command of docs/install.md, under pods that read and write; they notice nothing. Its Mountpoint Pod serves them
# until they end and takes nobody new; what 2.2 forgot is cleaned up; a bucket that it made goes with its claim.
# Release 2.2 itself can't be had here: its chart's objects, its CRD, its attachments and Mountpoint Pods are written by hand, and the mounts are
# made by this release's programs.
# needs: nobody beside it
# needs: its name
# shellcheck disable=SC2154,SC2034,SC2016 # given by ci/e2e, and read by its functions; programs are quoted
. ci/kubernetes/driver.bash

trap install_driver EXIT
crd=mountpoints3podattachments.s3.csi.scality.com
driver=$(cluster kubectl -n "$driver_namespace" get daemonset s3-csi-node -o 'jsonpath={.spec.template.spec.containers[?(@.name=="s3-plugin")].image}')
absent() { ! cluster kubectl get "$@" >/dev/null 2>&1 || { echo "there still is $*"; return 1; }; }
release_driver --set cleanupCRDOnUninstall=true
cluster helm uninstall mount-s3 --namespace "$driver_namespace" --wait --timeout 180s
until_ok "the CRD is gone" absent crd "$crd"
cluster run rm -rf "$plugin"
cp -R ci/e2e.d/release-2.2 "$scratch/chart"
cp helm/tests/values-2.2.0.yaml "$scratch/chart/values.yaml"
template ci/e2e.d/release-2.2/templates/release.yaml driver="$driver" >"$scratch/chart/templates/release.yaml"
cluster helm install mount-s3 "$scratch/chart" --namespace "$driver_namespace" --values ci/e2e.d/values.yaml --wait --timeout 180s

# A Mountpoint Pod as 2.2's reconciler makes it for a workload. pod_of_2_2 UID VOLUME: sets `made`, a Mountpoint Pod.
pod_of_2_2() {
    made=mp-$(printf '%s%s' "$1" "$namespace-$2" | sha224sum | cut -d ' ' -f 1)
    cluster kubectl apply -f - <<EOT
apiVersion: v1
kind: Pod
metadata:
  name: $made
  namespace: mount-s3
  labels:
    s3.csi.scality.com/mountpoint-version: ""
    s3.csi.scality.com/mounted-by-csi-driver-version: 2.2.0
    s3.csi.scality.com/pod-uid: $1
    s3.csi.scality.com/volume-name: $namespace-$2
spec:
  restartPolicy: OnFailure
  priorityClassName: mount-s3-critical
  securityContext: { fsGroup: 1000 }
  affinity: { nodeAffinity: { requiredDuringSchedulingIgnoredDuringExecution: { nodeSelectorTerms: [{ matchFields: [{ key: metadata.name, operator: In, values: [node] }] }] } } }
  tolerations: [{ operator: Exists }]
  containers:
    - name: mountpoint
      image: $driver
      imagePullPolicy: Never
      command: [/bin/scality-s3-csi-mounter]
      securityContext: { runAsUser: 1000, runAsNonRoot: true, allowPrivilegeEscalation: false, capabilities: { drop: [ALL] }, seccompProfile: { type: RuntimeDefault } }
      volumeMounts: [{ name: comm, mountPath: /comm }]
  volumes: [{ name: comm, emptyDir: { medium: Memory, sizeLimit: 10Mi } }]
EOT
}
# attach_2_2 VOLUME POD UID...: an attachment with a random name.
attach_2_2() {
    local volume=$1 pod=$2 uid workloads=
    shift 2
    for uid in "$@"; do workloads+="{ workloadPodUID: $uid, attachmentTime: '2026-01-02T03:04:05Z' }, "; done
    cluster kubectl create -f - <<EOT
apiVersion: s3.csi.scality.com/v2
kind: MountpointS3PodAttachment
metadata: { generateName: s3pa-, labels: { s3.csi.scality.com/mounted-by-csi-driver-version: 2.2.0 } }
spec:
  nodeName: node
  persistentVolumeName: $namespace-$volume
  volumeID: $namespace-$volume
  mountOptions: allow-delete,allow-overwrite
  workloadFSGroup: ""
  mountpointS3PodAttachments: { $pod: [$workloads] }
EOT
}
head -c 4194304 /dev/urandom >"$scratch/random"
s3_put random "$scratch/random"
volume data
volume left
for pod in one two; do busy_workload $pod data; done
for pod in one two; do until_ok "$pod is scheduled" field_is pod/$pod .spec.nodeName node; done
pod_of_2_2 "$(uid_of one)" data
old=$made
attach_2_2 data "$old" "$(uid_of one)" "$(uid_of two)"
for pod in one two; do wait_pod $pod; done
is_mounted "$plugin/mnt/$old" || fail "the source of 2.2's Mountpoint Pod"
# The workload ended while 2.2's controller was away, and 2.2 never found out.
gone=$(cat /proc/sys/kernel/random/uuid)
pod_of_2_2 "$gone" left
left=$made
attach_2_2 left "$left" "$gone"
# A bucket that it made for a claim.
made=csi-s3-$(cat /proc/sys/kernel/random/uuid)
s3_bucket "$made"
cluster kubectl apply -f - <<EOT
apiVersion: v1
kind: PersistentVolume
metadata:
  name: $namespace-made
  annotations: { pv.kubernetes.io/provisioned-by: s3.csi.scality.com, volume.kubernetes.io/provisioner-deletion-secret-name: "", volume.kubernetes.io/provisioner-deletion-secret-namespace: "" }
  finalizers: [external-provisioner.volume.kubernetes.io/finalizer, kubernetes.io/pv-protection]
spec:
  capacity: { storage: 1Gi }
  accessModes: [ReadWriteMany]
  storageClassName: $namespace-of-2-2
  persistentVolumeReclaimPolicy: Delete
  claimRef: { namespace: $namespace, name: made }
  csi: { driver: s3.csi.scality.com, volumeHandle: $made, volumeAttributes: { bucketName: $made } }
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: { name: made, namespace: $namespace, annotations: { volume.kubernetes.io/storage-provisioner: s3.csi.scality.com } }
spec: { accessModes: [ReadWriteMany], storageClassName: $namespace-of-2-2, volumeName: $namespace-made, resources: { requests: { storage: 1Gi } } }
EOT
until_ok "the claim of 2.2 bound" field_is pvc/made .status.phase Bound
for pod in one two; do noticed_nothing $pod; done
# 2.2 keeps no notes of its Mountpoint Pods.
cluster run rm -rf "$plugin/pods"

cluster helm upgrade mount-s3 "$chart" --namespace "$driver_namespace" --reuse-values --wait --timeout 180s
trap - EXIT
[ -n "$(cluster kubectl get crd "$crd" -o 'jsonpath={.spec.versions[0].schema.openAPIV3Schema.properties.spec.properties.authenticationSource.type}')" ] || fail "the CRD is still that of 2.2"
equal "the CSIDriver" None "$(cluster kubectl get csidriver s3.csi.scality.com -o 'jsonpath={.spec.fsGroupPolicy}')"
for pod in one two; do noticed_nothing $pod; done
workload new data
wait_pod new
equal "what a new pod reads" "$(sha256sum <"$scratch/random")" "$(in_pod new sha256sum /data/random | sed 's/ .*/  -/')"
serves=$(mountpoint_pods data)
equal "Mountpoint Pods of this release" 1 "$(grep -c . <<<"$serves")"
[ "$serves" != "$old" ] || fail "a new pod is served by 2.2's Mountpoint Pod"
for pod in one two; do noticed_nothing $pod; done

remove_pod two
noticed_nothing one
uid=$(uid_of one)
remove_pod one
until_ok "2.2's Mountpoint Pod gone" absent --namespace mount-s3 pod "$old"
none_mounted_below "$plugin/mnt/$old" || fail "its source"
until_ok "the source's directory gone" is_missing "$plugin/mnt/$old"
none_mounted_below "$kubelet/pods/$uid/" || fail "a target of its workload"
workload one data
wait_pod one
equal "a workload that starts again is served by this release" "$serves" "$(mountpoint_pods data)"
kube delete pvc made --wait=false
bucket_is_gone() { ! s3 HEAD "$made" --head >/dev/null 2>&1 || { echo "the bucket $made is still there"; return 1; }; }
until_ok "the bucket that 2.2 made is gone" bucket_is_gone
until_ok "its volume gone" absent pv "$namespace-made"
remove_pod one
remove_pod new
until_ok "no attachment of data" count_is 0 attachment data .metadata.name
# After two minutes nobody waits for what is not there.
wait_s=300
until_ok "the attachment that 2.2 forgot is gone" count_is 0 attachment left .metadata.name
until_ok "the Mountpoint Pod that 2.2 forgot is gone" absent --namespace mount-s3 pod "$left"
until_ok "no Mountpoint Pod is left" count_is 0 mountpoint_pods data
until_ok "no source is left" none_mounted_below "$plugin/mnt/"
install_driver
