//! Trees that programs remove: each directory exists until its removal, however long the store takes for its files.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;

use s3server::{Effect, Fault};

use crate::common::{Setup, Store, TestMount, need_tool, run};

const KEYS: [&str; 6] = ["d/f", "d/g", "d/e/f", "d/e/i/f", "d/m/", "d/m/f"];

/// Milliseconds for a DELETE: more than the second for which the mount's facts about a directory are valid.
const DELETE_MS: u64 = 1_300;

fn slow_to_delete(keys: &[&str]) -> Option<TestMount> {
    let store = Store::new();
    keys.iter().for_each(|key| store.put(key, ""));
    store.faults().add(Fault::on("DeleteObject", Effect::Delay { for_ms: DELETE_MS }));
    TestMount::of(&store, &Setup::new(&["--allow-delete"]))
}

/// Runs this on `d` in a mount.
fn removes(remove: impl Fn(&TestMount, &Path)) {
    let Some(mount) = slow_to_delete(&[&KEYS[..], &["stays"]].concat()) else { return };
    remove(&mount, &mount.path("d"));
    assert_eq!(mount.store().keys(), ["stays"]);
    assert_eq!(names(mount.dir()), ["stays"]);
    fs::metadata(mount.path("d")).expect_err("it was removed");
}

fn names(path: &Path) -> Vec<OsString> {
    fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name()).collect()
}

#[test]
fn rm_removes_a_tree_though_each_delete_outlasts_a_directorys_ttl() {
    removes(|_, tree| drop(run(Command::new("rm").arg("-r").arg(tree))));
}

#[test]
fn find_removes_a_tree_though_each_delete_outlasts_a_directorys_ttl() {
    removes(|_, tree| drop(run(Command::new("find").arg(tree).arg("-delete"))));
}

#[test]
fn mv_takes_a_tree_out_of_the_mount_and_python_removes_one() {
    removes(|mount, tree| {
        let there = mount.scratch("there");
        run(Command::new("mv").arg(tree).arg(&there));
        assert_eq!(names(&there.join("e/i")), ["f"]);
    });
    if need_tool("python3") {
        let script = "import shutil, sys; shutil.rmtree(sys.argv[1])";
        removes(|_, tree| drop(run(Command::new("python3").args(["-c", script]).arg(tree))));
    }
}

#[test]
fn a_directory_that_lost_its_last_file_is_empty_until_it_is_removed() {
    let Some(mount) = slow_to_delete(&["a/b/file"]) else { return };
    fs::remove_file(mount.path("a/b/file")).unwrap();
    assert_eq!(mount.store().keys(), Vec::<String>::new());
    assert_eq!((names(&mount.path("a")), names(&mount.path("a/b")).len()), (vec!["b".into()], 0));
    fs::write(mount.path("a/b/new"), b"2").unwrap();
    assert_eq!(mount.store().keys(), ["a/b/new"]);
    fs::remove_file(mount.path("a/b/new")).unwrap();
    for path in ["a/b", "a"] {
        fs::remove_dir(mount.path(path)).unwrap();
        fs::metadata(mount.path(path)).expect_err("it was removed");
    }
}
