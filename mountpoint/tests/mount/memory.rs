//! Progress and right bytes within little memory.

use std::fs::File;
use std::io::{Read, Write};
use std::process::Command;
use std::sync::{Barrier, Condvar, Mutex};
use std::time::Duration;

use rustix::io::Errno;

use crate::common::{Pattern, Setup, Store, TestMount, need, run};

const MIB: usize = 1 << 20;
/// Peak RSS stays within the target and this much. fuser's loop has a buffer of 16 MiB per thread, and its replies take one slice:
/// a read across blocks is copied.
const OVERHEAD: u64 = if matches!(crate::TRANSPORT.as_bytes(), b"fuser") { 128 << 20 } else { 64 << 20 };
/// A test that waits longer hangs.
const LIMIT: Duration = Duration::from_secs(200);

fn assert_peak(mount: &TestMount, target_mib: u64) {
    let peak = mount.peak_rss();
    eprintln!("peak RSS at --memory-target {target_mib}: {} MiB", peak >> 20);
    assert!(peak <= (target_mib << 20) + OVERHEAD, "peak RSS {} MiB", peak >> 20);
}

#[test]
fn at_128_mib_32_readers_and_32_writers_all_get_there() {
    const EACH: usize = 20 * MIB;
    let store = Store::new();
    for i in 0..32_u64 {
        store.plant(&format!("in{i}"), &Pattern(i).bytes(0, EACH));
    }
    let setup = Setup::new(&["--memory-target", "128"]).limit(Duration::from_secs(600));
    let Some(mount) = TestMount::of(&store, &setup) else { return };
    let start = Barrier::new(64);
    std::thread::scope(|scope| {
        for i in 0..32_u64 {
            let (mount, start) = (&mount, &start);
            scope.spawn(move || {
                let mut file = File::open(mount.path(&format!("in{i}"))).unwrap();
                let mut buffer = vec![0; 128 * 1024];
                start.wait();
                let mut at = 0;
                loop {
                    let n = file.read(&mut buffer).unwrap();
                    if n == 0 {
                        break;
                    }
                    assert!(Pattern(i).is(at, &buffer[..n]), "in{i}: wrong bytes at {at}");
                    at += n as u64;
                }
                assert_eq!(at, EACH as u64);
            });
            scope.spawn(move || {
                let mut file = File::create_new(mount.path(&format!("out{i}"))).unwrap();
                start.wait();
                Pattern(1000 + i).write_to(&mut file, EACH as u64, 128 * 1024).unwrap();
                file.sync_all().unwrap();
            });
        }
    });
    assert_peak(&mount, 128);
    for i in 0..32 {
        let stored = store.get(&format!("out{i}")).expect("it was written");
        assert!(stored.len() == EACH && Pattern(1000 + i).is(0, &stored), "out{i}");
    }
}

#[test]
fn one_thread_writes_round_robin_to_64_files_with_a_spill_folder() {
    const PIECE: usize = MIB;
    const PIECES: usize = 12;
    let spill = tempfile::tempdir().unwrap();
    let options = ["--memory-target", "128", "--spill-dir", spill.path().to_str().unwrap()];
    let Some(mount) = TestMount::with(&Setup::new(&options).limit(Duration::from_secs(600))) else { return };
    let mut files: Vec<File> =
        (0..64).map(|i| File::create_new(mount.path(&format!("f{i}"))).unwrap()).collect();
    for piece in 0..PIECES {
        for (i, file) in files.iter_mut().enumerate() {
            file.write_all(&Pattern(i as u64).bytes((piece * PIECE) as u64, PIECE)).unwrap();
        }
    }
    for file in files {
        file.sync_all().unwrap();
    }
    assert_peak(&mount, 128);
    for i in 0..64 {
        let stored = mount.store().get(&format!("f{i}")).expect("it was written");
        assert!(stored.len() == PIECE * PIECES && Pattern(i).is(0, &stored), "f{i}");
    }
    assert_eq!(std::fs::read_dir(spill.path()).unwrap().count(), 0, "spilled parts have no name");
}

/// Many writers at once, who hold what they have until one of them is refused; what is stored is whole. How many were refused.
fn refused_writers(mount: &TestMount) -> usize {
    const WRITERS: usize = 64;
    const PIECES: usize = 3;
    let (refused, heard) = (Mutex::new(0), Condvar::new());
    std::thread::scope(|scope| {
        for i in 0..WRITERS as u64 {
            let (refused, heard) = (&refused, &heard);
            scope.spawn(move || {
                let name = format!("f{i}");
                let mut file = File::create_new(mount.path(&name)).unwrap();
                let mut pieces = (0..PIECES).map(|piece| Pattern(i).bytes((piece * MIB) as u64, MIB));
                let written = pieces.try_for_each(|piece| file.write_all(&piece));
                if let Err(error) = &written {
                    assert_eq!(error.raw_os_error(), Some(Errno::NOSPC.raw_os_error()), "{name}: {error}");
                    *refused.lock().unwrap() += 1;
                    heard.notify_all();
                } else {
                    let someone =
                        heard.wait_timeout_while(refused.lock().unwrap(), LIMIT, |n| *n == 0).unwrap();
                    assert!(!someone.1.timed_out(), "there was memory for everybody");
                }
                drop(file);
                match (written, mount.store().get(&name)) {
                    (Ok(()), Some(stored)) => {
                        assert!(stored.len() == PIECES * MIB && Pattern(i).is(0, &stored), "{name}");
                    }
                    (Err(_), None) => {}
                    (written, stored) => panic!("{name}: {written:?}, stored: {}", stored.is_some()),
                }
            });
        }
    });
    assert_eq!(mount.store().pending_uploads(), 0);
    std::fs::write(mount.path("after"), b"there is room again").unwrap();
    assert_eq!(mount.store().get("after").unwrap(), b"there is room again");
    let refused = *refused.lock().unwrap();
    eprintln!("{refused} of {WRITERS} writers were refused");
    refused
}

#[test]
fn writers_that_memory_has_no_room_for_hear_enospc_and_the_others_are_stored() {
    let Some(mount) = TestMount::new(&["--memory-target", "128"]) else { return };
    assert!(refused_writers(&mount) > 0);
}

#[test]
fn writers_for_whom_memory_and_the_spill_folder_are_full_hear_enospc() {
    if !need("root", rustix::process::geteuid().is_root()) {
        return;
    }
    let spill = tempfile::tempdir().unwrap();
    run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=256k", "tmpfs"]).arg(spill.path()));
    let options = ["--memory-target", "128", "--spill-dir", spill.path().to_str().unwrap()];
    let refused = std::panic::catch_unwind(|| TestMount::new(&options).map(|mount| refused_writers(&mount)));
    run(Command::new("umount").arg("-l").arg(spill.path()));
    assert!(refused.unwrap().is_none_or(|refused| refused > 0));
}
