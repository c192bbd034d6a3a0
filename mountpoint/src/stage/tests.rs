//! Engines that are killed, and machines that lose power, after each step of programs: tests of the files that the next mount finds.
//!
//! A killed engine leaves the directory as it is. A loss of power is the same directory under another boot: the next mount keeps files
//! that the log does not cover.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use super::kept::Kept;
use super::log::Mount;
use super::*;
use crate::buffer;
use crate::metrics::Metrics;
use crate::prefetch;
use crate::testing::{FaultPlan, MemoryClient, Op};
use crate::upload;

mod copies;
mod directories;
mod early;
mod failing;
mod lent;
mod limits;
mod patches;
mod small;

const MIB: usize = 1 << 20;

/// A reader and a writer of objects without a disk cache, on the test's runtime.
pub(crate) fn transfers(
    client: &MemoryClient,
    pool: &Pool,
    clock: &Clock,
    metrics: &Arc<Metrics>,
) -> (Prefetcher, Uploader) {
    let runtime = tokio::runtime::Handle::current();
    let prefetcher = Prefetcher::new(
        client.arc(),
        None,
        pool.clone(),
        prefetch::Config::default(),
        clock.clone(),
        Arc::clone(metrics),
        runtime.clone(),
    );
    let uploader = Uploader::new(
        client.arc(),
        pool.clone(),
        upload::Config::default(),
        clock.clone(),
        Arc::clone(metrics),
        runtime,
    );
    (prefetcher, uploader)
}

struct Engine {
    shared: Arc<Shared>,
    kept: Vec<Kept>,
    pending: Vec<Pending>,
}

/// An engine on this directory, on a machine of this boot.
fn engine(dir: &Path, boot: &str, client: &MemoryClient) -> Engine {
    engine_with(dir, boot, client, 1 << 30)
}

/// An engine with room for this many bytes in the stage.
fn engine_with(dir: &Path, boot: &str, client: &MemoryClient, size_max: u64) -> Engine {
    engine_of(dir, boot, client, (size_max, Commit::Disk))
}

fn engine_of(dir: &Path, boot: &str, client: &MemoryClient, (size_max, commit): (u64, Commit)) -> Engine {
    let (runtime, clock) = (tokio::runtime::Handle::current(), Clock::machine());
    let pool = Pool::new(&buffer::Config { target: 64 << 20, network: 8 << 20 });
    let (prefetcher, uploader) = transfers(client, &pool, &clock, &Arc::default());
    let mount = Mount { boot: boot.into(), commit, lends: true, ..Mount::default() };
    let (folder, kept, pending) = Folder::open(dir, mount, size_max, clock).unwrap();
    let (syncing, left) = Default::default();
    let shared = Shared { folder, uploader, prefetcher, pool, runtime, syncing, pending: left };
    Engine { shared: Arc::new(shared), kept, pending }
}

impl Engine {
    fn new_file(&self, key: &str) -> Arc<Staged> {
        let staged = Staged::create(Arc::clone(&self.shared), key.into(), None).unwrap();
        staged.note_new().unwrap();
        Arc::new(staged)
    }

    /// A staged file over an object of ten bytes, which the call stores in the bucket.
    fn file_over(&self, client: &MemoryClient, key: &str) -> Arc<Staged> {
        let etag = client.insert(key, b"0123456789".to_vec());
        self.over(key, etag, 10)
    }

    /// A staged file that begins as this object.
    fn over(&self, key: &str, etag: crate::object::ETag, size: u64) -> Arc<Staged> {
        let base = Base { id: ObjectId::by_etag(key.into(), etag), size, first: None };
        Arc::new(Staged::create(Arc::clone(&self.shared), key.into(), Some(base)).unwrap())
    }

