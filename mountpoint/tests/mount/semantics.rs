//! Permitted and refused operations, and their errno.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;

use crate::common::{Setup, Store, TestMount};

#[track_caller]
pub(super) fn assert_errno<T>(result: io::Result<T>, errno: Errno) {
    let Err(error) = result else { panic!("this should have failed with {errno:?}") };
    assert_eq!(error.raw_os_error(), Some(errno.raw_os_error()), "{error}");
}

#[test]
fn without_allow_delete_nothing_is_deleted() {
    let store = Store::new();
    store.plant("file", b"1");
    let Some(mount) = TestMount::of(&store, &Setup::new(&[])) else { return };
    assert_errno(fs::remove_file(mount.path("file")), Errno::PERM);
    assert_eq!(store.get("file").unwrap(), b"1");
}

#[test]
fn with_allow_delete_a_file_is_deleted() {
    let store = Store::new();
    store.plant("a/file", b"1");
    store.plant("a/other", b"2");
    let Some(mount) = TestMount::of(&store, &Setup::new(&["--allow-delete"])) else { return };
    fs::remove_file(mount.path("a/file")).unwrap();
    assert_eq!(store.get("a/file"), None);
    assert_errno(fs::metadata(mount.path("a/file")), Errno::NOENT);
    assert_errno(fs::remove_file(mount.path("a/missing")), Errno::NOENT);
    let names: Vec<_> = fs::read_dir(mount.path("a")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["other"]);
}

#[test]
fn without_allow_overwrite_an_object_is_never_opened_for_writing() {
    let store = Store::new();
    store.plant("file", b"old");
    let Some(mount) = TestMount::of(&store, &Setup::new(&[])) else { return };
    let path = mount.path("file");
    assert_errno(File::create(&path), Errno::PERM);
    assert_errno(File::options().write(true).open(&path), Errno::PERM);
    assert_errno(File::options().append(true).open(&path), Errno::PERM);
    assert_errno(File::create_new(&path), Errno::EXIST);
    assert_eq!(store.get("file").unwrap(), b"old");
}

#[test]
fn with_allow_overwrite_a_truncating_open_replaces_the_object_at_close() {
    let store = Store::new();
    store.plant("file", b"old");
    let Some(mount) = TestMount::of(&store, &Setup::new(&["--allow-overwrite"])) else { return };
    let path = mount.path("file");
    assert_errno(File::options().write(true).open(&path), Errno::PERM);
    let mut file = File::create(&path).unwrap();
    file.write_all(b"new and longer").unwrap();
    assert_eq!(store.get("file").unwrap(), b"old", "the old object is there until the close");
    drop(file);
    assert_eq!(store.get("file").unwrap(), b"new and longer");
    assert_eq!(fs::read(&path).unwrap(), b"new and longer");
    File::create(&path).unwrap().sync_all().unwrap();
    assert_eq!(store.get("file").unwrap(), b"", "truncated and stored");
}

#[test]
fn an_open_that_reads_and_truncates_empties_the_object_if_allowed() {
    let truncate = rustix::fs::OFlags::TRUNC.bits() as i32;
    let open = |path: &Path| File::options().read(true).custom_flags(truncate).open(path);
    let store = Store::new();
    store.plant("file", b"old");
    for (options, errno) in [(&[][..], Errno::PERM), (&["--read-only"], Errno::ROFS)] {
        let Some(mount) = TestMount::of(&store, &Setup::new(options)) else { return };
        assert_errno(open(&mount.path("file")), errno);
        assert_eq!(fs::read(mount.path("file")).unwrap(), b"old");
        assert_eq!(store.get("file").unwrap(), b"old");
    }
    let Some(mount) = TestMount::of(&store, &Setup::new(&["--allow-overwrite"])) else { return };
    let path = mount.path("file");
    assert_eq!(fs::read(&path).unwrap(), b"old");
    let file = open(&path).unwrap();
    assert_eq!(store.get("file").unwrap(), b"", "it is stored when the open returns");
    assert_eq!((file.metadata().unwrap().len(), io::read_to_string(&file).unwrap()), (0, String::new()));
    assert_errno((&file).write_all(b"x"), Errno::BADF);
    assert_errno(open(&path), Errno::PERM);
    drop(file);
    assert_eq!(fs::read(&path).unwrap(), b"");
    let create = truncate | rustix::fs::OFlags::CREATE.bits() as i32;
    drop(File::options().read(true).custom_flags(create).open(mount.path("new")).unwrap());
    assert_eq!(fs::read(mount.path("new")).unwrap(), b"");
}

