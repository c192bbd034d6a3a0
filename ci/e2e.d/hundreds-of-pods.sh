# shellcheck shell=bash
# Three hundred pods over an hour, at most sixty at once, half of them with a volume of their own and half on six volumes that they share.
# Each reads and writes until it has done its rounds, and is deleted then. No byte may be lost, no pod may meet an error, nothing of them
# may be left, no part of the driver may start again or grow. It prints figures, and no limit of it is a time.
# E2E_PODS, E2E_AT_ONCE and E2E_SECONDS make it smaller.
# needs: an hour
# shellcheck disable=SC2154,SC2016 # given by ci/e2e; programs are quoted
. ci/kubernetes/driver.bash

pods=${E2E_PODS:-300} at_once=${E2E_AT_ONCE:-60} seconds=${E2E_SECONDS:-3600}
shared=6
# They begin in the first three quarters of the time. Each has 24 to 36 rounds; were a round only its pause, five of six places were taken.
begins=$((seconds * 3 / 4))
pause=$(awk -v a="$at_once" -v s="$begins" -v p="$pods" 'BEGIN { printf "%.1f", a * s / p / 36 }')
# A wait that is longer has no end: a busy machine only delays.
wait_s=900

# The process's name, RSS in KiB and CPU in hundredths of a second, a line for each process of the driver and each engine.
processes() {
    cluster run sh -c 'for it in /proc/[0-9]*; do
        case $(tr "\0" " " <"$it/cmdline") in
            /bin/scality-s3-csi-driver*) if grep -qz ^CSI_NODE_NAME= "$it/environ"; then name=node; else name=controller; fi ;;
            /bin/scality-csi-controller*) name=reconciler ;;
            /mountpoint-s3/bin/mount-s3*) name=engine ;;
            *) continue ;;
        esac
        echo "$name $(sed -n "s/^VmRSS:[^0-9]*\([0-9]*\) kB/\1/p" "$it/status") $(cut -d " " -f 14,15 "$it/stat")"
    done 2>/dev/null || true'
}
# For each name: how many there are, the largest RSS in MiB, and the CPU of all.
summary() {
    awk 'NF == 4 { count[$1]++; cpu[$1] += ($3 + $4) / 100; if ($2 > most[$1]) most[$1] = $2 }
        END { for (name in count) printf "%s %d %.1f %.1f\n", name, count[name], most[name] / 1024, cpu[name] }' | sort
}
# sample WHAT: prints it, and keeps it as $scratch/WHAT.
sample() {
    processes | summary >"$scratch/$1"
    say "$1, after $((SECONDS - start)) s, ${#began[@]} pods: $(awk '{ printf "%s %s, RSS %s MiB, CPU %s s; ", $2, $1, $3, $4 }' "$scratch/$1")"
}
# Names, identities and restarts of the driver's pods.
driver_pods() {
    cluster kubectl -n "$driver_namespace" get pods \
        -o 'jsonpath={range .items[*]}{.metadata.name} {.metadata.uid}{range .status.containerStatuses[*]} {.name}:{.restartCount}{end}{"\n"}{end}' | sort
}

# follow NAMESPACE JSONPATH: a line for each change of a pod there, with the time at which it arrived. The API server ends each watch after a while.
follow() {
    while :; do
        cluster kubectl -n "$1" get pods --watch -o "jsonpath=$2{\"\\n\"}" 2>/dev/null |
            while IFS= read -r line; do printf '%s %s\n' "$EPOCHREALTIME" "$line"; done || true
        sleep 0.2
    done
}
# Each in a process group of its own, so that it ends with all that it started.
followers=()
end_followers() { for group in "${followers[@]}"; do kill -- -"$group" 2>/dev/null || true; done; }
trap end_followers EXIT
set -m
follow "$namespace" '{.metadata.name} {.status.conditions[?(@.type=="Ready")].status}' >"$scratch/workloads" &
followers+=($!)
follow mount-s3 '{.metadata.name} {.metadata.annotations.s3\.csi\.scality\.com/volume-name}' >"$scratch/mountpoint-pods" &
followers+=($!)
set +m

