#!/bin/bash
# root.sh DIR MIRROR   in namespaces of its own: makes a root of Debian in DIR, with a kernel, systemd and an SELinux policy
set -euo pipefail
dir=$1 mirror=$2
debootstrap --variant=minbase --include=ca-certificates bookworm "$dir" "$mirror"
cd "$dir"
cp /etc/resolv.conf etc/resolv.conf
mount -t proc proc proc
# Nothing is started while packages are installed.
printf '#!/bin/sh\nexit 101\n' >usr/sbin/policy-rc.d
chmod 755 usr/sbin/policy-rc.d
DEBIAN_FRONTEND=noninteractive chroot . apt-get install -y -qq --no-install-recommends \
    linux-image-amd64 initramfs-tools systemd-sysv udev dbus kmod selinux-policy-default policycoreutils selinux-utils fuse3 procps
rm usr/sbin/policy-rc.d
chroot . apt-get clean
printf 'SELINUX=permissive\nSELINUXTYPE=default\n' >etc/selinux/config
mkdir try
cat >etc/systemd/system/try.service <<'EOT'
[Unit]
Description=what is tried
[Service]
Type=oneshot
TimeoutStartSec=infinity
ExecStartPre=/bin/mount /dev/vdb /try
ExecStart=/bin/bash /try/inside.sh
StandardOutput=file:/dev/ttyS1
StandardError=inherit
[Install]
WantedBy=multi-user.target
EOT
chroot . systemctl enable try.service
# It finds files by way of /proc.
chroot . /sbin/setfiles -F -e /proc /etc/selinux/default/contexts/files/file_contexts /
umount proc
