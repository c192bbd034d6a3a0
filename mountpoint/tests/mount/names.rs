//! Any key of a bucket: the key appears or is left out, but never stands for another file and never leads out of the mount.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use testkit::{hostile_keys, is_path};

use crate::common::{Pattern, Setup, Store, TestMount};

#[test]
fn a_hundred_thousand_keys_in_one_directory_are_listed_once_each() {
    const MANY: usize = 100_000;
    let store = Store::new();
    let folder = store.bucket_folder().join("many");
    fs::create_dir_all(&folder).unwrap();
    for i in 0..MANY {
        fs::write(folder.join(format!("{i:06}")), i.to_string()).unwrap();
    }
    let Some(mount) = TestMount::of(&store, &Setup::new(&[]).limit(Duration::from_secs(600))) else { return };
    let names: Vec<_> = fs::read_dir(mount.path("many")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names.len(), MANY);
    let unique: BTreeSet<_> = names.iter().collect();
    assert_eq!(unique.len(), MANY);
    for i in (0..MANY).step_by(9973) {
        assert_eq!(fs::read(mount.path(&format!("many/{i:06}"))).unwrap(), i.to_string().as_bytes());
    }
    assert!(fs::metadata(mount.path("many/100000")).is_err());
}

#[test]
fn a_name_of_white_space_may_have_more_than_one_part() {
    let Some(mount) = TestMount::new(&[]) else { return };
    let bytes = Pattern(5).bytes(0, 20 << 20);
    fs::write(mount.path(" "), &bytes).unwrap();
    assert!(mount.store().requests().count("UploadPart") > 1, "one request would prove nothing");
    assert!(mount.store().get(" ").unwrap() == bytes);
    assert!(
        fs::read(mount.path(" ")).unwrap() == bytes,
        "the version that is remembered is the one that is there"
    );
}

#[test]
fn a_file_whose_key_has_1024_bytes_is_written_and_read() {
    let Some(mount) = TestMount::new(&[]) else { return };
    let folder = format!("{0}/{0}/{0}/e", "d".repeat(255));
    let key = format!("{folder}/{}", "f".repeat(1023 - folder.len()));
    fs::create_dir_all(mount.path(&folder)).unwrap();
    fs::write(mount.path(&key), b"longest").unwrap();
    assert_eq!(mount.store().keys(), [&*key]);
    assert_eq!(fs::read(mount.path(&key)).unwrap(), b"longest");
    assert_eq!(fs::read_dir(mount.path(&folder)).unwrap().count(), 1);
    let error = fs::write(mount.path(&format!("{key}f")), b"too long").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::NAMETOOLONG.raw_os_error()), "{error}");
}

/// All files under a directory, by their path in it. Bounded: a loop would be found by its depth.
fn walk(root: &Path, below: &str, files: &mut BTreeMap<String, Vec<u8>>) {
    assert!(below.matches('/').count() <= 600, "the tree has no end: {below}");
    for entry in fs::read_dir(root.join(OsStr::from_bytes(below.as_bytes()))).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().expect("names are UTF-8");
        let path = if below.is_empty() { name } else { format!("{below}/{name}") };
        if entry.file_type().unwrap().is_dir() {
            walk(root, &path, files);
        } else {
            let bytes = fs::read(root.join(&path)).unwrap_or_else(|error| panic!("{path:?}: {error}"));
            assert!(files.insert(path.clone(), bytes).is_none(), "{path:?} appears twice");
        }
    }
}

#[test]
fn a_hostile_key_appears_as_itself_or_not_at_all() {
    let store = Store::new();
    let keys = hostile_keys();
    for key in &keys {
        store.put(key, format!("content of {key}"));
    }
    store.put("../escaped", "content of ../escaped");
    let Some(mount) = TestMount::of(&store, &Setup::new(&[])) else { return };
    let mut files = BTreeMap::new();
    walk(mount.dir(), "", &mut files);
    for (path, bytes) in &files {
        assert!(keys.contains(path), "{path:?} is not a key");
        assert_eq!(*bytes, format!("content of {path}").as_bytes(), "{path:?} shows another key's bytes");
    }
    for key in &keys {
        let shadowed = keys.iter().any(|other| other.starts_with(&format!("{key}/")));
        let long = key.split('/').any(|name| name.len() > 255);
        match files.contains_key(key) {
            true => assert!(is_path(key) && !shadowed, "{key:?} can't be a path"),
            false => assert!(!is_path(key) || shadowed || long, "{key:?} is missing"),
        }
    }
    assert!(fs::metadata(mount.path("twin")).unwrap().is_dir(), "a directory shadows the file beside it");
    // Names come from outside too.
    for name in ["missing", "a/missing", "back\\missing"] {
        assert_eq!(
            fs::metadata(mount.path(name)).unwrap_err().kind(),
            std::io::ErrorKind::NotFound,
            "{name}"
        );
    }
    assert!(!mount.dir().parent().unwrap().join("escaped").exists());
}

#[test]
fn keys_of_odd_characters_are_written_as_they_are_named() {
    let Some(mount) = TestMount::new(&[]) else { return };
    let names =
        hostile_keys().into_iter().filter(|key| is_path(key) && !key.contains('/') && key.len() <= 255);
    let names: Vec<_> = names.filter(|name| name != "twin").collect();
    for name in &names {
        fs::write(mount.path(name), name).unwrap_or_else(|error| panic!("{name:?}: {error}"));
    }
    let stored: BTreeSet<String> = mount.store().keys().into_iter().collect();
    assert_eq!(stored, names.iter().cloned().collect());
    for name in &names {
        assert_eq!(mount.store().get(name).unwrap(), name.as_bytes());
        assert_eq!(fs::read(mount.path(name)).unwrap(), name.as_bytes());
    }
}

#[test]
fn names_that_are_no_utf_8_are_refused() {
    let Some(mount) = TestMount::new(&[]) else { return };
    let name = mount.dir().join(OsStr::from_bytes(b"not\xffutf8"));
    let error = fs::write(&name, b"1").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::INVAL.raw_os_error()), "{error}");
    assert_eq!(mount.store().keys(), Vec::<String>::new());
}
