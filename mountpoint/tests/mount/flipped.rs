//! A bit that flips between the engine and its store, over plain HTTP, unnoticed by TCP's checksum.

use std::fs::{self, File};
use std::io::{self, Read as _};

use s3server::{Effect, Fault};
use testkit::proxy::{Proxy, Weather};

use super::cache::{data_files, open_direct, setup};
use crate::common::{Pattern, Setup, Store, TestMount, until};

const MIB: usize = 1 << 20;

fn write(mount: &TestMount, name: &str, len: usize) -> io::Result<()> {
    let mut file = File::create_new(mount.path(name))?;
    Pattern(len as u64).write_to(&mut file, len as u64, MIB)?;
    file.sync_all()
}

#[test]
fn the_store_refuses_a_bit_that_flips_in_a_write_and_it_is_sent_again() {
    let store = Store::new();
    let proxy = Proxy::start(store.address());
    let Some(mount) = TestMount::of(&store, &Setup::new(&[]).through(&proxy)) else { return };
    for (operation, len, at) in [("PutObject", MIB, 500_000), ("UploadPart", 20 * MIB, 3_000_000)] {
        store.requests().reset();
        let before = proxy.counts().bits_flipped;
        proxy.set(Weather::clear().flip_request_byte(at));
        write(&mount, operation, len).unwrap_or_else(|error| panic!("{operation}: {error}"));
        assert_eq!(proxy.counts().bits_flipped, before + 1, "{operation}");
        let sent = store.requests().count(operation);
        let parts = if operation == "UploadPart" { len.div_ceil(8 * MIB) } else { 1 };
        assert_eq!(sent, parts as u64 + 1, "{operation}: one was sent again");
        let stored = store.get(operation).unwrap();
        assert!(
            stored.len() == len && Pattern(len as u64).is(0, &stored),
            "{operation}: wrong bytes were stored"
        );
    }
    assert_eq!(store.pending_uploads(), 0);
}

/// Whether a new open gives these bytes, past the page cache and through it.
fn reads_right(mount: &TestMount, bytes: &[u8]) -> bool {
    let mut direct = Vec::new();
    open_direct(&mount.path("file")).read_to_end(&mut direct).unwrap();
    direct == bytes && fs::read(mount.path("file")).unwrap() == bytes
}

#[test]
fn a_bit_that_flips_in_an_answer_with_a_whole_file_is_never_seen() {
    let store = Store::new();
    let bytes = Pattern(1).bytes(0, 100_000);
    store.put("file", bytes.clone());
    let Some(mount) = TestMount::of(&store, &Setup::new(&[])) else { return };
    store.faults().add(Fault::on("GetObject", Effect::FlipBit { at_byte: 77_777 }).nth(1));
    store.requests().reset();
    assert!(fs::read(mount.path("file")).unwrap() == bytes);
    assert_eq!((store.faults().fired(), store.requests().count("GetObject")), (1, 2), "asked for again");
}

/// Goal: each program that read the wrong file gets EIO at the latest with the last byte; no cache keeps the bytes.
#[test]
fn a_bit_that_flips_in_a_long_file_is_an_error_and_nothing_keeps_it() {
    const LEN: usize = 20 * MIB;
    let (store, cache) = (Store::new(), tempfile::tempdir().unwrap());
    let bytes = Pattern(1).bytes(0, LEN);
    store.put("file", bytes.clone());
    let Some(mount) = TestMount::of(&store, &setup(cache.path())) else { return };
    // A byte of the first answer, whose length depends on how far is read ahead: behind its end nothing flips.
    store.faults().add(Fault::on("GetObject", Effect::FlipBit { at_byte: 77_777 }).nth(1));
    let error = fs::read(mount.path("file")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()), "{error}");
    assert_eq!(store.faults().fired(), 1);
    assert!(reads_right(&mount, &bytes), "an open after that");
    drop(mount);
    let Some(mount) = TestMount::of(&store, &setup(cache.path())) else { return };
    assert!(reads_right(&mount, &bytes), "the next mount");
}

/// The case: the store's checksum of the object is a checksum of its parts' checksums, which can't be compared with bytes.
#[test]
fn what_the_mount_wrote_in_parts_is_compared_when_it_is_read_back() {
    const LEN: usize = 20 * MIB;
    let store = Store::new();
    let Some(mount) = TestMount::of(&store, &Setup::new(&[])) else { return };
    write(&mount, "file", LEN).unwrap();
    let bytes = Pattern(LEN as u64).bytes(0, LEN);
    store.faults().add(Fault::on("GetObject", Effect::FlipBit { at_byte: 77_777 }).nth(1));
    let error = fs::read(mount.path("file")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()), "{error}");
    assert!(reads_right(&mount, &bytes), "an open after that");
}

/// Goal: a file without a checksum of the store behaves as `docs/durability.md` says of plain HTTP.
#[test]
fn a_flipped_bit_that_no_checksum_shows_is_gone_with_the_mount() {
    const LEN: usize = 3 * MIB;
    let (store, cache) = (Store::new(), tempfile::tempdir().unwrap());
    let bytes = Pattern(1).bytes(0, LEN);
    store.plant("file", &bytes);
    let Some(mount) = TestMount::of(&store, &setup(cache.path())) else { return };
    store.faults().add(Fault::on("GetObject", Effect::FlipBit { at_byte: 77_777 }).nth(1));
    let read = fs::read(mount.path("file")).unwrap();
    assert_eq!(store.faults().fired(), 1);
    let wrong: Vec<_> = (0..LEN).filter(|&at| read[at] != bytes[at]).collect();
    assert_eq!(wrong.len(), 1, "{wrong:?}");
    assert_eq!((read[wrong[0]] ^ bytes[wrong[0]]).count_ones(), 1);
    until("the cache holds what was read", || {
        data_files(cache.path()).iter().any(|file| fs::read(file).is_ok_and(|kept| kept == read))
    });
    drop(mount);
    // Over TLS no bit flips unnoticed, and the cache keeps what came.
    if crate::STORE != crate::common::Kind::S3server {
        return;
    }
    let Some(mount) = TestMount::of(&store, &setup(cache.path())) else { return };
    assert!(reads_right(&mount, &bytes), "the next mount");
}