#[test]
fn a_file_has_one_writer_and_no_reader_beside_it() {
    let store = Store::new();
    store.plant("read", b"1");
    let Some(mount) = TestMount::of(&store, &Setup::new(&["--allow-overwrite"])) else { return };
    let writer = File::create_new(mount.path("new")).unwrap();
    assert_errno(File::create(mount.path("new")), Errno::PERM);
    assert_errno(File::open(mount.path("new")), Errno::PERM);
    drop(writer);
    let reader = File::open(mount.path("read")).unwrap();
    assert_errno(File::create(mount.path("read")), Errno::PERM);
    drop(reader);
}

#[test]
fn a_handle_reads_or_writes_and_never_both() {
    let Some(mount) = TestMount::new(&[]) else { return };
    let file = File::options().read(true).write(true).create_new(true).open(mount.path("file")).unwrap();
    file.write_all_at(b"written", 0).unwrap();
    assert_errno(file.read_at(&mut [0; 4], 0), Errno::BADF);
    drop(file);
    assert_eq!(mount.store().get("file").unwrap(), b"written");
}

#[test]
fn a_directory_is_local_until_a_file_below_it_is_stored() {
    let Some(mount) = TestMount::new(&[]) else { return };
    fs::create_dir(mount.path("empty")).unwrap();
    fs::create_dir_all(mount.path("full/of")).unwrap();
    assert_errno(fs::create_dir(mount.path("empty")), Errno::EXIST);
    assert_eq!(mount.store().keys(), Vec::<String>::new());
    assert!(fs::metadata(mount.path("empty")).unwrap().is_dir());
    fs::write(mount.path("full/of/file"), b"1").unwrap();
    assert_eq!(mount.store().keys(), ["full/of/file"]);
    assert_errno(fs::remove_dir(mount.path("full")), Errno::PERM);
    fs::remove_dir(mount.path("empty")).unwrap();
    assert_errno(fs::metadata(mount.path("empty")), Errno::NOENT);
}

#[test]
fn what_s3_has_no_word_for_is_refused_and_changes_nothing() {
    let store = Store::new();
    store.plant("file", b"1");
    let Some(mount) = TestMount::of(&store, &Setup::new(&["--allow-delete", "--allow-overwrite"])) else {
        return;
    };
    let path = mount.path("file");
    assert_errno(symlink("file", mount.path("link")), Errno::PERM);
    assert_errno(fs::hard_link(&path, mount.path("link")), Errno::PERM);
    assert_errno(fs::rename(&path, mount.path("moved")), Errno::NOSYS);
    assert_errno(fs::set_permissions(&path, fs::Permissions::from_mode(0o600)), Errno::PERM);
    let sync = rustix::fs::OFlags::SYNC.bits() as i32;
    let sync =
        File::options().write(true).create(true).truncate(false).custom_flags(sync).open(mount.path("sync"));
    assert_errno(sync, Errno::INVAL);
    assert_errno(fs::metadata(mount.path("sync")), Errno::NOENT);
    assert_eq!(store.keys(), ["file"]);
    assert_eq!(store.get("file").unwrap(), b"1");
}

