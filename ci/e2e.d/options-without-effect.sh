# shellcheck shell=bash
# A mount option that this driver leaves out does not stop the pod: an Event on the pod says so, once, and so does the log. An option
# that the driver sets itself appears in the log.
# shellcheck disable=SC2154 # given by ci/e2e
. ci/kubernetes/driver.bash

volume data options='[allow-delete, "endpoint-url=http://elsewhere.example", "log-directory /var/log/mine", "cache /var/cache/mine"]'
workload user data
wait_pod user
in_pod user sh -c 'echo hello >/data/hello'
equal "it is mounted, from the driver's store" hello "$(s3_get hello)"
until_ok "the pod is told" mount_refused user "MountOptionLeftOut: mount options have no effect: 'endpoint-url' ("
words=$(mount_refused user MountOptionLeftOut)
holds "it says why" "s3.endpointUrl of the chart" "$words"
holds "it names them all" "'log-directory' (" "$words"
holds "it names the field" "mountOptions of PersistentVolume $namespace-data" "$words"
[[ $words != *elsewhere* ]] || fail "it shows the value: $words"
# The kubelet publishes again about every ten seconds; the second time refreshes, and says nothing.
refreshed() { [ "$(said 'desc = "published"\|published volume' | wc -l)" -ge 2 ]; }
said() { cluster kubectl -n kube-system logs daemonset/s3-csi-node -c s3-plugin --tail=-1 | grep -F "$namespace-data" | grep -- "$1"; }
until_ok "the kubelet publishes again" refreshed
equal "lines of the log on options that are left out" 2 "$(said 'mount option left out' | wc -l)"
equal "lines of the log on options that are the driver's" 1 "$(said 'mount option overruled.*option="cache".*/local-cache' | wc -l)"
equal "Events" 1 "$(grep -c . <<<"$words")"
