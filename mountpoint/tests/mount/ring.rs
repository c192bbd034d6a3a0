//! FUSE over io_uring: refused, aborted, and with more requests at once than it has room for.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use s3server::{Effect, Fault};

use crate::common::{Pattern, Setup, Store, TestMount, need, need_tool, until};

/// Bytes of the files.
const LEN: usize = 8 << 20;
/// io_uring_setup, _enter and _register, on every architecture.
const IO_URING_CALLS: [u32; 3] = [425, 426, 427];

#[test]
fn without_io_uring_the_mount_works_by_dev_fuse_and_one_line_says_so() {
    if !need_tool("python3") {
        return;
    }
    let store = Store::new();
    store.plant("file", &Pattern(1).bytes(0, LEN));
    for call in IO_URING_CALLS {
        let mut setup = Setup::new(&["--fuse-transport", "io-uring", "--allow-overwrite"]);
        setup.refuses = Some(call);
        let Some(mount) = TestMount::of(&store, &setup) else { return };
        assert!(Pattern(1).is(0, &std::fs::read(mount.path("file")).unwrap()), "{call}: wrong bytes");
        std::fs::write(mount.path("new"), call.to_string()).unwrap();
        assert_eq!(store.get("new").unwrap(), call.to_string().as_bytes());
        let log = mount.log();
        let lines: Vec<_> = log.lines().filter(|line| line.contains("no FUSE over io_uring")).collect();
        let [line] = lines[..] else { panic!("{call}: one line, not {lines:?}") };
        // The switch of the kernel is looked at first.
        assert!(line.contains("seccomp") || line.contains("enable_uring"), "{call}: {line}");
    }
}

#[test]
fn an_aborted_connection_ends_the_readers_and_the_engine() {
    let store = Store::new();
    store.plant("file", &Pattern(1).bytes(0, LEN));
    let Some(mut mount) = TestMount::of(&store, &Setup::new(&["--operation-timeout", "3600"])) else {
        return;
    };
    // Opened before the store hangs: an open may ask for the first bytes.
    let open = |_| File::open(mount.path("file")).unwrap();
    let files: Vec<_> = (0..4).map(open).collect();
    store.faults().add(Fault::on("GetObject", Effect::Hold));
    let read = |file: File| file.read_at(&mut [0; 4096], LEN as u64 / 2).map_err(|e| e.raw_os_error());
    let readers: Vec<_> = files.into_iter().map(|file| std::thread::spawn(move || read(file))).collect();
    until("a reader waits for the store", || store.faults().fired() > 0);
    if !mount.abort() {
        store.faults().release();
        return;
    }
    for reader in readers {
        assert!(reader.join().unwrap().is_err(), "the connection is gone");
    }
    assert!(mount.end().success(), "the engine ends as after an unmount");
    store.faults().release();
}

#[test]
fn more_readers_than_entries_wait_in_line_and_all_get_their_bytes() {
    const READERS: usize = 1200;
    /// The entries of all queues are 512 with two processors, and 1,024 with up to 64.
    const ROOM: usize = 1024;
    let store = Store::new();
    store.plant("file", &Pattern(1).bytes(0, LEN));
    let Some(mount) = TestMount::of(&store, &Setup::new(&["--operation-timeout", "3600"])) else { return };
    let file = File::open(mount.path("file")).unwrap();
    if !need("root and fusectl, to count what waits", mount.waiting().is_some()) {
        return;
    }
    store.faults().add(Fault::on("GetObject", Effect::Hold));
    std::thread::scope(|scope| {
        for reader in 0..READERS {
            let file = &file;
            scope.spawn(move || {
                // Each at another page, most of them not asked for by any other.
                let (mut bytes, at) = ([0; 4096], (reader * 1571 % (LEN >> 12)) << 12);
                file.read_exact_at(&mut bytes, at as u64).unwrap();
                assert!(Pattern(1).is(at as u64, &bytes), "wrong bytes at {at}");
            });
        }
        until("more wait than there is room for", || mount.waiting().is_some_and(|waiting| waiting > ROOM));
        store.faults().release();
    });
    assert!(std::fs::metadata(mount.path("file")).is_ok(), "it goes on");
}
