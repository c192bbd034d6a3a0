# shellcheck shell=bash
# Measures the kubelet's publish call with a new and with a running Mountpoint Pod. It prints figures and sets no limits: machines differ.
# needs: nobody beside it
# shellcheck disable=SC2154 # given by ci/e2e
. ci/kubernetes/driver.bash

# Milliseconds of the first publish at this target, by the driver's log; later ones only refresh.
took() {
    cluster kubectl -n kube-system logs daemonset/s3-csi-node -c s3-plugin --tail=-1 |
        awk -v target="$1" 'index($0, target) && / published / && !found++' | sed -n 's/.*took_ms=\([0-9]*\).*/\1/p'
}
volume data
for pod in first second third; do
    workload $pod data
    wait_pod $pod
    ms=$(took "$(target_of $pod data)")
    [ -n "$ms" ] || fail "the driver's log does not say how long the publish for $pod took"
    say "publish for the $pod pod: $ms ms"
done
equal "they share one Mountpoint Pod" 1 "$(mountpoint_pods data | wc -l)"
say "memory of the node driver: $(cluster run sed -n 's/^VmRSS:[^0-9]*//p' "/proc/$(driver_pid)/status")"
