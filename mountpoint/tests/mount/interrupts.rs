//! Programs that are ended while they wait, and the other transport.

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use s3server::{Effect, Fault};

use crate::common::{Pattern, Setup, Store, TestMount};

/// Longer than any test waits, and than the engine's own limit for a first byte (20 s) it would need to give up by itself.
const HANGS_FOR_MS: u64 = 120_000;
/// A program that was killed and still waits after this long waits for the store.
const HANGS: Duration = Duration::from_secs(15);

#[test]
fn a_killed_program_does_not_wait_for_a_store_that_hangs() {
    let store = Store::new();
    store.plant("file", &Pattern(1).bytes(0, 1 << 20));
    let Some(mount) = TestMount::of(&store, &Setup::new(&[])) else { return };
    store.faults().add(Fault::on("GetObject", Effect::Delay { for_ms: HANGS_FOR_MS }).times(100));
    let mut cat = Command::new("cat").arg(mount.path("file")).stdout(Stdio::null()).spawn().unwrap();
    while store.faults().fired() == 0 {
        std::thread::sleep(Duration::from_millis(10));
    }
    let killed = Instant::now();
    cat.kill().unwrap();
    cat.wait().unwrap();
    assert!(killed.elapsed() < HANGS, "it waited for the store: {:?}", killed.elapsed());
    store.faults().clear();
    let bytes = fs::read(mount.path("file")).unwrap();
    assert!(Pattern(1).is(0, &bytes), "the mount goes on");
}

#[test]
fn the_transport_of_the_crate_fuser_reads_and_writes_the_same() {
    let store = Store::new();
    store.plant("dir/in", &Pattern(2).bytes(0, 9 << 20));
    let Some(mount) = TestMount::of(&store, &Setup::new(&["--fuse-transport", "fuser", "--allow-delete"]))
    else {
        return;
    };
    let bytes = fs::read(mount.path("dir/in")).unwrap();
    assert!(bytes.len() == 9 << 20 && Pattern(2).is(0, &bytes));
    fs::create_dir(mount.path("new")).unwrap();
    fs::copy(mount.path("dir/in"), mount.path("new/out")).unwrap();
    assert!(Pattern(2).is(0, &store.get("new/out").unwrap()));
    let names: Vec<_> = fs::read_dir(mount.dir()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["dir", "new"]);
    fs::remove_file(mount.path("new/out")).unwrap();
    assert_eq!(store.get("new/out"), None);
    assert_eq!(fs::read(mount.path("nothing")).unwrap_err().kind(), std::io::ErrorKind::NotFound);
}
