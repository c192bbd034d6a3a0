#!/bin/bash
# Runs in a clean root, which ci/package-try makes: the .rpm is installed, mounts by mount(8), and is removed.
# shellcheck source=ci/package.d/words.bash
. /try/words.bash

update
install rpm fuse3
new=$(ls /packages/mount-s3-host-*.x86_64.rpm)
# The database of this root knows no package: what ours depends on, apt has installed.
rpm --install --nodeps "$new"
rpm --verify --nodeps mount-s3-host || fail "the files are not those of the .rpm"
rpm -qp --requires "$new" | grep "^fuse3" >/dev/null || fail "the .rpm does not depend on fuse3"
rpm -qp --conflicts "$new" | grep "^mount-s3" >/dev/null || fail "the .rpm does not conflict with mount-s3"
mkdir -p /mnt/data
mount -t mount-s3 s3://bucket/ /mnt/data -o "endpoint-url=$URL,force-path-style"
[ "$(cat /mnt/data/hello)" = "from the bucket" ] || fail "the mount shows no file"
umount /mnt/data
rpm --erase mount-s3-host
[ ! -e /usr/bin/mount-s3 ] || fail "the .rpm leaves its program"
echo "ok: the .rpm is installed, mounts and is removed"
