//! Reads of every kind return the right bytes.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::process::Command;

use crate::common::{Pattern, Setup, Store, TestMount, run, until};

const MIB: usize = 1 << 20;

#[test]
fn reads_of_4_kib_to_1_mib_give_the_right_bytes() {
    let store = Store::new();
    let len = 20 * MIB + 123;
    store.plant("file", &Pattern(1).bytes(0, len));
    let Some(mount) = TestMount::of(&store, &Setup::new(&[])) else { return };
    for piece in [4096, 12_345, 65_536, 131_072, MIB] {
        let mut file = File::open(mount.path("file")).unwrap();
        let (mut at, mut buffer) = (0, vec![0; piece]);
        loop {
            let n = file.read(&mut buffer).unwrap();
            assert!(Pattern(1).is(at, &buffer[..n]), "wrong bytes at {at}, {piece} at a time");
            at += n as u64;
            if n == 0 {
                break;
            }
        }
        assert_eq!(at, len as u64, "{piece} at a time");
    }
}

#[test]
fn o_direct_reads_give_the_right_bytes() {
    let store = Store::new();
    let len = 5 * MIB + 4097;
    store.plant("file", &Pattern(2).bytes(0, len));
    let Some(mount) = TestMount::of(&store, &Setup::new(&[])) else { return };
    let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
    let mut file = File::options().read(true).custom_flags(direct).open(mount.path("file")).unwrap();
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    assert!(bytes.len() == len && Pattern(2).is(0, &bytes));
    let mut some = vec![0; 300_000];
    file.read_exact_at(&mut some, 4096 * 77).unwrap();
    assert!(Pattern(2).is(4096 * 77, &some));
}

#[test]
fn random_reads_give_the_right_bytes_and_end_at_the_end() {
    let store = Store::new();
    let len = 30 * MIB as u64 + 17;
    store.plant("file", &Pattern(3).bytes(0, len as usize));
    let Some(mount) = TestMount::of(&store, &Setup::new(&[])) else { return };
    let file = File::open(mount.path("file")).unwrap();
    let mut buffer = vec![0; 256 * 1024];
    let picks = Pattern(33).bytes(0, 600 * 16);
    for pick in picks.chunks(16) {
        let offset = u64::from_le_bytes(pick[..8].try_into().unwrap()) % (len + 1000);
        let size = usize::from_le_bytes(pick[8..].try_into().unwrap()) % buffer.len();
        let n = file.read_at(&mut buffer[..size], offset).unwrap();
        assert_eq!(n as u64, (size as u64).min(len.saturating_sub(offset)), "{size} bytes at {offset}");
        assert!(Pattern(3).is(offset, &buffer[..n]), "wrong bytes at {offset}");
    }
}

#[test]
fn many_threads_read_one_handle_at_once() {
    let store = Store::new();
    let len = 16 * MIB as u64;
    store.plant("file", &Pattern(4).bytes(0, len as usize));
    let Some(mount) = TestMount::of(&store, &Setup::new(&[])) else { return };
    let file = File::open(mount.path("file")).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8_u64 {
            let file = &file;
            scope.spawn(move || {
                let mut buffer = vec![0; 100_000];
                let mut at = thread * 12_345;
                while at < len {
                    let n = file.read_at(&mut buffer, at).unwrap();
                    assert!(Pattern(4).is(at, &buffer[..n]), "wrong bytes at {at}");
                    assert!(n > 0);
                    at += n as u64 + thread * 50_000;
                }
            });
        }
    });
}

#[test]
fn a_program_runs_from_the_mount_by_mmap() {
    let store = Store::new();
    let program = env!("CARGO_BIN_EXE_mount-s3");
    store.plant("bin/mount-s3", &fs::read(program).unwrap());
    let Some(mount) = TestMount::of(&store, &Setup::new(&["--file-mode", "0755"])) else { return };
    let path = mount.path("bin/mount-s3");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o755);
    // The kernel maps the program and faults its pages in one by one.
    let here = run(Command::new(program).arg("--help"));
    let there = run(Command::new(path).arg("--help"));
    assert!(there.stdout == here.stdout, "{there:?}");
}

#[test]
fn empty_and_tiny_files_read_whole() {
    let store = Store::new();
    store.plant("empty", b"");
    store.plant("one", b"1");
    let Some(mount) = TestMount::of(&store, &Setup::new(&[])) else { return };
    assert_eq!(fs::read(mount.path("empty")).unwrap(), b"");
    assert_eq!(fs::read(mount.path("one")).unwrap(), b"1");
    assert_eq!(File::open(mount.path("one")).unwrap().read_at(&mut [0; 9], 1).unwrap(), 0);
}

#[test]
fn an_object_replaced_while_it_is_read_never_gives_mixed_bytes() {
    let store = Store::new();
    let len = 64 * MIB;
    store.put("file", Pattern(5).bytes(0, len));
    let Some(mount) = TestMount::of(&store, &Setup::new(&[])) else { return };
    let mut file = File::open(mount.path("file")).unwrap();
    let mut buffer = vec![0; MIB];
    file.read_exact(&mut buffer).unwrap();
    store.put("file", Pattern(6).bytes(0, len));
    let mut at = MIB as u64;
    let error = loop {
        match file.read(&mut buffer) {
            Ok(0) => break None,
            Ok(n) => assert!(Pattern(5).is(at, &buffer[..n]), "bytes of another version at {at}"),
            Err(error) => break Some(error),
        }
        at += MIB as u64;
    };
    let stale = rustix::io::Errno::STALE.raw_os_error();
    let error = error.expect("64 MiB are more than is read ahead: the old version can't be had any more");
    assert_eq!(error.raw_os_error(), Some(stale), "{error}");
    drop(file);
    // Opened again, it is the new version, once attributes are no longer believed.
    until("the new version shows", || {
        fs::read(mount.path("file")).is_ok_and(|bytes| bytes.len() == len && Pattern(6).is(0, &bytes))
    });
}
