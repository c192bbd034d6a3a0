//! A tree of 20,000 small files: only with `MOUNT_S3_LARGE=1`.

use std::fs;
use std::process::Command;

use super::tools::{MANY, diff, tree};
use crate::common::{Setup, Store, TestMount, need_large, run};

#[test]
fn a_tree_of_20_000_files_is_read_by_diff_cp_and_tar() {
    if !need_large() {
        return;
    }
    let store = Store::new();
    tree(&store.bucket_folder().join("tree"), 20_000);
    let Some(mount) = TestMount::of(&store, &Setup::new(&[]).limit(MANY)) else { return };
    diff(&store.bucket_folder().join("tree"), &mount.path("tree"));
    let copy = mount.scratch("copy");
    run(Command::new("cp").arg("-r").arg(mount.path("tree")).arg(&copy));
    diff(&store.bucket_folder().join("tree"), &copy);
    let archive = mount.scratch("archive.tar");
    run(Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(mount.path("tree")).arg("."));
    let unpacked = mount.scratch("unpacked");
    fs::create_dir(&unpacked).unwrap();
    run(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&unpacked));
    diff(&copy, &unpacked);
}

#[test]
fn a_tree_is_written_by_cp() {
    if !need_large() {
        return;
    }
    let Some(mount) = TestMount::with(&Setup::new(&[]).limit(MANY)) else { return };
    let local = mount.scratch("local");
    tree(&local, 20_000);
    run(Command::new("cp").arg("-r").arg(&local).arg(mount.path("tree")));
    diff(&local, &mount.store().bucket_folder().join("tree"));
    assert_eq!(mount.store().keys().len(), 20_000);
}
