//! Tests that take gigabytes: only with `MOUNT_S3_LARGE=1`.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use rustix::fs::statvfs;
use s3server::{Effect, Fault};

use crate::common::{Pattern, Setup, Store, TestMount, hash_file, need, need_large};

const MIB: usize = 1 << 20;

/// Goal: 6 GiB go through the mount and back: more than 1000 parts on a store that accepts parts of one size only, offsets beyond 32
/// bits, and no memory that grows with them.
#[test]
fn six_gibibytes_come_back_with_the_same_checksum() {
    const LEN: u64 = (6 << 30) + 12_345;
    if !need_large() {
        return;
    }
    let tmp = statvfs(std::env::temp_dir()).unwrap();
    let free = tmp.f_bavail * tmp.f_frsize;
    if !need(
        &format!("room for the object and its parts in TMPDIR (10 GiB; {} GiB are free)", free >> 30),
        free > 10 << 30,
    ) {
        return;
    }
    let flags = ["--memory-target", "512", "--store", "r2", "--write-part-size", "5242880"];
    let setup = Setup::new(&flags).limit(Duration::from_secs(1200));
    let Some(mount) = TestMount::with(&setup) else { return };
    mount.store().faults().add(Fault::on("CompleteMultipartUpload", Effect::EqualParts));
    let mut file = File::create_new(mount.path("large")).unwrap();
    let written = Pattern(9).write_to(&mut file, LEN, MIB).unwrap();
    file.sync_all().unwrap();
    drop(file);
    mount.store().requests().reset();
    let read = hash_file(&mount.path("large"), MIB).unwrap();
    assert_eq!(read, (LEN, written));
    assert!(mount.store().requests().bytes_sent() >= LEN, "it was read from the bucket");
    assert!(mount.peak_rss() <= (512 + 64) << 20, "peak RSS {} MiB", mount.peak_rss() >> 20);
}

/// Goal: 5 GiB and one byte exceed one copy: the store copies them in parts. The object is a hole, and takes no disk.
#[test]
fn a_file_too_large_for_one_copy_is_renamed_and_no_byte_passes() {
    const LEN: u64 = (5 << 30) + 1;
    let store = Store::new();
    if !need_large() || !store.has_folder() {
        return;
    }
    let planted = File::create_new(store.bucket_folder().join("large.tmp")).unwrap();
    planted.set_len(LEN).unwrap();
    for (at, byte) in [(0, b"a"), (LEN / 2, b"b"), (LEN - 1, b"c")] {
        planted.write_all_at(byte, at).unwrap();
    }
    let setup = Setup::new(&["--allow-rename", "--store", "aws"]).limit(Duration::from_secs(1200));
    let Some(mount) = TestMount::of(&store, &setup) else { return };
    std::fs::rename(mount.path("large.tmp"), mount.path("large")).unwrap();
    let of = |operation| store.requests().count(operation);
    assert_eq!(
        (
            of("CreateMultipartUpload"),
            of("UploadPartCopy"),
            of("CompleteMultipartUpload"),
            of("DeleteObject")
        ),
        (1, 11, 1, 1)
    );
    assert_eq!((of("CopyObject"), of("GetObject"), of("AbortMultipartUpload")), (0, 0, 0));
    assert_eq!((store.keys(), store.pending_uploads()), (vec!["large".to_owned()], 0));
    let moved = File::open(mount.path("large")).unwrap();
    assert_eq!(moved.metadata().unwrap().len(), LEN);
    for (at, byte) in [(0, b'a'), (1, 0), (LEN / 2, b'b'), (LEN - 2, 0), (LEN - 1, b'c')] {
        let mut found = [1];
        moved.read_exact_at(&mut found, at).unwrap();
        assert_eq!(found, [byte], "at {at}");
    }
}

/// Goal: on a store whose host does not show its limits, the first file fails and names the flag, and the next is sent in fewer parts.
#[test]
fn a_store_of_few_parts_is_learned_from_its_first_refusal() {
    const LEN: u64 = 101 * (5 << 20);
    if !need_large() {
        return;
    }
    let setup = Setup::new(&["--write-part-size", "5242880"]).limit(Duration::from_secs(300));
    let Some(mount) = TestMount::with(&setup) else { return };
    let faults = mount.store().faults();
    faults.add(Fault::on("UploadPart", Effect::PartsMax { parts: 100 }));
    let store = |name: &str| {
        let mut file = File::create_new(mount.path(name)).unwrap();
        let written = Pattern(3).write_to(&mut file, LEN, MIB)?;
        file.sync_all()?;
        std::io::Result::Ok(written)
    };
    let error = store("first").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()), "{error}");
    assert!(mount.log().contains("--write-part-size"), "{}", mount.log());
    let written = store("second").unwrap();
    assert_eq!(hash_file(&mount.path("second"), MIB).unwrap(), (LEN, written));
}

/// 1 GiB changed in ten places by `--mode full`: the store copies the rest. The object is a hole, and takes no disk.
#[test]
fn a_gibibyte_changed_in_ten_places_costs_few_requests_and_bytes() {
    const LEN: u64 = 1 << 30;
    let store = Store::new();
    if !need_large() || !store.has_folder() {
        return;
    }
    File::create_new(store.bucket_folder().join("large")).unwrap().set_len(LEN).unwrap();
    let stage = tempfile::tempdir().unwrap();
    let setup = super::full::setup(&stage, &["--memory-target", "128"]).limit(Duration::from_secs(300));
    let Some(mount) = TestMount::of(&store, &setup) else { return };
    let file = File::options().read(true).write(true).open(mount.path("large")).unwrap();
    store.requests().reset();
    let begin = std::time::Instant::now();
    let places = (0..10).map(|n| n * (LEN / 10) + 12_345);
    places.clone().for_each(|at| file.write_all_at(b"patch", at).unwrap());
    file.sync_all().unwrap();
    let requests = store.requests().total();
    let [sent, received] =
        [store.requests().bytes_sent(), store.requests().bytes_received()].map(|bytes| bytes >> 20);
    eprintln!("{requests} requests, {sent} MiB fetched, {received} MiB sent, {:?}", begin.elapsed());
    assert!(requests <= 40 && sent <= 64 && received <= 64, "{requests} requests, {sent} and {received} MiB");
    assert_eq!(store.requests().count("UploadPart"), 10);
    for at in places {
        let mut found = [0; 7];
        file.read_exact_at(&mut found, at - 1).unwrap();
        assert_eq!(&found, b"\0patch\0");
    }
    assert_eq!((mount.complaints(), store.pending_uploads()), (vec![], 0));
}
