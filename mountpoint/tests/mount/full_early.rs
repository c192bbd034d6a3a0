//! `--mode full --commit close`: full parts of a long new file go out while programs write it.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;

use s3server::{Effect, Fault};

use super::full::{FullMount, kept, setup};
use crate::common::{Pattern, Store, until};

/// Four full parts, and one that ends with the file.
const LEN: usize = 40 << 20;

/// A new file whose full parts are in the store.
fn begin(full: &FullMount, store: &Store, name: &str) -> File {
    let before = store.requests().count("UploadPart");
    let file = File::create_new(full.path(name)).unwrap();
    for at in (0..LEN).step_by(1 << 20) {
        file.write_all_at(&Pattern(1).bytes(at as u64, 1 << 20), at as u64).unwrap();
    }
    until("full parts went out", || store.requests().count("UploadPart") == before + 4);
    file
}

#[test]
fn full_parts_of_a_long_file_are_in_the_store_before_its_close() {
    let store = Store::new();
    let Some(full) = FullMount::of(&store, &[]) else { return };
    let file = begin(&full, &store, "long");
    assert_eq!(store.get("long"), None, "the bucket has whole files only");
    // A header that is written last.
    file.write_all_at(b"header", 100).unwrap();
    file.sync_all().unwrap();
    let mut expected = Pattern(1).bytes(0, LEN);
    expected[100..106].copy_from_slice(b"header");
    assert!(store.get("long").unwrap() == expected);
    let count = |operation| store.requests().count(operation);
    let counts = [count("CreateMultipartUpload"), count("UploadPart"), count("CompleteMultipartUpload")];
    assert_eq!((counts, count("PutObject")), ([1, 6, 1], 0), "the last part, and the first one again");
    drop(file);
    fs::write(full.path("short"), Pattern(2).bytes(0, 8 << 20)).unwrap();
    assert!(store.get("short").unwrap() == Pattern(2).bytes(0, 8 << 20));
    assert_eq!((count("CreateMultipartUpload"), count("PutObject")), (1, 1), "one part is one request");
    assert!(fs::read(full.path("long")).unwrap() == expected);
}

#[test]
fn a_long_file_that_is_removed_or_cut_leaves_no_upload_in_the_store() {
    let store = Store::new();
    let Some(full) = FullMount::of(&store, &[]) else { return };
    let removed = begin(&full, &store, "removed");
    assert_eq!(store.pending_uploads(), 1);
    fs::remove_file(full.path("removed")).unwrap();
    until("its upload is gone", || store.pending_uploads() == 0);
    drop(removed);
    let cut = begin(&full, &store, "cut");
    cut.set_len(5).unwrap();
    until("its upload is gone", || store.pending_uploads() == 0);
    cut.sync_all().unwrap();
    assert_eq!(store.get("cut").unwrap(), Pattern(1).bytes(0, 5));
    drop(cut);
    let renamed = begin(&full, &store, "renamed");
    fs::rename(full.path("renamed"), full.path("new name")).unwrap();
    until("its upload is gone", || store.pending_uploads() == 0);
    renamed.sync_all().unwrap();
    drop(renamed);
    assert!(store.get("new name").unwrap() == Pattern(1).bytes(0, LEN));
    assert_eq!(store.keys(), ["cut", "new name"]);
}

#[test]
fn a_refused_early_upload_does_not_fail_the_close_of_its_file() {
    let store = Store::new();
    let Some(full) = FullMount::of(&store, &[]) else { return };
    let denied = Effect::Error { status: 403, code: "AccessDenied".to_owned() };
    store.faults().add(Fault::on("CreateMultipartUpload", denied).times(1));
    let file = File::create_new(full.path("long")).unwrap();
    file.write_all_at(&Pattern(1).bytes(0, LEN), 0).unwrap();
    until("the early upload is refused", || store.faults().fired() == 1);
    file.sync_all().unwrap();
    assert!(store.get("long").unwrap() == Pattern(1).bytes(0, LEN));
    assert_eq!(store.requests().count("CreateMultipartUpload"), 2);
    drop(file);
    assert!(kept(&full.stage).is_empty());
    assert_eq!(store.pending_uploads(), 0);
}

#[test]
fn an_early_upload_of_a_killed_engine_is_aborted_by_the_next() {
    let store = Store::new();
    let Some(mut full) = FullMount::of(&store, &[]) else { return };
    let file = begin(&full, &store, "long");
    assert_eq!(store.pending_uploads(), 1);
    full.mount.kill_9();
    drop(file);
    let mount = full.mount.remount(&setup(&full.stage, &[]));
    until("its upload is gone", || store.pending_uploads() == 0);
    assert!(kept(&full.stage) == [Pattern(1).bytes(0, LEN)], "and the bytes are kept");
    assert_eq!(store.keys(), [""; 0]);
    drop(mount);
}
