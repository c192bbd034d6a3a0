//! Files that are uploaded after their release, which no program can wait for: their end, and operations on other files meanwhile.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};

use rustix::process::Signal;
use s3server::{Effect, Fault};

use super::cache::{LEN, gets_of_one_reading, setup};
use crate::common::{Pattern, Setup, Store, TestMount, is_mounted, until};

/// The most requests that the kernel keeps in the background, where its read-ahead waits, too. The engine asks for the maximum; a mount
/// without root gets less.
const BACKGROUND: usize = 64;
/// A number of files beyond [`BACKGROUND`].
pub(super) const MANY: usize = BACKGROUND + 6;

/// An open file on a mount whose cache has all of it: a read needs the kernel's read-ahead, but no request to the store.
pub(super) struct Cached {
    file: File,
    pub(super) mount: TestMount,
    _cache: tempfile::TempDir,
}

impl Cached {
    /// `None` where there is no FUSE, or its limit can't be set.
    pub(super) fn new() -> Option<Self> {
        let (store, cache) = (Store::new(), tempfile::tempdir().unwrap());
        store.put("file", Pattern(1).bytes(0, LEN));
        gets_of_one_reading(&store, cache.path())?;
        let mount = TestMount::of(&store, &setup(cache.path()))?;
        if !mount.limit_background(BACKGROUND) {
            return None;
        }
        let file = File::open(mount.path("file")).unwrap();
        Some(Self { file, mount, _cache: cache })
    }

    /// Makes the store withhold its answers to PutObject from now on.
    pub(super) fn hang(&self) {
        self.mount.store().faults().add(Fault::on("PutObject", Effect::Hold));
    }

    /// Reads the file while storing hangs; then lets storing go on.
    pub(super) fn is_read(&mut self) {
        until("a request hangs", || self.mount.store().faults().fired() > 0);
        let mut bytes = Vec::with_capacity(LEN);
        self.file.read_to_end(&mut bytes).unwrap();
        assert!(bytes.len() == LEN && Pattern(1).is(0, &bytes), "wrong bytes");
        let log = self.mount.log();
        // A file that ends behind its close, and fails, is logged.
        assert!(
            !log.contains("PutObject"),
            "it was read when the storing of the others ended, not before:\n{log}"
        );
        self.mount.store().faults().release();
    }
}

#[test]
fn files_stored_behind_their_close_do_not_delay_reads_of_another() {
    let Some(mut cached) = Cached::new() else { return };
    let create = |i| File::create(cached.mount.path(&format!("empty{i}"))).unwrap();
    let files: Vec<_> = (0..MANY).map(create).collect();
    cached.hang();
    drop(files);
    cached.is_read();
}

#[test]
fn a_mount_that_ends_waits_for_the_abort_of_a_failed_closed_file() {
    let Some(mount) = TestMount::with(&Setup::new(&[])) else { return };
    let store = std::sync::Arc::clone(mount.store());
    let mut file = File::create_new(mount.path("file")).unwrap();
    Pattern(8).write_to(&mut file, 20 << 20, 1 << 20).unwrap();
    // Later than a runtime that ends waits by itself.
    let busy = Effect::SlowDown { retry_after: Some("2".to_owned()) };
    store.faults().add(Fault::on("AbortMultipartUpload", busy).times(1));
    file.seek(SeekFrom::Start(0)).unwrap();
    file.write_all(b"elsewhere").unwrap_err();
    drop(file);
    drop(mount);
    assert_eq!((store.faults().fired(), store.pending_uploads()), (1, 0));
}

#[test]
fn a_mount_that_ends_waits_for_a_file_stored_behind_its_close() {
    let Some(mut mount) = TestMount::with(&Setup::new(&[])) else { return };
    let faults = mount.store().faults().clone();
    let denied = Effect::Error { status: 403, code: "AccessDenied".to_owned() };
    faults.add(Fault::on("PutObject", Effect::Hold).key("empty"));
    faults.add(Fault::on("PutObject", denied).key("empty"));
    drop(File::create(mount.path("empty")).unwrap());
    until("the request is under way", || faults.fired() > 0);
    mount.signal(Signal::TERM);
    until("it is unmounted", || !is_mounted(mount.dir()));
    faults.release();
    assert!(mount.end().success());
    let log = mount.log();
    let said = log.matches("\"empty\" was closed; the object was NOT stored: PutObject").count();
    assert_eq!(said, 1, "{log}");
}
