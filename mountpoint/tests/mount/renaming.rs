//! Renames: refused, and with `--allow-rename` a copy by the store and a delete.

use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, Mode, RenameFlags, renameat_with};
use rustix::io::Errno;
use s3server::{Effect, Fault};

use super::semantics::assert_errno;
use crate::common::{Pattern, Setup, Store, TestMount, command, run, until};

const RENAMES: &[&str] = &["--allow-rename"];

#[test]
fn mv_renames_a_file_in_the_store_and_its_reader_goes_on() {
    let store = Store::new();
    const LEN: usize = 5_000_000;
    store.plant("dir/archive.tmp", &Pattern(1).bytes(0, LEN));
    let options = ["--allow-rename", "--store", "aws"];
    let Some(mount) = TestMount::of(&store, &Setup::new(&options)) else { return };
    let mut reader = File::open(mount.path("dir/archive.tmp")).unwrap();
    let mut bytes = vec![0; 1000];
    reader.read_exact(&mut bytes).unwrap();
    fs::create_dir(mount.path("new")).unwrap();
    store.requests().reset();
    run(Command::new("mv").arg(mount.path("dir/archive.tmp")).arg(mount.path("new/archive")));
    let of = |operation| store.requests().count(operation);
    assert_eq!((of("CopyObject"), of("DeleteObject"), of("PutObject")), (1, 1, 0));
    assert!(of("HeadObject") <= 4, "{} HEADs, most of them look-ups", of("HeadObject"));
    // The reader's own read-ahead may still ask for bytes; none of them is stored anew.
    assert!(store.requests().bytes_received() < 100_000, "no byte passes");
    assert_eq!(store.keys(), ["new/archive"]);
    assert_errno(fs::metadata(mount.path("dir/archive.tmp")), Errno::NOENT);
    assert_eq!(fs::read_dir(mount.path("new")).unwrap().count(), 1);
    reader.seek(SeekFrom::Start(4_000_000)).unwrap();
    reader.read_exact(&mut bytes).unwrap();
    assert!(Pattern(1).is(4_000_000, &bytes), "the reader has the bytes that it opened");
    let whole = fs::read(mount.path("new/archive")).unwrap();
    assert!(whole.len() == LEN && Pattern(1).is(0, &whole));
}

/// Goal: known names cost no request, so that only the rename's own requests are left.
#[test]
fn a_rename_is_three_requests_beside_look_ups() {
    let store = Store::new();
    store.put("old/file", Pattern(1).bytes(0, 1_000_000));
    store.put("new/other", "1");
    let options = ["--allow-rename", "--store", "aws", "--metadata-ttl", "indefinite"];
    let Some(mount) = TestMount::of(&store, &Setup::new(&options)) else { return };
    let (old, new) = (mount.path("old/file"), mount.path("new/file"));
    fs::metadata(&old).unwrap();
    assert_errno(fs::metadata(&new), Errno::NOENT);
    store.requests().reset();
    fs::rename(&old, &new).unwrap();
    let sent = store.requests().all();
    let expected = ["CopyObject", "DeleteObject", "HeadObject"].map(|operation| (operation.to_owned(), 1));
    assert_eq!(sent, expected.into());
    assert_eq!(store.keys(), ["new/file", "new/other"]);
}

#[test]
fn without_its_flag_a_rename_has_the_errno_that_was_chosen() {
    let store = Store::new();
    store.plant("file", b"1");
    let Some(mount) = TestMount::of(&store, &Setup::new(&["--rename-errno", "exdev", "--allow-delete"]))
    else {
        return;
    };
    assert_errno(fs::rename(mount.path("file"), mount.path("new")), Errno::XDEV);
    assert_eq!(store.requests().count("CopyObject"), 0);
    run(Command::new("mv").arg(mount.path("file")).arg(mount.path("new")));
    assert_eq!((store.keys(), store.get("new").unwrap()), (vec!["new".to_owned()], b"1".to_vec()));
}

