# shellcheck shell=bash
# A PersistentVolume is deleted while a pod uses it, its finalizers are patched away, and it is made again under its name with another bucket.
# The next pod reads and writes the new bucket, by a Mountpoint Pod of its own; the first one stays with what it has mounted.
# shellcheck disable=SC2154 # given by ci/e2e
. ci/kubernetes/driver.bash

s3_bucket "$bucket-new"
echo old >"$scratch/old"
echo new >"$scratch/new"
s3_put whose "$scratch/old"
s3 PUT "$bucket-new/whose" --upload-file "$scratch/new"
volume data
workload one data
wait_pod one
equal "the first pod reads" old "$(in_pod one cat /data/whose)"
first=$(mountpoint_pods data)

pv=$namespace-data
uid=$(cluster kubectl get pv "$pv" -o 'jsonpath={.metadata.uid}')
# With its claim's UID, as a manifest that was saved from the cluster has it.
cluster kubectl get pv "$pv" -o json | python3 -c '
import json, sys
volume = json.load(sys.stdin)
volume["metadata"] = {"name": volume["metadata"]["name"]}
volume["spec"]["csi"]["volumeAttributes"]["bucketName"] = sys.argv[1]
del volume["status"]
json.dump(volume, sys.stdout)' "$bucket-new" >"$scratch/volume.json"
cluster kubectl delete pv "$pv" --wait=false
cluster kubectl patch pv "$pv" --type merge --patch '{"metadata":{"finalizers":null}}'
volume_gone() { ! cluster kubectl get pv "$pv" >/dev/null 2>&1; }
until_ok "the volume gone" volume_gone
cluster kubectl create -f - <"$scratch/volume.json"
[ "$(cluster kubectl get pv "$pv" -o 'jsonpath={.metadata.uid}')" != "$uid" ] || fail "the volume is the one of before"
until_ok "the claim is bound again" field_is pvc/data .status.phase Bound

workload two data
wait_pod two
equal "the second pod reads" new "$(in_pod two cat /data/whose)"
in_pod two sh -c 'echo two >/data/written'
equal "what it wrote is in the new bucket" two "$(s3 GET "$bucket-new/written")"
refused "it is not in the old one" NoSuchKey s3_get written
equal "the first pod reads on" old "$(in_pod one cat /data/whose)"
equal "Mountpoint Pods" 2 "$(mountpoint_pods data | wc -l)"
second=$(mountpoint_pods data | grep -vx "$first")
workload three data
wait_pod three
equal "the third pod reads" new "$(in_pod three cat /data/whose)"
equal "by the Mountpoint Pod of the second" "$(uid_of two) $(uid_of three)" \
    "$(attachment data ".spec.mountpointS3PodAttachments.${second}[*].workloadPodUID" | xargs)"
for pod in one two three; do remove_pod $pod; done
until_ok "no attachment" count_is 0 attachment data .metadata.name
until_ok "no Mountpoint Pod" count_is 0 mountpoint_pods data
