# shellcheck shell=bash
# Functions that ci/package and ci/release share: programs that Zig compiles and links from pinned input, notices of licences, bills of materials.

# shellcheck source=ci/common.bash
. "$(dirname "${BASH_SOURCE[0]}")/../common.bash"

# The oldest C library that the programs run with: Debian 10, RHEL 8.
glibc=2.28
cargo_zigbuild_version=0.24.0
zig_version=0.15.1
cargo_about_version=0.9.3
cargo_cyclonedx_version=0.5.9
cargo_auditable_version=0.7.7

version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' "$top/Cargo.toml")
[ -n "$version" ] || die "Cargo.toml names no version below [workspace.package]"
# The same input gives the same packages: nothing is younger than the commit. The archive of the sources names its date in a file.
if [ -z "${SOURCE_DATE_EPOCH-}" ]; then
    SOURCE_DATE_EPOCH=$(cat "$top/SOURCE_DATE_EPOCH" 2>/dev/null || git -C "$top" log -1 --format=%ct 2>/dev/null || echo 0)
fi
export SOURCE_DATE_EPOCH

# need_zig: sets `zig` to a folder with Zig and cargo-zigbuild, and `auditable` to cargo-auditable.
need_zig() {
    need_rust
    cache_folder
    exec 9>"$cache/package.lock"
    flock 9
    zig=$cache/zig-$zig_version
    if [ ! -f "$zig/whole" ]; then
        python3 -c 'import venv, ensurepip' 2>/dev/null || need_packages python3 python3-venv
        rm -rf "$zig"
        python3 -m venv "$zig" || die "python3 makes no virtual environment at $zig."
        retried "$zig/bin/pip" install --quiet "cargo-zigbuild==$cargo_zigbuild_version" "ziglang==$zig_version" ||
            die "pip could not install ziglang $zig_version and cargo-zigbuild $cargo_zigbuild_version."
        : >"$zig/whole"
    fi
    cargo_tool cargo-auditable "$cargo_auditable_version"
    auditable=$tool
    exec 9>&-
}

# zigbuild TARGET OPTION...: a release build for that target, with the oldest C library if it is GNU's. No path of this machine is in it: the crates
# have one name each, wherever they lie. Each program holds the list of its libraries, by cargo-auditable.
zigbuild() {
    local target=$1 home=${CARGO_HOME:-$HOME/.cargo} folder maps=()
    shift
    [ -d "$(rustc --print sysroot)/lib/rustlib/$target" ] || rustup target add "$target"
    # The folder of the registry has its name once something is in it.
    cargo fetch --quiet --locked --target "$target"
    # The last one that fits counts.
    for folder in "$top=." "$home=cargo" "${CARGO_TARGET_DIR:-$top/target}=target" "$top/vendor=crates"; do maps+=("--remap-path-prefix=$folder"); done
    for folder in "$home"/registry/src/*/; do [ ! -d "$folder" ] || maps+=("--remap-path-prefix=${folder%/}=crates"); done
    # `cargo auditable` would name itself by its path, and cargo hashes that name into each program.
    PATH=$(dirname "$auditable"):$zig/bin:$PATH RUSTFLAGS="-C link-arg=-Wl,--build-id=sha1 ${maps[*]}" \
        RUSTC_WORKSPACE_WRAPPER=cargo-auditable \
        CARGO_AUDITABLE_ORIG_ARGS='{"offline":false,"locked":true,"frozen":false,"config":[]}' \
        nice -n 10 cargo zigbuild --quiet --release --locked --target "${target/%-gnu/-gnu.$glibc}" "$@"
}

# newest_glibc PROGRAM...: the C library that they need.
newest_glibc() {
    local program
    for program in "$@"; do readelf --version-info --wide "$program"; done | grep -oE 'GLIBC_[0-9.]+' | cut -d_ -f2 | sort -uV | tail -n 1
}

# needs_no_more PROGRAM [LIBRARY]: refuses one that asks for a newer C library or for another library, but LIBRARY.
needs_no_more() {
    local newest other
    newest=$(newest_glibc "$1")
    [ "$(printf '%s\n' "$newest" "$glibc" | sort -V | tail -n 1)" = "$glibc" ] || die "$1 wants glibc $newest, and the packages promise $glibc."
    other=$(readelf --dynamic --wide "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | grep -vE '^(lib(c|m|dl|rt|pthread'"${2:+|$2}"')\.so\.|ld-linux)' || true)
    [ -z "$other" ] || die "$1 wants $other, and the packages depend on the C library alone."
}

# cargo_tool NAME VERSION OPTION...: installs that program of cargo's registry once, and sets `tool` to its path.
cargo_tool() {
    local root=$cache/$1-$2
    tool=$root/bin/$1
    [ -x "$tool" ] || {
        say "Installing $1 $2 with cargo (a minute or two, once)."
        cargo install --quiet --locked --root "$root" "$1@$2" "${@:3}"
    }
}

# need_bills: sets `about` and `cyclonedx`.
need_bills() {
    cache_folder
    exec 9>"$cache/package.lock"
    flock 9
    cargo_tool cargo-about "$cargo_about_version" --features cli
    about=$tool # some minutes of one processor: it compares each licence with those it knows
    cargo_tool cargo-cyclonedx "$cargo_cyclonedx_version"
    cyclonedx=$tool
    exec 9>&-
}

# notices MEMBER FILE: the licences of the crates that this member of the workspace needs.
notices() {
    "$about" generate --locked --fail --config ci/package.d/about.toml --manifest-path "$1/Cargo.toml" --output-file "$2" ci/package.d/about.hbs
}

# bill MEMBER ARCH FILE: its software bill of materials, as CycloneDX has it.
bill() {
    local name=bill-$$-$2.cdx
    "$cyclonedx" cyclonedx --quiet --manifest-path "$1/Cargo.toml" --format json --spec-version 1.5 --no-build-deps \
        --target "$2-unknown-linux-gnu" --override-filename "$name"
    # It names this folder.
    sed "s|path+file://$top/|path+file:|g" "$1/$name.json" >"$3"
    # It writes one beside each manifest of the workspace.
    find . -path ./target -prune -o -name "$name.json" -type f -exec rm {} +
}
