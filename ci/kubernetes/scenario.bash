# shellcheck shell=bash
# Helpers for the scenarios of ci/e2e.d. ci/e2e sources this file and then the scenario, in a separate shell with `set -e`.
#
# Given: name, namespace (exists, empty), bucket (exists, empty, in the store), node_ip, scratch (a folder), image (busybox).
# The scenario removes nothing: its namespace, the volumes claimed from it and its scratch go when it ends.

# shellcheck disable=SC2154 # given by ci/e2e, see above

# The bound of a wait that names none. Generous: a busy machine is no failure, it only delays the news of one.
wait_s=${E2E_WAIT_S:-120}

# Ends the scenario, also from within a wait: 99 says that waiting is no use.
fail() { printf 'FAILED: %s\n' "$*" >&2; exit 99; }

# A cluster that is not the first one has a state of its own.
cluster_state=
cluster() { "$top/ci/cluster" ${cluster_state:+--state "$cluster_state"} "$@"; }
kube() { cluster kubectl --namespace "$namespace" "$@"; }

# template FILE [KEY=VALUE]...: prints it with @KEY@ replaced; @name@, @namespace@, @bucket@, @image@, @endpoint@, @node_ip@ are known.
template() {
    local text pair left
    text=$(cat "$1")
    shift
    for pair in "$@" name="$name" namespace="$namespace" bucket="$bucket" image="$image" endpoint="$endpoint" node_ip="$node_ip"; do
        text=${text//"@${pair%%=*}@"/"${pair#*=}"}
    done
    left=$(grep -oE '@[a-z_]+@' <<<"$text" | sort -u | tr '\n' ' ' || true)
    [ -z "$left" ] || fail "a template was left with ${left}and no value for it"
    printf '%s\n' "$text"
}

# apply FILE [KEY=VALUE]...: a manifest of ci/e2e.d, or - for standard input.
apply() {
    local file=$1
    shift
    [ "$file" = - ] || file=$top/ci/e2e.d/$file
    template "${file/#-//dev/stdin}" "$@" | kube apply -f -
}

# until_ok WHAT COMMAND...: waits, at most wait_s, for the command to succeed. Its last words are shown if it never does.
until_ok() {
    local what=$1 start=$SECONDS words status
    shift
    while
        status=0
        words=$("$@" 2>&1) || status=$?
        [ $status -ne 0 ]
    do
        [ $status -ne 99 ] || fail "$what: ${words#FAILED: }"
        [ $((SECONDS - start)) -lt "$wait_s" ] || fail "$what: not within $wait_s s; the last words of $*: $words"
        sleep 0.3
    done
}

# field OBJECT PATH: such as `field pod/reader .status.phase`.
field() { kube get "$1" -o "jsonpath={$2}"; }
field_is() {
    local is
    is=$(field "$1" "$2") || return 1
    printf '%s %s is "%s"' "$1" "$2" "$is"
    [ "$is" = "$3" ]
}

# Fails early where waiting is no use.
pod_ready() {
    local phase
    phase=$(field "pod/$1" .status.phase)
    case $phase in Failed | Succeeded) fail "pod $1 ended ($phase) instead of being ready: $(kube logs "$1" --tail=20 2>&1)" ;; esac
    [ "$(field "pod/$1" '.status.conditions[?(@.type=="Ready")].status')" = True ] || { kube get pod "$1" 2>&1; return 1; }
}
wait_pod() { until_ok "pod $1 ready" pod_ready "$1"; }

# An API server that does not answer says nothing of the pod.
pod_gone() {
    local is
    is=$(kube get pod "$1" --ignore-not-found -o name) && [ -z "$is" ]
}
# remove_pod POD: deletes it and waits until it, and so each of its volumes, is gone.
remove_pod() {
    kube delete pod "$1" --wait=false
    until_ok "pod $1 gone" pod_gone "$1"
}

# event TEXT: an event of the namespace whose reason or message holds it.
event() { kube get events -o 'jsonpath={range .items[*]}{.reason}: {.message}{"\n"}{end}' | grep -F -- "$1"; }

in_pod() {
    local pod=$1
    shift
    kube exec "$pod" -- "$@"
}

equal() { [ "$2" = "$3" ] || fail "$1: expected \"$2\", found \"$3\""; }
holds() { [[ $3 == *"$2"* ]] || fail "$1: expected to hold \"$2\", found \"$3\""; }
# refused WHAT TEXT COMMAND...: it must fail, and say TEXT.
refused() {
    local what=$1 text=$2 words
    shift 2
    ! words=$("$@" 2>&1) || fail "$what: must be refused, but $* succeeded: $words"
    [[ $words == *"$text"* ]] || fail "$what: must be refused with \"$text\", was refused with: $words"
}

# use_store s3server|versitygw: which of the two stores the functions below speak to. Pods reach it at $endpoint.
use_store() {
    store=$1
    case $store in
        s3server) endpoint=http://$node_ip:9000 ;;
        versitygw) endpoint=http://$node_ip:9001 ;;
        *) fail "there is no store $store" ;;
    esac
}

# s3 METHOD PATH [CURL-OPTION]...: a signed request, PATH from the bucket's name on. The keys go in by standard input.
s3() {
    local method=$1 path=$2
    shift 2
    printf 'user = "%s:%s"\n' "$access_key" "$secret_key" | cluster net env -u HTTP_PROXY -u http_proxy -u ALL_PROXY -u all_proxy \
        curl --config - --silent --show-error --fail-with-body --max-time 60 --aws-sigv4 aws:amz:us-east-1:s3 \
        -H 'x-amz-content-sha256: UNSIGNED-PAYLOAD' --request "$method" "$@" "$endpoint/$path"
}
s3_bucket() { s3 PUT "$1"; }
s3_put() { s3 PUT "$bucket/$1" --upload-file "$2"; } # KEY FILE
s3_get() { s3 GET "$bucket/$1"; }                    # KEY
s3_delete() { s3 DELETE "$bucket/$1"; }              # KEY
s3_keys() { s3 GET "$bucket?list-type=2" | grep -oE '<Key>[^<]*' | cut -c6- || true; }

# s3_url KEY: a GET that needs no more keys, for one hour. KEY holds only letters, digits and -._~/.
s3_url() {
    ACCESS_KEY=$access_key SECRET_KEY=$secret_key python3 - "$endpoint" "/$bucket/$1" <<'PYTHON'
import hashlib, hmac, os, sys, time
from urllib.parse import quote, urlencode

endpoint, path = sys.argv[1:]
now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
scope = f"{now[:8]}/us-east-1/s3/aws4_request"
query = urlencode(sorted({
    "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
    "X-Amz-Credential": f"{os.environ['ACCESS_KEY']}/{scope}",
    "X-Amz-Date": now,
    "X-Amz-Expires": "3600",
    "X-Amz-SignedHeaders": "host",
}.items()), quote_via=quote, safe="")
host = endpoint.split("://")[1]
request = "\n".join(["GET", path, query, f"host:{host}", "", "host", "UNSIGNED-PAYLOAD"])
text = "\n".join(["AWS4-HMAC-SHA256", now, scope, hashlib.sha256(request.encode()).hexdigest()])
key = ("AWS4" + os.environ["SECRET_KEY"]).encode()
for part in [*scope.split("/"), text]:
    key = hmac.new(key, part.encode(), hashlib.sha256).digest()
print(f"{endpoint}{path}?{query}&X-Amz-Signature={key.hex()}")
PYTHON
}
