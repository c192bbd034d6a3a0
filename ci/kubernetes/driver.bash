# shellcheck shell=bash
# Helpers for scenarios of the driver, besides scenario.bash: volumes, workloads, and the objects that the driver makes for them.
# shellcheck disable=SC2154,SC2034,SC2016 # namespace and bucket are given by ci/e2e; scenarios use the rest; programs are quoted

kubelet=/var/lib/kubelet
# With which a node may begin; its driver takes it away.
taint=s3.csi.scality.com/agent-not-ready
plugin=$kubelet/plugins/s3.csi.scality.com

# volume NAME [KEY=VALUE]...: a PersistentVolume of the scenario's bucket and a claim of the same name, bound to each other. Keys of
# volume.yaml and claim.yaml.
volume() {
    unclaimed_volume "$@"
    claim "$@"
}

unclaimed_volume() {
    local volume=$1
    shift
    apply volume.yaml "$@" volume="$volume" handle='@pv@' pv="$namespace-$volume" options='[allow-delete, allow-overwrite]' \
        attributes='{ bucketName: @bucket@ }' fstype='""' secret=null affinity=null modes='[ReadWriteMany]' policy=Retain bucket="$bucket"
}

claim() {
    local volume=$1
    shift
    apply claim.yaml "$@" volume="$volume" pv="$namespace-$volume" modes='[ReadWriteMany]'
    until_ok "claim $volume bound" field_is "pvc/$volume" .status.phase Bound
}

# workload POD VOLUME [KEY=VALUE]...: a pod with the volume at /data. Keys of workload.yaml.
workload() {
    local pod=$1 claim=$2
    shift 2
    pod_with "persistentVolumeClaim: { claimName: $claim, readOnly: @readonly@ }" "$pod" "$@"
}

# pod_with SOURCE POD [KEY=VALUE]...: a pod with a volume of this source, a line of YAML, at /data. Keys of workload.yaml.
pod_with() { pod_of "$@" | kube apply -f -; }

# pod_of SOURCE POD [KEY=VALUE]...: prints it.
pod_of() {
    local source=$1 pod=$2
    shift 2
    template "$top/ci/e2e.d/workload.yaml" source="$source" "$@" pod="$pod" account=default script='sleep 2147483647 & wait' security='{}' \
        priority='""' tolerations='[]' nodes='{}' readonly=false propagation=None
}

# workloads VOLUME:POD...: pods as of `workload`, all at once.
workloads() {
    local pair
    for pair in "$@"; do
        pod_of "persistentVolumeClaim: { claimName: ${pair%%:*} }" "${pair#*:}"
        echo ---
    done | kube apply -f -
}

# taints_of NODE: their keys, a line each.
taints_of() { cluster kubectl get node "$1" -o 'jsonpath={range .spec.taints[*]}{.key}{"\n"}{end}'; }

uid_of() { field "pod/$1" .metadata.uid; }
target_of() { printf '%s/pods/%s/volumes/kubernetes.io~csi/%s/mount' "$kubelet" "$(uid_of "$1")" "$namespace-$2"; } # POD VOLUME

# attachment VOLUME JSONPATH: of each attachment of this volume, a line each.
attachment() {
    cluster kubectl get mountpoints3podattachments -o "jsonpath={range .items[?(@.spec.persistentVolumeName==\"$namespace-$1\")]}{$2}{\"\\n\"}{end}"
}

# mountpoint_pods VOLUME [PHASE]: names of the Mountpoint Pods that serve it, a line each.
mountpoint_pods() {
    cluster kubectl -n mount-s3 get pods -o json | python3 -c '
import json, sys
volume, phase = sys.argv[1:]
for pod in json.load(sys.stdin)["items"]:
    if pod["metadata"].get("annotations", {}).get("s3.csi.scality.com/volume-name") != volume: continue
    if phase and pod["status"].get("phase") != phase: continue
    print(pod["metadata"]["name"])' "$namespace-$1" "${2-}"
}

# The node's mounts that are ours, below this path. With where=second those of the second node; so also for the next ones.
mounts_below() { cluster ${where:+"$where"} run awk -v below="$1" '$1 == "mountpoint-s3" && index($2, below) == 1 { print $2 }' /proc/1/mounts; }
none_mounted_below() {
    local left
    left=$(mounts_below "$1") || { echo "the node does not show its mounts"; return 1; }
    [ -z "$left" ] || { printf 'still mounted: %s\n' "$left"; return 1; }
}
is_mounted() { [ -n "$(mounts_below "$1")" ] || { echo "nothing is mounted at $1"; return 1; }; }
is_missing() { ! cluster ${where:+"$where"} run test -e "$1" || { echo "$1 is still there"; return 1; }; }

count_is() {
    local is
    # A failed command shows nothing, which is not the same as showing that there is nothing.
    is=$("${@:2}") || return 1
    is=$(grep -c . <<<"$is" || true)
    [ "$is" -eq "$1" ] || { echo "$is instead of $1: ${*:2}"; return 1; }
}

# mount_refused POD TEXT: the kubelet says TEXT of the pod's volume. A word of what else it said if it never does.
mount_refused() {
    local words
    words=$(kube get events --field-selector "involvedObject.name=$1" -o 'jsonpath={range .items[*]}{.reason}: {.message}{"\n"}{end}')
    grep -F -- "$2" <<<"$words" || { printf '%s\n' "$words"; return 1; }
}