# The program of pod NUMBER. Objects are named by the SHA-256 of their bytes, so that everybody can check them: the pod its own, and those
# of a pod before it, which shares its volume if it has one of those. One that is still being written can be read soon.
program() {
    local own other rounds=$2 large=0
    own=$(printf 'pod-%03d' "$1") other=$(printf 'pod-%03d' $(($1 - 2 * shared > 0 ? $1 - 2 * shared : 1)))
    if [ $(($1 % 5)) -eq 0 ]; then large=2; fi
    printf '%s' 'sum() { sha256sum <$1 | cut -c 1-64; }; ' \
        "cp /data/random /tmp/random && mkdir /data/$own || exit 1; n=0; while [ \$n -lt $rounds ]; do n=\$((n + 1)); " \
        'cmp /tmp/random /data/random || exit 1; ' \
        "size=200000; [ \$n -ne $large ] || size=20000000; head -c \$size /dev/urandom >/tmp/file; is=\$(sum /tmp/file); " \
        "cp /tmp/file /data/$own/\$is || exit 1; echo wrote \$is; [ \$(sum /data/$own/\$is) = \$is ] || { echo lost \$is; exit 1; }; " \
        "other=\$(ls /data/$other 2>/dev/null | tail -n 1); t=0; until [ -z \$other ] || [ x\$(sum /data/$other/\$other 2>/dev/null) = x\$other ]; do " \
        "t=\$((t + 1)); [ \$t -lt 60 ] || { echo wrong $other/\$other; exit 1; }; sleep 1; done; " \
        "if [ \$((n % 4)) -eq 0 ]; then cp /tmp/file /data/$own/.temporary && rm /data/$own/.temporary || exit 1; fi; " \
        "sleep $pause; done; echo done; sleep 2147483647 & wait"
}

declare -A began=() due=() ending=()
start_pod() { # NUMBER
    local pod rounds volume=shared-$(($1 / 2 % shared))
    pod=$(printf 'pod-%03d' "$1")
    rounds=$((24 + $1 * 7 % 13))
    if [ $(($1 % 2)) -eq 1 ]; then
        volume=alone-$1
        volume "$volume"
    fi
    workload "$pod" "$volume" script="$(program "$1" $rounds)"
    began[$pod]=$SECONDS
    due[$pod]=$((SECONDS + $(awk -v r=$rounds -v p="$pause" 'BEGIN { print int(r * p) }')))
}

# A pod that has done its rounds is deleted; one that is gone makes room.
look() {
    local pod ready restarts now=$SECONDS words
    declare -A there=()
    words=$(kube get pods -o 'jsonpath={range .items[*]}{.metadata.name},{.status.conditions[?(@.type=="Ready")].status},{.status.containerStatuses[0].restartCount}{"\n"}{end}')
    while IFS=, read -r pod ready restarts; do
        [ -n "$pod" ] || continue
        there[$pod]=${ready:-False}
        [ "${restarts:-0}" = 0 ] || [ -n "${ending[$pod]-}" ] || fail "$pod met an error: $(kube logs "$pod" --previous --tail=5 2>&1)"
    done <<<"$words"
    for pod in "${!began[@]}"; do
        if [ -z "${there[$pod]-}" ]; then
            [ -n "${ending[$pod]-}" ] || fail "$pod is gone, and nobody deleted it"
            unset "began[$pod]" "ending[$pod]"
        elif [ -n "${ending[$pod]-}" ]; then
            [ $((now - ending[$pod])) -lt $wait_s ] || fail "$pod does not end: $(kube describe pod "$pod")"
        elif [ "${there[$pod]}" != True ]; then
            [ $((now - began[$pod])) -lt $wait_s ] || fail "$pod never ran: $(kube describe pod "$pod")"
        elif [ $now -ge "${due[$pod]}" ]; then
            if [ "$(kube logs "$pod" --tail=1)" = "done" ]; then
                kube logs "$pod" >"$scratch/$pod.said"
                kube delete pod "$pod" --wait=false
                ending[$pod]=$now
            else
                [ $((now - began[$pod])) -lt $((2 * wait_s + 40 * ${pause%.*})) ] || fail "$pod stands still: $(kube logs "$pod" --tail=3 2>&1)"
                due[$pod]=$((now + 5))
            fi
        fi
    done
}

