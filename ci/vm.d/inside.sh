#!/bin/bash
# inside.sh   what ci/vm tries in its machine, as a service of its systemd, at each boot: each line that it says begins with ok or FAILED
set -euo pipefail
trap 'echo "FAILED: line $LINENO: $BASH_COMMAND"' ERR
export HOME=/root AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=testsecret AWS_REGION=us-east-1
mib=1048576 store=/var/lib/store kept=/var/lib/kept

fail() { echo "FAILED: $*"; exit 1; }
# is WHAT EXPECTED FOUND
is() {
    [ "$2" = "$3" ] || fail "$1: expected $2, found $3"
    echo "ok: $1: $3"
}
sum() { sha256sum <"$1" | cut -c 1-64; }
until_true() { until "$@" >/dev/null 2>&1; do sleep 0.2; done; }

# Programs where the policy says what they are.
install_programs() {
    install /try/mount-s3 /try/mount-s3-ctl /try/s3server /usr/local/bin/
    restorecon /usr/local/bin/*
}
start_store() {
    systemd-run --quiet --unit=store /usr/local/bin/s3server "$store" --bucket bucket
    until_true bash -c ': <>/dev/tcp/127.0.0.1/9000'
}
# mounted NAME [SYSTEMD-RUN-OPTION]... [-- FLAG...]: a mount at /mnt/NAME in a unit of its own.
mounted() {
    local name=$1 options=()
    shift
    while [ $# -gt 0 ] && [ "$1" != -- ]; do
        options+=("$1")
        shift
    done
    [ $# -eq 0 ] || shift
    mkdir -p "/mnt/$name"
    systemd-run --quiet --unit="$name" -E AWS_ACCESS_KEY_ID -E AWS_SECRET_ACCESS_KEY -E AWS_REGION -E HOME "${options[@]}" \
        /usr/local/bin/mount-s3 bucket "/mnt/$name" --endpoint-url http://127.0.0.1:9000 --force-path-style --allow-overwrite --foreground "$@"
    until mountpoint -q "/mnt/$name"; do
        ! systemctl is-failed --quiet "$name" || fail "the mount $name: $(journalctl --no-pager -o cat -n 3 -u "$name" | tr '\n' ' ')"
        sleep 0.2
    done
}
unmounted() {
    umount "/mnt/$1"
    until_true bash -c "! systemctl is-active --quiet $1"
}
# target NAME: what the mount says of its memory target, in MiB; it can be asked a moment after it is there.
target() {
    local bytes
    until bytes=$(mount-s3-ctl status --json "/mnt/$1" | tr ',{' '\n' | sed -n 's/^ *"target_bytes": *\([0-9]*\).*/\1/p' | grep -m 1 .); do sleep 0.2; done
    echo $((bytes / mib))
}
label() { stat -c %C "$1"; }
uploads() { find "$store/.s3server/uploads" -mindepth 1 -maxdepth 1 | wc -l; }

groups() {
    is "cgroups" cgroup2fs "$(stat -fc %T /sys/fs/cgroup)"
    is "hierarchies of version 1" 0 "$(grep -cv '^0::' /proc/self/cgroup || true)"
    mounted free
    is "memory target without a limit: a quarter of the machine, MiB" $(($(sed -n 's/^MemTotal: *\([0-9]*\).*/\1/p' /proc/meminfo) / 4 / 1024)) "$(target free)"
    unmounted free
    mounted max -p MemoryMax=1G
    is "memory target with memory.max of 1024 MiB" 256 "$(target max)"
    unmounted max
    mounted high -p MemoryMax=1G -p MemoryHigh=800M
    is "memory target with memory.high of 800 MiB" 200 "$(target high)"
    unmounted high
    systemctl start limited.slice
    systemctl set-property --runtime limited.slice MemoryMax=1200M
    mounted slice --slice=limited.slice
    is "memory target with 1200 MiB for a group above" 300 "$(target slice)"
    unmounted slice

    dd if=/dev/urandom of="$store/bucket/large" bs=$mib count=600 status=none
    local before
    before=$(sum "$store/bucket/large")
    mounted small -p MemoryMax=256M
    is "memory target with memory.max of 256 MiB" 128 "$(target small)"
    is "600 MiB read at that limit" "$before" "$(sum /mnt/small/large)"
    local group=/sys/fs/cgroup/system.slice/small.service
    is "processes killed for memory" 0 "$(sed -n 's/^oom_kill //p' "$group/memory.events")"
    # The peak of a group holds page cache up to its limit; what the process took is its own.
    echo "ok: peak RSS $(($(sed -n 's/^VmHWM:[^0-9]*\([0-9]*\) kB/\1/p' "/proc/$(head -n 1 "$group/cgroup.procs")/status") / 1024)) MiB"
    unmounted small
    rm "$store/bucket/large"

    # The driver knows a Mountpoint Pod by this line: csi/src/mounter/peer.rs has it as text.
    is "the group of a container below a pod's slice" \
        0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0f3c_11aa_9.slice/cri-abc.scope \
        "$(systemd-run --quiet --scope --slice=kubepods-burstable-pod0f3c_11aa_9.slice --unit=cri-abc cat /proc/self/cgroup)"
}

