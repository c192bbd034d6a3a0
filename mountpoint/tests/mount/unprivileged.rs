//! A user who is not root mounts, uses and unmounts a bucket, with what Debian gives to users: `fusermount3` and `/etc/fuse.conf`.
//!
//! Each test runs as a script in namespaces of its own. There `/dev/fuse` is open to all users, as udev makes it, `/etc/fuse.conf` is the
//! test's, and nothing survives the script.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::process::Command;

use testkit::{need, need_tool};

use crate::common::{Pattern, Setup, Store, command, run};

/// The number of Debian's user and group "nobody".
const USER: u32 = 65534;
const PLANTED: usize = 3_000_000;

/// `mount_s3` starts the engine on "mnt" as the user; `as UID COMMAND...` runs a command as another user; "own" is the user's folder.
const PRELUDE: &str = r#"
cd "$0"
mount -t tmpfs tmpfs device
mknod -m 666 device/fuse c 10 229
mount --bind device/fuse /dev/fuse
mount --bind fuse.conf /etc/fuse.conf
touch device/mount-s3
mount --bind "$1" device/mount-s3
shift
arguments=("$@")
as() { setpriv --reuid "$1" --regid "$1" --clear-groups "${@:2}"; }
mount_s3() { as 65534 device/mount-s3 "${arguments[@]}" "$@"; }
refused() { if "$@"; then echo "not refused: $*"; exit 1; fi; }
soon() { for _ in $(seq 300); do if "$@"; then return; fi; sleep 0.1; done; echo "not soon: $*"; exit 1; }
"#;

/// Runs a script on a store with the `planted` files; `None` if the machine lacks a requirement.
fn as_a_user(fuse_conf: &str, script: &str) -> Option<()> {
    let fuse = fs::File::options().read(true).write(true).open("/dev/fuse");
    let tools = ["fusermount3", "setpriv", "unshare"].into_iter().all(need_tool);
    let is_root = rustix::process::geteuid().is_root();
    if !need("/dev/fuse", fuse.is_ok()) || !tools || !need("root, to become another user", is_root) {
        return None;
    }
    let store = Store::new();
    store.plant("planted", &Pattern(1).bytes(0, PLANTED));
    let folder = tempfile::tempdir().unwrap();
    let top = folder.path();
    fs::set_permissions(top, fs::Permissions::from_mode(0o755)).unwrap();
    for name in ["device", "mnt", "own"] {
        fs::create_dir(top.join(name)).unwrap();
    }
    for name in ["mnt", "own"] {
        chown(top.join(name), Some(USER), Some(USER)).unwrap();
    }
    fs::write(top.join("fuse.conf"), fuse_conf).unwrap();
    fs::write(top.join("original"), Pattern(1).bytes(0, PLANTED)).unwrap();
    let mut setup = Setup::new(&[]);
    setup.foreground = false;
    let plain = command(&store, "mnt".as_ref(), &setup);
    let mut namespaces = Command::new("timeout");
    namespaces.args([
        "300",
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "--pid",
        "--fork",
        "--kill-child",
    ]);
    namespaces.args(["--mount-proc", "bash", "-euo", "pipefail", "-c", &format!("{PRELUDE}{script}")]);
    namespaces.arg(top).arg(plain.get_program()).args(plain.get_args()).env_clear();
    namespaces.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    run(&mut namespaces);
    assert_eq!(store.pending_uploads(), 0, "uploads were left behind");
    Some(())
}

#[test]
fn a_user_mounts_reads_writes_caches_and_unmounts() {
    let script = r#"
mkdir own/cache
chown 65534:65534 own/cache
# The size is set: without one, a disk that is nearly full has no room for a cache.
mount_s3 --cache own/cache --max-cache-size 256 --allow-delete >own/said
grep -q "is mounted at" own/said
as 65534 bash -ec 'echo hello >mnt/f; [ "$(cat mnt/f)" = hello ]; [ "$(stat -c %u:%g mnt/f)" = 65534:65534 ]; rm mnt/f; [ ! -e mnt/f ]'
for _ in 1 2; do as 65534 cmp mnt/planted original; done
soon as 65534 bash -c '[ "$(du -s own/cache | cut -f 1)" -gt 2000 ]'
refused cat mnt/planted 2>/dev/null
as 65534 fusermount3 -u mnt
refused mountpoint -q mnt
soon as 65534 bash -c '! pgrep -x mount-s3 >/dev/null'
"#;
    as_a_user("", script);
}

#[test]
fn a_user_s_confined_engine_is_unmounted_by_a_signal_and_keeps_its_memory() {
    let script = r#"
mkdir own/cache
chown 65534:65534 own/cache
for end in "pkill -TERM -x mount-s3" "fusermount3 -u mnt"; do
    mount_s3 --sandbox on --cache own/cache --max-cache-size 256 --allow-delete --auto-unmount
    engine=$(pgrep -x mount-s3)
    grep -q "^NoNewPrivs:.1$" "/proc/$engine/status"
    grep -q "^Seccomp:.2$" "/proc/$engine/status"
    as 65534 cmp mnt/planted original
    as 65534 bash -ec 'echo hello >mnt/f; [ "$(cat mnt/f)" = hello ]; rm mnt/f'
    # The same user, who sees environment and memory of a plain one.
    refused as 65534 cat "/proc/$engine/environ" 2>/dev/null >&2
    refused as 65534 head -c 1 "/proc/$engine/mem" 2>/dev/null >&2
    refused as 65534 ls "/proc/$engine/fd" 2>/dev/null >&2
    as 65534 $end
    soon bash -c '! grep -q " $PWD/mnt " /proc/self/mountinfo'
    soon bash -c '! pgrep -x mount-s3 >/dev/null'
    soon bash -c '! pgrep -x s3-helper >/dev/null'
done
mount_s3 --sandbox off
as 65534 cat "/proc/$(pgrep -x mount-s3)/environ" >/dev/null
as 65534 fusermount3 -u mnt
"#;
    as_a_user("", script);
}

