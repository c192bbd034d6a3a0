//! A written and closed file is in the bucket, whole; a file that is not closed is not in the bucket.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{IoSlice, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use rustix::io::Errno;
use testkit::need::WHOLE_ABORT;

use super::semantics::assert_errno;
use crate::common::{Kind, Pattern, TestMount, need};

const MIB: usize = 1 << 20;

#[test]
fn files_of_every_size_around_the_edges_arrive_whole() {
    let Some(mount) = TestMount::new(&[]) else { return };
    let edges = [0, 4096, MIB, 5 * MIB, 8 * MIB, 16 * MIB];
    let sizes: BTreeSet<_> = edges.into_iter().flat_map(|e| [e.saturating_sub(1), e, e + 1]).collect();
    for len in sizes {
        for piece in [13_001, MIB] {
            let name = format!("{len}-{piece}");
            let mut file = File::create_new(mount.path(&name)).unwrap();
            Pattern(len as u64).write_to(&mut file, len as u64, piece).unwrap();
            file.sync_all().unwrap();
            drop(file);
            assert_eq!(fs::metadata(mount.path(&name)).unwrap().len(), len as u64);
            let stored = mount.store().get(&name).expect("it is in the bucket");
            assert!(stored.len() == len && Pattern(len as u64).is(0, &stored), "{name}: {}", stored.len());
        }
    }
    assert_eq!(mount.store().pending_uploads(), 0);
}

/// Goal: writes bypass the page cache: the kernel takes them from the program's memory, up to the file system's own pages.
#[test]
fn bytes_come_from_another_file_of_the_mount_and_from_scattered_memory() {
    const LEN: usize = 9 * MIB + 77;
    let Some(mount) = TestMount::new(&[]) else { return };
    mount.store().plant("in", &Pattern(3).bytes(0, LEN));
    let open =
        |name: &str| (File::open(mount.path("in")).unwrap(), File::create_new(mount.path(name)).unwrap());

    let (mut from, mut to) = open("copied");
    assert_eq!(std::io::copy(&mut from, &mut to).unwrap(), LEN as u64);
    drop(to);
    let (from, to) = open("sent");
    while rustix::fs::sendfile(&to, &from, None, LEN).unwrap() > 0 {}
    drop(to);
    let (_, mut to) = open("gathered");
    let bytes = Pattern(3).bytes(0, LEN);
    let mut at = 0;
    while at < LEN {
        let end = |more: usize| (at + more).min(LEN);
        let pieces = [at..end(1), end(1)..end(5_000), end(5_000)..end(MIB + 5_003)];
        at += to.write_vectored(&pieces.map(|piece| IoSlice::new(&bytes[piece]))).unwrap();
    }
    drop(to);
    for name in ["copied", "sent", "gathered"] {
        let stored = mount.store().get(name).expect("it is in the bucket");
        assert!(stored == bytes, "{name}: {} bytes", stored.len());
    }
}

#[test]
fn nothing_is_visible_before_close_and_all_of_it_after() {
    let Some(mount) = TestMount::new(&[]) else { return };
    for (name, len) in [("small", MIB), ("large", 20 * MIB)] {
        let mut file = File::create_new(mount.path(name)).unwrap();
        Pattern(7).write_to(&mut file, len as u64, 100_000).unwrap();
        assert_eq!(mount.store().get(name), None, "{name} is in the bucket before it is closed");
        drop(file);
        let stored = mount.store().get(name).expect("closed is stored");
        assert!(stored.len() == len && Pattern(7).is(0, &stored));
    }
}

#[test]
fn fsync_stores_the_object_and_ends_the_writing() {
    let Some(mount) = TestMount::new(&[]) else { return };
    let mut file = File::create_new(mount.path("file")).unwrap();
    file.write_all(b"so far").unwrap();
    file.sync_all().unwrap();
    assert_eq!(mount.store().get("file").unwrap(), b"so far");
    file.write_all(b"more").expect_err("an object can't grow");
    drop(file);
    assert_eq!(mount.store().get("file").unwrap(), b"so far");
}

