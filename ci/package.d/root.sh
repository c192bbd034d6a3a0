#!/bin/bash
# root.sh BASE DIR PACKAGES NAME   in namespaces of its own: a copy of the root BASE, made of layers in DIR, runs NAME.sh
set -euo pipefail
base=$1 dir=$2 packages=$3 name=$4
scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

mount -t overlay overlay -o "lowerdir=$base,upperdir=$dir/upper,workdir=$dir/work" "$dir/root"
cd "$dir/root"
mkdir -p packages try
mount --bind "$packages" packages
mount --bind "$scripts" try
mount -t proc proc proc
mount -t tmpfs tmpfs dev
for node in null zero random urandom fuse; do
    touch "dev/$node"
    mount --bind "/dev/$node" "dev/$node"
done
ln -s /proc/self/fd dev/fd
cp /etc/resolv.conf etc/resolv.conf
exec chroot . /bin/bash "/try/$name.sh"
