# shellcheck shell=bash
# Suites that are built from the sources of Debian's packages, once: ci/judges sources this file with the folder of all suites in `suites`.

: "${suites:?}"

# unpack_source PACKAGE DIR: the source of its maker, without Debian's changes. No entry of the machine's own lists changes.
unpack_source() {
    local work file
    work=$(mktemp -d)
    chmod 755 "$work" # apt fetches as a user of its own
    mkdir -p "$work"/{parts,lists/partial,source}
    for file in /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list; do
        [ -e "$file" ] || continue
        sed 's/^Types:.*/Types: deb-src/; s/^deb /deb-src /' "$file" >"$work/parts/debian.${file##*.}"
    done
    local options=(-qq -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$work/parts" -o "Dir::State::lists=$work/lists")
    if ! (
        retried apt-get update "${options[@]}"
        cd "$work/source"
        retried apt-get source --download-only "${options[@]}" "$1"
    ) >"$work/log" 2>&1; then
        tail -n 15 "$work/log" >&2
        rm -rf "$work"
        die "apt could not fetch the source of $1; its last words are above."
    fi
    rm -rf "$2.new"
    mkdir -p "$2.new"
    tar -C "$2.new" --strip-components=1 -xf "$(find "$work/source" -name '*.orig.tar.*' ! -name '*.asc')"
    rm -rf "$work"
    mv "$2.new" "$2"
}

# git with what its tests need, and nothing of the network: two minutes on two cores.
git_suite() {
    [ ! -e "$suites/git/built" ] || return 0
    rm -rf "$suites/git"
    unpack_source git "$suites/git"
    say "Building git's tests (two minutes, once)."
    make -s -C "$suites/git" -j "$(nproc)" CFLAGS='-O1 -w' NO_CURL=1 NO_EXPAT=1 NO_GETTEXT=1 NO_OPENSSL=1 NO_PYTHON=1 NO_TCLTK=1 >/dev/null
    : >"$suites/git/built"
}

# sqlite's programs for the library that Debian has. Its tests take up to a minute each: here, 3 seconds.
sqlite_suite() {
    local source=$suites/sqlite-source out=$suites/sqlite/bin
    [ ! -e "$out/mptester" ] || return 0
    rm -rf "$source"
    unpack_source sqlite3 "$source"
    sed -i -E 's/(", )[0-9]{4,5} \}/\13000 }/' "$source/test/threadtest3.c"
    mkdir -p "$out" "$suites/mptest"
    gcc -O1 -w -I "$source/src" -I "$source/test" -o "$out/threadtest3" "$source/test/threadtest3.c" "$source/src/test_multiplex.c" -lsqlite3 -lpthread
    cp "$source"/mptest/*.test "$source"/mptest/*.subtest "$suites/mptest"
    gcc -O1 -w -o "$out/mptester" "$source/mptest/mptest.c" -lsqlite3 -lpthread
    rm -rf "$source"
}

# Nothing is installed: Debian's package starts a server.
postgresql_suite() {
    [ -z "$(find /usr/lib/postgresql -name pg_ctl 2>/dev/null)" ] || return 0
    [ ! -e "$suites/postgresql" ] || return 0
    rm -rf "$suites/postgresql.new"
    unpack_packages "$suites/postgresql.new" postgresql
    mv "$suites/postgresql.new" "$suites/postgresql"
}
