# shellcheck shell=bash
# Helpers for scenarios that look at the requests of engines, besides scenario.bash: a front before a store.
# shellcheck disable=SC2154 # namespace, node_ip and top are given by ci/e2e

fronts=/run/$namespace

# front_heads PORT TO_PORT: passes requests at PORT of the node on to TO_PORT, and notes each.
front_heads() {
    cluster run mkdir -m 700 "$fronts"
    cluster run sh -c "cat >$fronts/front.py" <"$top/ci/kubernetes/front.py"
    cluster run systemd-run --quiet --collect --unit="$namespace-heads" -p "StandardOutput=append:$fronts/heads.log" -p "StandardError=append:$fronts/heads.log" \
        python3 "$fronts/front.py" heads "$@"
    until_ok "something listens at $1" cluster net bash -c ": </dev/tcp/$node_ip/$1"
}

# heads: the requests so far: method, path and session token, a line each.
heads() { cluster run cat "$fronts/heads.log"; }

# Ends the front; for a trap.
end_front() {
    cluster run systemctl stop "$namespace-heads" || true # it may not have begun
    cluster run rm -rf "$fronts"
}
