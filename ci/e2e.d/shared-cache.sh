# shellcheck shell=bash
# Engines of one pod have caches on a directory of the node. The kernel reads cached files by itself. A cache outlives the engines pod: what it has is
# not fetched again. A volume whose cache has no room is mounted without, and its pod is told. Once a volume has left, its cache makes room, and those
# in use stay. A driver that starts anew knows all that.
# needs: nobody beside it
# needs: its name
# shellcheck disable=SC2154,SC2016 # given by ci/e2e; programs are quoted
. ci/kubernetes/driver.bash

disk=/var/lib/mount-s3-e2e-caches
put_back() {
    release_driver
    cluster run rm -rf "$disk"
}
trap put_back EXIT
# Two caches of 121 MiB (95 % of 128 Mi) have room, and three have not.
release_driver --set node.mounter=shared --set shared.experimental=true --set shared.maxVolumes=3 --set shared.resources.limits.memory=768Mi \
    --set shared.cache.size=256Mi --set shared.cache.hostPath=$disk
mib=64 rounds=16
head -c $((mib << 20)) /dev/urandom >"$scratch/random"
sum=$(sha256sum <"$scratch/random")
for it in one two three; do
    s3_put $it/random "$scratch/random"
    volume $it attributes="{ bucketName: $bucket, prefix: $it/, cache: emptyDir, cacheEmptyDirSizeLimit: 128Mi }"
    [ $it = three ] && continue
    workload $it $it propagation=HostToContainer
    wait_pod $it
done
workload three three
wait_pod three
reads() { equal "what $1 reads" "$sum" "$(in_pod "$1" sha256sum /data/random | sed 's|/data/random|-|')"; }
for it in one two three; do reads $it; done
is_told() { kube get events --field-selector "involvedObject.name=$1,reason=CacheLeftOut" -o name | grep -q .; }
until_ok "the pod whose cache has no room is told" is_told three
for it in one two; do ! is_told $it || fail "$it has a cache, and is told of none"; done
caches() { cluster run find "$disk" -mindepth 1 -maxdepth 1 -type d -printf '%f\n' | sort; }
equal "caches" 2 "$(caches | grep -c .)"
equal "those whom they belong to" "700 1000" "$(cluster run find "$disk" -mindepth 1 -maxdepth 1 -printf '%m %U\n' | sort -u)"

engine_of() { # VOLUME
    cluster run sh -c 'for it in $(pgrep -f "^/mountpoint-s3/bin/mount-s3 $0 "); do
        tr "\0" " " <"/proc/$(ps -o ppid= -p "$it" | tr -d " ")/cmdline" | grep -q "^/bin/scality-s3-csi-mounter" || continue
        ! tr "\0" "\n" </proc/$it/cmdline | grep -qx -e "--prefix=$1/" || echo $it
    done' "$bucket" "$1"
}
# Time of CPU of an engine, in ticks of 10 ms; 0.02 s for a GiB are two.
ticks() { cluster run awk '{ print $14 + $15 }' "/proc/$(engine_of one)/stat"; }
is_free() {
    local before took
    before=$(ticks)
    in_pod one sh -c "for round in $(seq -s ' ' $rounds); do cat /data/random >/dev/null || exit 1; done"
    took=$(($(ticks) - before))
    echo "$took" >"$scratch/took"
    [ "$took" -le 2 ] || { echo "the engine took $took ticks of CPU for $((mib * rounds)) MiB from its cache"; return 1; }
}
until_ok "cached files cost the engine nothing" is_free
say "the engine took $(cat "$scratch/took") ticks of 10 ms for $((mib * rounds)) MiB"
cluster kubectl -n "$driver_namespace" rollout restart daemonset/s3-csi-node
cluster kubectl -n "$driver_namespace" rollout status daemonset/s3-csi-node --timeout="${wait_s}s"
until_ok "cached files cost the engine nothing after the driver's restart" is_free

# The engines pod is replaced. Its successor receives next to nothing for a file that is cached.
before=$(engine_of one)
cluster kubectl -n "$driver_namespace" delete pod -l app=s3-csi-engines --grace-period=5
is_another() { local now; now=$(engine_of one) && [ -n "$now" ] && [ "$now" != "$before" ]; }
until_ok "another engine" is_another
reads_again() { in_pod one test -e /data/random; }
until_ok "the volume again" reads_again
received() { cluster run awk 'NR > 2 && $1 != "lo:" { sum += $2 } END { print sum }' "/proc/$(engine_of one)/net/dev"; }
start=$(received)
reads one
took=$(($(received) - start))
say "the engine received $((took >> 10)) KiB for $mib MiB that were cached before its pod began"
[ $took -lt $((4 << 20)) ] || fail "the cache did not outlive the engines pod"
until_ok "cached files cost the next engine nothing" is_free

# A minute after its last pod a volume leaves, and its cache waits for it, until another volume needs the room.
all=$(caches)
remove_pod three
remove_pod two
only_one() { count_is 1 mounts_below "$plugin/mnt/"; }
wait_s=300 until_ok "the sources of two and three have left" only_one
equal "caches" "$all" "$(caches)"
workload third three
wait_pod third
reads third
! is_told third || fail "there was room for its cache"
equal "caches" 2 "$(caches | grep -c .)"
equal "one of them is new" 1 "$(comm -13 <(echo "$all") <(caches) | grep -c .)"
until_ok "the cache that was in use is there" is_free
for it in one third; do remove_pod $it; done
none() { [ -z "$(mounts_below "$plugin/mnt/")" ] || { mounts_below "$plugin/mnt/"; return 1; }; }
wait_s=300 until_ok "all sources have left" none
