# shellcheck shell=bash
# A hostile engine in a Mountpoint Pod asks the driver to register what it may not have: other files, other devices, broken lines, floods. Each is refused,
# a file of its own cache is served before and after, the driver goes on as it was, and a pod beside it notices nothing.
# needs: nobody beside it
# needs: its name
# shellcheck disable=SC2154,SC2016 # given by ci/e2e; programs are quoted
. ci/kubernetes/driver.bash

mib=16
head -c $((mib << 20)) /dev/urandom >"$scratch/random"
s3_put random "$scratch/random"
sum=$(sha256sum <"$scratch/random")
s3_bucket "$bucket-other"
s3 PUT "$bucket-other/random" --upload-file "$scratch/random"
volume data attributes="{ bucketName: $bucket, cache: emptyDir, cacheEmptyDirSizeLimit: 1Gi }"
volume other attributes="{ bucketName: $bucket-other }"
workload reader data
busy_workload busy other
for pod in reader busy; do wait_pod $pod; done
equal "what the pod reads" "$sum" "$(in_pod reader sha256sum /data/random | sed 's|/data/random|-|')"

uid=$(cluster kubectl -n mount-s3 get pod "$(mountpoint_pods data)" -o 'jsonpath={.metadata.uid}')
volumes=$kubelet/pods/$uid/volumes/kubernetes.io~empty-dir
has_cached() { [ "$(cluster run find "$volumes/local-cache" -type f -size +1M | wc -l)" -gt 0 ]; }
until_ok "a file in the cache" has_cached
has_socket() { cluster run test -S "$volumes/comm/engine.sock"; }
until_ok "the engine's socket" has_socket
hostile=/run/$namespace-hostile
put_back() {
    cluster run systemctl stop "$namespace-hostile" || true # it may have ended
    cluster run rm -rf "$hostile"
}
trap put_back EXIT
cluster run mkdir -p -m 700 "$hostile"
cluster run sh -c "cat >$hostile/hostile.py" <ci/kubernetes/hostile.py
other=$(cluster run pgrep -f "^/mountpoint-s3/bin/mount-s3 $bucket-other ")
cluster run systemd-run --quiet --collect --unit="$namespace-hostile" -p "StandardOutput=append:$hostile/log" -p "StandardError=append:$hostile/log" \
    python3 -u "$hostile/hostile.py" "$(engine)" "$other" "$volumes/comm" "$volumes/local-cache"
said() { cluster run grep -E -- "$1" "$hostile/log" || { cluster run cat "$hostile/log"; return 1; }; }
until_ok "the hostile engine listens" cluster run sh -c "test -S $volumes/comm/engine.sock && test -S $volumes/comm/engine.sock.real"

# The real engine has the driver's connection; the next driver dials whoever is there.
cluster kubectl -n "$driver_namespace" rollout restart daemonset/s3-csi-node
driver_is_settled
victim=$(driver_pid)
# What it holds: descriptors of FUSE devices and of files below the pods' directories.
held() { cluster run sh -c 'ls -l "/proc/$1/fd" | grep -cE "/dev/fuse|/local-cache|memfd:plain|/dev/null$" || true' sh "$victim"; }
before=$(held)
address=$(cluster kubectl -n "$driver_namespace" get pods --selector app=s3-csi-node --field-selector status.phase=Running -o 'jsonpath={.items[0].status.podIP}')
scrape() { cluster net curl --silent --show-error --fail --max-time 20 "http://$address:9808/metrics"; }
# Each scrape dials again, if a connection broke.
is_done() {
    scrape >"$scratch/page"
    said '^(done|Traceback)'
}
wait_s=400 until_ok "all cases" is_done
cluster run cat "$hostile/log"
equal "errors of the hostile engine itself" "" "$(cluster run grep -A 20 '^Traceback' "$hostile/log" || true)"
equal "cases that were not refused" "" "$(cluster run grep '^TAKEN' "$hostile/log" || true)"
equal "cases that were refused" 30 "$(said '^refused ' | wc -l)"
equal "files of its own cache that were served" 3 "$(said '^served ' | wc -l)"

equal "the driver is the one of before" "$victim" "$(driver_pid)"
holds_no_more() { [ "$(held)" -le "$before" ] || { cluster run ls -l "/proc/$victim/fd"; return 1; }; }
until_ok "it holds no descriptor of the hostile engine" holds_no_more
noticed_nothing busy
# The real engine has its place again.
value() { scrape | grep '^mount_s3_csi_volume_cpu_seconds_total{' | grep -F "persistentvolume=\"$namespace-data\"" | sed 's/.* //'; }
is_known() { [ -n "$(value)" ]; }
until_ok "the real engine says what it uses" is_known
ticks() { cluster run awk '{ print $14 + $15 }' "/proc/$(engine)/stat"; }
# 0.02 s for a GiB are two ticks.
is_free() {
    local before took
    before=$(ticks)
    in_pod reader sh -c "for round in $(seq -s ' ' $((1024 / mib))); do cat /data/random >/dev/null || exit 1; done"
    took=$(($(ticks) - before))
    [ "$took" -le 2 ] || { echo "the engine took $took ticks of CPU"; return 1; }
}
until_ok "the kernel reads its files again" is_free
equal "what the pod reads in the end" "$sum" "$(in_pod reader sha256sum /data/random | sed 's|/data/random|-|')"
for pod in reader busy; do remove_pod $pod; done
s3 DELETE "$bucket-other/random"
s3 DELETE "$bucket-other/copy-busy"
