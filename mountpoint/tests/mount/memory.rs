//! Progress and right bytes within little memory.

use std::fs::File;
use std::io::{Read, Write};
use std::sync::Barrier;
use std::time::Duration;

use crate::common::{Pattern, Setup, Store, TestMount};

const MIB: usize = 1 << 20;
/// Peak RSS stays within the target and this much.
const OVERHEAD: u64 = 64 << 20;

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
