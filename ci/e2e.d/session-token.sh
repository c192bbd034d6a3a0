# shellcheck shell=bash
# A volume's Secret with a session token. Each request of the engine carries it, another token of the Secret takes its place without a restart, and
# a Secret that loses its token drops it. Nobody shows a token. A front before the store notes what comes.
# needs: nobody beside it
# shellcheck disable=SC2154,SC2016 # given by ci/e2e; programs are quoted
. ci/kubernetes/driver.bash
. ci/kubernetes/fronts.bash

put_back() {
    end_front
    release_driver
}
trap put_back EXIT
front heads 9019 9000
url=http://$node_ip:9019
release_driver --set "s3.allowedEndpoints={$url}"

# keys_with [TOKEN]
keys_with() {
    kube create secret generic own --dry-run=client -o yaml --from-literal="access_key_id=$access_key" --from-literal="secret_access_key=$secret_key" \
        ${1:+"--from-literal=session_token=$1"}
}
first=first$(openssl rand -hex 8) second=second$(openssl rand -hex 8)
keys_with "$first" | kube create -f -
volume data attributes="{ bucketName: $bucket, endpointUrl: '$url' }" secret="{ name: own, namespace: $namespace }"
workload writer data script='while :; do date >/data/beat && echo beat; sleep 0.5; done'
wait_pod writer
tokens() { noted | grep -oE 'token=.*' | sort -u; }
last_token_is() {
    local is
    is=$(noted | tail -n 1) || return 1
    printf 'the last request: %s' "$is"
    [[ $is == *"token=$1" ]]
}
until_ok "the first token in requests" last_token_is "$first"
equal "tokens of all requests so far" "token=$first" "$(tokens)"

engine_before=$(engine)
keys_with "$second" | kube replace -f -
until_ok "the second token in requests" last_token_is "$second"
keys_with | kube replace -f -
until_ok "requests without a token" last_token_is none
equal "the same engine" "$engine_before" "$(engine)"
equal "what the writer says besides" "" "$(kube logs writer | grep -v '^beat$' || true)"
equal "how often it was restarted" 0 "$(errors_of writer)"
for token in "$first" "$second"; do
    ! cluster run sh -c 'cat /var/log/pods/*/*/*.log /proc/[0-9]*/cmdline 2>/dev/null' | grep -aqF "$token" || fail "a token is shown"
done
remove_pod writer
