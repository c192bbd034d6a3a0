#!/bin/bash
# Runs in a clean root, which ci/package-try makes: from nothing to a mount with the .deb, as somebody new here does it.
# shellcheck source=ci/package.d/words.bash
. /try/words.bash

SECONDS=0
update
install /packages/mount-s3-host_*_amd64.deb
mkdir -p /mnt/data
mount-s3 bucket /mnt/data "${store[@]}"
cat /mnt/data/hello >/dev/null
echo "ok: from a clean root to a mount with the .deb: $SECONDS s"
umount /mnt/data