#[test]
fn modes_owners_and_times_of_stored_files_are_refused() {
    let store = Store::new();
    store.plant("dir/file", b"1");
    let Some(mount) = TestMount::of(&store, &Setup::new(&["--allow-overwrite"])) else { return };
    type Change = fn(&Path) -> io::Result<()>;
    let change: [(&str, Change); 3] = [
        ("chmod", |path| fs::set_permissions(path, fs::Permissions::from_mode(0o600))),
        ("chown", |path| chown(path, Some(1234), Some(2345))),
        ("utimens", |path| {
            let then = rustix::fs::Timespec { tv_sec: 1_000_000, tv_nsec: 0 };
            let times = rustix::fs::Timestamps { last_access: then, last_modification: then };
            Ok(rustix::fs::utimensat(rustix::fs::CWD, path, &times, rustix::fs::AtFlags::empty())?)
        }),
    ];
    let shown = |path: &Path| {
        let meta = fs::metadata(path).unwrap();
        (meta.mode(), meta.uid(), meta.gid(), meta.len())
    };
    let mut file = File::create_new(mount.path("new")).unwrap();
    fs::create_dir(mount.path("here")).unwrap();
    for (what, change) in change {
        for stored in ["dir/file", "dir"] {
            let path = mount.path(stored);
            let before = (shown(&path), fs::metadata(&path).unwrap().modified().unwrap());
            let Err(error) = change(&path) else { panic!("{what} of {stored} was accepted") };
            assert_eq!(error.raw_os_error(), Some(Errno::PERM.raw_os_error()), "{what} of {stored}: {error}");
            assert_eq!((shown(&path), fs::metadata(&path).unwrap().modified().unwrap()), before, "{what}");
        }
        for local in ["new", "here"] {
            let path = mount.path(local);
            let before = shown(&path);
            change(&path).unwrap_or_else(|error| panic!("{what} of {local}: {error}"));
            assert_eq!(shown(&path), before, "{what} of {local} has no effect");
            let shows = fs::metadata(&path).unwrap().mtime() == 1_000_000;
            assert_eq!(shows, (what, local) == ("utimens", "new"), "{what} of {local}");
        }
    }
    file.write_all(b"stored").unwrap();
    drop(file);
    assert_eq!(store.get("new").unwrap(), b"stored");
    let (_, chmod) = change[0];
    assert_errno(chmod(&mount.path("new")), Errno::PERM);
}

#[test]
fn a_mode_an_owner_and_times_that_are_shown_already_are_accepted() {
    let store = Store::new();
    store.plant("dir/file", b"1");
    let Some(mount) = TestMount::of(&store, &Setup::new(&[])) else { return };
    for name in ["dir", "dir/file"] {
        let path = mount.path(name);
        let shown = fs::metadata(&path).unwrap();
        fs::set_permissions(&path, shown.permissions()).unwrap();
        chown(&path, Some(shown.uid()), Some(shown.gid())).unwrap();
        chown(&path, None, Some(shown.gid())).unwrap();
        let times = |modified| {
            let times = fs::FileTimes::new().set_accessed(shown.accessed().unwrap()).set_modified(modified);
            File::open(&path).unwrap().set_times(times)
        };
        let modified = shown.modified().unwrap();
        times(modified).unwrap();
        assert_errno(times(modified + Duration::from_micros(1)), Errno::PERM);
        assert_errno(chown(&path, None, Some(shown.gid() + 1)), Errno::PERM);
        let others = fs::Permissions::from_mode(shown.mode() ^ 0o1);
        assert_errno(fs::set_permissions(&path, others), Errno::PERM);
        let now = fs::metadata(&path).unwrap();
        assert_eq!(
            (now.mode(), now.uid(), now.gid(), now.modified().unwrap()),
            (shown.mode(), shown.uid(), shown.gid(), modified)
        );
    }
}

#[test]
fn a_read_only_mount_writes_nothing() {
    let store = Store::new();
    store.plant("file", b"1");
    let Some(mount) = TestMount::of(&store, &Setup::new(&["--read-only"])) else { return };
    assert_errno(File::create_new(mount.path("new")), Errno::ROFS);
    assert_errno(fs::create_dir(mount.path("dir")), Errno::ROFS);
    assert_errno(fs::remove_file(mount.path("file")), Errno::ROFS);
    assert_eq!(fs::read(mount.path("file")).unwrap(), b"1");
}