head -c 4194304 /dev/urandom >"$scratch/random"
s3_put random "$scratch/random"
for i in $(seq 0 $((shared - 1))); do volume "shared-$i"; done
driver_pods >"$scratch/driver-before"
start=$SECONDS most=0 next=1 quarter=1
sample begin
while [ $next -le "$pods" ] || [ ${#began[@]} -gt 0 ]; do
    while [ $next -le "$pods" ] && [ ${#began[@]} -lt "$at_once" ] && [ $((SECONDS - start)) -ge $(((next - 1) * begins / pods)) ]; do
        start_pod $next
        next=$((next + 1))
        [ ${#began[@]} -le "$most" ] || most=${#began[@]}
    done
    look
    if [ $quarter -le 4 ] && [ $((SECONDS - start)) -ge $((quarter * begins / 4)) ]; then
        sample "quarter-$quarter"
        quarter=$((quarter + 1))
    fi
    sleep 2
done
say "all $pods pods have come and gone after $((SECONDS - start)) s; at most $most were there at once"

attachments_left() { cluster kubectl get mountpoints3podattachments -o 'jsonpath={range .items[*]}{.metadata.name} {.spec.persistentVolumeName}{"\n"}{end}' | grep -F -- "$namespace-" || true; }
mountpoint_pods_left() {
    cluster kubectl -n mount-s3 get pods -o 'jsonpath={range .items[*]}{.metadata.name} {.metadata.annotations.s3\.csi\.scality\.com/volume-name}{"\n"}{end}' |
        grep -F -- " $namespace-" || true
}
until_ok "no attachment is left" count_is 0 attachments_left
until_ok "no Mountpoint Pod is left" count_is 0 mountpoint_pods_left
until_ok "no mount is left" none_mounted_below "$kubelet"
no_sources() { [ -z "$(cluster run ls "$plugin/mnt")" ]; }
until_ok "no directory of a source is left" no_sources
sample end
equal "the driver's pods and their restarts" "$(cat "$scratch/driver-before")" "$(driver_pods)"
end_followers

# Each object that a pod was told is stored, and no other.
objects=0
for said in "$scratch"/pod-*.said; do
    pod=$(basename "$said" .said)
    equal "what $pod says besides" "" "$(grep -vxE 'wrote [0-9a-f]{64}|done' "$said" || true)"
    sed -n "s|^wrote |$pod/|p" "$said" | sort >"$scratch/expected"
    s3 GET "$bucket?list-type=2&prefix=$pod" | grep -oE '<Key>[^<]*' | cut -c6- | sort >"$scratch/found"
    equal "objects of $pod" "$(cat "$scratch/expected")" "$(cat "$scratch/found")"
    mkdir "$scratch/$pod"
    sed "s|.*/\(.*\)|url = \"$endpoint/$bucket/&\"\noutput = \"$scratch/$pod/\1\"|" "$scratch/found" >"$scratch/urls"
    s3 GET "$bucket/random" --config "$scratch/urls" >/dev/null
    sed "s|.*/\(.*\)|\1  $scratch/$pod/\1|" "$scratch/found" | sha256sum --check --quiet || fail "bytes of $pod"
    objects=$((objects + $(wc -l <"$scratch/found")))
    rm -r "${scratch:?}/$pod"
done
[ "$objects" -ge $((24 * pods)) ] || fail "only $objects objects of $pods pods"

# Times from the first word of a pod to the first of its being Ready, as a watch got them.
awk 'NF >= 2 && !($2 in first) { first[$2] = $1 } $3 == "True" && !($2 in ready) { ready[$2] = $1; printf "%.2f\n", $1 - first[$2] }' "$scratch/workloads" |
    sort -n >"$scratch/times"
equal "pods whose time is known" "$pods" "$(wc -l <"$scratch/times")"
say "pods: $pods, on $(((pods + 1) / 2)) volumes of their own and $shared shared ones; objects: $objects, each compared by its SHA-256" \
    "until Running: $(awk '{ t[NR] = $1 } END { printf "p50 %.2f s, p99 %.2f s, longest %.2f s", t[int((NR + 1) / 2)], t[int(NR * 0.99 + 0.999)], t[NR] }' "$scratch/times")" \
    "Mountpoint Pods made: $(awk -v mine="$namespace-" 'index($3, mine) == 1 { print $2 }' "$scratch/mountpoint-pods" | sort -u | wc -l)" \
    "warnings: $(kube get events --field-selector type=Warning -o 'jsonpath={range .items[*]}{.reason}{"\n"}{end}' | sort | uniq -c | awk '{ printf "%s %s, ", $2, $1 }')"

# From the first quarter, when as many pods run as later, to the last. What the allocator and the caches of objects add is within it.
while read -r name _ before _; do
    [ "$name" != engine ] || continue
    awk -v n="$name" '$1 == n { print $3 }' "$scratch/quarter-4" | {
        read -r after
        awk -v a="$after" -v b="$before" 'BEGIN { exit !(a <= b * 1.25 + 8) }' || fail "$name grew from $before to $after MiB"
    }
done <"$scratch/quarter-1"
