//! /etc/fstab on a host with systemd: `mount -a`, a unit that needs the mount, and a reboot.
//!
//! The host is a node of `ci/systemd-node`: systemd as PID 1 in namespaces of its own, over an overlay of this machine's root. Its reboot shuts
//! systemd down in order and starts it again over the same root; the kernel stays the same.

use std::path::Path;

use testkit::Node;

use crate::common::need;

/// Runs a script in the node. Returns its output.
#[track_caller]
pub(super) fn run(node: &Node, binaries: &Path, script: &str) -> String {
    let script = format!("BIN={}\n{PRELUDE}{script}", binaries.display());
    node.run(&["timeout", "100", "bash", "-euo", "pipefail", "-c", &script])
}

const PRELUDE: &str = r#"
trap 'journalctl --no-pager --lines=60; cat /proc/self/mountinfo' ERR
soon() { for _ in $(seq 300); do if "$@"; then return; fi; sleep 0.1; done; echo "not soon: $*"; return 1; }
are_active() { systemctl is-active --quiet "$@"; }
"#;

/// Sets the host up. The store is a service, as the network is on a host with a remote store. Keys come from a file that a drop-in names:
/// systemd gives mounts no $HOME.
const SETUP: &str = r#"
units=/etc/systemd/system
mkdir -p /mnt/all /mnt/photos /var/lib/store/bucket/photos /var/lib/copies $units/mnt-{all,photos}.mount.d
echo one >/var/lib/store/bucket/photos/a
ln -s "$BIN/mount-s3" /sbin/mount.mount-s3
printf '[default]\naws_access_key_id=test\naws_secret_access_key=testsecret\n' >/etc/mount-s3.keys
chmod 600 /etc/mount-s3.keys
for mount in all photos; do
    printf '[Mount]\nEnvironment=AWS_SHARED_CREDENTIALS_FILE=/etc/mount-s3.keys\n' >$units/mnt-$mount.mount.d/keys.conf
done
cat >$units/store.service <<UNIT
[Service]
ExecStart=$BIN/s3server /var/lib/store --listen 127.0.0.1:9000
UNIT
options=_netdev,nosuid,nodev,x-systemd.requires=store.service,endpoint-url=http://127.0.0.1:9000,force-path-style,region=us-east-1
cat >/etc/fstab <<LINES
bucket /mnt/all mount-s3 $options 0 0
s3://bucket/photos/ /mnt/photos mount-s3 $options,noauto,ro,nofail 0 0
LINES
cat >$units/copy.service <<UNIT
[Unit]
RequiresMountsFor=/mnt/photos
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -c 'cat /mnt/photos/a >>/var/lib/copies/a'
[Install]
WantedBy=multi-user.target
UNIT
systemctl daemon-reload
systemctl enable copy.service remote-fs.target 2>/dev/null
systemctl start store.service
"#;

const BY_HAND: &str = r#"
export AWS_SHARED_CREDENTIALS_FILE=/etc/mount-s3.keys
soon mount -a
grep -E ' /mnt/all rw,nosuid,nodev,noatime .* fuse.mount-s3 mountpoint-s3 ' /proc/self/mountinfo
[ "$(cat /mnt/all/photos/a)" = one ]
soon are_active mnt-all.mount
mount /mnt/photos
grep -E ' /mnt/photos ro,nosuid,nodev,noatime ' /proc/self/mountinfo
pgrep -x mount-s3 >/dev/null
umount /mnt/all /mnt/photos
soon bash -c '! pgrep -x mount-s3 >/dev/null'
# systemd hears of mounts a little later.
soon bash -c '! systemctl is-active --quiet mnt-all.mount mnt-photos.mount'
"#;

const BY_UNITS: &str = r#"
systemctl start copy.service
are_active mnt-photos.mount
systemctl start remote-fs.target
soon are_active mnt-all.mount
echo "written before the reboot" >/mnt/all/new
[ "$(cat /var/lib/copies/a)" = one ]
"#;

const AFTER_THE_REBOOT: &str = r#"
soon are_active mnt-all.mount mnt-photos.mount copy.service
[ "$(wc -l </var/lib/copies/a)" = 2 ]
[ "$(cat /mnt/all/new)" = "written before the reboot" ]
if echo no >/mnt/photos/b; then exit 1; fi 2>/dev/null
systemctl stop mnt-all.mount mnt-photos.mount
soon bash -c '! pgrep -x mount-s3 >/dev/null'
[ -z "$(ls /mnt/all)" ]
systemctl --failed --no-legend --plain | grep mnt- && exit 1
echo "all is well"
"#;

/// The folder of this build's `mount-s3` and `s3server`; `None`, with a message, if the server is missing or older than its source.
pub(super) fn store_of_this_build() -> Option<&'static Path> {
    let binaries = Path::new(env!("CARGO_BIN_EXE_mount-s3")).parent().unwrap();
    let stale = testkit::built::stale(&binaries.join("s3server"), "s3server");
    need(&format!("s3server (cargo build --workspace): {stale:?}"), stale.is_none()).then_some(binaries)
}

#[test]
fn a_host_mounts_its_fstab_by_hand_for_a_unit_and_after_a_reboot() {
    let Some(binaries) = store_of_this_build() else { return };
    let Some(node) = Node::start(binaries) else { return };
    run(&node, binaries, SETUP);
    run(&node, binaries, BY_HAND);
    run(&node, binaries, BY_UNITS);
    node.reboot();
    assert!(run(&node, binaries, AFTER_THE_REBOOT).contains("all is well"));
}