#[test]
fn a_rename_replaces_a_file_only_with_allow_overwrite() {
    let store = Store::new();
    store.plant("a", b"1");
    store.plant("b", b"2");
    store.plant("dir/x", b"3");
    for overwrite in [false, true] {
        let options = [RENAMES, if overwrite { &["--allow-overwrite"][..] } else { &[] }].concat();
        let Some(mount) = TestMount::of(&store, &Setup::new(&options)) else { return };
        let (a, b) = (mount.path("a"), mount.path("b"));
        let with = |flags| renameat_with(CWD, &a, CWD, &b, flags).map_err(std::io::Error::from);
        assert_errno(with(RenameFlags::NOREPLACE), Errno::EXIST);
        assert_errno(with(RenameFlags::EXCHANGE), Errno::INVAL);
        assert_errno(fs::rename(&a, mount.path("dir")), Errno::ISDIR);
        assert_errno(fs::rename(mount.path("dir"), mount.path("dir/below")), Errno::INVAL);
        assert_eq!((store.get("a").unwrap(), store.get("b").unwrap()), (b"1".to_vec(), b"2".to_vec()));
        if !overwrite {
            assert_errno(fs::rename(&a, &b), Errno::PERM);
            assert_eq!(store.get("b").unwrap(), b"2");
            continue;
        }
        fs::rename(&a, &b).unwrap();
        assert_eq!(
            (store.keys(), store.get("b").unwrap()),
            (vec!["b".into(), "dir/x".into()], b"1".to_vec())
        );
        assert_eq!(fs::read(&b).unwrap(), b"1");
    }
}

#[test]
fn a_file_renamed_while_open_under_its_temporary_name_is_stored_whole() {
    let Some(mount) = TestMount::new(RENAMES) else { return };
    // `safetensors.save_file` does this: the size, the bytes in order, the rename, the close.
    for (name, len) in [("small", 3_000), ("large", 30 << 20)] {
        let (temporary, path) = (mount.path(&format!(".{name}.tmp")), mount.path(name));
        let mut file = File::create_new(&temporary).unwrap();
        file.set_len(len as u64).unwrap();
        let bytes = Pattern(2).bytes(0, len);
        for piece in bytes.chunks(1 << 20) {
            file.write_all(piece).unwrap();
        }
        fs::rename(&temporary, &path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), len as u64);
        assert_errno(fs::metadata(&temporary), Errno::NOENT);
        drop(file);
        let stored = mount.store().get(name).unwrap();
        assert!(stored.len() == len && Pattern(2).is(0, &stored), "{name}");
    }
    assert_eq!(mount.store().keys(), ["large", "small"]);
    assert_eq!(mount.store().pending_uploads(), 0);
}

#[test]
fn a_rename_that_fails_leaves_the_old_name_and_no_other() {
    let store = Store::new();
    store.plant("old", b"1");
    let Some(mount) = TestMount::of(&store, &Setup::new(RENAMES)) else { return };
    let denied = || Effect::Error { status: 403, code: "AccessDenied".to_owned() };
    let late = || Effect::OkWithError { code: "AccessDenied".to_owned() };
    for (operation, effect) in [("CopyObject", denied()), ("CopyObject", late()), ("DeleteObject", denied())]
    {
        let times = Fault::on(operation, effect.clone()).times(1);
        store.faults().add(times);
        assert_errno(fs::rename(mount.path("old"), mount.path("new")), Errno::ACCESS);
        assert_eq!(store.keys(), ["old"], "{operation} {effect:?}");
        assert_eq!(fs::read(mount.path("old")).unwrap(), b"1");
        assert_errno(fs::metadata(mount.path("new")), Errno::NOENT);
    }
    // The store carries out both requests, and neither answer arrives.
    for operation in ["CopyObject", "DeleteObject"] {
        store.faults().add(Fault::on(operation, Effect::DropAnswer).times(1));
    }
    fs::rename(mount.path("old"), mount.path("new")).unwrap();
    assert_eq!(store.keys(), ["new"]);
}

