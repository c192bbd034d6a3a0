# shellcheck shell=bash
# The bucket of a volume is deleted while a pod has it mounted: reads and writes fail, and an Event says why. With the bucket made again the same
# mount goes on.
# shellcheck disable=SC2154,SC2016 # given by ci/e2e; programs are quoted
. ci/kubernetes/driver.bash

gone=$bucket-gone
s3_bucket "$gone"
volume data attributes="{ bucketName: $gone }"
workload busy data
wait_pod busy
in_pod busy sh -c 'echo before >/data/before && cat /data/before'
mountpoint=$(mountpoint_pods data)

s3 DELETE "$gone/before"
s3 DELETE "$gone"
# Each name is new: what the mount knows of a name answers no request for another.
fails() { ! in_pod busy sh -c 'cat "/data/$(cat /proc/sys/kernel/random/uuid)"' 2>"$scratch/words" && grep "Input/output error" "$scratch/words"; }
until_ok "a read fails" fails
refused "a write" "Input/output error" in_pod busy sh -c 'echo lost >/data/lost'
until_ok "the workload is told" mount_refused busy "VolumeBucketGone: "
words=$(mount_refused busy "VolumeBucketGone: ")
holds "it names bucket and volume" "the bucket $gone of PersistentVolume $namespace-data does not exist any more" "$words"
holds "it names the log to read" "the log of Mountpoint Pod $mountpoint has the requests" "$words"

s3_bucket "$gone"
writes() { in_pod busy sh -c 'echo after >/data/after'; }
until_ok "the pod writes again" writes
equal "the object" after "$(s3 GET "$gone/after")"
equal "the Mountpoint Pod" "$mountpoint" "$(mountpoint_pods data Running)"
remove_pod busy
until_ok "no Mountpoint Pod is left" count_is 0 mountpoint_pods data