# The process of the engine of the scenario's bucket.
engine() { cluster run pgrep -f "^/mountpoint-s3/bin/mount-s3 $bucket "; }
another_engine() { # PID
    local now
    now=$(engine) || { echo "no engine runs"; return 1; }
    [ "$now" != "$1" ] || { echo "the engine is still $1"; return 1; }
}
# Whether each thread of the engine is confined, by the kernel's own report (--sandbox).
is_confined() {
    local pid
    pid=$(engine) || return 1
    # shellcheck disable=SC2016 # for the other shell
    cluster run sh -c 'for it in /proc/$0/task/*/status; do
        for line in "NoNewPrivs:.1" "Seccomp:.2" "CapEff:.0000000000000000" "CapPrm:.0000000000000000"; do grep -q "^$line$" "$it" || { cat "$it"; exit 1; }; done
    done' "$pid"
}
# Kills the engine, and waits for the one that follows it.
kill_engine() {
    local killed
    killed=$(engine)
    cluster run kill -KILL "$killed"
    until_ok "an engine after $killed" another_engine "$killed"
}
# Kills engines until the mounter of the Mountpoint Pod gives the mount up: at the fifth death within a minute.
give_up() {
    local last
    for _ in 1 2 3 4; do kill_engine; done
    last=$(engine)
    cluster run kill -KILL "$last"
}

# Kills the container of the Mountpoint Pod as a whole, as the kernel does with cgroup v2 when it is out of memory. Sets `killed` to its engine.
kill_container() {
    killed=$(engine)
    # The engine may end with its mounter.
    cluster run sh -c 'kill -KILL "$(ps -o ppid= -p "$1" | tr -d " ")" && { kill -KILL "$1" 2>/dev/null || true; }' sh "$killed"
}
# holder_says PATTERN: what the holder of this node's driver answers has such a line.
holder_says() {
    local words
    words=$(cluster kubectl -n "$driver_namespace" exec daemonset/s3-csi-node -c s3-holder -- /bin/scality-s3-csi-holder --check) || return 1
    grep -x -- "$1" <<<"$words" || { printf '%s\n' "$words"; return 1; }
}
holder_lacks() {
    local words
    words=$(cluster kubectl -n "$driver_namespace" exec daemonset/s3-csi-node -c s3-holder -- /bin/scality-s3-csi-holder --check) || return 1
    ! grep "^$1 " <<<"$words"
}

# The process of this node's driver.
driver_pid() {
    local pid
    for pid in $(cluster run pgrep -f '^/bin/scality-s3-csi-driver'); do
        if cluster run grep -qz '^CSI_NODE_NAME=' "/proc/$pid/environ"; then echo "$pid"; fi
    done
}
another_driver() { # PID
    local now
    now=$(driver_pid)
    if [ -z "$now" ] || [ "$now" = "$1" ]; then
        echo "the driver's process is ${now:-not there}"
        return 1
    fi
}

# busy_workload POD VOLUME [KEY=VALUE]...: reads and writes all the time; its first error ends its container. The bucket has an object `random`.
busy_workload() {
    workload "$@" script="until cp /data/random /tmp/random; do sleep 0.2; done; while cmp /tmp/random /data/random && cp /tmp/random /data/copy-$1 || exit 1; do echo round; sleep 0.1; done"
}
errors_of() { field "pod/$1" '.status.containerStatuses[0].restartCount'; }
rounds_of() { kube logs "$1" | grep -c '^round$' || true; }
has_rounds() { [ "$(rounds_of "$1")" -ge "$2" ] || [ "$(errors_of "$1")" != 0 ]; }
# noticed_nothing POD: a busy workload goes on, and has met no error.
noticed_nothing() {
    local before
    before=$(rounds_of "$1")
    until_ok "$1 reads and writes on" has_rounds "$1" $((before + 3))
    equal "how often $1 met an error" 0 "$(errors_of "$1")"
    equal "what $1 says besides" "" "$(kube logs "$1" | grep -v '^round$' || true)"
}

# no_secret SECRET...: none of them can be read where people or other pods look: logs of pods and of Kubernetes, Events, objects but
# Secrets, command lines, the environments of engines and mounters. The driver's own keys are files in its pod.
no_secret() {
    printf '%s\n' "$@" >"$scratch/secrets"
    {
        # Pods and processes may go while they are looked at.
        cluster run sh -c 'cat /var/log/pods/*/*/*.log /var/log/kubernetes/*.log' 2>/dev/null || true
        cluster kubectl get events -A -o yaml
        cluster kubectl get pods,daemonsets,deployments,configmaps,persistentvolumes,persistentvolumeclaims,mountpoints3podattachments -A -o yaml
        cluster run sh -c 'cat /proc/[0-9]*/cmdline 2>/dev/null || true' | tr '\0' '\n'
        cluster run sh -c 'for it in /proc/[0-9]*; do
            case $(tr "\0" " " <"$it/cmdline") in
                /mountpoint-s3/bin/mount-s3* | /bin/scality-s3-csi-mounter*) cat "$it/environ" ;;
            esac
        done 2>/dev/null || true' | tr '\0' '\n'
    } >"$scratch/words"
    # So that nobody passes by searching nothing.
    for word in "NodePublishVolume" "MountpointS3PodAttachment" "/bin/scality-s3-csi-driver" "reason: FailedMount" "AWS_SHARED_CREDENTIALS_FILE="; do
        grep -qaF -- "$word" "$scratch/words" || fail "the search for secrets did not even find $word"
    done
    ! grep -aF -f "$scratch/secrets" "$scratch/words" || fail "a secret is shown; see the lines above"
}