#[test]
fn renames_of_two_mounts_see_each_other() {
    let store = Store::new();
    store.plant("old", b"1");
    let Some(one) = TestMount::of(&store, &Setup::new(RENAMES)) else { return };
    let Some(two) = TestMount::of(&store, &Setup::new(RENAMES)) else { return };
    fs::rename(one.path("old"), one.path("new")).unwrap();
    assert_eq!(fs::read(two.path("new")).unwrap(), b"1");
    fs::rename(two.path("new"), two.path("newer")).unwrap();
    assert_errno(fs::rename(one.path("new"), one.path("newest")), Errno::NOENT);
    assert_eq!(store.keys(), ["newer"]);
}

fn plant_tree(store: &Store, files: usize) {
    for file in 0..files {
        store.plant(&format!("tree/{}/{file}", file % 7), file.to_string().as_bytes());
    }
}

/// The files of a tree of this many have their bytes, and there are no others.
fn check_tree(store: &Store, name: &str, files: usize) {
    assert_eq!(store.keys().len(), files);
    for file in 0..files {
        let stored = store.get(&format!("{name}/{}/{file}", file % 7));
        assert_eq!(stored.as_deref(), Some(file.to_string().as_bytes()), "{name} {file}");
    }
}

#[test]
fn a_directory_is_renamed_in_the_store() {
    const FILES: usize = 300;
    let store = Store::new();
    plant_tree(&store, FILES);
    let options = ["--allow-rename", "--store", "aws"];
    let Some(mount) = TestMount::of(&store, &Setup::new(&options)) else { return };
    let mut reader = File::open(mount.path("tree/3/3")).unwrap();
    let within = File::open(mount.path("tree/4")).unwrap();
    fs::create_dir(mount.path("there")).unwrap();
    store.requests().reset();
    run(Command::new("mv").arg(mount.path("tree")).arg(mount.path("there/moved")));
    let of = |operation| store.requests().count(operation);
    let files = FILES as u64;
    assert_eq!((of("CopyObject"), of("DeleteObject"), of("PutObject")), (files, files, 0));
    assert!(of("HeadObject") + of("ListObjectsV2") <= 20, "{} HEADs", of("HeadObject"));
    check_tree(&store, "there/moved", FILES);
    assert_errno(fs::metadata(mount.path("tree")), Errno::NOENT);
    assert_eq!(fs::read_dir(mount.path("there/moved")).unwrap().count(), 7);
    let (mut text, old) = (String::new(), format!("/proc/self/fd/{}/11", within.as_raw_fd()));
    reader.read_to_string(&mut text).unwrap();
    assert_eq!((text.as_str(), fs::read_to_string(old).unwrap().as_str()), ("3", "11"));
    assert_eq!(fs::read_to_string(mount.path("there/moved/5/12")).unwrap(), "12");
    run(Command::new("mv").arg(mount.path("there/moved/4")).arg(mount.path("four")));
    assert_eq!(fs::read_dir(mount.path("there/moved")).unwrap().count(), 6);
    assert_eq!(fs::read_to_string(mount.path("four/11")).unwrap(), "11");
}

#[test]
fn a_killed_rename_of_a_directory_is_completed_by_the_next_mount() {
    const FILES: usize = 300;
    for operation in ["CopyObject", "DeleteObject"] {
        let store = Store::new();
        plant_tree(&store, FILES);
        let options = ["--allow-rename", "--store", "aws"];
        let Some(mut mount) = TestMount::of(&store, &Setup::new(&options)) else { return };
        store.faults().add(Fault { skip: 100, ..Fault::on(operation, Effect::Hold) });
        let (from, to) = (mount.path("tree"), mount.path("moved"));
        let renames = std::thread::spawn(move || fs::rename(from, to));
        until("the rename is under way", || store.requests().count(operation) > 100);
        mount.kill_9();
        assert!(renames.join().unwrap().is_err());
        store.faults().clear();
        let next = mount.remount(&Setup::new(&options));
        until(&format!("{operation}: the log says that the rename has ended"), || {
            next.log().contains("whose mount-s3 was killed, is")
        });
        assert!(next.log().contains("whose mount-s3 was killed, is complete"), "{operation}: {}", next.log());
        check_tree(&store, "moved", FILES);
        assert_eq!(fs::read_to_string(next.path("moved/5/12")).unwrap(), "12");
    }
}

