# shellcheck shell=bash
# A node on this machine: namespaces of its own, systemd as PID 1, an overlay of this machine's root. For ci/cluster, which adds Kubernetes,
# and for ci/systemd-node. The caller sets `state`, the folder of the node, and sources ci/common.bash before.
# shellcheck disable=SC2154 # state and top are the caller's

wait_s=180 # for each step of the start; it takes ten in all, unless the machine is busy

# The pid of the node's PID 1, if that process still lives. The kernel may have given the pid alone to another process.
node_pid() {
    local pid start boot stat after
    read -r pid start boot 2>/dev/null <"$state/identity" || return 1
    [ "$boot" = "$(cat /proc/sys/kernel/random/boot_id)" ] || return 1
    read -r stat 2>/dev/null <"/proc/$pid/stat" || return 1
    read -ra after <<<"${stat##*) }"
    [ "${after[0]}" != Z ] && [ "${after[19]}" = "$start" ] && echo "$pid"
}

in_node() {
    nsenter --target "$pid" --mount --uts --ipc --net --pid --cgroup --root="/proc/$pid/root" --wd="/proc/$pid/root" \
        env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/ LANG=C.UTF-8 TERM="${TERM:-dumb}" "$@"
}

# until WHAT LOG COMMAND...: waits until the command succeeds; on failure prints the end of the log.
until_true() {
    local what=$1 log=$2 start=$SECONDS
    shift 2
    until "$@" >/dev/null 2>&1; do
        if [ $((SECONDS - start)) -ge $wait_s ] || { [ -e "$state/identity" ] && ! node_pid >/dev/null; }; then
            tail -n 20 "$state/log/$log" >&2 || true
            die "$what did not come up within $wait_s s, or the node ended; the last words of $log are above."
        fi
        sleep 0.2
    done
}

# The cgroup hierarchies of this process, a line each: controllers and folder.
cgroups() {
    local controllers path
    while IFS=: read -r _ controllers path; do
        say "$controllers /sys/fs/cgroup/$([ -n "$controllers" ] && echo "${controllers#name=}" || echo unified)${path%/}"
    done </proc/self/cgroup
}

# Below the caller's own cgroups, so that the caller's limits also limit the node.
join_cgroups() {
    local controllers parent folder
    while read -r controllers parent; do
        if [ -z "$parent" ]; then parent=$controllers controllers=; fi
        folder=$parent/$1
        mkdir "$folder"
        echo "$folder" >>"$state/cgroups"
        if [[ ,$controllers, == *,cpuset,* ]]; then
            cat "$parent/cpuset.cpus" >"$folder/cpuset.cpus"
            cat "$parent/cpuset.mems" >"$folder/cpuset.mems"
            echo 1 >"$folder/cgroup.clone_children"
        fi
        echo "$BASHPID" >"$folder/cgroup.procs"
    done < <(cgroups)
}

# enter NAME [HOST ADDRESS]: namespaces first, then node-init; the process in between ends with the node and the node with it. Its cgroups
# begin with NAME.
enter() {
    local name=$1
    shift
    (
        exec </dev/null >"$state/log/node.log" 2>&1
        # Nor may a node that stays up hold what its caller had open, such as a lock.
        for descriptor in /proc/"$BASHPID"/fd/*; do
            descriptor=${descriptor##*/}
            [ "$descriptor" -le 2 ] || [ "$descriptor" -eq 255 ] || eval "exec $descriptor>&-" # 255 is bash's own, and not inherited
        done
        join_cgroups "$name.$(sha256sum <<<"$state" | head -c 8)"
        exec setsid unshare --mount --uts --ipc --net --pid --fork --cgroup --propagation private --kill-child -- \
            "$top/ci/kubernetes/node-init" "$state" "$@"
    ) &
    until_true "the node" node.log node_pid
    pid=$(node_pid)
    until_true "systemd" node.log booted
}

booted() { case $(in_node systemctl is-system-running) in running | degraded) ;; *) return 1 ;; esac; }

undo() {
    local status=$?
    trap - EXIT
    [ $status -eq 0 ] || halt
    exit $status
}

since() { awk -v a="$1" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }'; }

# Ends the node and removes its cgroups, even if the node died with its machine.
power_off() {
    local i folder left=
    if pid=$(node_pid); then
        kill -KILL "$pid" # all of its pid namespace goes with it, before it is gone itself
        for ((i = 0; i < 300; i++)); do
            node_pid >/dev/null || break
            sleep 0.1
        done
        ! node_pid >/dev/null || die "the node's PID 1 (process $pid) does not end. Something in it waits in the kernel: cat /proc/$pid/stack"
    fi
    for ((i = 0; i < 50; i++)); do
        left=
        while read -r folder; do
            [ ! -d "$folder" ] || find "$folder" -depth -type d -exec rmdir {} + 2>/dev/null || left+=" $folder"
        done < <(cat "$state/cgroups" 2>/dev/null)
        [ -n "$left" ] || break
        sleep 0.2
    done
    [ -z "$left" ] || die "these cgroups are still in use:$left. Their cgroup.procs lists the processes."
    rm -f "$state/cgroups"
    ! grep -F " $state/" /proc/self/mounts || die "these mounts below $state are not the node's own; unmount them, then run this again."
}

# Ends the node and removes its files too.
halt() {
    power_off
    rm -rf --one-file-system "${state:?}"
}