#[test]
fn attributes_come_from_the_options_and_the_object() {
    let store = Store::new();
    store.plant("dir/file", b"12345");
    let options =
        ["--uid", "1234", "--gid", "2345", "--file-mode", "0640", "--dir-mode", "0750", "--allow-other"];
    let Some(mount) = TestMount::of(&store, &Setup::new(&options)) else { return };
    let file = fs::metadata(mount.path("dir/file")).unwrap();
    assert_eq!(
        (file.len(), file.mode(), file.uid(), file.gid(), file.nlink()),
        (5, 0o100_640, 1234, 2345, 1)
    );
    let dir = fs::metadata(mount.path("dir")).unwrap();
    assert_eq!((dir.mode(), dir.uid(), dir.gid()), (0o040_750, 1234, 2345));
    let age = file.modified().unwrap().elapsed().unwrap_or_default();
    assert!(age.as_secs() < 3600, "the time is the object's: {age:?}");
    let space = rustix::fs::statvfs(mount.dir()).unwrap();
    assert_eq!(space.f_namemax, 255);
    assert!(space.f_bavail > 0);
}

#[test]
fn a_prefix_is_the_whole_world() {
    let store = Store::new();
    for key in ["outside", "in/side", "in/deep/er", "inner"] {
        store.plant(key, key.as_bytes());
    }
    for (bucket, options) in [("bucket", &["--prefix", "in/"][..]), ("s3://bucket/in/", &[])] {
        let setup = Setup { bucket: bucket.to_owned(), ..Setup::new(options) };
        let Some(mount) = TestMount::of(&store, &setup) else { return };
        let mut names: Vec<_> = fs::read_dir(mount.dir())
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["deep", "side"]);
        assert_eq!(fs::read(mount.path("deep/er")).unwrap(), b"in/deep/er");
        let fresh = format!("fresh{}", options.len());
        fs::write(mount.path(&fresh), b"1").unwrap();
        assert!(store.get(&format!("in/{fresh}")).is_some());
        drop(mount);
        store.remove(&format!("in/{fresh}"));
    }
}

#[test]
fn an_open_sees_the_newest_object_right_after_a_listing() {
    let store = Store::new();
    for i in 0..50 {
        store.plant(&format!("dir/{i:02}"), b"old");
    }
    let Some(mount) = TestMount::of(&store, &Setup::new(&[])) else { return };
    for i in 0..10 {
        // The kernel takes names and attributes of a listing for a second.
        let listed =
            fs::read_dir(mount.path("dir")).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len());
        assert!(listed.count() >= 40);
        let (changed, gone, new) =
            (format!("dir/{i:02}"), format!("dir/{:02}", i + 40), format!("dir/new{i}"));
        store.put(&changed, "the newest");
        store.remove(&gone);
        store.put(&new, "new");
        assert_eq!(fs::read(mount.path(&changed)).unwrap(), b"the newest");
        assert_errno(fs::read(mount.path(&gone)), Errno::NOENT);
        assert_eq!(fs::read(mount.path(&new)).unwrap(), b"new");
    }
}

#[test]
fn an_open_of_a_name_changed_since_its_stat_meets_the_current_object() {
    let store = Store::new();
    for i in 0..10 {
        for name in ["created", "folder", "gone"] {
            store.plant(&format!("{i}/{name}"), b"old");
        }
    }
    let Some(mount) = TestMount::of(&store, &Setup::new(&[])) else { return };
    for i in 0..10 {
        // The kernel takes names and attributes of a listing for a second: most opens below come without a lookup.
        let listed = fs::read_dir(mount.path(&i.to_string())).unwrap();
        assert_eq!(listed.map(|entry| entry.unwrap().metadata().unwrap().len()).collect::<Vec<_>>(), [3; 3]);
        for name in ["created", "folder", "gone"] {
            store.remove(&format!("{i}/{name}"));
        }
        store.put(&format!("{i}/folder/file"), "below");
        assert_errno(fs::read(mount.path(&format!("{i}/gone"))), Errno::NOENT);
        assert!(File::open(mount.path(&format!("{i}/folder"))).unwrap().metadata().unwrap().is_dir());
        // A program that creates what is missing does not hear that it is missing.
        let create = rustix::fs::OFlags::CREATE.bits() as i32;
        File::options().read(true).custom_flags(create).open(mount.path(&format!("{i}/created"))).unwrap();
    }
}
