# shellcheck shell=bash
# A node's network is cut for minutes while pods there read and write; the node itself goes on. Kubernetes finds it NotReady and evicts a
# pod that does not tolerate that: one on the other node takes its place and reads what was stored. A pod that tolerates it stays. When the
# node can be reached again, the evicted pod goes with all that was made for it, and the one that stayed works on through the mount of
# before. Whatever a pod was told is stored, is stored, and no mount is there twice.
# needs: a second node
# needs: its name
# shellcheck disable=SC2154,SC2034,SC2016 # given by ci/e2e, and read by its functions; programs are quoted
. ci/kubernetes/driver.bash
. ci/kubernetes/nodes.bash

# Kubernetes waits 50 s until it gives a node up, and the kubelet asks again for a mount after up to two minutes.
wait_s=240
cut_s=150
second_node_with_data
volume apart
# writes POD: what it copies is an object named by its SHA-256, and it says whether the copy succeeded. Only a wrong byte ends it.
writes() {
    printf '%s' 'until cp /data/random /tmp/random; do sleep 0.2; done; while :; do ' \
        'head -c 300000 /dev/urandom >/tmp/file; is=$(sha256sum </tmp/file | cut -c 1-64); ' \
        "if cp /tmp/file /data/$1-\$is 2>/dev/null; then echo stored \$is; else echo failed \$is; fi; " \
        'if cp /data/random /tmp/read 2>/dev/null; then cmp /tmp/read /tmp/random || exit 1; else echo unread; fi; sleep 1; done'
}
tolerates() { printf '[{ key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute%s }]' "$1"; }
workload goes apart nodes="$(at "$second")" script="$(writes goes)" tolerations="$(tolerates ', tolerationSeconds: 5')"
workload stays data nodes="$(at "$second")" script="$(writes stays)" tolerations="$(tolerates '')"
busy_workload here data nodes="$(at node)"
for pod in goes stays here; do wait_pod $pod; done
stored() { kube logs "$1" | sed -n "s/^stored //p"; }
has_stored() { [ "$(stored "$1" | wc -l)" -ge "$2" ] || [ "$(errors_of "$1")" != 0 ]; }
for pod in goes stays; do until_ok "$pod has stored something" has_stored $pod 3; done
declare -A uids
for pod in goes stays; do uids[$pod]=$(uid_of $pod); done
serves=$(mountpoint_pods data | sort)
old=$(mountpoint_pods apart)

stored goes >"$scratch/goes"
cluster run ip link set "$second" down
cut=$SECONDS
is_not_ready() { ! is_ready "$second"; }
is_ending() { [ -n "$(field "pod/$1" .metadata.deletionTimestamp)" ]; }
until_ok "the node is NotReady" is_not_ready
until_ok "the pod goes is evicted" is_ending goes
say "it is evicted $((SECONDS - cut)) s after the cut"
workload instead apart nodes="$(at node)"
wait_pod instead
# whole POD FOLDER: says which of the objects it wrote has other bytes than its name says.
whole() { in_pod "$1" sh -c "for it in /data/$2-*; do [ \$(sha256sum <\$it | cut -c 1-64) = \${it#/data/$2-} ] || echo \$it; done"; }
equal "what is damaged of what the evicted pod wrote" "" "$(whole instead goes)"
in_pod instead sh -c 'ls /data' | sed -n 's/^goes-//p' | sort >"$scratch/found"
equal "what is lost of what the evicted pod stored" "" "$(sort "$scratch/goes" | comm -23 - "$scratch/found")"
in_pod instead sh -c 'echo instead >/data/instead'
equal "what the other pod writes" instead "$(s3_get instead)"
nodes_are apart "node $second" || fail "while the evicted pod may still use its volume"
noticed_nothing here
[ -z "$(field pod/stays .metadata.deletionTimestamp)" ] || fail "the pod that tolerates it was evicted"
while [ $((SECONDS - cut)) -lt $cut_s ]; do sleep 1; done

cluster run ip link set "$second" up
say "the node can be reached again, $((SECONDS - cut)) s after the cut"
until_ok "the node is Ready" is_ready "$second"
until_ok "the evicted pod is gone" pod_gone goes
until_ok "what was made for it is gone" nodes_are apart node
where=second
until_ok "no mount of it is left" none_mounted_below "$kubelet/pods/${uids[goes]}/"
until_ok "no directory of it is left" is_missing "$kubelet/pods/${uids[goes]}"
until_ok "no source of it is left" is_missing "$plugin/mnt/$old"

until_ok "stays can be asked" in_pod stays true
before=$(stored stays | wc -l)
until_ok "stays stores again" has_stored stays $((before + 5))
equal "how often stays met a wrong byte" 0 "$(errors_of stays)"
equal "stays is the pod of before" "${uids[stays]}" "$(uid_of stays)"
say "while the network was cut, stays met $(kube logs stays | grep -c '^failed') failed writes and $(kube logs stays | grep -c '^unread') failed reads"
equal "the Mountpoint Pods of its volume are those of before" "$serves" "$(mountpoint_pods data | sort)"
equal "targets of stays" 1 "$(mounts_below "$kubelet/pods/${uids[stays]}/" | wc -l)"
equal "sources on its node" 1 "$(mounts_below "$plugin/mnt/" | wc -l)"
noticed_nothing here
stored stays | sort >"$scratch/stays"
equal "what is damaged of what stays wrote" "" "$(whole here stays)"
in_pod here sh -c 'ls /data' | sed -n 's/^stays-//p' | sort >"$scratch/found"
equal "what is lost of what stays stored" "" "$(comm -23 "$scratch/stays" "$scratch/found")"

kube delete pod stays here instead --wait=false
for pod in stays here instead; do until_ok "pod $pod gone" pod_gone $pod; done
for each in data apart; do until_ok "nothing of $each is left" nodes_are $each ""; done
until_ok "no mount is left on the node" none_mounted_below "$kubelet"