#[test]
fn an_out_of_order_write_is_einval_and_nothing_is_stored() {
    let Some(mount) = TestMount::new(&[]) else { return };
    // Beyond the end by more than 8 MiB.
    for target in [0, 10_000_000] {
        let mut file = File::create_new(mount.path("file")).unwrap();
        file.write_all(&[1; 1_000_000]).unwrap();
        file.seek(SeekFrom::Start(target)).unwrap();
        let error = file.write_all(b"elsewhere").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::INVAL.raw_os_error()), "{error}");
        drop(file);
        assert_eq!(mount.store().get("file"), None);
        assert_eq!(mount.store().pending_uploads(), 0);
    }
}

#[test]
fn pieces_a_little_beyond_the_end_are_kept_and_holes_are_zeros() {
    let Some(mount) = TestMount::new(&[]) else { return };
    // Eight threads write pieces of 300 kB in an order of their own, all of them within reach.
    const PIECE: usize = 300_000;
    let bytes = Pattern(9).bytes(0, 27 * PIECE);
    let file = File::create_new(mount.path("table")).unwrap();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Relaxed) * PIECE;
                    let Some(piece) = bytes.get(at..at + PIECE) else { break };
                    file.write_all_at(piece, at as u64).unwrap();
                }
            });
        }
    });
    drop(file);
    assert!(mount.store().get("table").unwrap() == bytes);
    // A hole stays, and the second piece overlaps none.
    let file = File::create_new(mount.path("holes")).unwrap();
    file.write_all_at(b"behind", 1_000_000).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 1_000_006);
    file.write_all_at(b"at first", 0).unwrap();
    drop(file);
    let mut expected = vec![0; 1_000_006];
    expected[..8].copy_from_slice(b"at first");
    expected[1_000_000..].copy_from_slice(b"behind");
    assert!(mount.store().get("holes").unwrap() == expected);
    let file = File::create_new(mount.path("twice")).unwrap();
    file.write_all_at(b"behind", 100).unwrap();
    assert_errno(file.write_all_at(b"other", 98), Errno::INVAL);
    drop(file);
    assert_eq!(mount.store().get("twice"), None);
}

#[test]
fn a_file_given_up_in_the_middle_of_its_parts_leaves_no_upload_behind() {
    if !need(WHOLE_ABORT, crate::STORE != Kind::Versitygw) {
        return;
    }
    let Some(mount) = TestMount::new(&[]) else { return };
    let mut file = File::create_new(mount.path("file")).unwrap();
    Pattern(8).write_to(&mut file, 20 * MIB as u64, MIB).unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.write_all(b"elsewhere").unwrap_err();
    drop(file);
    // The abort may run behind the close; it is sure to be done when the engine ends.
    let store = std::sync::Arc::clone(mount.store());
    drop(mount);
    assert_eq!(store.pending_uploads(), 0);
    assert_eq!(store.keys(), Vec::<String>::new());
}

#[test]
fn many_files_are_written_at_once() {
    let Some(mount) = TestMount::new(&[]) else { return };
    std::thread::scope(|scope| {
        for thread in 0..8_u64 {
            let mount = &mount;
            scope.spawn(move || {
                for i in 0..25_u64 {
                    let mut file = File::create_new(mount.path(&format!("{thread}-{i}"))).unwrap();
                    Pattern(thread * 100 + i).write_to(&mut file, 100_000 + i, 4096).unwrap();
                }
            });
        }
    });
    assert_eq!(mount.store().keys().len(), 200);
    for (thread, i) in (0..8).flat_map(|thread| (0..25).map(move |i| (thread, i))) {
        let stored = mount.store().get(&format!("{thread}-{i}")).unwrap();
        assert!(stored.len() == 100_000 + i && Pattern((thread * 100 + i) as u64).is(0, &stored));
    }
}