labels() {
    is "SELinux" "$1" "$(getenforce)"
    echo "ok: this runs as $(tr -d '\0' </proc/self/attr/current)"
    mounted labels
    echo hello >/mnt/labels/hello
    is "what is read back" hello "$(cat /mnt/labels/hello)"
    is "label of a file" system_u:object_r:fusefs_t:s0 "$(label /mnt/labels/hello)"
    is "label of the mount" system_u:object_r:fusefs_t:s0 "$(label /mnt/labels)"
    local words
    if words=$(chcon -t user_home_t /mnt/labels/hello 2>&1); then fail "chcon succeeded"; fi
    echo "ok: another label is refused: ${words##*: }"
    mkdir -p /mnt/context
    if words=$(/usr/local/bin/mount-s3 bucket /mnt/context -o context=system_u:object_r:httpd_sys_content_t:s0 2>&1); then fail "context= was taken"; fi
    echo "ok: context= is refused: $(head -n 1 <<<"$words")"
    echo "ok: the engine's process is $(tr -d '\0' <"/proc/$(head -n 1 /sys/fs/cgroup/system.slice/labels.service/cgroup.procs)/attr/current")"
    unmounted labels
    echo "ok: denials that name mount-s3: $(dmesg | grep -E 'avc: +denied' | grep -c mount-s3 || true)"
}

sealed() {
    local name=cache::tests::seal::what_rots_of_a_file_that_the_kernel_sealed_is_an_error words
    words=$(/try/tests --exact "$name" --nocapture 2>&1) || fail "$name: $(tail -n 5 <<<"$words" | tr '\n' ' ')"
    ! grep -q '^SKIPPED' <<<"$words" || fail "$(grep -m 1 '^SKIPPED' <<<"$words")"
    is "rot in a file that fs-verity sealed is an error, never a wrong byte: tests passed" 1 "$(grep -c '^test result: ok. 1 passed' <<<"$words")"
}

before_the_cut() {
    mkdir -p "$kept" /var/cache/cut
    dd if=/dev/urandom of="$kept/random" bs=$mib count=40 status=none
    cp "$kept/random" "$store/bucket/random"
    mounted cut -- --cache /var/cache/cut
    is "what is read through the cache" "$(sum "$kept/random")" "$(sum /mnt/cut/random)"
    cp "$kept/random" /mnt/cut/closed
    cp /proc/sys/kernel/random/boot_id "$kept/boot_id"
    head -c 12000000 "$kept/random" >/mnt/cut/late
    (cat "$kept/random" && sleep 1000000) >/mnt/cut/open &
    until [ "$(uploads)" = 1 ]; do sleep 0.2; done
    # Objects that the store confirmed are on its disk, and so is the journal of uploads; blocks of the cache that come after are not.
    sync
    cat /mnt/cut/late >/dev/null
    echo b >/proc/sysrq-trigger
    sleep 1000000
}

after_the_cut() {
    [ "$(cat "$kept/boot_id")" != "$(cat /proc/sys/kernel/random/boot_id)" ] || fail "this is the boot of before"
    is "uploads that the cut left" 1 "$(uploads)"
    mounted cut -- --cache /var/cache/cut
    is "what was closed before" "$(sum "$kept/random")" "$(sum /mnt/cut/closed)"
    is "what was closed last" "$(head -c 12000000 "$kept/random" | sha256sum | cut -c 1-64)" "$(sum /mnt/cut/late)"
    is "what the cache of before gives" "$(sum "$kept/random")" "$(sum /mnt/cut/random)"
    [ ! -e /mnt/cut/open ] || fail "a file is there that nobody closed"
    until [ "$(uploads)" = 0 ]; do sleep 0.2; done
    echo "ok: a file that was open is not there, and its upload is aborted"
    unmounted cut
}

if [ ! -e "$kept" ]; then
    install_programs
    mkdir -p "$store/bucket"
    start_store
    echo "ok: $(uname -r), $(systemctl --version | head -n 1)"
    groups
    sealed
    labels Permissive
    before_the_cut
else
    start_store
    after_the_cut
    setenforce 1
    labels Enforcing
    setenforce 0
    echo "done"
    systemctl poweroff
fi
