//! Two mounts of one bucket: they learn of each other only through the bucket.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt as _;

use crate::common::{Pattern, Setup, Store, TestMount, until};

#[test]
fn a_file_closed_on_one_mount_is_read_on_the_other_at_once() {
    let Some(one) = TestMount::new(&[]) else { return };
    let two = one.second_mount(&[]);
    // From 1: an empty file is stored once its last descriptor is released, which close(2) does not wait for.
    for i in 1..50_usize {
        let (name, len) = (format!("file{i}"), 1000 * i);
        assert!(fs::metadata(two.path(&name)).is_err(), "asked for before it was there");
        let mut file = File::create_new(one.path(&name)).unwrap();
        Pattern(i as u64).write_to(&mut file, len as u64, 4096).unwrap();
        drop(file);
        let read = fs::read(two.path(&name)).unwrap();
        assert!(read.len() == len && Pattern(i as u64).is(0, &read), "{name}");
        let listed = fs::read_dir(two.dir()).unwrap().any(|e| e.unwrap().file_name() == name.as_str());
        assert!(listed, "{name} is not listed");
    }
}

#[test]
fn an_overwritten_file_reads_old_or_new_and_soon_new() {
    let Some(one) = TestMount::new(&["--allow-overwrite"]) else { return };
    let two = one.second_mount(&[]);
    let len = 3_000_000;
    for round in 0..5_u64 {
        let mut file = File::create(one.path("file")).unwrap();
        Pattern(round).write_to(&mut file, len, 100_000).unwrap();
        drop(file);
        until("the other mount reads the new version", || match fs::read(two.path("file")) {
            Ok(bytes) if bytes.len() as u64 == len && Pattern(round).is(0, &bytes) => true,
            Ok(bytes) => {
                let old = round.checked_sub(1).is_some_and(|old| Pattern(old).is(0, &bytes));
                assert!(old, "neither the old version nor the new one: {} bytes", bytes.len());
                false
            }
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::STALE.raw_os_error()), "{error}");
                false
            }
        });
    }
}

#[test]
fn a_file_that_a_read_found_replaced_is_reopened_at_once_at_any_ttl() {
    for ttl in ["3600", "indefinite"] {
        let store = Store::new();
        store.put("file", Pattern(1).bytes(0, 8 << 20));
        let Some(mount) = TestMount::of(&store, &Setup::new(&["--metadata-ttl", ttl])) else { return };
        let path = mount.path("file");
        let open = File::open(&path).unwrap();
        store.put("file", "new");
        // Far behind what an open may bring along.
        let stale = open.read_at(&mut [0; 4096], 6 << 20).expect_err("the version is gone");
        assert_eq!(stale.raw_os_error(), Some(rustix::io::Errno::STALE.raw_os_error()), "{stale}");
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::metadata(&path).unwrap().len(), 3);
    }
}

#[test]
fn a_listing_does_not_bring_back_a_version_that_a_read_found_replaced() {
    for ttl in ["3600", "indefinite"] {
        let store = Store::new();
        store.put("file", Pattern(1).bytes(0, 8 << 20));
        let Some(mount) = TestMount::of(&store, &Setup::new(&["--metadata-ttl", ttl])) else { return };
        let path = mount.path("file");
        let list = || assert_eq!(fs::read_dir(mount.dir()).unwrap().count(), 1);
        list();
        let open = File::open(&path).unwrap();
        store.put("file", "new");
        open.read_at(&mut [0; 4096], 6 << 20).expect_err("the version is gone");
        drop(open);
        // A glob does so before the program opens what it finds.
        list();
        assert_eq!(fs::read(&path).unwrap(), b"new", "--metadata-ttl {ttl}");
    }
}

#[test]
fn a_file_deleted_on_one_mount_is_gone_on_the_other() {
    let Some(one) = TestMount::new(&["--allow-delete"]) else { return };
    let two = one.second_mount(&[]);
    fs::write(one.path("file"), b"1").unwrap();
    fs::write(one.path("stays"), b"1").unwrap();
    assert_eq!(fs::read(two.path("file")).unwrap(), b"1");
    fs::remove_file(one.path("file")).unwrap();
    until("the file is gone", || fs::metadata(two.path("file")).is_err());
    let names: Vec<_> = fs::read_dir(two.dir()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["stays"]);
}

#[test]
fn two_mounts_that_write_one_name_leave_one_whole_object() {
    let Some(one) = TestMount::new(&["--allow-overwrite"]) else { return };
    let two = one.second_mount(&["--allow-overwrite"]);
    let len = 12_000_000;
    std::thread::scope(|scope| {
        for (seed, mount) in [(1, &one), (2, &two)] {
            scope.spawn(move || {
                let mut file = File::create(mount.path("file")).unwrap();
                Pattern(seed).write_to(&mut file, len, 100_000).unwrap();
                file.flush().unwrap();
            });
        }
    });
    let stored = one.store().get("file").expect("one of them");
    assert_eq!(stored.len() as u64, len);
    assert!(Pattern(1).is(0, &stored) || Pattern(2).is(0, &stored), "the object is a mixture");
}
