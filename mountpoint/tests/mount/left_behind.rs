//! Uploads that a killed engine left behind: the next mount finds them in the journal of the state directory, and aborts no others.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use s3server::{Effect, Fault};

use crate::common::{Pattern, Setup, Store, TestMount, until};

/// More than a part: the upload is under way before the file is closed.
const BEGUN: usize = 10 << 20;

/// A file whose upload has begun and not ended.
fn begin(mount: &TestMount, name: &str) -> File {
    let mut file = File::create_new(mount.path(name)).unwrap();
    file.write_all(&Pattern(1).bytes(0, BEGUN)).unwrap();
    file
}

/// The entries of the journal that mounts of this store use by default.
fn entries(store: &Store) -> Vec<PathBuf> {
    let folder = store.home().join("state/mount-s3/uploads");
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// Number of complete notes: a killed engine may have torn one.
fn noted(store: &Store) -> usize {
    entries(store)
        .iter()
        .filter(|path| fs::read_to_string(path).is_ok_and(|text| text.ends_with('}')))
        .count()
}

fn warnings(mount: &TestMount) -> usize {
    mount.log().lines().filter(|line| line.contains("WARN") && line.contains("--state-dir")).count()
}

#[test]
fn uploads_of_a_killed_mount_are_aborted_by_the_next_and_no_others() {
    let Some(lives) = TestMount::new(&[]) else { return };
    let store = Arc::clone(lives.store());
    let mut file = begin(&lives, "lives");
    let mut killed = lives.second_mount(&[]);
    let lost = [begin(&killed, "killed"), begin(&killed, "killed too")];
    until("three uploads are under way", || store.pending_uploads() == 3 && noted(&store) == 3);
    // A mount that starts now finds nobody dead.
    drop(lives.second_mount(&[]));
    assert_eq!(store.pending_uploads(), 3);
    killed.kill_9();
    drop(lost);
    // This mount may only read, so it aborts nothing.
    drop(lives.second_mount(&["--read-only"]));
    assert_eq!((store.pending_uploads(), entries(&store).len()), (3, 3));
    let next = killed.remount(&Setup::new(&[]));
    until("the dead mount's uploads are gone", || store.pending_uploads() == 1 && entries(&store).len() == 1);
    until("the log says so", || next.log().contains("aborted 2 uploads that a killed mount-s3 left behind"));
    file.write_all(&Pattern(1).bytes(BEGUN as u64, 1 << 20)).unwrap();
    file.sync_all().unwrap();
    let stored = store.get("lives").unwrap();
    assert!(stored.len() == BEGUN + (1 << 20) && Pattern(1).is(0, &stored));
    until("an upload that has ended is in no journal", || entries(&store).is_empty());
}

#[test]
fn an_upload_that_the_store_does_not_let_us_abort_holds_up_no_other() {
    let Some(mut killed) = TestMount::new(&[]) else { return };
    let store = Arc::clone(killed.store());
    let names = ["a", "b", "c"];
    let lost = names.map(|name| begin(&killed, name));
    until("three uploads are under way", || store.pending_uploads() == 3 && noted(&store) == 3);
    killed.kill_9();
    drop(lost);
    let denied = |name: &str| {
        let effect = Effect::Error { status: 403, code: "AccessDenied".to_owned() };
        Fault::on("AbortMultipartUpload", effect).key(name)
    };
    // Whichever comes first: the journal has no order.
    for name in &names[..2] {
        store.faults().add(denied(name));
    }
    let next = killed.remount(&Setup::new(&[]));
    until("the log says so", || {
        next.log().contains("aborted 1 of 3 uploads that a killed mount-s3 left behind")
    });
    assert_eq!((store.pending_uploads(), entries(&store).len()), (2, 2));
}

#[test]
fn an_upload_of_another_boot_is_aborted_and_a_torn_entry_stops_nothing() {
    let Some(mut mount) = TestMount::new(&[]) else { return };
    let store = Arc::clone(mount.store());
    let lost = begin(&mount, "file");
    until("its upload is under way", || store.pending_uploads() == 1 && noted(&store) == 1);
    mount.kill_9();
    drop(lost);
    let path = entries(&store).remove(0);
    let text = fs::read_to_string(&path).unwrap();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    // The process number is that of a process that lives now.
    let number = text.split("\"pid\":").nth(1).unwrap().split(',').next().unwrap().to_owned();
    let other = text.replace(boot.trim(), "00000000-0000-0000-0000-000000000000");
    let other = other.replace(&format!("\"pid\":{number}"), &format!("\"pid\":{}", std::process::id()));
    assert_ne!(text, other);
    fs::write(&path, other).unwrap();
    let torn = path.with_file_name("torn.json");
    fs::write(&torn, &text[..text.len() / 2]).unwrap();
    let hour = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
    File::options().write(true).open(&torn).unwrap().set_modified(hour).unwrap();
    let _next = mount.remount(&Setup::new(&[]));
    until("upload and entries are gone", || store.pending_uploads() == 0 && entries(&store).is_empty());
}

#[test]
fn a_state_directory_that_cannot_be_used_is_one_warning_and_fails_nothing() {
    let file = tempfile::NamedTempFile::new().unwrap();
    // A read-only directory, one that is missing and can't be made, and a file.
    for dir in ["/sys/fs/mount-s3", "/proc/none/mount-s3", file.path().to_str().unwrap()] {
        let Some(mount) = TestMount::new(&["--state-dir", dir]) else { return };
        for name in ["a", "b"] {
            begin(&mount, name).sync_all().unwrap();
            assert_eq!(mount.store().get(name).unwrap().len(), BEGUN);
        }
        assert_eq!(warnings(&mount), 1, "{dir}: {}", mount.log());
    }
}

#[test]
fn a_state_directory_that_goes_away_is_one_warning_and_fails_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("made");
    let Some(mount) = TestMount::new(&["--state-dir", dir.to_str().unwrap()]) else { return };
    let first = begin(&mount, "a");
    until("it is noted", || fs::read_dir(dir.join("uploads")).unwrap().count() == 1);
    fs::remove_dir_all(&dir).unwrap();
    assert_eq!(warnings(&mount), 0);
    first.sync_all().unwrap();
    for name in ["b", "c"] {
        begin(&mount, name).sync_all().unwrap();
        assert_eq!(mount.store().get(name).unwrap().len(), BEGUN);
    }
    assert_eq!(warnings(&mount), 1, "{}", mount.log());
}

#[test]
fn an_upload_at_another_store_is_left_to_the_next_mount_of_that_store() {
    let Some(mut killed) = TestMount::new(&[]) else { return };
    let store = Arc::clone(killed.store());
    let dir = store.home().join("state/mount-s3");
    let lost = begin(&killed, "file");
    until("its upload is under way", || store.pending_uploads() == 1 && noted(&store) == 1);
    killed.kill_9();
    drop(lost);
    // The bucket has the same name there.
    let Some(elsewhere) = TestMount::new(&["--state-dir", dir.to_str().unwrap()]) else { return };
    begin(&elsewhere, "file").sync_all().unwrap();
    until("an upload that has ended is in no journal", || entries(&store).len() == 1);
    drop(elsewhere);
    assert_eq!((store.pending_uploads(), noted(&store)), (1, 1));
    let _next = killed.remount(&Setup::new(&[]));
    until("it is gone", || store.pending_uploads() == 0 && entries(&store).is_empty());
}
