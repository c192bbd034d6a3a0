//! The units that packages bring, in a node with systemd: the service for each bucket, and the example of a mount unit.

use std::path::Path;

use testkit::Node;

use super::systemd::{run, store_of_this_build};

/// Files of `ci/package.d` at their places, the examples with a bucket and a store of this test. Nothing else is changed in them.
const SETUP: &str = r#"
mkdir -p /etc/mount-s3 /mnt/data /var/lib/store/bucket
install -d -m 700 /var/cache/mount-s3 /var/cache/mount-s3/mnt-data
echo one >/var/lib/store/bucket/a
install -m 755 "$BIN/mount-s3" /usr/bin/mount-s3
ln -sf /usr/bin/mount-s3 /sbin/mount.mount-s3
printf '[default]\naws_access_key_id=test\naws_secret_access_key=testsecret\nregion=us-east-1\n' >/etc/mount-s3/keys
chmod 600 /etc/mount-s3/keys
printf '[Service]\nExecStart=%s/s3server /var/lib/store --listen 127.0.0.1:9000\n' "$BIN" >/etc/systemd/system/store.service
cp "$FILES/mount-s3@.service" /usr/lib/systemd/system/
sed 's|^BUCKET=.*|BUCKET=bucket|; s|^#AWS_|AWS_|; s|https://s3.example.com|http://127.0.0.1:9000|; s|eu-west-1|us-east-1|' \
    "$FILES/data.conf" >/etc/mount-s3/data.conf
sed 's|my-bucket|bucket|; s|^Options=.*|&,endpoint-url=http://127.0.0.1:9000,region=us-east-1,force-path-style|' \
    "$FILES/mnt-data.mount" >/etc/systemd/system/mnt-data.mount
systemctl daemon-reload
systemctl start store.service
"#;

const SERVICE: &str = r#"
systemctl enable --now mount-s3@data
[ "$(cat /mnt/data/a)" = one ]
echo two >/mnt/data/b
[ "$(stat -c %a /var/cache/mount-s3/data)" = 700 ]
[ -n "$(ls -A /var/cache/mount-s3/data)" ]
# A crash is a pause: open files go on, and there is one mount.
exec 8</mnt/data/a
restarts() { systemctl show --property=NRestarts --value mount-s3@data; }
main() { systemctl show --property=MainPID --value mount-s3@data; }
confined() { grep -q '^Seccomp:.2' "/proc/$(main)/status" && grep -q '^CapEff:.0*$' "/proc/$(main)/status"; }
soon confined
systemctl kill --signal=KILL mount-s3@data
[ "$(cat /mnt/data/b)" = two ]
[ "$(restarts)" = 1 ]
soon confined
# The program that is installed now goes on with the mount: systemd starts it, as the confined engine executes nothing.
install -m 755 "$BIN/mount-s3" /usr/bin/new
mv /usr/bin/new /usr/bin/mount-s3
before=$(main)
"$BIN/mount-s3-ctl" upgrade /mnt/data
now=$(main)
[ "$now" != "$before" ]
[ "$(readlink "/proc/$now/exe")" = /usr/bin/mount-s3 ]
[ "$(restarts)" = 2 ]
systemctl is-active mount-s3@data
soon confined
# A program that refuses the journal is not started.
printf '#!/bin/sh\necho format 9 >&2; exit 3\n' >/usr/bin/new
chmod 755 /usr/bin/new
cp /usr/bin/mount-s3 /usr/bin/sound
mv /usr/bin/new /usr/bin/mount-s3
if "$BIN/mount-s3-ctl" upgrade /mnt/data 2>/tmp/refused; then exit 1; fi
grep 'format 9' /tmp/refused
[ "$(main)" = "$now" ]
mv /usr/bin/sound /usr/bin/mount-s3
# It is restarted as the first one was.
systemctl kill --signal=KILL mount-s3@data
[ "$(cat <&8)" = one ]
[ "$(restarts)" = 3 ]
exec 8<&-
[ "$(grep -c " /mnt/data " /proc/self/mounts)" = 1 ]
systemctl stop mount-s3@data
# No mount is left.
soon bash -c '! grep -q " /mnt/data " /proc/self/mounts'
systemctl is-failed --quiet mount-s3@data && exit 1
[ "$(cat /var/lib/store/bucket/b)" = two ]
# With no such bucket it says so.
sed -i 's|^BUCKET=.*|BUCKET=no-such-bucket|' /etc/mount-s3/data.conf
if systemctl start mount-s3@data 2>/dev/null; then exit 1; fi
{ systemctl status --no-pager mount-s3@data || true; } | grep 'Status: .*no-such-bucket'
echo "the service is well"
"#;

const UNIT: &str = r#"
systemctl start mnt-data.mount
[ "$(cat /mnt/data/b)" = two ]
grep ' /mnt/data .*fuse.mount-s3' /proc/self/mounts | grep allow_other
systemctl stop mnt-data.mount
soon bash -c '! pgrep -x mount-s3 >/dev/null'
echo "the unit is well"
"#;

#[test]
fn the_packages_service_and_mount_unit_mount_a_bucket_also_after_a_crash() {
    let Some(binaries) = store_of_this_build() else { return };
    let Some(node) = Node::start(binaries) else { return };
    let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ci/package.d");
    run(&node, binaries, &format!("FILES={}\n{SETUP}", files.display()));
    assert!(run(&node, binaries, SERVICE).contains("the service is well"));
    assert!(run(&node, binaries, UNIT).contains("the unit is well"));
}
