# shellcheck shell=bash
# Measures how often a node driver at rest wakes up, which is less than 100 times in 30 s, and CreateVolume, of which the quickest of three takes less
# than a second.
# needs: nobody beside it
# needs: its name
# shellcheck disable=SC2154 # given by ci/e2e
. ci/kubernetes/driver.bash
. ci/kubernetes/gateway.bash

# How often its threads went to sleep, which they do after each wake-up.
sleeps() { cluster run sh -c "cat /proc/$(driver_pid)/task/*/status" | awk '/^voluntary_ctxt_switches/ { all += $2 } END { print all }'; }
before=$(sleeps)
sleep 30
wakes=$(($(sleeps) - before))
say "wake-ups of the node driver in 30 s without volumes, with the kubelet's probes: $wakes"
[ "$wakes" -lt 100 ] || fail "a driver at rest woke up $wakes times in 30 s"

quickest=""
trap 'for claim in one two three; do remove_class "$claim"; done' EXIT
for claim in one two three; do
    class_and_claim "$claim"
    volume=$(field "pvc/$claim" .spec.volumeName)
    ms=$(cluster kubectl -n kube-system logs -l app=s3-csi-controller -c s3-csi-controller --tail=-1 |
        awk -v name="$volume" 'index($0, "CreateVolume") && index($0, name)' | sed -n 's/.*took_ms=\([0-9]*\).*/\1/p' | head -n 1)
    [ -n "$ms" ] || fail "the controller's log does not say how long CreateVolume for $volume took"
    say "CreateVolume for the claim $claim: $ms ms"
    if [ -z "$quickest" ] || [ "$ms" -lt "$quickest" ]; then quickest=$ms; fi
done
[ "$quickest" -lt 1000 ] || fail "the quickest CreateVolume took $quickest ms"
kube delete pvc one two three --wait=false
