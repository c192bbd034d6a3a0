# shellcheck shell=bash
# Functions that the scripts in clean roots share. URL is the store's.
set -euo pipefail

# Without any key, a mount fails before it mounts.
export AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=testsecret AWS_REGION=us-east-1 DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2034 # read by the scripts
store=(--endpoint-url "$URL" --force-path-style)
cd /tmp

fail() { printf 'FAILED: %s\n' "$*" >&2; exit 1; }
update() { apt-get update -qq >/tmp/apt.log 2>&1 || { cat /tmp/apt.log >&2; fail "apt-get update"; }; }
install() { apt-get install -y -qq "$@" >/tmp/apt.log 2>&1 || { tail -n 20 /tmp/apt.log >&2; fail "apt could not install $*"; }; }
