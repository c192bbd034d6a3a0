# shellcheck shell=bash
# One pod of the node runs the engines of all its volumes. With node.mounter: shared pods of one volume share an engine, another has its own, one
# volume more than there is room for waits and is told why. An engine that is killed costs its own volume a moment, the other reads on.
# A source leaves a minute after its last pod, and its place is free. The driver restarts without a trace.
# needs: nobody beside it
# shellcheck disable=SC2154,SC2016 # given by ci/e2e; programs are quoted
. ci/kubernetes/driver.bash

put_back() { release_driver; }
trap put_back EXIT
release_driver --set node.mounter=shared --set shared.experimental=true --set shared.maxVolumes=2 --set shared.resources.limits.memory=512Mi
equal "no reconciler" "" "$(cluster kubectl get deployment s3-csi-controller -n "$driver_namespace" -o 'jsonpath={.spec.template.spec.containers[?(@.name=="s3-pod-reconciler")].name}')"
engines_pod() { cluster kubectl -n "$driver_namespace" get pods -l app=s3-csi-engines -o 'jsonpath={range .items[*]}{.metadata.uid}{"\n"}{end}'; }
pod=$(engines_pod)
equal "one engines pod" 1 "$(wc -l <<<"$pod")"
room() { cluster kubectl get csinode node -o 'jsonpath={.spec.drivers[?(@.name=="s3.csi.scality.com")].allocatable.count}'; }
has_room() { [ "$(room)" = 2 ]; }
until_ok "the scheduler knows how many volumes have room" has_room

seq 1 200000 >"$scratch/numbers"
sum=$(sha256sum <"$scratch/numbers")
s3_put numbers.txt "$scratch/numbers"
s3_put other/numbers.txt "$scratch/numbers"
volume one
volume two attributes="{ bucketName: $bucket, prefix: other/ }"
start=$EPOCHREALTIME
workload first one
wait_pod first
say "$(awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }') s from the pod to its start"
workload second one
workload other two propagation=HostToContainer
for it in second other; do wait_pod $it; done
engines() { cluster run pgrep -f "^/mountpoint-s3/bin/mount-s3 $bucket " | sort; }
equal "two volumes, two engines" 2 "$(engines | wc -l)"
equal "attachments" "" "$(attachment one .metadata.name)"
for it in first second other; do equal "$it reads" "$sum" "$(in_pod $it sha256sum </dev/null /data/numbers.txt | sed 's|/data/numbers.txt|-|')"; done
in_pod second sh -c 'echo written >/data/written'
equal "the object" written "$(s3 GET "$bucket/written")"

# One volume more has no room. The scheduler may know, or the driver says so.
volume three attributes="{ bucketName: $bucket, prefix: third/ }"
workload third three
waits() {
    kube get events --field-selector involvedObject.name=third -o 'jsonpath={range .items[*]}{.reason}: {.message}{"\n"}{end}' | grep -E 'VolumeLimitReached|exceed max volume count'
}
until_ok "one volume too many waits, and is told why" waits

# The engine of the first volume is killed while pods of both read.
engine_of() { # PREFIX
    cluster run sh -c 'for it in $(pgrep -f "^/mountpoint-s3/bin/mount-s3 $0 "); do
        if tr "\0" "\n" </proc/$it/cmdline | grep -q "^--prefix"; then has=prefix; else has=none; fi
        [ $has != "$1" ] || echo $it
    done' "$bucket" "$1"
}
one=$(engine_of none) two=$(engine_of prefix)
readers=()
for it in first second other; do
    in_pod $it sh -c 'while ! test -e /tmp/stop; do sha256sum </data/numbers.txt || exit 1; sleep 0.05; done' >"$scratch/reads.$it" 2>&1 &
    readers+=($!)
done
has_read() { [ -s "$scratch/reads.$1" ]; }
for it in first second other; do until_ok "$it reads" has_read $it; done
cluster run kill -KILL "$one"
is_another() { local now; now=$(engine_of none) && [ -n "$now" ] && [ "$now" != "$one" ]; }
until_ok "the next engine of the first volume" is_another
gets_on() { [ "$(wc -l <"$scratch/reads.$1")" -gt "$2" ]; }
for it in first second other; do until_ok "$it reads on" gets_on $it "$(wc -l <"$scratch/reads.$it")"; done
for it in first second other; do in_pod $it touch /tmp/stop; done
for it in "${readers[@]}"; do wait "$it" || fail "a reader ended with an error"; done
for it in first second other; do equal "reads of $it, all right" "$sum" "$(sort -u "$scratch/reads.$it")"; done
equal "the engine of the other volume" "$two" "$(engine_of prefix)"

# The driver restarts, and unmounts what it has not mounted.
cluster kubectl -n "$driver_namespace" rollout restart daemonset/s3-csi-node
cluster kubectl -n "$driver_namespace" rollout status daemonset/s3-csi-node --timeout="${wait_s}s"
equal "the engine after the driver" "$two" "$(engine_of prefix)"
remove_pod other
# Its source leaves a minute later, and the kubelet comes again.
wait_s=300 wait_pod third
equal "the engines pod" "$pod" "$(engines_pod)"
for it in first second third; do remove_pod $it; done
none() { [ -z "$(mounts_below "$plugin/mnt/")" ] || { mounts_below "$plugin/mnt/"; return 1; }; }
until_ok "all sources have left" none