    /// The files that wait to be stored, by key.
    async fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let mut files = BTreeMap::new();
        for pending in self.pending.clone() {
            let staged = Arc::new(Staged::pending(Arc::clone(&self.shared), pending));
            let (give, given) = tokio::sync::oneshot::channel();
            staged.read(0, 1 << 20, move |bytes| drop(give.send(bytes.map(|bytes| bytes.to_vec()))));
            files.insert(staged.key().as_str().to_owned(), given.await.unwrap().unwrap());
        }
        files
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to.join("files")).unwrap();
    fs::copy(from.join("log"), to.join("log")).unwrap();
    for entry in fs::read_dir(from.join("files")).unwrap() {
        let entry = entry.unwrap();
        let bytes = fs::read(entry.path()).unwrap();
        let copy = fs::File::create(to.join("files").join(entry.file_name())).unwrap();
        copy.set_len(bytes.len() as u64).unwrap();
        // A hole stays a hole.
        if bytes.iter().any(|byte| *byte != 0) {
            copy.write_all_at(&bytes, 0).unwrap();
        }
    }
}

/// The files that the next mount stores after a kill; those that it stores after a loss of power, and the number that it keeps then.
async fn left(
    dir: &Path,
    client: &MemoryClient,
) -> (BTreeMap<String, Vec<u8>>, BTreeMap<String, Vec<u8>>, usize) {
    let (killed, dark) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    copy(dir, killed.path());
    copy(dir, dark.path());
    let after_kill = engine(killed.path(), "one", client);
    assert_eq!(after_kill.kept.len(), 0, "what was acknowledged is to be stored");
    let after_dark = engine(dark.path(), "two", client);
    (after_kill.files().await, after_dark.files().await, after_dark.kept.len())
}

