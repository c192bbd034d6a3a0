//! `--commit disk` and `fsync`: mkdir waits for no request, and the bucket gets the marker of the directory behind it.

use std::fs;
use std::path::Path;

use rustix::io::Errno;
use s3server::{Effect, Fault};

use super::full::{FullMount, kept, setup};
use super::full_later::{DISK, files_of, shut, until};
use super::semantics::assert_errno;
use crate::common::Store;

fn names(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_directory_made_under_disk_or_fsync_waits_for_no_request() {
    for commit in ["disk", "fsync"] {
        let store = Store::new();
        let Some(full) = FullMount::of(&store, &["--commit", commit]) else { return };
        // No request that stores something gets an answer.
        store.faults().add(Fault::on("PutObject", Effect::Hold).times(u64::MAX));
        fs::create_dir_all(full.path("project/.git/refs/heads")).unwrap();
        fs::write(full.path("project/.git/HEAD"), b"ref").unwrap();
        assert_eq!(names(&full.path("project/.git")), ["HEAD", "refs"]);
        assert_errno(fs::create_dir(full.path("project/.git")), Errno::EXIST);
        assert_errno(fs::remove_dir(full.path("project")), Errno::NOTEMPTY);
        store.faults().clear();
        until("nothing stays in the stage", || files_of(&full.stage) == 0);
        let keys = [
            "project/",
            "project/.git/",
            "project/.git/HEAD",
            "project/.git/refs/",
            "project/.git/refs/heads/",
        ];
        assert_eq!(store.keys(), keys);
        assert!(kept(&full.stage).is_empty(), "{:?}", full.mount.complaints());
        // Other hosts see them now, the empty one too.
        let other = FullMount::of(&store, &[]).unwrap();
        assert!(other.path("project/.git/refs/heads").is_dir());
    }
}

#[test]
fn a_directory_that_is_soon_gone_costs_nothing_in_the_bucket() {
    let store = Store::new();
    let Some(full) = FullMount::of(&store, DISK) else { return };
    // A slow machine may send something before its name goes: that is refused.
    shut(&store);
    for _ in 0..20 {
        fs::create_dir_all(full.path("tmp/below")).unwrap();
        fs::write(full.path("tmp/below/file"), b"bytes").unwrap();
        fs::remove_dir_all(full.path("tmp")).unwrap();
        assert!(!full.path("tmp").exists());
    }
    assert_eq!(store.requests().count("DeleteObject"), 0);
    store.faults().clear();
    until("nothing stays in the stage", || files_of(&full.stage) == 0);
    assert_eq!(store.keys(), [""; 0]);
}

#[test]
fn directories_of_a_killed_engine_are_there_in_the_next_mount_and_stored() {
    let store = Store::new();
    let Some(mut full) = FullMount::of(&store, DISK) else { return };
    shut(&store);
    for name in ["a", "a/b", "gone", "gone/too"] {
        fs::create_dir(full.path(name)).unwrap();
    }
    fs::remove_dir_all(full.path("gone")).unwrap();
    full.mount.kill_9();
    assert_eq!(store.keys(), [""; 0]);
    let mount = full.mount.remount(&setup(&full.stage, DISK));
    assert_eq!((names(mount.dir()), names(&mount.path("a"))), (vec!["a".to_owned()], vec!["b".to_owned()]));
    store.faults().clear();
    until("nothing stays in the stage", || files_of(&full.stage) == 0);
    assert_eq!(store.keys(), ["a/", "a/b/"]);
    fs::remove_dir_all(mount.path("a")).unwrap();
    assert_eq!(store.keys(), [""; 0]);
    assert!(kept(&full.stage).is_empty(), "{:?}", mount.complaints());
}

#[test]
fn a_new_directory_is_renamed_with_all_that_waits_below() {
    let store = Store::new();
    let Some(full) = FullMount::of(&store, DISK) else { return };
    fs::create_dir_all(full.path("old/below/empty")).unwrap();
    fs::write(full.path("old/below/file"), b"bytes").unwrap();
    fs::create_dir(full.path("new")).unwrap();
    fs::rename(full.path("old"), full.path("new")).unwrap();
    assert_eq!(names(full.mount.dir()), ["new"]);
    assert_eq!(names(&full.path("new/below")), ["empty", "file"]);
    until("nothing stays in the stage", || files_of(&full.stage) == 0);
    assert_eq!(store.keys(), ["new/", "new/below/", "new/below/empty/", "new/below/file"]);
    assert!(kept(&full.stage).is_empty(), "{:?}", full.mount.complaints());
}