#[test]
fn only_user_allow_other_lets_a_user_share_the_mount() {
    let refused = r#"
for flag in --allow-other --allow-root; do
    refused mount_s3 $flag 2>own/said
    grep -q user_allow_other own/said || { cat own/said; exit 1; }
    refused mountpoint -q mnt
done
"#;
    as_a_user("", refused);
    let shared = r#"
mount_s3 --allow-other
as 1000 cmp mnt/planted original
cmp mnt/planted original
as 65534 fusermount3 -u mnt
soon as 65534 bash -c '! pgrep -x mount-s3 >/dev/null'
mount_s3 --allow-root
cmp mnt/planted original
refused as 1000 cat mnt/planted 2>/dev/null
as 65534 fusermount3 -u mnt
"#;
    as_a_user("user_allow_other\n", shared);
}

#[test]
fn a_mount_goes_with_its_killed_engine_by_auto_unmount() {
    let script = r#"
for who in 65534 0; do
    as $who device/mount-s3 "${arguments[@]}" --auto-unmount
    as $who cmp mnt/planted original
    # An end of the whole unit signals all its processes. The watcher bears its name a moment after the mount is there.
    soon as $who pgrep -x s3-unmounter >/dev/null
    as $who pkill -TERM -x s3-unmounter
    as $who pkill -KILL -x mount-s3
    soon bash -c '! grep -q " $PWD/mnt " /proc/self/mountinfo'
done
as 65534 device/mount-s3 "${arguments[@]}" --auto-unmount
as 65534 fusermount3 -u mnt
soon bash -c '! pgrep -x mount-s3 >/dev/null'
soon bash -c '[ "$(pgrep -x s3-unmounter | wc -l)" = 0 ]'
# Another mount over the dead one is not the watcher's.
device/mount-s3 "${arguments[@]}" --auto-unmount
soon pgrep -x s3-unmounter >/dev/null
mount -t tmpfs cover mnt
touch mnt/cover
pkill -KILL -x mount-s3
soon bash -c '[ "$(pgrep -x s3-unmounter | wc -l)" = 0 ]'
[ -e mnt/cover ]
umount mnt
umount -l mnt
"#;
    as_a_user("", script);
}

/// The case: the system has no thread left for the user, so the threads from the start must do. The pause lets threads without work
/// end.
#[test]
fn an_engine_that_gets_no_more_threads_writes_and_reads_on() {
    let script = r#"
mkdir own/cache
chown 65534:65534 own/cache
mount_s3 --cache own/cache --max-cache-size 256 --allow-delete
as 65534 cmp mnt/planted original
# fuser starts its threads once it has mounted, and ends if one is refused.
threads() { find "/proc/$(pgrep -x mount-s3)/task" -mindepth 1 -maxdepth 1 | wc -l; }
are_there() { local before; before=$(threads); sleep 2; [ "$before" = "$(threads)" ]; }
soon are_there
as 65534 prlimit --pid "$(pgrep -x mount-s3)" --nproc=1:1
head -c 30000000 /dev/urandom >original.big
for pause in 12 0; do
    as 65534 timeout 60 cp original.big mnt/big
    as 65534 timeout 60 cmp original.big mnt/big
    as 65534 timeout 60 cmp mnt/planted original
    as 65534 rm mnt/big
    sleep $pause
done
as 65534 fusermount3 -u mnt
soon bash -c '! pgrep -x mount-s3 >/dev/null'
"#;
    as_a_user("", script);
}

/// Goal: under any limit of threads, a mount that reports success serves and handles signals, and any other attempt names the missing
/// resource. A user of its own has the limit for itself.
#[test]
fn a_start_with_too_few_threads_mounts_nothing_and_says_why() {
    // fuser starts its threads once it has mounted, and ends if one is refused.
    if crate::TRANSPORT == "fuser" {
        return;
    }
    let script = r#"
uid=$((200000 + RANDOM))
chown $uid mnt own
# fusermount3 asks for a name.
cp /etc/passwd own/passwd
echo "few:x:$uid:$uid::/:/bin/sh" >>own/passwd
mount --bind own/passwd /etc/passwd
mounts=0
for limit in $(seq 1 64); do
    if as $uid prlimit --nproc=$limit:$limit device/mount-s3 "${arguments[@]}" >own/said 2>&1; then
        as $uid timeout 60 cmp mnt/planted original
        as $uid pkill -TERM -x mount-s3
        mounts=$((mounts + 1))
    else
        grep -qE 'RLIMIT_NPROC|Resource temporarily unavailable|os error 11' own/said || { echo "$limit: $(cat own/said)"; exit 1; }
        refused grep panicked own/said
    fi
    soon bash -c '! pgrep -x mount-s3 >/dev/null'
    # Not by a look into it: a dead mount counts too.
    refused grep " $PWD/mnt " /proc/self/mountinfo
    [ $mounts -lt 3 ] || break
done
[ $mounts = 3 ]
"#;
    as_a_user("", script);
}
