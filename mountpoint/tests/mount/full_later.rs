//! `--commit disk` and `fsync`: close waits for nothing, files are sent after it, and waiting files outlive the engine.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use s3server::{Effect, Fault};
use tempfile::TempDir;

use super::full::{FullMount, kept, setup};
use super::semantics::assert_errno;
use crate::common::{Pattern, Store, TestMount};

/// A file that was refused again and again waits up to 64 s for its next turn.
pub(super) fn until(what: &str, so: impl FnMut() -> bool) {
    testkit::until_within(Duration::from_secs(200), what, so);
}

pub(super) const DISK: &[&str] = &["--commit", "disk"];

/// A store that refuses to store anything until its faults are cleared.
pub(super) fn shut(store: &Arc<Store>) {
    for operation in ["PutObject", "CreateMultipartUpload"] {
        let refused = Effect::Error { status: 403, code: "AccessDenied".to_owned() };
        store.faults().add(Fault::on(operation, refused).times(u64::MAX));
    }
}

/// Unmounts. A program of the machine that looks at all mounts may have this one open for a moment.
fn unmount(mount: &TestMount) {
    let unmounts = || Command::new("umount").arg(mount.dir()).status().unwrap().success();
    until("it is unmounted", unmounts);
}

pub(super) fn files_of(stage: &TempDir) -> usize {
    fs::read_dir(stage.path().join("files")).unwrap().count()
}

