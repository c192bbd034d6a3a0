# shellcheck shell=bash
# A pod claims a bucket and writes to it, a second pod reads it, and the objects remain after both are gone: checks each of the seven
# phases of docs/static-provisioning.md.
# shellcheck disable=SC2154 # given by ci/e2e
. ci/kubernetes/driver.bash

# 1: the volume names a bucket, and waits for its claim.
volume_is() {
    local is
    is=$(cluster kubectl get pv "$namespace-data" -o 'jsonpath={.status.phase}') || return 1
    [ "$is" = "$1" ] || { echo "the volume is \"$is\""; return 1; }
}
unclaimed_volume data policy=Delete
until_ok "the volume is available" volume_is Available

# 2: the claim is bound to it, nothing is mounted yet.
claim data
until_ok "the volume is bound" volume_is Bound
equal "the claim's volume" "$namespace-data" "$(field pvc/data .spec.volumeName)"
equal "attachments before a pod" "" "$(attachment data .metadata.name)"
equal "Mountpoint Pods before a pod" "" "$(mountpoint_pods data)"

# 3 to 5: a pod is scheduled, gets a Mountpoint Pod and an attachment that names it, and the bucket is mounted.
workload writer data
until_ok "the pod is scheduled" field_is pod/writer .spec.nodeName node
wait_pod writer
writer=$(uid_of writer)
target=$(target_of writer data)
mountpoint=$(mountpoint_pods data)
equal "one Mountpoint Pod" 1 "$(wc -l <<<"$mountpoint")"
equal "it runs where the pod runs" "$(field pod/writer .spec.nodeName)" "$(cluster kubectl -n mount-s3 get pod "$mountpoint" -o 'jsonpath={.spec.nodeName}')"
equal "the attachment's node and handle" "node $namespace-data" "$(attachment data .spec.nodeName) $(attachment data .spec.volumeID)"
holds "the attachment names pod and workload" "\"$mountpoint\":[{" "$(attachment data .spec.mountpointS3PodAttachments)"
holds "the attachment names the workload" "\"workloadPodUID\":\"$writer\"" "$(attachment data .spec.mountpointS3PodAttachments)"
is_mounted "$plugin/mnt/$mountpoint" || fail "the source"
is_mounted "$target" || fail "the target"
# The four commands of the troubleshooting page, as they stand there.
while read -r command; do
    words=$(eval "cluster $command" 2>&1 </dev/null) || fail "$command: $words"
    [ -n "$words" ] || fail "$command shows nothing"
done < <(sed -n '/^## In Kubernetes/,/^|/s/ *#.*//; /^kubectl /p' docs/troubleshooting.md)
holds "the list of attachments" "$mountpoint" "$(cluster kubectl get mountpoints3podattachments -A -o yaml)"

# 6: files are objects.
seq 1 200000 >"$scratch/numbers"
sum=$(sha256sum <"$scratch/numbers")
in_pod writer sh -c 'mkdir /data/sub && seq 1 200000 >/data/sub/numbers.txt && echo hello >/data/hello.txt'
equal "the bucket's keys" "hello.txt sub/numbers.txt" "$(s3_keys | tr '\n' ' ' | sed 's/ $//')"
equal "the object's bytes" "$sum" "$(s3_get sub/numbers.txt | sha256sum)"
equal "a listing" "hello.txt sub" "$(in_pod writer ls /data | tr '\n' ' ' | sed 's/ $//')"
refused "a write in the middle of an object" "Operation not permitted" in_pod writer sh -c 'echo x | dd of=/data/hello.txt bs=1 seek=2 conv=notrunc'
echo "from outside" >"$scratch/outside"
s3_put outside.txt "$scratch/outside"
equal "what was put there meanwhile" "from outside" "$(in_pod writer cat /data/outside.txt)"
workload reader data
wait_pod reader
equal "the second pod reads" "$sum" "$(in_pod reader sha256sum /data/sub/numbers.txt | sed 's/ .*/  -/')"
equal "both share one Mountpoint Pod" "$mountpoint" "$(mountpoint_pods data)"
equal "and one attachment" 1 "$(attachment data .metadata.name | wc -l)"

# 7: a pod goes and takes its bind mount with it; the last one takes all the rest, but for the bucket.
remove_pod writer
until_ok "the writer's target unmounted" none_mounted_below "$kubelet/pods/$writer/"
not_named() { [[ $(attachment data .spec.mountpointS3PodAttachments) != *"$1"* ]]; }
until_ok "the attachment no longer names the writer" not_named "$writer"
is_mounted "$plugin/mnt/$mountpoint" || fail "the source, with a reader left"
equal "the reader goes on" hello "$(in_pod reader cat /data/hello.txt)"
reader=$(uid_of reader)
remove_pod reader
until_ok "the attachment gone" count_is 0 attachment data .metadata.name
until_ok "the Mountpoint Pod gone" count_is 0 mountpoint_pods data
none_mounted_below "$plugin/mnt/$mountpoint" || fail "the source"
until_ok "the source's directory gone" is_missing "$plugin/mnt/$mountpoint"
is_missing "$kubelet/pods/$reader/volumes/kubernetes.io~csi/$namespace-data/mount" || fail "the target's directory"
bucket_is_whole() {
    equal "the bucket's keys $1" "hello.txt outside.txt sub/numbers.txt" "$(s3_keys | tr '\n' ' ' | sed 's/ $//')"
    equal "numbers.txt $1" "$sum" "$(s3_get sub/numbers.txt | sha256sum)"
    equal "hello.txt $1" hello "$(s3_get hello.txt)"
    equal "outside.txt $1" "from outside" "$(s3_get outside.txt)"
}
bucket_is_whole "when the pods are gone"
# Nor does the claim take it along, whatever the reclaim policy says.
kube delete pvc data --wait
until_ok "the volume is given up" volume_is Released
bucket_is_whole "when the claim is gone, with the policy Delete"
