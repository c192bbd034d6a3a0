//! kill -9: files after a successful fsync are there, all other files are whole or absent, and the directory can be mounted again.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::Mutex;

use super::cache::{data_files, is_proven, reads_all_right};
use crate::common::{Pattern, Setup, TestMount, until};

const LEN: usize = 200_000;

#[test]
fn a_killed_engine_keeps_what_fsync_promised_and_nothing_torn() {
    let Some(mut mount) = TestMount::new(&[]) else { return };
    let promised = Mutex::new(BTreeSet::new());
    let (tell, told) = std::sync::mpsc::channel();
    // Writers run until the engine is gone under them; the kill comes in the middle of whatever they are at.
    std::thread::scope(|scope| {
        for writer in 0..4_usize {
            let (dir, promised, tell) = (mount.dir().to_owned(), &promised, tell.clone());
            scope.spawn(move || {
                for i in 0.. {
                    let name = format!("{writer}-{i}");
                    // Every fourth file is of several parts.
                    let len = if i % 4 == 3 { 20 << 20 } else { LEN } as u64;
                    let written = File::create_new(dir.join(&name)).and_then(|mut file| {
                        Pattern(len).write_to(&mut file, len, 65_536)?;
                        file.sync_all()
                    });
                    if written.is_err() {
                        break;
                    }
                    promised.lock().unwrap().insert(name);
                    let _ = tell.send(());
                }
            });
        }
        for _ in 0..30 {
            told.recv().expect("the writers write");
        }
        mount.kill_9();
    });
    let error = fs::metadata(mount.path("0-0")).unwrap_err();
    let gone = rustix::io::Errno::NOTCONN.raw_os_error();
    assert_eq!(error.raw_os_error(), Some(gone), "a dead mount says so: {error}");

    let mount = mount.remount(&Setup::new(&[]));
    let promised = promised.into_inner().unwrap();
    assert!(promised.len() >= 30);
    let there: BTreeSet<String> = mount.store().keys().into_iter().collect();
    let lost: Vec<_> = promised.difference(&there).collect();
    assert!(lost.is_empty(), "fsync promised {lost:?}");
    for name in &there {
        let bytes = fs::read(mount.path(name)).unwrap();
        assert!([LEN, 20 << 20].contains(&bytes.len()), "{name} is torn: {} bytes", bytes.len());
        assert!(Pattern(bytes.len() as u64).is(0, &bytes), "{name} has wrong bytes");
    }
    fs::write(mount.path("after"), b"it works again").unwrap();
    assert_eq!(mount.store().get("after").unwrap(), b"it works again");
}

#[test]
fn a_cache_outlives_a_killed_engine_and_stays_sound() {
    const LEN: usize = 10_000_000;
    let folder = tempfile::tempdir().unwrap();
    // The size is set: without one, a disk that is nearly full has no room for a cache, and nothing would be kept.
    let setup = Setup::new(&["--cache", folder.path().to_str().unwrap(), "--max-cache-size", "256"]);
    let Some(mut mount) = TestMount::with(&setup) else { return };
    let reads_right = |mount: &TestMount, i: u64, seed: u64| {
        let bytes = fs::read(mount.path(&format!("file{i}"))).unwrap();
        assert!(bytes.len() == LEN && Pattern(seed).is(0, &bytes), "file{i}");
    };
    for i in 0..5 {
        mount.store().put(&format!("file{i}"), Pattern(i).bytes(0, LEN));
        reads_right(&mount, i, i);
    }
    let holds = |file: &PathBuf, seed: u64| {
        fs::read(file).is_ok_and(|bytes| bytes.len() == LEN && Pattern(seed).is(0, &bytes))
    };
    until("the cache holds what was read", || {
        let files = data_files(folder.path());
        let is_missing = |seed: &u64| !files.iter().any(|file| holds(file, *seed));
        if files.len() == 5 && files.iter().all(|file| is_proven(file)) {
            return true;
        }
        let missing: Vec<u64> = (0..5).filter(is_missing).collect();
        // Blocks that a slow disk has no time for are dropped: what is read again is put again.
        for i in &missing {
            assert!(reads_all_right(&mount.path(&format!("file{i}")), LEN, Pattern(*i)), "file{i}");
        }
        false
    });
    mount.kill_9();
    let mount = mount.remount(&setup);
    mount.store().requests().reset();
    for i in 1..5 {
        reads_right(&mount, i, i);
    }
    // The kill may have come before the last blocks were entered in their sidecars.
    let fetched = mount.store().requests().bytes_sent();
    assert!(fetched < LEN as u64, "what was kept is not fetched again: {fetched} bytes were");
    // An object that changed while nobody looked.
    mount.store().put("file0", Pattern(100).bytes(0, LEN));
    reads_right(&mount, 0, 100);
}
