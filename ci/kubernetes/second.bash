# shellcheck shell=bash
# The second node of a cluster: namespaces of its own beside the first one's, and only a kubelet with its containers. For ci/cluster, which
# sources node.bash before and sets `state` and `pid`, those of the first node.
# shellcheck disable=SC2154 # state, pid, top and ip are the caller's

second_name=node-2
second_ip=10.60.0.2

# on_second COMMAND...: a function of node.bash for the second node.
on_second() {
    local state=$state/second pid
    pid=$(node_pid) || true
    "$@"
}

need_second() { on_second node_pid >/dev/null || die "no second node is up. Start it: ci/cluster second up"; }

second_up() {
    local start=$EPOCHREALTIME etc=$state/second/etc
    ! on_second node_pid >/dev/null || die "a second node is up already; end it with: ci/cluster second down"
    exec 7<"$state"
    flock -n 7 || die "another ci/cluster starts the second node; wait for it."
    [ ! -e "$state/second" ] || on_second halt
    mkdir -m 700 "$state/second"
    undo_in=$state # bash runs the trap where it stops, which may be below on_second
    trap undo_second EXIT
    mkdir "$state/second"/{upper,work,node,log,etc,containerd,kubelet}
    cp "$state/kubernetes" "$state/second/"
    cp -a "$(cat "$state/packages")/." "$state/second/upper/"
    install -m 644 -D "$state/etc/pki/ca.crt" "$etc/pki/ca.crt"
    install -m 600 "$state/etc/second.conf" "$etc/kubelet.conf"
    cp "$state/etc"/{containerd.toml,components} "$etc/"
    sed "s/^address: .*/address: $second_ip/" "$state/etc/kubelet.yaml" >"$etc/kubelet.yaml"
    mkdir "$etc/cni"
    sed 's/10\.61\.0\./10.61.1./' "$state/etc/cni/10-pods.conflist" >"$etc/cni/10-pods.conflist"
    printf '%s\n' "$@" >"$state/second/kubelet-options"
    second_start
    trap - EXIT
    say "$second_name is Ready after $(since "$start") s."
}

undo_second() {
    local status=$? state=$undo_in
    trap - EXIT
    [ $status -eq 0 ] || on_second halt
    exit $status
}

# From new namespaces to Ready, the first time and each time it is started again.
second_start() {
    local image images=()
    on_second enter mount-s3-cluster "$second_name" "$second_ip"
    connect "$(on_second node_pid)"
    on_second in_node bash /etc/kubernetes/components runtime
    until_true "its containerd" ../second/log/containerd-node.log on_second in_node ctr version
    # Images on the disk are there again when it is started again.
    if [ ! -e "$state/second/rebooted" ]; then
        while read -r image; do
            # A scenario may have loaded a file of its own, which went with it.
            if [ -e "$image" ]; then images+=("$image"); fi
        done < <(sort -u "$state/images")
        on_second import "${images[@]}"
    fi
    mapfile -t options < <(grep . "$state/second/kubelet-options")
    on_second in_node bash /etc/kubernetes/components worker "$second_name" "$second_ip" "${options[@]}"
    until_true "its kubelet" ../second/log/kubelet.log second_ready
}

second_ready() { [ "$(node_field "$second_name" '{.status.nodeInfo.bootID}')" = "$(on_second in_node cat /run/boot_id)" ] && is_ready "$second_name"; }

# connect PID: the other half of that node's eth0 comes to the first node, where a bridge has the other half of the first one's.
connect() {
    local second=$1
    in_first() { nsenter --target "$pid" --net ip "$@"; }
    in_first link show nodes >/dev/null 2>&1 || { in_first link add nodes type bridge && in_first link set nodes up && in_first link set eth0p master nodes; }
    # The rest of a node that was killed may still be there for a moment.
    in_first link delete "$second_name" 2>/dev/null || true
    nsenter --target "$second" --net ip link set eth0p netns "$pid" name "$second_name"
    in_first link set "$second_name" up master nodes
    in_first route replace 10.61.1.0/24 via "$second_ip"
    nsenter --target "$second" --net ip route replace 10.61.0.0/24 via "$ip"
}

# Cuts its power, as it were: nothing in it is told. Its disks stay.
second_off() { on_second power_off; }

# With the same disks, a fresh /run and another boot id.
second_on() {
    [ -e "$state/second/identity" ] || die "there is no second node to start again: ci/cluster second up"
    ! on_second node_pid >/dev/null || die "the second node runs; ci/cluster second off ends it."
    mv "$state/second/identity" "$state/second/rebooted"
    second_start
}

# Ends it and takes it out of the cluster, with what ran on it.
second_down() {
    [ -e "$state/second" ] || return 0
    on_second halt
    client kubectl delete node "$second_name" --ignore-not-found
    client kubectl delete pods --all-namespaces --field-selector "spec.nodeName=$second_name" --force --grace-period=0
}
