# shellcheck shell=bash
# Helpers for scenarios that look at the requests of engines, besides scenario.bash: a front before a store, or a proxy.
# shellcheck disable=SC2154 # namespace, node_ip and top are given by ci/e2e

fronts=/run/$namespace

# front heads PORT TO_PORT: passes requests at PORT of the node on to TO_PORT, and notes each. front proxy PORT: makes tunnels, and notes where to.
front() {
    cluster run mkdir -p -m 700 "$fronts"
    cluster run sh -c "cat >$fronts/front.py" <"$top/ci/kubernetes/front.py"
    cluster run systemd-run --quiet --collect --unit="$namespace-front" -p "StandardOutput=append:$fronts/log" -p "StandardError=append:$fronts/errors" \
        python3 "$fronts/front.py" "$@"
    until_ok "something listens at $2" cluster net bash -c ": </dev/tcp/$node_ip/$2"
}

# noted: what the front noted so far, a line each: method, path and session token, or CONNECT and the host.
noted() { cluster run cat "$fronts/log"; }

# Ends the front; for a trap.
end_front() {
    cluster run systemctl stop "$namespace-front" || true # it may not have begun
    cluster run rm -rf "$fronts"
}
