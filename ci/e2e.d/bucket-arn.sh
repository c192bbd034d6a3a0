# shellcheck shell=bash
# A bucket by the ARN of an access point: the engine asks AWS's host of that point, in the ARN's region, and no other, whatever the chart's endpoint
# is. A proxy notes where it goes to, and the lab has no way there. An ARN beside an endpoint, or beside path style, is refused by its field.
# shellcheck disable=SC2154,SC2016 # given by ci/e2e; programs are quoted
. ci/kubernetes/driver.bash
. ci/kubernetes/fronts.bash

trap end_front EXIT
front proxy 9022
arn=arn:aws:s3:eu-west-1:000000000000:accesspoint/lab
volume data attributes="{ bucketName: '$arn', mountpointEnv.HTTPS_PROXY: 'http://$node_ip:9022' }"
volume with-endpoint attributes="{ bucketName: '$arn', endpointUrl: '$endpoint' }"
volume with-path-style options='[force-path-style]' attributes="{ bucketName: '$arn' }"
for each in data with-endpoint with-path-style; do workload "$each" "$each"; done
asked() { noted | grep -Fx "CONNECT lab-000000000000.s3-accesspoint.eu-west-1.amazonaws.com:443"; }
until_ok "the access point's host is asked for" asked
equal "hosts besides" "" "$(noted | grep -vFx "$(asked | head -n 1)" | sort -u)"
until_ok "an ARN with an endpoint is refused" mount_refused with-endpoint "names another store"
until_ok "an ARN with path style is refused" mount_refused with-path-style "does not go with the ARN"
for each in with-endpoint with-path-style; do equal "Mountpoint Pods of $each" 0 "$(mountpoint_pods "$each" | wc -l)"; done
for each in data with-endpoint with-path-style; do
    kube delete pod "$each" --wait=false
    until_ok "pod $each gone" pod_gone "$each"
done
