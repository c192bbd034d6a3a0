# shellcheck shell=bash
# Pods of one fsGroup share a Mountpoint Pod, pods of another get another. A read-only consumer beside a writer stays read-only, and the
# writer stays writable, in either order.
# shellcheck disable=SC2154 # given by ci/e2e
. ci/kubernetes/driver.bash

volume data
workload one data security='{ fsGroup: 2000 }'
workload two data security='{ fsGroup: 2000 }'
workload other data security='{ fsGroup: 3000 }'
for pod in one two other; do wait_pod $pod; done
equal "Mountpoint Pods for two groups" 2 "$(mountpoint_pods data | wc -l)"
equal "their groups" "2000 3000" "$(attachment data .spec.workloadFSGroup | sort | tr '\n' ' ' | sed 's/ $//')"
equal "files belong to the group" "2000 660" "$(in_pod one sh -c 'echo x >/data/x && stat -c "%g %a" /data/x')"
equal "and to the other" "3000 660" "$(in_pod other sh -c 'until [ -e /data/x ]; do sleep 0.2; done; stat -c "%g %a" /data/x')"
equal "a pod of the same group reads it" x "$(in_pod two cat /data/x)"

# As docs/operating.md has it.
shown=$(cluster kubectl get s3pa -o wide | awk -v volume="$namespace-data" 'NR == 1 || index($0, volume)')
for word in "MOUNTPOINT PODS" $(mountpoint_pods data) "$(uid_of one)" "$(uid_of two)" "$(uid_of other)"; do holds "the attachments in columns" "$word" "$shown"; done

volume first-reader
workload reader first-reader readonly=true
wait_pod reader
workload writer first-reader
wait_pod writer
in_pod writer sh -c 'echo written >/data/w'
refused "a read-only consumer writes" "Read-only file system" in_pod reader sh -c 'echo no >/data/r'
equal "a read-only consumer reads" written "$(in_pod reader sh -c 'until [ -e /data/w ]; do sleep 0.2; done; cat /data/w')"
equal "they share a Mountpoint Pod" 1 "$(mountpoint_pods first-reader | wc -l)"

volume first-writer
workload writer2 first-writer
wait_pod writer2
workload reader2 first-writer readonly=true
wait_pod reader2
in_pod writer2 sh -c 'echo written >/data/w2'
refused "a read-only consumer that came second writes" "Read-only file system" in_pod reader2 sh -c 'echo no >/data/r2'

volume all-readers modes='[ReadOnlyMany]'
workload reader3 all-readers
wait_pod reader3
refused "a pod writes to a volume of readers" "Read-only file system" in_pod reader3 sh -c 'echo no >/data/r3'
