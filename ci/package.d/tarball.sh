#!/bin/bash
# Runs in a clean root, which ci/package-try makes: the tarball on the oldest C library that a mirror offers.
# shellcheck source=ci/package.d/words.bash
. /try/words.bash

mkdir -p /opt/here && tar -xzf /packages/mount-s3-host-*-x86_64.tar.gz -C /opt/here --strip-components 1
mkdir -p /mnt/data
/opt/here/bin/mount-s3 bucket /mnt/data "${store[@]}"
[ "$(cat /mnt/data/hello)" = "from the bucket" ] || fail "the mount shows no file"
echo "of an old host" >/mnt/data/old
umount /mnt/data
echo "ok: the tarball mounts on $(ldd --version | head -n 1 | grep -oE "[0-9.]+$")"
