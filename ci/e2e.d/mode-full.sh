# shellcheck shell=bash
# Programs change files in place on a volume with `mode full`: a shell, git, sqlite. Files that wait in the stage outlive an engine that is killed.
# A pod that ends while the store is away: with a stage of the Mountpoint Pod it stays until the bucket has its files; with a stage of the node it
# goes, and the next Mountpoint Pod stores them. An Event names both.
# needs: nobody beside it
# needs: its name
# shellcheck disable=SC2154,SC2016 # given by ci/e2e; programs are quoted
. ci/kubernetes/driver.bash

stages=/var/tmp/$namespace-stages
trap release_driver EXIT
# cut_off, reconnect: the network of the Mountpoint Pod has no way to the store, and has one again.
in_network() { cluster run nsenter --target "$mounter" --net ip route "$@"; }
cut_off() {
    mounter=$(cluster run ps -o ppid= -p "$(engine)" | tr -d ' ')
    in_network add unreachable "$node_ip/32"
}
reconnect() { in_network del unreachable "$node_ip/32"; }
# holds POD FILE: the pod opens it for writing, and writes, syncs and closes it once told to: an open asks the store, the rest does not.
holds_open() {
    in_pod "$1" sh -c "exec 3>/data/$2; touch /tmp/open.$2; until [ -e /tmp/write.$2 ]; do sleep 0.1; done; echo $2 >&3; exec 3>&-" >/dev/null 2>&1 &
    until_ok "$2 is open" in_pod "$1" test -e "/tmp/open.$2"
    holder=$!
}
writes() {
    in_pod "$1" touch "/tmp/write.$2"
    wait "$holder" || fail "writing $2"
}
stored() { [ "$(s3_get "$1")" = "$1" ] || { echo "the bucket lacks $1"; return 1; }; }
not_stored() { ! s3_get "$1" >/dev/null 2>&1 || fail "$1 reached the store, from which the pod was cut off"; }

volume refused options='[mode full]'
workload refused refused
until_ok "who asks for mode full hears how to allow it" event mountpointPod.stage.experimental
kube delete pod refused
release_driver --set mountpointPod.stage.experimental=true
volume refused options='[mode full, commit disk]'
workload refused refused
until_ok "who asks for a disk hears where to name one" event mountpointPod.stage.hostPath
volume data options='[mode full, commit fsync, stage-size 200]'
workload writer data propagation=HostToContainer
wait_pod writer
pod=$(mountpoint_pods data)
of_pod() { cluster kubectl -n mount-s3 get pod "$pod" -o "jsonpath=$1"; }
equal "the volume of the stage" '{"sizeLimit":"464Mi"}' "$(of_pod '{.spec.volumes[?(@.name=="stage")].emptyDir}')"
equal "the disk that the pod asks for" 264Mi "$(of_pod '{.spec.containers[0].resources.requests.ephemeral-storage}')"
until_ok "the engine is confined" is_confined

in_pod writer sh -ec 'cd /data; echo one >log; echo two >>log; sed -i s/one/1/ log; printf 3 | dd of=log bs=1 seek=4 conv=notrunc 2>/dev/null; mv log moved; sync moved'
equal "what a shell changed in place" "1
tw3" "$(in_pod writer cat /data/moved)"
equal "the object" "$(in_pod writer cat /data/moved)" "$(s3_get moved)"
target=$(target_of writer data)
cluster run sh -ec 'export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@a GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@a GIT_CONFIG_GLOBAL=/tmp/mode-full.git
    git config --global safe.directory "*"; cd "$0"; git init --quiet one; cd one; for file in 1 2 3 4 5; do seq $file 100 >$file; git add $file; git commit --quiet -m $file; done
    cd ..; git clone --quiet one two; git -C two fsck --strict; git -C two diff --quiet; test "$(git -C two rev-list --count HEAD)" = 5' "$target" || fail "git"
rows=$(cluster run python3 -c '
import sqlite3, sys
base = sqlite3.connect(sys.argv[1] + "/base.sqlite")
base.execute("create table numbers (number)")
for number in range(20):
    with base: base.execute("insert into numbers values (?)", (number,))
print(base.execute("select count(*), sum(number) from numbers").fetchone(), base.execute("pragma integrity_check").fetchone())' "$target")
equal "sqlite" "(20, 190) ('ok',)" "$rows"

# The next engine stores what the one before had not.
files=$kubelet/pods/$(of_pod '{.metadata.uid}')/volumes/kubernetes.io~empty-dir/stage/data/files
until_ok "all of this stored" count_is 0 cluster run ls "$files"
holds_open writer killed
cut_off
writes writer killed
not_stored killed
cluster run kill -KILL "$(engine)"
reconnect
until_ok "the next engine stores it" stored killed
is_back() { [ "$(in_pod writer cat /data/killed)" = killed ]; }
until_ok "the pod reads it by a mount made again" is_back
equal "it is the same Mountpoint Pod" "$pod" "$(mountpoint_pods data Running)"

# A stage of the Mountpoint Pod would go with it.
until_ok "nothing waits" count_is 0 cluster run ls "$files"
holds_open writer late
cut_off
writes writer late
kube delete pod writer --wait=false
until_ok "who deletes the pod hears of its files" event VolumeFilesNotStored
event "VolumeFilesNotStored: PersistentVolume $namespace-data: 1 file with 5 bytes waits to be stored" || fail "the Event does not say what waits"
not_stored late
! pod_gone writer || fail "the pod went before its file was stored"
reconnect
until_ok "its file is stored" stored late
until_ok "the pod gone" pod_gone writer
until_ok "no Mountpoint Pod is left" count_is 0 mountpoint_pods data

# A stage of the node outlives it.
kube delete pod refused --wait=false
release_driver --set mountpointPod.stage.experimental=true --set mountpointPod.stage.hostPath="$stages"
volume disk options='[mode full, commit disk]'
workload first disk
wait_pod first
pod=$(mountpoint_pods disk)
equal "its own volumes" "comm state tmp" "$(of_pod '{.spec.volumes[*].name}')"
stage=$(cluster run sh -c "echo $stages/*")
equal "the directory of the volume" "1000 700" "$(cluster run stat -c '%u %a' "$stage")"
in_pod first sh -ec 'echo one >/data/log; echo two >>/data/log; sync /data/log'
until_ok "what was written before is stored" s3_get log
holds_open first synced
cut_off
writes first synced
kube delete pod first --wait=false
until_ok "the pod gone, with its file on the node" pod_gone first
event "1 file with 7 bytes waits to be stored. That stays on this node, in the stage $(basename "$stage")" || fail "no Event says where the file is"
until_ok "its Mountpoint Pod gone" count_is 0 mountpoint_pods disk
not_stored synced
count_is 1 cluster run ls "$stage/files" || fail "the stage lost the file"
workload second disk
wait_pod second
equal "what the next pod reads" synced "$(in_pod second cat /data/synced)"
until_ok "the next Mountpoint Pod stores it" stored synced
equal "the other file" "one
two" "$(s3_get log)"
remove_pod second
until_ok "no Mountpoint Pod is left" count_is 0 mountpoint_pods disk
cluster run rm -r "$stages"
