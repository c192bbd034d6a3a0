# shellcheck shell=bash
# Functions of the judges. A judge sources this file with its two arguments in `dir` and `scratch`, and without `set -e`.

set -u
: "${dir:?}" "${scratch:?}"

# try CASE COMMAND...: the case fails if the command does, at its first error. Its last words are shown then.
try() {
    local name=$1 log status
    shift
    log=$(mktemp -p "$scratch")
    (set -euo pipefail; "$@") >"$log" 2>&1 </dev/null
    status=$?
    if [ $status -eq 0 ]; then
        printf 'ok: %s\n' "$name"
    else
        printf 'FAILED: %s: status %d, %s\n' "$name" $status "$(tail -n 3 "$log" | tr '\n' ' ' | cut -c 1-300)"
        { printf '== %s\n' "$name"; cat "$log"; } >&2
    fi
    rm -f "$log"
}

# share N: N sixtieths of the seconds of the judges, at least two.
share() { echo $((JUDGE_SECONDS * $1 / 60 > 2 ? JUDGE_SECONDS * $1 / 60 : 2)); }