fn files<const N: usize>(files: [(&str, &[u8]); N]) -> BTreeMap<String, Vec<u8>> {
    files.into_iter().map(|(key, bytes)| (key.to_owned(), bytes.to_vec())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_step_outlives_a_kill_and_what_was_synced_a_loss_of_power() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let engine = engine(dir.path(), "one", &client);
    let left = || left(dir.path(), &client);

    let new = engine.new_file("new");
    assert_eq!(left().await, (files([("new", b"")]), files([]), 1), "it was closed, not synced");
    new.write(0, b"abc").unwrap();
    assert_eq!(left().await, (files([("new", b"abc")]), files([]), 1));
    new.sync().await.unwrap();
    assert_eq!(left().await, (files([("new", b"abc")]), files([("new", b"abc")]), 0));
    new.renamed("renamed".into(), crate::s3::Replaces::Nothing).unwrap();
    let renamed = files([("renamed", b"abc")]);
    assert_eq!(left().await, (renamed.clone(), renamed, 0), "a rename needs no sync of the bytes");

    // The file is open again: later changes may be on the disk in part.
    new.closed();
    new.write(1, b"X").unwrap();
    assert_eq!(left().await, (files([("renamed", b"aXc")]), files([]), 1));
    new.sync().await.unwrap();
    assert_eq!(left().await.1, files([("renamed", b"aXc")]));

    // A file with bytes of the object and bytes written here.
    let patched = engine.file_over(&client, "patched");
    assert_eq!(left().await.0.len(), 1, "a file without a change is the bucket's");
    patched.write(8, b"ABC").unwrap();
    patched.sync().await.unwrap();
    patched.write(2, b"--").unwrap();
    let (after_kill, after_dark, kept) = left().await;
    assert_eq!((after_kill["patched"].as_slice(), kept), (&b"01--4567ABC"[..], 0));
    assert_eq!(after_dark["patched"], b"01234567ABC", "no sync vouches for the rest");
    patched.set_size(4).unwrap();
    patched.set_size(6).unwrap();
    assert_eq!(left().await.0["patched"], b"01--\0\0");

    // A send stores the file, which the bucket has from then on.
    let turn = patched.turn().await;
    let meta = patched.store(&turn).await.unwrap().expect("there was a change");
    drop(turn);
    assert_eq!(meta.size, 6);
    assert_eq!(stored(&client, "patched"), b"01--\0\0");
    assert!(!left().await.0.contains_key("patched"));
    patched.write(0, b"2").unwrap();
    assert_eq!(left().await.0["patched"], b"21--\0\0");

    // A removed file is gone after both.
    patched.unlinked().unwrap();
    new.unlinked().unwrap();
    assert_eq!(left().await, (files([]), files([]), 0));
    drop((patched, new));
    engine.shared.folder.sweep().unwrap();
    assert_eq!(fs::read_dir(dir.path().join("files")).unwrap().count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn closed_files_share_the_syncs_of_their_names_and_of_the_log() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let engine = engine(dir.path(), "one", &client);
    let made: Vec<_> = (0..20).map(|n| engine.new_file(&format!("{n:02}"))).collect();
    for staged in &made {
        staged.write(0, b"abc").unwrap();
        staged.closed();
    }
    let disk = engine.shared.folder.disk();
    disk.fail(0..0);
    Area(Arc::clone(&engine.shared)).sync_all(made.clone()).await.unwrap();
    assert_eq!(disk.calls(), 20 + 20 + 1 + 1, "the bytes and the record of each, the names, the log");
    assert_eq!(engine.shared.folder.undurable(), 0);
    let (_, after_dark, kept) = left(dir.path(), &client).await;
    assert_eq!((after_dark.len(), kept), (20, 0));
    // A program's own sync of the same bytes has nothing left to do but to vouch.
    disk.fail(0..0);
    made[0].sync().await.unwrap();
    assert_eq!(disk.calls(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_file_is_durable_before_a_longer_one_of_the_same_pass() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let engine = engine(dir.path(), "one", &client);
    let made = ["a", "b"].map(|key| engine.new_file(key));
    for staged in &made {
        staged.write(0, b"abc").unwrap();
        staged.closed();
    }
    let disk = engine.shared.folder.disk();
    disk.fail(0..0);
    // The names, then the bytes of one of the two.
    disk.hold(2..3);
    let area = Area(Arc::clone(&engine.shared));
    let pass = tokio::spawn(async move { area.sync_all(made.to_vec()).await });
    while left(dir.path(), &client).await.1.is_empty() || engine.shared.folder.undurable() > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(!pass.is_finished());
    disk.hold(0..0);
    pass.await.unwrap().unwrap();
    assert_eq!(left(dir.path(), &client).await.1.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pass_whose_names_could_not_be_synced_says_so() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let engine = engine(dir.path(), "one", &client);
    let staged = engine.new_file("file");
    staged.write(0, b"abc").unwrap();
    staged.closed();
    engine.shared.folder.disk().fail(1..2);
    let synced = Area(Arc::clone(&engine.shared)).sync_all(vec![Arc::clone(&staged)]).await;
    assert!(matches!(synced, Err(Error::Disk(_))), "{synced:?}");
    assert!(!staged.is_synced());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_size_leaves_the_thread_where_its_record_has_to_be_durable() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let engine = engine(dir.path(), "one", &client);
    let staged = engine.new_file("file");
    staged.write(0, b"abc").unwrap();
    staged.sync().await.unwrap();
    staged.closed();
    let disk = engine.shared.folder.disk();
    disk.hold(0..u64::MAX);
    let mut resized = std::pin::pin!(staged.resize(1));
    // The first poll comes back although the disk hangs.
    assert!(futures_util::poll!(&mut resized).is_pending());
    disk.hold(0..0);
    resized.await.unwrap();
    assert_eq!(staged.size(), 1);
    // The next change is part of the same open.
    assert!(futures_util::poll!(std::pin::pin!(staged.resize(2))).is_ready());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sync_of_a_new_file_covers_the_names_of_all_that_were_made_before() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let engine = engine(dir.path(), "one", &client);
    let [first, second] = ["first", "second"].map(|key| engine.new_file(key));
    let disk = engine.shared.folder.disk();
    let mut calls = Vec::new();
    for staged in [&first, &second] {
        staged.write(0, b"abc").unwrap();
        disk.fail(0..0);
        staged.sync().await.unwrap();
        calls.push(disk.calls());
    }
    assert_eq!(
        calls,
        [4, 3],
        "the bytes, the names, the record and the log; then the same without the names"
    );
    assert_eq!(left(dir.path(), &client).await.1.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_file_for_which_the_log_vouches_needs_one_sync_each_time() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let engine = engine(dir.path(), "one", &client);
    let calls = async |staged: &Arc<Staged>| {
        engine.shared.folder.disk().fail(0..0);
        staged.sync().await.unwrap();
        engine.shared.folder.disk().calls()
    };
    let left = async || left(dir.path(), &client).await.1;
    let file = engine.new_file("file");
    file.write(0, b"abc").unwrap();
    assert!(calls(&file).await > 2, "the bytes, the name, the log");
    file.write(1, b"X").unwrap();
    assert_eq!((calls(&file).await, left().await), (1, files([("file", b"aXc")])));
    assert_eq!((calls(&file).await, file.is_synced()), (0, true));
    // The record of another name, or of another open, must be on the disk, too.
    file.renamed("renamed".into(), crate::s3::Replaces::Nothing).unwrap();
    file.write(0, b"Y").unwrap();
    assert!(calls(&file).await > 1);
    file.write(0, b"Z").unwrap();
    assert_eq!(calls(&file).await, 1);
    file.closed();
    file.write(2, b"Z").unwrap();
    assert_eq!(left().await, files([]), "the disk may have a part of the change");
    assert!(calls(&file).await > 1);
    assert_eq!(left().await, files([("renamed", b"ZXZ")]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_seal_of_a_killed_engine_does_not_outlive_a_loss_of_power() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let first = engine(dir.path(), "one", &client);
    let staged = first.file_over(&client, "file");
    staged.write(8, b"AB").unwrap();
    staged.sync().await.unwrap();
    // A send has fetched the rest, which the disk does not have durably yet.
    first.shared.folder.append(&[log::Record::Sealed { file: staged.number() }]).unwrap();
    let (killed, dark) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    copy(dir.path(), killed.path());
    assert_eq!(engine(killed.path(), "one", &client).pending.len(), 1);
    copy(killed.path(), dark.path());
    let after = engine(dark.path(), "two", &client).files().await;
    assert_eq!(after, files([("file", b"01234567AB")]), "the object has the rest");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sync_that_failed_is_never_forgotten_and_the_file_is_not_sent() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let first = engine(dir.path(), "one", &client);
    let staged = first.new_file("file");
    staged.write(0, b"abc").unwrap();
    // A pipe can't be synced, and kept/ refuses files.
    let on_disk = staged.file.lock().replace(Arc::new(fs::File::from(rustix::pipe::pipe().unwrap().0)));
    fs::remove_dir(dir.path().join("kept")).unwrap();
    fs::write(dir.path().join("kept"), "a file is in its place").unwrap();
    assert!(matches!(staged.sync().await, Err(Error::Disk(_))));
    // The kernel reports the failure once. The disk and kept/ work from now on.
    *staged.file.lock() = on_disk;
    let killed = tempfile::tempdir().unwrap();
    copy(dir.path(), killed.path());
    fs::remove_file(dir.path().join("kept")).unwrap();
    fs::create_dir(dir.path().join("kept")).unwrap();
    assert!(matches!(staged.sync().await, Err(Error::Disk(_))));
    assert!(matches!(staged.write(0, b"x"), Err(Error::Disk(_))));
    let turn = staged.turn().await;
    assert!(staged.store(&turn).await.is_err());
    assert!(client.object("file").is_none(), "it is not stored as the disk has it");
    assert!(staged.is_kept(), "an attempt to send it keeps it at last");
    assert_eq!(fs::read(dir.path().join("kept/1-file")).unwrap(), b"abc");
    let after = engine(killed.path(), "one", &client);
    assert_eq!((after.pending.len(), after.kept.len()), (0, 1), "nor by the next mount");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_takes_no_record_fails_what_needs_one_and_nothing_else() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let first = engine(dir.path(), "one", &client);
    let staged = first.file_over(&client, "file");
    staged.write(8, b"AB").unwrap();
    let folder = &first.shared.folder;
    folder.refuse_records(true);
    assert!(staged.write(1, b"x").is_err());
    assert!(staged.set_size(4).is_err());
    assert!(staged.write(6, b"x").is_err(), "the cut is to be noted first");
    folder.refuse_records(false);
    staged.set_size(6).unwrap();
    let left = left(dir.path(), &client).await;
    assert_eq!(left.0["file"], b"0123\0\0", "the object does not show again behind the cut");

    folder.refuse_records(true);
    assert!(staged.unlinked().is_err());
    assert!(staged.is_unlinked());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_send_of_a_synced_file_is_noted_durably_before_its_request() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let first = engine(dir.path(), "one", &client);
    let staged = first.new_file("file");
    staged.write(0, b"abc").unwrap();
    staged.sync().await.unwrap();
    let turn = staged.turn().await;
    // The send gave up before its request: the file still waits.
    assert!(staged.store_while(&turn, &|| false).await.unwrap().is_none());
    assert!(staged.is_dirty() && client.object("file").is_none());
    staged.store(&turn).await.unwrap().expect("there was a change");
    assert_eq!(first.shared.folder.undurable(), 1, "the record behind the answer alone");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answered_put_counts_though_the_log_takes_no_record_of_it() {
    for is_changed_meanwhile in [false, true] {
        let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
        let first = engine(dir.path(), "one", &client);
        let staged = first.new_file("file");
        staged.write(0, b"abc").unwrap();
        staged.sync().await.unwrap();
        let gate = client.hold_answer(FaultPlan::on(Op::PutObject));
        let sender = Arc::clone(&staged);
        let send = tokio::spawn(async move {
            let turn = sender.turn().await;
            sender.store(&turn).await
        });
        gate.arrived(1).await;
        first.shared.folder.refuse_records(true);
        drop(gate);
        send.await.unwrap().unwrap().expect("the bucket has it");
        assert!(!staged.is_dirty(), "this mount knows that");
        if is_changed_meanwhile {
            client.insert("file", b"theirs".to_vec());
        }
        let expected = stored(&client, "file");
        let turn = staged.turn().await;
        assert!(staged.store(&turn).await.unwrap().is_none());
        // The log says that the file still waits, both after a kill and after a loss of power.
        for boot in ["one", "two"] {
            let killed = tempfile::tempdir().unwrap();
            copy(dir.path(), killed.path());
            let next = engine(killed.path(), boot, &client);
            let left = Arc::new(Staged::pending(Arc::clone(&next.shared), next.pending[0].clone()));
            let turn = left.turn().await;
            let stored_again = left.store(&turn).await;
            assert_eq!(stored(&client, "file"), expected, "{boot}");
            match is_changed_meanwhile {
                true => assert!(matches!(stored_again, Err(Error::Conflict { .. })), "{boot}"),
                false => assert!(stored_again.is_ok() && !left.is_dirty(), "{boot}"),
            }
        }
        assert_eq!(
            client.calls(Op::PutObject),
            1 + 2 * usize::from(is_changed_meanwhile),
            "refused ones count"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stored_image_is_known_again_though_its_answer_was_lost() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let before = {
        let engine = engine(dir.path(), "one", &client);
        let staged = engine.file_over(&client, "file");
        staged.write(3, b"abc").unwrap();
        staged.sync().await.unwrap();
        // A copy of the state just before the request; the test makes the bucket's state after the request by hand.
        let copied = tempfile::tempdir().unwrap();
        let image = super::log::Digest { size: 10, sha256: sha256(b"012abc6789"), etag: None };
        let sending = super::log::Record::Sending { file: staged.number(), image };
        engine.shared.folder.append(&[sending]).unwrap();
        copy(dir.path(), copied.path());
        copied
    };
    client.insert("file", b"012abc6789".to_vec());
    let ours = engine(before.path(), "two", &client);
    let staged = Arc::new(Staged::pending(Arc::clone(&ours.shared), ours.pending[0].clone()));
    staged.write(9, b"!").unwrap();
    let turn = staged.turn().await;
    staged.store(&turn).await.unwrap().expect("its own version does not conflict");
    assert_eq!(stored(&client, "file"), b"012abc678!");

    // Another client's version is a conflict, even after a request of this mount.
    client.insert("file", b"012abc678?".to_vec());
    staged.write(0, b"?").unwrap();
    assert!(matches!(staged.store(&turn).await, Err(Error::Conflict { .. })));
    assert_eq!(stored(&client, "file"), b"012abc678?");
}

async fn read(staged: &Arc<Staged>, at: u64, len: usize) -> Result<Vec<u8>, Error> {
    let (give, given) = tokio::sync::oneshot::channel();
    staged.read(at, len, move |bytes| drop(give.send(bytes.map(|bytes| bytes.to_vec()))));
    given.await.unwrap()
}

fn stored(client: &MemoryClient, key: &str) -> Vec<u8> {
    client.object(key).expect("the bucket has it").to_vec()
}

fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest as _;
    sha2::Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_one_moment_has_the_bytes_of_the_file_and_zeros_between() {
    let dir = tempfile::tempdir().unwrap();
    copies_one_moment(dir.path()).await;
}

#[test]
fn on_btrfs_a_copy_of_one_moment_is_a_clone_and_takes_no_room() {
    testkit::isolated(|| {
        let scratch = tempfile::tempdir().unwrap();
        let (image, dir) = (scratch.path().join("image"), scratch.path().join("mounted"));
        fs::File::create(&image).unwrap().set_len(200 << 20).unwrap();
        fs::create_dir(&dir).unwrap();
        let ran = |command: &mut std::process::Command| {
            command.stdout(std::process::Stdio::null()).status().is_ok_and(|status| status.success())
        };
        let mounted = ran(std::process::Command::new("mkfs.btrfs").arg("-q").arg(&image))
            && ran(std::process::Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&dir));
        if !testkit::need(testkit::BTRFS, mounted) {
            return;
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            copies_one_moment(&dir.join("one")).await;
            let (client, stage) = (MemoryClient::default(), dir.join("two"));
            let engine = engine(&stage, "one", &client);
            assert!(engine.shared.folder.clones());
            let staged = engine.new_file("file");
            staged.write(0, &[7; 32 * MIB]).unwrap();
            let free = || {
                ran(std::process::Command::new("sync").arg("-f").arg(&dir));
                rustix::fs::statvfs(&dir).unwrap().f_bavail
            };
            let before = free();
            let image = staged.copied().await.unwrap();
            let taken = before.saturating_sub(free()) * rustix::fs::statvfs(&dir).unwrap().f_bsize;
            assert!(taken < 16 * MIB as u64, "{taken} bytes were taken");
            drop(image);
        });
    });
}

/// Copies a file with holes, and changes it afterwards.
async fn copies_one_moment(dir: &Path) {
    let client = MemoryClient::default();
    let engine = engine(dir, "one", &client);
    let staged = engine.new_file("file");
    staged.write(5, b"start").unwrap();
    staged.write(300_000, &[7; 5_000]).unwrap();
    staged.set_size(400_000).unwrap();
    let mut expected = vec![0; 400_000];
    expected[5..10].copy_from_slice(b"start");
    expected[300_000..305_000].fill(7);
    let image = staged.copied().await.unwrap();
    staged.write(0, b"later").unwrap();
    staged.set_size(10).unwrap();
    let mut bytes = vec![1; 400_000];
    image.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes == expected);
    assert_eq!(image.metadata().unwrap().len(), 400_000);
    assert_eq!(fs::read_dir(dir.join("files")).unwrap().count(), 1, "the copy has no name");
}
