#!/bin/bash
# Runs in a clean root, which ci/package-try makes: the .deb takes the place of another package, is upgraded under a mount, and is purged.
# shellcheck source=ci/package.d/words.bash
. /try/words.bash

update
new=$(ls /packages/mount-s3-host_*_amd64.deb)
version=$(dpkg-deb -f "$new" Version)

# An older version of ours, and a package as that of AWS: other files by the same names.
dpkg-deb -R "$new" older && sed -i "s/^Version: .*/Version: 0.0.1-1/" older/DEBIAN/control && dpkg-deb -b older older.deb >/dev/null
mkdir -p aws/DEBIAN aws/usr/bin && echo "#!/bin/sh" >aws/usr/bin/mount-s3 && chmod 755 aws/usr/bin/mount-s3
printf "Package: mount-s3\nVersion: 1.24.0\nArchitecture: amd64\nMaintainer: a\nDescription: a\n" >aws/DEBIAN/control
dpkg-deb -b aws aws.deb >/dev/null

install ./aws.deb
install ./older.deb
! dpkg-query -W -f '${Status}' mount-s3 2>/dev/null | grep -q "^install ok installed" || fail "the package mount-s3 is still installed"
[ "$(dpkg-query -W -f '${Version}' mount-s3-host)" = 0.0.1-1 ] || fail "the older version is not installed"
echo "ok: the .deb takes the place of a package mount-s3"

mkdir -p /mnt/data /mnt/tab
mount-s3 bucket /mnt/data "${store[@]}"
[ "$(cat /mnt/data/hello)" = "from the bucket" ] || fail "the mount shows no file"
install "$new"
[ "$(dpkg-query -W -f '${Version}' mount-s3-host)" = "$version" ] || fail "the new version is not installed"
echo "written while upgraded" >/mnt/data/new
[ "$(cat /mnt/data/new)" = "written while upgraded" ] || fail "the mount does not outlive an upgrade"
umount /mnt/data
echo "ok: an upgrade of the .deb leaves a mount as it is"

echo "s3://bucket/ /mnt/tab mount-s3 _netdev,nosuid,endpoint-url=$URL,force-path-style 0 0" >>/etc/fstab
mount -a
[ "$(cat /mnt/tab/hello)" = "from the bucket" ] || fail "mount -a mounts no line of fstab"
mount-s3-ctl status /mnt/tab >/dev/null || fail "mount-s3-ctl knows nothing of the mount"
umount /mnt/tab
for program in mount-s3 mount-s3-ctl; do
    bash -c ". /usr/share/bash-completion/completions/$program && complete -p $program >/dev/null" || fail "no completions of $program"
done
# Roots of containers leave pages and documents out, by a rule of dpkg; so they are looked up in the package.
dpkg-deb --fsys-tarfile "$new" | tar -xO ./usr/share/man/man1/mount-s3.1.gz | gzip -d | grep "^.TH mount-s3" >/dev/null || fail "no manual page"
dpkg-deb --fsys-tarfile "$new" | tar -xO ./usr/share/doc/mount-s3-host/third-party-notices.txt | grep "tokio" >/dev/null || fail "no notices"
dpkg-deb --fsys-tarfile "$new" | tar -xO ./usr/share/doc/mount-s3-host/sbom.cdx.json | grep "\"CycloneDX\"" >/dev/null || fail "no SBOM"
echo "ok: fstab, mount-s3-ctl and completions work with the .deb, and it holds a manual page, notices and an SBOM"

apt-get purge -y -qq mount-s3-host >/tmp/apt.log 2>&1 || fail "apt could not purge: $(cat /tmp/apt.log)"
left=$(find / -xdev \( -name "mount-s3*" -o -name "mount.mount-s3*" -o -name "_mount-s3" \) -not -path "/proc/*" -not -path "/tmp/*" -not -path "/packages*" \
    -not -path "/var/cache/apt/*" || true)
[ -z "$left" ] || fail "a purge left $left"
echo "ok: a purge of the .deb leaves nothing"
