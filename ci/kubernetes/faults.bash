# shellcheck shell=bash
# Helpers for scenarios that end parts of Kubernetes, besides scenario.bash.
# shellcheck disable=SC2154 # given by ci/e2e

# stop_part UNIT: ends a part of ci/kubernetes/components by SIGKILL. What it started goes on. systemd keeps the unit, as failed.
stop_part() {
    cluster run systemctl kill --kill-whom=main --signal=KILL "$1"
    until_ok "$1 ended" part_is_down "$1"
}
part_is_down() { ! cluster run systemctl is-active --quiet "$1" || { echo "$1 is active"; return 1; }; }

start_api_server() {
    cluster run systemctl start kube-apiserver
    until_ok "the API server" cluster kubectl get --raw /readyz
}
start_kubelet() { cluster run systemctl start kubelet; }
