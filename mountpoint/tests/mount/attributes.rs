//! Modes, owners and times of stored files: ignored, with `--ignore-attributes`.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::process::Command;
use std::time::{Duration, SystemTime};

use rustix::io::Errno;

use super::semantics::assert_errno;
use super::tools::{MANY, diff, tree};
use crate::common::{Setup, Store, TestMount, need_tool, run};

#[test]
fn ignored_attributes_succeed_change_nothing_and_send_nothing() {
    let store = Store::new();
    store.plant("dir/file", b"1");
    let Some(mount) = TestMount::of(&store, &Setup::new(&["--ignore-attributes"])) else { return };
    let shown = |name: &str| {
        let of = fs::metadata(mount.path(name)).unwrap();
        (of.mode(), of.uid(), of.gid(), of.len(), of.modified().unwrap())
    };
    for name in ["dir", "dir/file"] {
        let (path, before) = (mount.path(name), shown(name));
        let open = File::open(&path).unwrap();
        store.requests().reset();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        chown(&path, Some(1234), Some(2345)).unwrap();
        open.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000)).unwrap();
        for operation in ["PutObject", "CopyObject"] {
            assert_eq!(store.requests().count(operation), 0, "{operation} for {name}");
        }
        assert_eq!(shown(name), before, "{name}");
    }
    // Sizes are refused as ever.
    assert_errno(File::options().write(true).open(mount.path("dir/file")), Errno::PERM);
    let truncated = Command::new("truncate").arg("-s7").arg(mount.path("dir/file")).output().unwrap();
    assert!(!truncated.status.success(), "{truncated:?}");
    assert_eq!(store.get("dir/file").unwrap(), b"1");
}

#[test]
fn cp_p_tar_x_and_rsync_a_end_well_where_attributes_are_ignored() {
    if !need_tool("rsync") {
        return;
    }
    let Some(mount) = TestMount::with(&Setup::new(&["--ignore-attributes", "--allow-rename"]).limit(MANY))
    else {
        return;
    };
    let (local, archive) = (mount.scratch("local"), mount.scratch("archive.tar"));
    tree(&local, 300);
    fs::set_permissions(local.join("d0/s0/file 7.txt"), fs::Permissions::from_mode(0o751)).unwrap();
    File::open(local.join("d0/s1"))
        .unwrap()
        .set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(9))
        .unwrap();
    run(Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(&local).arg("."));
    run(Command::new("cp").arg("-rp").arg(&local).arg(mount.path("cp")));
    fs::create_dir(mount.path("tar")).unwrap();
    run(Command::new("tar").arg("-xpf").arg(&archive).arg("-C").arg(mount.path("tar")));
    run(Command::new("rsync").arg("-a").arg(format!("{}/", local.display())).arg(mount.path("rsync")));
    run(Command::new("install").args(["-m", "700"]).arg(&archive).arg(mount.path("installed")));
    for there in ["cp", "tar", "rsync"] {
        diff(&local, &mount.store().bucket_folder().join(there));
        assert_eq!(fs::metadata(mount.path(there).join("d0/s0/file 7.txt")).unwrap().mode(), 0o100_644);
    }
}
