# shellcheck shell=bash
# node.mounter becomes pod while the engines pod of the node serves a pod. The engines pod stays, and the pod reads and writes on; new pods get a
# Mountpoint Pod. Once the pod has ended, the driver unmounts its source. Then node.mounter becomes shared again while a Mountpoint Pod serves a pod,
# which reads on, and whose source is unmounted by the driver of that mode.
# needs: its name
# needs: nobody beside it
# shellcheck disable=SC2154 # given by ci/e2e
. ci/kubernetes/driver.bash

put_back() { release_driver; }
trap put_back EXIT
release_driver --set node.mounter=shared --set shared.experimental=true
seq 1 200000 >"$scratch/numbers"
sum=$(sha256sum <"$scratch/numbers")
s3_put numbers.txt "$scratch/numbers"
volume one
workload first one
wait_pod first
engines_pod() { cluster kubectl -n "$driver_namespace" get pods -l app=s3-csi-engines -o 'jsonpath={.items[*].metadata.uid}'; }
pod=$(engines_pod)
begin_to_read() { # POD
    in_pod "$1" sh -c 'while ! test -e /tmp/stop; do sha256sum </data/numbers.txt || exit 1; sleep 0.05; done' >"$scratch/reads.$1" 2>&1 &
    reading=$!
}
gets_on() { [ "$(wc -l <"$scratch/reads.$1")" -gt "$2" ]; }
end_reading() { # POD
    until_ok "$1 reads on" gets_on "$1" "$(wc -l <"$scratch/reads.$1")"
    in_pod "$1" touch /tmp/stop
    wait $reading || fail "the reader ended with an error: $(tail -n 1 "$scratch/reads.$1")"
    equal "reads of $1, all right" "$sum" "$(sort -u "$scratch/reads.$1")"
}
none_below() { [ -z "$(mounts_below "$1")" ] || { mounts_below "$1"; return 1; }; }

begin_to_read first
until_ok "first reads" gets_on first 0
release_driver --set node.mounter=pod --set shared.experimental=true
equal "the engines pod" "$pod" "$(engines_pod)"
workload second one
wait_pod second
equal "what second reads" "$sum" "$(in_pod second sha256sum /data/numbers.txt | sed 's|/data/numbers.txt|-|')"
is_mounted "$plugin/mnt/mp-"
is_mounted "$plugin/mnt/sh-"
in_pod first sh -c 'echo written >/data/written'
equal "the object" written "$(s3 GET "$bucket/written")"
end_reading first
remove_pod first
wait_s=300 until_ok "the source of the engines pod has left" none_below "$plugin/mnt/sh-"
equal "the engines pod, without a mount" "$pod" "$(engines_pod)"

# Back, under a Mountpoint Pod.
begin_to_read second
until_ok "second reads" gets_on second 0
release_driver --set node.mounter=shared --set shared.experimental=true
workload third one
wait_pod third
is_mounted "$plugin/mnt/sh-"
end_reading second
remove_pod second
wait_s=300 until_ok "the source of the Mountpoint Pod has left" none_below "$plugin/mnt/mp-"
equal "what third reads" "$sum" "$(in_pod third sha256sum /data/numbers.txt | sed 's|/data/numbers.txt|-|')"
remove_pod third
wait_s=300 until_ok "all sources have left" none_below "$plugin/mnt/"