#[test]
fn a_store_that_showed_that_it_has_no_copies_is_not_mounted_for_them() {
    let store = Store::new();
    store.plant("file", b"1");
    let Some(mount) = TestMount::of(&store, &Setup::new(RENAMES)) else { return };
    let unknown = Effect::Error { status: 501, code: "NotImplemented".to_owned() };
    store.faults().add(Fault::on("CopyObject", unknown));
    assert_errno(fs::rename(mount.path("file"), mount.path("new")), Errno::OPNOTSUPP);
    assert_eq!(store.keys(), ["file"]);
    drop(mount);
    for flag in ["--allow-rename", "--allow-append", "--keep-metadata"] {
        let folder = tempfile::tempdir().unwrap();
        let setup = Setup { foreground: false, ..Setup::new(&[flag]) };
        let refused = command(&store, folder.path(), &setup).output().unwrap();
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(
            !refused.status.success() && said.contains(flag) && said.contains("CopyObject"),
            "{flag}: {said}"
        );
    }
}

/// Removes, renames and makes names below a directory while its rename is in progress.
pub(super) fn names_follow(store: &Arc<Store>, top: &Path) {
    for name in ["a", "gone", "moves"] {
        store.plant(&format!("d/s/{name}"), name.as_bytes());
    }
    // The kernel knows the directory by its descriptor, whatever a rename locks.
    let inside = Arc::new(File::open(top.join("d/s")).unwrap());
    fs::metadata(top.join("d/s/gone")).unwrap();
    store.faults().add(Fault::on("CopyObject", Effect::Hold));
    let copies = store.requests().count("CopyObject");
    let (from, to) = (top.join("d"), top.join("e"));
    let rename = std::thread::spawn(move || fs::rename(from, to));
    until("the copies are held", || store.requests().count("CopyObject") > copies);
    let act = |act: fn(&File) -> rustix::io::Result<()>| {
        let inside = Arc::clone(&inside);
        std::thread::spawn(move || act(&inside))
    };
    let changes = [
        act(|inside| rustix::fs::unlinkat(inside, "gone", AtFlags::empty())),
        act(|inside| rustix::fs::renameat(inside, "moves", inside, "moved")),
        act(|inside| rustix::fs::mkdirat(inside, "new", Mode::from_raw_mode(0o755))),
    ];
    // Long enough for each change to reach the store: all are to wait.
    std::thread::sleep(Duration::from_secs(1));
    store.faults().clear();
    rename.join().unwrap().unwrap();
    for change in changes {
        change.join().unwrap().unwrap();
    }
    // `--commit disk` stores the new directory behind its mkdir.
    until("each name is stored", || store.keys() == ["e/s/a", "e/s/moved", "e/s/new/"]);
    assert_errno(fs::metadata(top.join("d")), Errno::NOENT);
    assert_eq!(fs::read(top.join("e/s/moved")).unwrap(), b"moves");
    assert_errno(fs::metadata(top.join("e/s/gone")), Errno::NOENT);
    assert!(fs::metadata(top.join("e/s/new")).unwrap().is_dir());
}

#[test]
fn what_changes_below_a_directory_during_its_rename_comes_along() {
    let store = Store::new();
    let options = ["--allow-rename", "--allow-delete", "--directory-markers", "--store", "aws"];
    let Some(mount) = TestMount::of(&store, &Setup::new(&options)) else { return };
    names_follow(&store, mount.dir());
}