#[test]
fn close_waits_for_nothing_and_the_bucket_gets_the_file_soon() {
    let store = Store::new();
    store.plant("patched", &Pattern(1).bytes(0, 9_000_000));
    for commit in ["disk", "fsync"] {
        let Some(full) = FullMount::of(&store, &["--commit", commit]) else { return };
        shut(&store);
        fs::write(full.path("new"), commit).unwrap();
        fs::write(full.path("empty"), b"").unwrap();
        let patched = File::options().read(true).write(true).open(full.path("patched")).unwrap();
        patched.write_all_at(commit.as_bytes(), 5_000_000).unwrap();
        drop(patched);
        for round in 0..2 {
            assert_eq!(fs::read(full.path("new")).unwrap(), commit.as_bytes(), "{round}");
            assert_eq!(fs::metadata(full.path("empty")).unwrap().len(), 0);
            let mut names: Vec<_> =
                fs::read_dir(full.mount.dir()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            assert_eq!(names, ["empty", "new", "patched"]);
            assert!(fs::read(full.path("patched")).unwrap()[5_000_000..].starts_with(commit.as_bytes()));
            until("a send was refused", || full.mount.log().contains("waits in the stage"));
        }
        assert!(store.get("patched").unwrap()[5_000_000..] != *commit.as_bytes());
        store.faults().clear();
        until("nothing stays in the stage", || files_of(&full.stage) == 0);
        let patched = store.get("patched").unwrap();
        assert!(patched.len() == 9_000_000 && patched[5_000_000..].starts_with(commit.as_bytes()));
        assert_eq!(store.get("new").unwrap(), commit.as_bytes());
        assert_eq!(store.get("empty").unwrap(), b"");
        assert!(kept(&full.stage).is_empty());
        for name in ["new", "empty"] {
            fs::remove_file(full.path(name)).unwrap();
            assert_eq!(store.get(name), None);
        }
    }
}

#[test]
fn what_waits_when_the_engine_is_killed_is_stored_by_the_next_mount() {
    let store = Store::new();
    store.plant("patched", &Pattern(1).bytes(0, 9_000_000));
    store.plant("cut", &Pattern(2).bytes(0, 100_000));
    store.plant("replaced", b"before");
    let Some(mut full) = FullMount::of(&store, DISK) else { return };
    shut(&store);
    let open = |name| File::options().read(true).write(true).open(full.path(name)).unwrap();
    for name in ["new", "gone", "old name", "empty"] {
        fs::write(full.path(name), if name == "empty" { "" } else { name }).unwrap();
    }
    fs::remove_file(full.path("gone")).unwrap();
    fs::rename(full.path("old name"), full.path("new name")).unwrap();
    fs::write(full.path("tmp"), b"after").unwrap();
    fs::rename(full.path("tmp"), full.path("replaced")).unwrap();
    let (patched, cut) = (open("patched"), open("cut"));
    patched.write_all_at(b"first", 1_000_000).unwrap();
    patched.write_all_at(b"second", 8_999_997).unwrap();
    patched.sync_all().unwrap();
    patched.write_all_at(b"third", 3).unwrap();
    cut.set_len(1_000).unwrap();
    cut.set_len(2_000).unwrap();
    let half = File::create_new(full.path("open and not closed")).unwrap();
    half.write_all_at(b"half", 0).unwrap();
    full.mount.kill_9();
    drop((patched, cut, half));
    assert_eq!(store.keys(), ["cut", "patched", "replaced"], "nothing was sent");

    let mut expected = Pattern(1).bytes(0, 9_000_000);
    for (at, bytes) in [(3, &b"third"[..]), (1_000_000, b"first"), (8_999_997, b"second")] {
        expected.resize(expected.len().max(at + bytes.len()), 0);
        expected[at..at + bytes.len()].copy_from_slice(bytes);
    }
    let mut short = Pattern(2).bytes(0, 1_000);
    short.resize(2_000, 0);
    let files: [(&str, &[u8]); 7] = [
        ("cut", &short),
        ("empty", b""),
        ("new", b"new"),
        ("new name", b"old name"),
        ("open and not closed", b"half"),
        ("patched", &expected),
        ("replaced", b"after"),
    ];
    // Once more with the store shut: what is left is left again.
    let mount = full.mount.remount(&setup(&full.stage, DISK));
    let mut names: Vec<_> =
        fs::read_dir(mount.dir()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, files.map(|(name, _)| name));
    for (name, bytes) in files {
        assert!(fs::read(mount.path(name)).unwrap() == bytes, "{name}");
    }
    store.faults().clear();
    until("nothing stays in the stage", || files_of(&full.stage) == 0);
    for (name, bytes) in files {
        assert!(store.get(name).is_some_and(|stored| stored == bytes), "{name}");
    }
    assert_eq!(store.keys(), files.map(|(name, _)| name));
    assert!(kept(&full.stage).is_empty(), "{:?}", mount.complaints());
}

#[test]
fn what_is_not_sent_at_the_unmount_is_left_to_the_next_mount() {
    let store = Store::new();
    let Some(full) = FullMount::of(&store, DISK) else { return };
    fs::write(full.path("sent"), b"sent").unwrap();
    let FullMount { mut mount, stage } = full;
    unmount(&mount);
    assert!(mount.end().success());
    assert_eq!(store.get("sent").unwrap(), b"sent", "the end of the mount waits for what can be sent");
    drop(mount);
    let mut mount = TestMount::of(&store, &setup(&stage, DISK)).unwrap();
    shut(&store);
    fs::create_dir(mount.path("dir")).unwrap();
    fs::write(mount.path("left"), b"left").unwrap();
    unmount(&mount);
    assert!(mount.end().success());
    let line = "they stay in the stage, and the next mount";
    assert!(mount.complaints().iter().any(|said| said.contains(line)), "{:?}", mount.complaints());
    drop(mount);
    assert!(kept(&stage).is_empty() && files_of(&stage) == 2);
    store.faults().clear();
    // The promise of the next mount is its own.
    let mount = TestMount::of(&store, &setup(&stage, DISK)).unwrap();
    assert_eq!(fs::read(mount.path("left")).unwrap(), b"left");
    assert!(mount.path("dir").is_dir());
    until("both are stored", || store.sizes().iter().map(|(_, size)| *size).eq([0, 4, 4]));
    assert_eq!(store.keys(), ["dir/", "left", "sent"]);
}

#[test]
fn an_unmount_that_stores_everything_leaves_no_file_in_the_stage() {
    for commit in ["disk", "fsync"] {
        let store = Store::new();
        let Some(FullMount { mut mount, stage }) = FullMount::of(&store, &["--commit", commit]) else {
            return;
        };
        let write = |name: usize| fs::write(mount.path(&name.to_string()), b"bytes").unwrap();
        (0..10).for_each(write);
        until("half of them are stored", || store.keys().len() == 10);
        (10..20).for_each(write);
        unmount(&mount);
        assert!(mount.end().success());
        assert_eq!(store.keys().len(), 20);
        assert_eq!(files_of(&stage), 0, "{commit}");
    }
}

#[test]
fn a_version_of_another_client_wins_over_what_waits_and_that_is_kept() {
    let store = Store::new();
    store.plant("held", b"before");
    let Some(full) = FullMount::of(&store, DISK) else { return };
    shut(&store);
    let held = File::options().read(true).write(true).open(full.path("held")).unwrap();
    held.write_all_at(b"ours", 0).unwrap();
    held.sync_all().unwrap();
    fs::write(full.path("new"), b"ours").unwrap();
    store.faults().clear();
    store.put("new", "theirs");
    store.put("held", "theirs");
    until("what waited is kept", || kept(&full.stage).contains(&b"ours".to_vec()));
    until("the name is the bucket's", || fs::read(full.path("new")).ok() == Some(b"theirs".to_vec()));
    // A program that has the file open hears of it at the next call that is sent.
    fs::rename(full.path("held"), full.path("moved")).unwrap_err();
    assert_errno(held.write_all_at(b"more", 0), Errno::STALE);
    assert_errno(held.sync_all(), Errno::STALE);
    drop(held);
    until("both are kept", || kept(&full.stage).len() == 2);
    let lines = full.mount.complaints();
    assert_eq!(lines.iter().filter(|line| line.contains("/kept/")).count(), 2, "{lines:?}");
    assert_eq!(
        (store.get("new").unwrap(), store.get("held").unwrap()),
        (b"theirs".to_vec(), b"theirs".to_vec())
    );
}

#[test]
fn a_kept_file_is_listed_with_its_reason_and_restored_into_the_mount() {
    let store = Store::new();
    store.plant("file", b"before");
    let Some(full) = FullMount::of(&store, DISK) else { return };
    let ours = File::options().write(true).truncate(true).open(full.path("file")).unwrap();
    ours.write_all_at(b"ours", 0).unwrap();
    store.put("file", "theirs");
    drop(ours);
    until("it is kept", || kept(&full.stage) == [b"ours"]);
    let ctl = |words: &[&Path]| {
        let output = Command::new(env!("CARGO_BIN_EXE_mount-s3-ctl")).args(words).output().unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    };
    let (is_fine, list) = ctl(&["kept".as_ref(), full.stage.path()]);
    assert!(is_fine && list.contains("/file\n") && list.contains("another client changed it"), "{list}");
    let file = list.split("  file        ").nth(1).unwrap().split(';').next().unwrap().to_owned();
    let (is_fine, json) = ctl(&["kept".as_ref(), "--json".as_ref(), full.stage.path()]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/schemas/kept.json");
    let schema = serde_json::from_str(&fs::read_to_string(schema).unwrap()).unwrap();
    assert!(is_fine && jsonschema::is_valid(&schema, &json), "{json:#}");
    let first = &json["kept"][0];
    assert_eq!(
        (&first["file"], &first["bytes"], &first["key"]),
        (&file.clone().into(), &4.into(), &"file".into())
    );
    assert!(!ctl(&["restore".as_ref(), file.as_ref(), &full.path("file")]).0, "theirs is there");
    assert!(ctl(&["restore".as_ref(), file.as_ref(), &full.path("ours")]).0);
    until("it is stored", || store.get("ours").is_some_and(|bytes| bytes == b"ours"));
    assert_eq!(store.get("file").unwrap(), b"theirs");
    assert_eq!(ctl(&["kept".as_ref(), full.stage.path()]).1, "nothing is kept\n");
}

#[test]
fn a_sync_waits_for_what_is_pending_below_a_path_and_names_the_rest() {
    let (store, place, stage) = (Store::new(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let setup = setup(&stage, &["--commit", "disk", "--prefix", "under/"]);
    let setup = setup.env("XDG_RUNTIME_DIR", place.path().to_str().unwrap());
    let Some(mount) = TestMount::of(&store, &setup) else { return };
    let sync = |path: &Path, words: &[&str]| {
        let mut ctl = Command::new(env!("CARGO_BIN_EXE_mount-s3-ctl"));
        ctl.arg("sync").arg(path).args(words).env("XDG_RUNTIME_DIR", place.path());
        let output = ctl.output().unwrap();
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        (output.status.code(), said)
    };
    let write = |name: &str, bytes: &str| fs::write(mount.path(name), bytes).unwrap();
    fs::create_dir(mount.path("dir")).unwrap();
    // Refused once, and stored by the next attempt.
    let refused = || Effect::Error { status: 403, code: "AccessDenied".to_owned() };
    store.faults().add(Fault::on("PutObject", refused()).times(1));
    write("dir/a", "first");
    let (code, said) = sync(&mount.path("dir"), &["--within", "60"]);
    assert_eq!((code, store.get("under/dir/a")), (Some(0), Some(b"first".to_vec())), "{said}");
    // The command does not wait for files elsewhere, and names a refused file with its reason.
    store.faults().add(Fault::on("PutObject", refused()).times(u64::MAX));
    for name in ["dir-b", "dir/c"] {
        write(name, "second");
    }
    assert_eq!(sync(&mount.path("dir/a"), &[]).0, Some(0));
    let (code, said) = sync(&mount.path("dir"), &[]);
    assert!(code == Some(1) && said.contains("/dir/c: 6 B are not in the bucket: "), "{said}");
    assert!(said.contains("AccessDenied") && !said.contains("dir-b"), "{said}");
    store.faults().clear();
    assert_eq!(sync(mount.dir(), &[]).0, Some(0));
    assert_eq!(
        (store.get("under/dir-b").unwrap(), store.get("under/dir/c").unwrap().len()),
        (b"second".to_vec(), 6)
    );
    // A program has one open; another client's version wins over the other.
    let mut open = File::create_new(mount.path("open")).unwrap();
    open.write_all(b"half").unwrap();
    let (code, said) = sync(&mount.path("open"), &[]);
    assert!(code == Some(1) && said.contains("a program has it open for writing"), "{said}");
    drop(open);
    let mut late = File::options().write(true).truncate(true).open(mount.path("dir/a")).unwrap();
    late.write_all(b"third").unwrap();
    store.put("under/dir/a", "theirs");
    drop(late);
    // It is named, unless the mount found that out before.
    let (code, said) = sync(mount.dir(), &["--within", "60"]);
    assert_eq!(code == Some(1), said.contains("/dir/a: "), "{said}");
    assert_eq!(
        (store.get("under/open").unwrap(), store.get("under/dir/a").unwrap()),
        (b"half".to_vec(), b"theirs".to_vec())
    );
    assert_eq!(kept(&stage), [b"third".to_vec()]);
    assert_eq!(sync(mount.dir(), &[]).0, Some(0), "what is kept waits no more");
}

#[test]
fn files_made_in_a_directory_made_here_cost_one_request_each() {
    let store = Store::new();
    for commit in ["disk", "close"] {
        // A TTL that no slow machine outlasts.
        let options = ["--commit", commit, "--metadata-ttl", "3600"];
        let Some(full) = FullMount::of(&store, &options) else { return };
        fs::create_dir(full.path(commit)).unwrap();
        let asked = ["HeadObject", "ListObjectsV2"].map(|operation| store.requests().count(operation));
        for n in 0..50 {
            fs::write(full.path(&format!("{commit}/{n}")), b"content").unwrap();
            assert_eq!(fs::metadata(full.path(&format!("{commit}/{n}"))).unwrap().len(), 7);
        }
        until("all are stored", || files_of(&full.stage) == 0);
        assert_eq!(
            ["HeadObject", "ListObjectsV2"].map(|operation| store.requests().count(operation)),
            asked,
            "{commit}"
        );
        assert_eq!(store.requests().count("PutObject"), 51, "one of them for the directory");
        store.requests().reset();
    }
}

#[test]
fn files_that_are_soon_gone_or_replaced_cost_no_request() {
    let store = Store::new();
    let Some(full) = FullMount::of(&store, DISK) else { return };
    // Whatever is sent before a name goes, waits for the answer.
    shut(&store);
    store.requests().reset();
    for n in 0..20 {
        fs::write(full.path("index.lock"), format!("{n}")).unwrap();
        fs::rename(full.path("index.lock"), full.path("index")).unwrap();
        fs::write(full.path("gone"), b"gone").unwrap();
        fs::remove_file(full.path("gone")).unwrap();
    }
    assert_eq!(fs::read(full.path("index")).unwrap(), b"19");
    assert_eq!(store.requests().count("DeleteObject"), 0);
    assert_eq!(store.requests().count("CopyObject"), 0);
    store.faults().clear();
    until("the last one is stored", || files_of(&full.stage) == 0);
    assert_eq!((store.get("index").unwrap(), store.keys()), (b"19".to_vec(), vec!["index".to_owned()]));
}

#[test]
fn a_rename_over_a_waiting_file_replaces_what_that_one_was_to_replace() {
    let store = Store::new();
    store.plant("file", b"of the bucket");
    let Some(full) = FullMount::of(&store, DISK) else { return };
    shut(&store);
    for text in ["first", "second", "third"] {
        fs::write(full.path("tmp"), text).unwrap();
        fs::rename(full.path("tmp"), full.path("file")).unwrap();
    }
    store.faults().clear();
    until("the last one is stored", || files_of(&full.stage) == 0);
    assert_eq!(store.get("file").unwrap(), b"third");
    assert!(kept(&full.stage).is_empty(), "{:?}", full.mount.complaints());
    shut(&store);
    for text in ["fourth", "fifth"] {
        fs::write(full.path("tmp"), text).unwrap();
        fs::rename(full.path("tmp"), full.path("file")).unwrap();
    }
    fs::remove_file(full.path("file")).unwrap();
    assert_eq!(store.keys(), [""; 0], "nothing of before shows again");
}

#[test]
fn a_request_whose_answer_is_lost_with_the_engine_is_no_conflict() {
    let store = Store::new();
    store.plant("replaced", b"before");
    let Some(mut full) = FullMount::of(&store, DISK) else { return };
    store.faults().add(Fault::on("PutObject", Effect::Hold).times(2));
    let file = File::options().write(true).open(full.path("replaced")).unwrap();
    file.set_len(0).unwrap();
    (&file).write_all(b"first").unwrap();
    drop(file);
    fs::write(full.path("new"), b"first").unwrap();
    until("the store has both", || store.sizes() == [("new".to_owned(), 5), ("replaced".to_owned(), 5)]);
    // One file has a change that no request carries.
    let mut more = File::options().append(true).open(full.path("new")).unwrap();
    more.write_all(b" second").unwrap();
    full.mount.kill_9();
    drop(more);
    store.faults().clear();
    let mount = full.mount.remount(&setup(&full.stage, DISK));
    until("nothing waits", || files_of(&full.stage) == 0);
    assert_eq!(store.get("new").unwrap(), b"first second");
    assert_eq!(store.get("replaced").unwrap(), b"first");
    assert!(kept(&full.stage).is_empty(), "{:?}", mount.complaints());
}

#[test]
fn a_file_that_is_written_anew_while_it_is_sent_is_sent_once_and_whole() {
    let store = Store::new();
    store.plant("file", &Pattern(1).bytes(0, 9_000_000));
    let Some(full) = FullMount::of(&store, DISK) else { return };
    let patched = File::options().write(true).open(full.path("file")).unwrap();
    patched.write_all_at(b"X", 5_000_000).unwrap();
    // The send fetches the rest first.
    store.faults().add(Fault::on("GetObject", Effect::Hold));
    let fetched = store.requests().count("GetObject");
    drop(patched);
    until("a send began", || store.requests().count("GetObject") > fetched);
    let mut anew = File::options().write(true).truncate(true).open(full.path("file")).unwrap();
    anew.write_all(b"the first half, ").unwrap();
    store.faults().clear();
    // Long enough for that send to go on: it is to end without a request.
    std::thread::sleep(Duration::from_secs(1));
    anew.write_all(b"and the second").unwrap();
    drop(anew);
    until("nothing stays in the stage", || files_of(&full.stage) == 0);
    assert_eq!(store.get("file").unwrap(), b"the first half, and the second");
    assert_eq!(store.requests().count("PutObject"), 1, "no half of it was sent");
    assert!(kept(&full.stage).is_empty());
}

#[test]
fn files_made_during_a_rename_of_their_directory_get_its_new_name() {
    let store = Store::new();
    store.plant("d/a", b"0123456789");
    for (commit, from, to) in [("disk", "d", "e"), ("fsync", "e", "f")] {
        let Some(full) = FullMount::of(&store, &["--commit", commit]) else { return };
        // The kernel knows the directory by its descriptor, whatever a rename locks.
        let inside = File::open(full.path(from)).unwrap();
        let open = |name: &str, flags| {
            let mode = rustix::fs::Mode::from_raw_mode(0o644);
            File::from(rustix::fs::openat(&inside, name, flags, mode).unwrap())
        };
        let (write, create) = (rustix::fs::OFlags::WRONLY, rustix::fs::OFlags::CREATE);
        store.faults().add(Fault::on("CopyObject", Effect::Hold));
        let copies = store.requests().count("CopyObject");
        let (source, target) = (full.path(from), full.path(to));
        let rename = std::thread::spawn(move || fs::rename(source, target));
        until("the copies are held", || store.requests().count("CopyObject") > copies);
        let mut new = open(commit, write | create);
        new.write_all(commit.as_bytes()).unwrap();
        let synced = std::thread::spawn(move || new.sync_all());
        open("a", write).write_all_at(b"X", 9).unwrap();
        // Long enough for a send of what was closed: it is to wait.
        std::thread::sleep(Duration::from_secs(3));
        store.faults().clear();
        rename.join().unwrap().unwrap();
        synced.join().unwrap().unwrap();
        assert_eq!(fs::read(full.path(to).join(commit)).unwrap(), commit.as_bytes());
        assert_eq!(fs::read(full.path(to).join("a")).unwrap(), b"012345678X");
        until("nothing stays in the stage", || files_of(&full.stage) == 0);
        assert_eq!(store.get(&format!("{to}/{commit}")).unwrap(), commit.as_bytes());
        assert_eq!(store.get(&format!("{to}/a")).unwrap(), b"012345678X");
        assert_eq!((store.get(&format!("{from}/{commit}")), store.get(&format!("{from}/a"))), (None, None));
        assert!(kept(&full.stage).is_empty());
    }
}

#[test]
fn directories_with_waiting_files_are_renamed_and_listed() {
    let store = Store::new();
    let Some(mut full) = FullMount::of(&store, DISK) else { return };
    fs::create_dir_all(full.path("dir/below")).unwrap();
    shut(&store);
    for name in ["dir/a", "dir/below/b"] {
        fs::write(full.path(name), name).unwrap();
    }
    assert_errno(fs::remove_dir(full.path("dir/below")), Errno::NOTEMPTY);
    full.mount.kill_9();
    let mount = full.mount.remount(&setup(&full.stage, DISK));
    let list = |path: &Path| {
        let mut names: Vec<_> = fs::read_dir(path)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    assert_eq!(list(&mount.path("dir")), ["a", "below"]);
    store.faults().clear();
    fs::rename(mount.path("dir"), mount.path("moved")).unwrap();
    let mut bytes = String::new();
    File::open(mount.path("moved/below/b")).unwrap().read_to_string(&mut bytes).unwrap();
    assert_eq!(bytes, "dir/below/b");
    until("both are stored under the new name", || {
        store.get("moved/a").is_some_and(|bytes| bytes == b"dir/a")
            && store.get("moved/below/b").is_some_and(|bytes| bytes == b"dir/below/b")
    });
    until("nothing waits", || files_of(&full.stage) == 0);
    assert!(!store.keys().iter().any(|key| key.starts_with("dir/")), "{:?}", store.keys());
}

#[test]
fn a_stage_with_waiting_files_of_another_bucket_is_refused_and_unchanged() {
    let store = Store::new();
    let Some(mut full) = FullMount::of(&store, DISK) else { return };
    shut(&store);
    fs::write(full.path("new"), b"bytes").unwrap();
    full.mount.kill_9();
    let dir = full.mount.scratch("another");
    fs::create_dir(&dir).unwrap();
    let elsewhere = setup(&full.stage, &[DISK, &["--prefix", "other/"]].concat());
    let output = crate::common::command(&store, &dir, &elsewhere).output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(!output.status.success() && said.contains("still to be stored in bucket"), "{said}");
    store.faults().clear();
    let mount = full.mount.remount(&setup(&full.stage, DISK));
    until("it is stored", || store.get("new").is_some_and(|bytes| bytes == b"bytes"));
    drop(mount);
    assert!(kept(&full.stage).is_empty());
}

#[test]
fn writers_wait_for_room_while_files_leave_the_stage() {
    let store = Store::new();
    let Some(full) = FullMount::of(&store, &["--commit", "disk", "--stage-size", "2"]) else { return };
    // Three times as much as the stage holds.
    for n in 0..6_u8 {
        fs::write(full.path(&n.to_string()), vec![n; 1 << 20]).unwrap();
    }
    let files = 0..6_u8;
    until("all is stored", || {
        files.clone().all(|n| store.get(&n.to_string()).is_some_and(|bytes| bytes == vec![n; 1 << 20]))
    });
    // A longer one of which a part is changed needs room for that alone.
    store.plant("patched", &Pattern(1).bytes(0, 12 << 20));
    let patched = File::options().write(true).open(full.path("patched")).unwrap();
    for at in [0, 6 << 20, (12 << 20) - 5] {
        patched.write_all_at(b"patch", at).unwrap();
    }
    drop(patched);
    // Nothing that waits could make room for this one.
    until("nothing stays in the stage", || files_of(&full.stage) == 0);
    let file = File::create_new(full.path("long")).unwrap();
    let error = (&file).write_all(&vec![1; 3 << 20]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
    let stored = store.get("patched").unwrap();
    assert!([0, 6 << 20, (12 << 20) - 5].iter().all(|&at| stored[at..at + 5] == *b"patch"));
    assert!(Pattern(1).is(5, &stored[5..6 << 20]) && kept(&full.stage).is_empty());
}

#[test]
fn with_disk_a_write_may_ask_to_be_durable_on_return() {
    use rustix::fs::OFlags;
    let store = Store::new();
    let Some(full) = FullMount::of(&store, DISK) else { return };
    let log = || String::from_utf8_lossy(&fs::read(full.stage.path().join("log")).unwrap()).into_owned();
    let open = |name: &str, flag| {
        let mode = rustix::fs::Mode::from_raw_mode(0o644);
        rustix::fs::open(full.path(name), OFlags::WRONLY | OFlags::CREATE | flag, mode).map(File::from)
    };
    let plain = open("plain", OFlags::empty()).unwrap();
    plain.write_all_at(b"plain", 0).unwrap();
    let mut synced = 0;
    for (name, flag) in [("sync", OFlags::SYNC), ("dsync", OFlags::DSYNC)] {
        let file = open(name, flag).unwrap();
        file.write_all_at(b"durable", 0).unwrap();
        assert!(log().matches("\"Synced\"").count() > synced, "{name}: the log does not vouch for it");
        synced = log().matches("\"Synced\"").count();
        file.write_all_at(b"durable", 7).unwrap();
    }
    plain.write_all_at(b"more", 5).unwrap();
    assert_eq!(log().matches("\"Synced\"").count(), synced, "nobody asked");
    let script = "
file = os.open(sys.argv[1], os.O_WRONLY)
for flag in [os.RWF_DSYNC, os.RWF_SYNC]:
    print(os.pwritev(file, [b'x'], 0, flag), end=' ')
";
    assert_eq!(crate::common::python(script, &full.path("plain"), &[]), "1 1 ");
    assert!(log().matches("\"Synced\"").count() > synced);
    drop(plain);
    until("all are stored", || files_of(&full.stage) == 0);
    assert_eq!(store.get("sync").unwrap(), b"durabledurable");
    assert_eq!(store.get("plain").unwrap(), b"xlainmore");
    let Some(full) = FullMount::of(&store, &["--commit", "fsync"]) else { return };
    let synced =
        rustix::fs::open(full.path("sync"), OFlags::WRONLY | OFlags::SYNC, rustix::fs::Mode::empty());
    assert_errno(synced.map_err(std::io::Error::from), Errno::INVAL);
}
