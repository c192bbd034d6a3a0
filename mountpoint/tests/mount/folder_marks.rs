//! Directories that Hadoop and EMR mark by empty objects `dir_$folder$`, with `--directory-markers`.

use std::fs;
use std::path::Path;

use rustix::io::Errno;

use super::semantics::assert_errno;
use crate::common::{Setup, Store, TestMount};

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
    let mut names: Vec<_> = entries
        .map(|entry| {
            let slash = if entry.file_type().unwrap().is_dir() { "/" } else { "" };
            format!("{}{slash}", entry.file_name().to_string_lossy())
        })
        .collect();
    names.sort();
    names
}

#[test]
fn folder_marks_of_hadoop_are_directories_with_directory_markers() {
    let store = Store::new();
    for (key, bytes) in [
        ("_$folder$", ""),
        ("both", "1"),
        ("both_$folder$", ""),
        ("empty_$folder$", ""),
        ("out/part-0", "1"),
        ("out_$folder$", ""),
    ] {
        store.plant(key, bytes.as_bytes());
    }
    let flags = ["--directory-markers", "--allow-delete", "--allow-rename", "--store", "aws"];
    let Some(mount) = TestMount::of(&store, &Setup::new(&flags)) else { return };
    assert_eq!(names(&mount.path("")), ["_$folder$", "both", "empty/", "out/"]);
    assert_errno(fs::metadata(mount.path("out_$folder$")), Errno::NOENT);
    assert_eq!(names(&mount.path("empty")), [""; 0]);
    fs::rename(mount.path("empty"), mount.path("moved")).unwrap();
    fs::rename(mount.path("out"), mount.path("new")).unwrap();
    assert_eq!(
        store.keys(),
        ["_$folder$", "both", "both_$folder$", "moved_$folder$", "new/part-0", "new_$folder$"]
    );
    assert_eq!(names(&mount.path("")), ["_$folder$", "both", "moved/", "new/"]);
    fs::write(mount.path("moved/file"), b"1").unwrap();
    fs::remove_dir_all(mount.path("moved")).unwrap();
    fs::remove_dir_all(mount.path("new")).unwrap();
    assert_eq!(store.keys(), ["_$folder$", "both", "both_$folder$"]);
    let plain = mount.second_mount(&["--store", "aws"]);
    assert_eq!(names(&plain.path("")), ["_$folder$", "both", "both_$folder$"]);
}
