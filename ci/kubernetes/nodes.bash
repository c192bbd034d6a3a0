# shellcheck shell=bash
# Helpers for scenarios with a second node, besides driver.bash. `where=second` before a helper that looks at mounts means that node.
# shellcheck disable=SC2154,SC2034 # given by ci/e2e, and read by scenarios

second=node-2

# second_node: it is there, Ready, with the driver registered. One that another scenario left in another state is made anew.
second_node() {
    if ! is_ready "$second" || ! cluster second run true; then
        cluster second down
        cluster second up
    fi
    until_ok "the driver of $second registered" registered_at "$second"
    until_ok "the driver of $second ready" driver_ready_at "$second"
}
# second_node_with_data: besides, an object `random` of 4 MiB, whose SHA-256 is `sum`, in the bucket of the volume `data`.
second_node_with_data() {
    second_node
    head -c 4194304 /dev/urandom >"$scratch/random"
    sum=$(sha256sum <"$scratch/random" | cut -d ' ' -f 1)
    s3_put random "$scratch/random"
    volume data
}
is_ready() { [ "$(cluster kubectl get node "$1" -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}')" = True ]; }
registered_at() { cluster kubectl get csinode "$1" -o 'jsonpath={.spec.drivers[*].name}' | grep -w s3.csi.scality.com; }
driver_at() { cluster kubectl -n kube-system get pods -l app=s3-csi-node --field-selector "spec.nodeName=$1" -o "jsonpath={.items[*]$2}"; } # NODE JSONPATH
driver_ready_at() { driver_at "$1" '.status.conditions[?(@.type=="Ready")].status' | grep -x True; }

# at NODE: the selector of a workload for that node; `nodes` of workload.yaml.
at() { printf '{ kubernetes.io/hostname: %s }' "$1"; }

# nodes_of VOLUME: the nodes of its attachments and of its Mountpoint Pods, sorted.
nodes_of() {
    local pod pods
    pods=$(mountpoint_pods "$1") || return 1
    attachment "$1" .spec.nodeName | sort | tr '\n' ' ' || return 1
    printf '/'
    for pod in $pods; do cluster kubectl -n mount-s3 get pod "$pod" -o 'jsonpath={.spec.nodeName}{"\n"}'; done | sort | sed 's/^/ /' | tr -d '\n'
}
# nodes_are VOLUME NODES: an attachment and a Mountpoint Pod on each of them, and none elsewhere.
nodes_are() {
    local is
    is=$(nodes_of "$1") || { echo "$is, and then no answer"; return 1; }
    [ "$is" = "${2:+$2 }/${2:+ $2}" ] || { echo "attachments / Mountpoint Pods of $1 are on: $is"; return 1; }
}
