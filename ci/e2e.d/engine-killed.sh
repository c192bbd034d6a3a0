# shellcheck shell=bash
# The engine is killed four times while pods read. The mounter of the Mountpoint Pod starts the next one on the same device: no pod sees an error
# or a wrong byte, with mount propagation or without, by a subPath or not. A file that is being written fails. One Event counts the deaths.
# shellcheck disable=SC2154 # given by ci/e2e
. ci/kubernetes/driver.bash

seq 1 200000 >"$scratch/numbers"
sum=$(sha256sum <"$scratch/numbers")
volume data
s3_put folder/numbers.txt "$scratch/numbers"
workload plain data
workload following data propagation=HostToContainer
pod_of 'persistentVolumeClaim: { claimName: data }' below | sed 's|mountPath: /data|mountPath: /data/folder, subPath: folder|' | kube apply -f -
for pod in plain following below; do wait_pod $pod; done
mountpoint=$(mountpoint_pods data)
first=$(engine)
until_ok "the engine is confined" is_confined

# Each prints a line for each read, and its error if one fails.
readers=()
for pod in plain following below; do
    in_pod $pod sh -c 'while ! test -e /tmp/stop; do sha256sum </data/folder/numbers.txt || exit 1; sleep 0.05; done' >"$scratch/reads.$pod" 2>&1 &
    readers+=($!)
done
in_pod plain sh -c '(echo half; while ! test -e /tmp/killed; do sleep 0.1; done; echo more) >/data/written && echo stored || echo failed' \
    >"$scratch/writer" 2>"$scratch/writer.error" &
writer=$!
has_begun() { in_pod plain test -e /data/written; }
until_ok "a file is being written" has_begun
gets_on() { [ "$(wc -l <"$scratch/reads.$1")" -gt "$2" ]; }
for death in 1 2 3 4; do
    start=$EPOCHREALTIME
    kill_engine
    for pod in plain following below; do until_ok "$pod reads on after death $death" gets_on $pod "$(wc -l <"$scratch/reads.$pod")"; done
    until_ok "the engine after death $death is confined" is_confined
    say "$(awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }') s from death $death to reads of all pods"
done
in_pod plain touch /tmp/killed
wait "$writer" || true
# Output and errors are two streams, which come in any order.
equal "the file that was being written" failed "$(tail -n 1 "$scratch/writer")"
for pod in plain following below; do in_pod $pod touch /tmp/stop; done
for reader in "${readers[@]}"; do wait "$reader" || fail "a reader ended with an error"; done
for pod in plain following below; do equal "reads of $pod, all right" "$sum" "$(sort -u "$scratch/reads.$pod")"; done
[ "$(engine)" != "$first" ] || fail "the engine that was killed lives"
told() { [ "$(kube get events --field-selector "involvedObject.name=$1,reason=VolumeEngineRestarted" -o name | wc -l)" = 1 ]; }
for pod in plain following below; do until_ok "one Event tells $pod" told $pod; done
equal "Events of a volume that was mounted again" "" "$(kube get events --field-selector reason=VolumeEngineDied -o name)"
equal "the Mountpoint Pod" "$mountpoint" "$(mountpoint_pods data Running)"
equal "restarts of its container" 0 "$(cluster kubectl -n mount-s3 get pod "$mountpoint" -o 'jsonpath={.status.containerStatuses[0].restartCount}')"
