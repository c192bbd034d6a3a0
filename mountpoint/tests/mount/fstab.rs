//! /etc/fstab: real `mount -a`, `mount` and `umount`, in a mount namespace of its own, so that nothing of this machine is touched.

use std::fs;
use std::process::Command;

use super::start::runs_with;
use crate::common::{Store, need, need_tool, until};

/// The acts of root on a host. The binary is linked into this namespace's /sbin, which is empty otherwise.
const SCRIPT: &str = r#"
set -e
mount -t tmpfs none /sbin/
ln -s "$BINARY" /sbin/mount.mount-s3
mount -a -T "$FSTAB"
grep " $MNT" /proc/self/mountinfo
cat "$MNT/photos/a"
echo -n new > "$MNT/new"
if echo no > "$MNT-photos/b" 2> /dev/null; then echo "a read-only mount was written to"; exit 1; fi
umount "$MNT" "$MNT-photos"
mount -v -T "$FSTAB" "$MNT-photos"
cat "$MNT-photos/a"
umount "$MNT-photos"
"#;

#[test]
fn lines_of_fstab_are_mounted_by_mount_8_with_their_options() {
    let fuse = fs::File::options().read(true).write(true).open("/dev/fuse");
    let is_root = rustix::process::geteuid().is_root();
    if !need("/dev/fuse", fuse.is_ok()) || !need("root", is_root) || !need_tool("unshare") {
        return;
    }
    let (store, folder) = (Store::new(), tempfile::tempdir().unwrap());
    store.plant("photos/a", b"one,");
    let mnt = folder.path().join("mnt");
    let photos = folder.path().join("mnt-photos");
    fs::create_dir(&mnt).unwrap();
    fs::create_dir(&photos).unwrap();
    let fstab = folder.path().join("fstab");
    let reach = format!(
        "_netdev,nosuid,nodev,nofail,x-systemd.mount-timeout=60,endpoint-url={},force-path-style,region=us-east-1",
        store.endpoint()
    );
    let lines = format!(
        "bucket {} mount-s3 {reach},file-mode=0600 0 0\ns3://bucket/photos/ {} mount-s3 {reach},ro,noexec 0 0\n",
        mnt.display(),
        photos.display()
    );
    fs::write(&fstab, lines).unwrap();
    let said = tempfile::NamedTempFile::new().unwrap();
    let lines = said.reopen().unwrap();
    // The output does not go to a pipe: the engines would keep the pipe open.
    let status = Command::new("timeout")
        .args(["100", "unshare", "--mount", "sh", "-c", SCRIPT])
        .env("BINARY", env!("CARGO_BIN_EXE_mount-s3"))
        .env("FSTAB", &fstab)
        .env("MNT", &mnt)
        .env("HOME", store.home())
        .env("AWS_ACCESS_KEY_ID", Store::ACCESS_KEY)
        .env("AWS_SECRET_ACCESS_KEY", Store::SECRET_KEY)
        .env_remove("AWS_CA_BUNDLE")
        .stdout(lines.try_clone().unwrap())
        .stderr(lines)
        .status()
        .unwrap();
    let said = fs::read_to_string(said.path()).unwrap();
    assert!(status.success(), "{said}");
    assert!(said.contains("Using 'fstab' style options as detected use of `-o` argument."), "{said}");
    assert!(said.contains(&format!("bucket bucket is mounted at {}", mnt.display())), "{said}");
    assert!(
        said.contains(&format!("prefix photos/ of bucket bucket is mounted at {}", photos.display())),
        "{said}"
    );
    assert_eq!(said.matches("one,").count(), 2, "{said}");
    let flags = |dir: &std::path::Path| {
        let line = said.lines().find(|line| line.split(' ').nth(4) == dir.to_str());
        line.and_then(|line| line.split(' ').nth(5))
            .unwrap_or_else(|| panic!("{}: {said}", dir.display()))
            .to_owned()
    };
    assert!(flags(&mnt).starts_with("rw,nosuid,nodev,") && !flags(&mnt).contains("noexec"), "{said}");
    assert!(flags(&photos).starts_with("ro,nosuid,nodev,noexec,"), "{said}");
    assert_eq!(store.get("new").unwrap(), b"new");
    until("the engines end with their mounts", || !runs_with(&mnt) && !runs_with(&photos));
}
