//! Common tools on a mount: copies, archives, synchronisation.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::common::{Pattern, Setup, TestMount, need_tool, run};

/// A tree takes longer than other tests where much else runs.
pub(super) const MANY: Duration = Duration::from_secs(900);

/// A tree of `files` small files, 100 to a folder, two levels deep.
pub(super) fn tree(at: &Path, files: usize) {
    for i in 0..files {
        let folder = at.join(format!("d{}/s{}", i / 1000, i / 100 % 10));
        if i % 100 == 0 {
            fs::create_dir_all(&folder).unwrap();
        }
        fs::write(folder.join(format!("file {i}.txt")), Pattern(i as u64).bytes(0, 100 + i % 3000)).unwrap();
    }
}

pub(super) fn diff(one: &Path, two: &Path) {
    run(Command::new("diff").arg("-r").arg(one).arg(two));
}

/// Compares a local tree with the objects below a name.
fn diff_stored(local: &Path, mount: &TestMount, name: &str) {
    let store = mount.store();
    if store.has_folder() {
        return diff(local, &store.bucket_folder().join(name));
    }
    let copies = tempfile::tempdir().unwrap();
    for key in store.keys() {
        let path = copies.path().join(&key);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, store.get(&key).unwrap()).unwrap();
    }
    diff(local, &copies.path().join(name));
}

#[test]
fn a_tree_is_written_by_tar() {
    let Some(mount) = TestMount::with(&Setup::new(&[]).limit(MANY)) else { return };
    let (local, archive) = (mount.scratch("local"), mount.scratch("archive.tar"));
    tree(&local, 2_000);
    run(Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(&local).arg("."));
    fs::create_dir(mount.path("tree")).unwrap();
    // Owners, modes and times are not kept in a bucket: say so, and tar does not ask for them after the fact.
    let mut unpack = Command::new("tar");
    unpack.args(["--no-same-owner", "--no-same-permissions", "--touch", "--no-overwrite-dir"]);
    run(unpack.arg("-xf").arg(&archive).arg("-C").arg(mount.path("tree")));
    diff_stored(&local, &mount, "tree");
}

#[test]
fn a_tree_is_synchronised_by_rsync_in_place() {
    if !need_tool("rsync") {
        return;
    }
    let Some(mount) = TestMount::with(&Setup::new(&[]).limit(MANY)) else { return };
    let local = mount.scratch("local");
    tree(&local, 2_000);
    // A mode that the mount does not show, which `--chmod` leaves out.
    fs::set_permissions(local.join("d0/s0/file 7.txt"), fs::Permissions::from_mode(0o755)).unwrap();
    let sync = || {
        let mut rsync = Command::new("rsync");
        rsync.args(["--recursive", "--inplace", "--whole-file", "--size-only", "--itemize-changes"]);
        rsync.arg("--chmod=D755,F644");
        let output = run(rsync.arg(format!("{}/", local.display())).arg(mount.path("tree")));
        String::from_utf8_lossy(&output.stdout).lines().filter(|l| l.starts_with(">f")).count()
    };
    assert_eq!(sync(), 2_000);
    diff_stored(&local, &mount, "tree");
    assert_eq!(sync(), 0, "nothing changed");
    fs::write(local.join("d0/s0/another"), b"new").unwrap();
    assert_eq!(sync(), 1);
    diff_stored(&local, &mount, "tree");
}

#[test]
fn dd_and_cp_copy_files_of_many_parts() {
    let Some(mount) = TestMount::new(&[]) else { return };
    let local = mount.scratch("local");
    fs::write(&local, Pattern(1).bytes(0, 50_000_001)).unwrap();
    for block in ["4k", "64k", "1M"] {
        let (there, back) = (mount.path(block), mount.scratch(&format!("back-{block}")));
        let dd = |from: &Path, to: &Path| {
            let mut dd = Command::new("dd");
            run(dd
                .arg(format!("if={}", from.display()))
                .arg(format!("of={}", to.display()))
                .arg(format!("bs={block}")));
        };
        dd(&local, &there);
        dd(&there, &back);
        run(Command::new("cmp").arg(&local).arg(&back));
        fs::remove_file(&back).unwrap();
    }
    // cp takes copy_file_range where it can: within the mount, both ends are ours.
    run(Command::new("cp").arg(mount.path("1M")).arg(mount.path("copy")));
    run(Command::new("cmp").arg(&local).arg(mount.path("copy")));
}
