//! Directories whose markers are stored behind their mkdir (`--commit fsync` and `disk`), over a bucket in memory.

use std::path::Path;

use super::full::mounted;
use super::renames::{errno, ino, rename};
use super::*;
use crate::inode::InodeNo;
use crate::owner::Locked;
use crate::s3::ErrorKind;
use crate::stage::Commit;

/// Longer than a directory, or a file behind its last close, waits for its send.
const LATER: Duration = Duration::from_secs(100);

/// A file system whose stage in this directory has the marker of each directory, and which sends what is due.
fn marking(commit: Commit, client: &MemoryClient, dir: &Path, clock: &Clock) -> Arc<FileSystem> {
    let mut fs = mounted(commit, client, dir, clock.clone());
    fs.config.directory_markers = true;
    fs.config.allow_delete = true;
    let fs = Arc::new(fs);
    tokio::spawn(Arc::clone(&fs).keep_sending());
    fs
}

async fn mkdir(fs: &FileSystem, parent: InodeNo, name: &str) -> InodeNo {
    fs.mkdir(parent, OsStr::new(name), Maker::default()).await.unwrap().attr.ino
}

/// Ends the engine as a kill does: nothing is sent any more, and the stage is free for the next one.
async fn kill(fs: Arc<FileSystem>, dir: &Path) {
    fs.full.as_ref().unwrap().end_sending();
    testkit::until_async("its tasks are over", || Arc::strong_count(&fs) == 1).await;
    drop(fs);
    let lock = || Locked::new(std::fs::File::open(dir.join("lock")).unwrap());
    testkit::until_async("the stage is free", || lock().is_ok()).await;
}

fn waiting(fs: &FileSystem) -> u64 {
    fs.stage().unwrap().pending
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_shows_at_once_and_its_marker_goes_two_seconds_later() {
    for commit in [Commit::Disk, Commit::Fsync] {
        let (client, dir, clock) = (MemoryClient::new(), tempfile::tempdir().unwrap(), Clock::manual());
        let fs = marking(commit, &client, dir.path(), &clock);
        let above = mkdir(&fs, ROOT, "above").await;
        mkdir(&fs, above, "below").await;
        assert_eq!((client.calls(Op::PutObject), waiting(&fs)), (0, 2));
        // It shows whether the store answers or not.
        for op in [Op::HeadObject, Op::ListObjects] {
            client.inject(FaultPlan::on(op).always().fail(ErrorKind::Timeout));
        }
        clock.advance(Duration::from_millis(1_900));
        assert_eq!(ino(&fs, "above").await.unwrap(), above);
        assert_eq!(client.keys(), [""; 0]);
        client.clear_faults();
        clock.advance(Duration::from_millis(100));
        testkit::until_async("both are stored", || client.keys() == ["above/", "above/below/"]).await;
        testkit::until_async("nothing waits", || waiting(&fs) == 0).await;
        assert_eq!(ino(&fs, "above").await.unwrap(), above);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_is_removed_before_its_send_costs_no_request() {
    let (client, dir, clock) = (MemoryClient::new(), tempfile::tempdir().unwrap(), Clock::manual());
    let fs = marking(Commit::Disk, &client, dir.path(), &clock);
    let d = mkdir(&fs, ROOT, "d").await;
    mkdir(&fs, d, "e").await;
    assert_eq!(errno(fs.rmdir(ROOT, OsStr::new("d")).await), Errno::NOTEMPTY);
    client.reset_log();
    fs.rmdir(d, OsStr::new("e")).await.unwrap();
    fs.rmdir(ROOT, OsStr::new("d")).await.unwrap();
    assert_eq!((client.log().len(), waiting(&fs)), (0, 0));
    assert_eq!(errno(ino(&fs, "d").await), Errno::NOENT);
    clock.advance(LATER);
    kill(fs, dir.path()).await;
    let fs = marking(Commit::Disk, &client, dir.path(), &clock);
    assert_eq!((waiting(&fs), client.calls(Op::PutObject)), (0, 0), "nor does the next mount bring it back");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_whose_marker_has_no_answer_is_removed_from_the_bucket() {
    let (client, dir, clock) = (MemoryClient::new(), tempfile::tempdir().unwrap(), Clock::manual());
    let fs = marking(Commit::Disk, &client, dir.path(), &clock);
    client.inject(FaultPlan::on(Op::PutObject).answer_lost());
    mkdir(&fs, ROOT, "d").await;
    clock.advance(LATER);
    testkit::until_async("the store has it", || client.keys() == ["d/"]).await;
    // The next attempt is refused.
    client.inject(FaultPlan::on(Op::PutObject).fail(ErrorKind::Denied));
    assert_eq!(errno(fs.rmdir(ROOT, OsStr::new("d")).await), Errno::ACCESS, "the bucket may have it");
    assert_eq!(waiting(&fs), 1);
    client.clear_faults();
    fs.rmdir(ROOT, OsStr::new("d")).await.unwrap();
    assert_eq!((client.keys().len(), waiting(&fs)), (0, 0));
    assert_eq!(fs.area().undurable(), 0, "a loss of power does not bring it back");
    clock.advance(LATER);
    kill(fs, dir.path()).await;
    assert_eq!(client.keys(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_whose_marker_is_refused_waits_and_is_removed_here_alone() {
    let (client, dir, clock) = (MemoryClient::new(), tempfile::tempdir().unwrap(), Clock::manual());
    let fs = marking(Commit::Disk, &client, dir.path(), &clock);
    client.inject(FaultPlan::on(Op::PutObject).always().fail(ErrorKind::Denied));
    mkdir(&fs, ROOT, "d").await;
    clock.advance(LATER);
    testkit::until_async("it was refused", || client.calls(Op::PutObject) == 1).await;
    assert_eq!(waiting(&fs), 1);
    fs.rmdir(ROOT, OsStr::new("d")).await.unwrap();
    assert_eq!((client.calls(Op::DeleteObject), waiting(&fs)), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removal_during_the_send_of_a_marker_waits_for_its_answer() {
    let (client, dir, clock) = (MemoryClient::new(), tempfile::tempdir().unwrap(), Clock::manual());
    let fs = marking(Commit::Disk, &client, dir.path(), &clock);
    mkdir(&fs, ROOT, "d").await;
    let gate = client.hold(FaultPlan::on(Op::PutObject));
    clock.advance(LATER);
    gate.arrived(1).await;
    let removal = {
        let fs = Arc::clone(&fs);
        tokio::spawn(async move { fs.rmdir(ROOT, OsStr::new("d")).await })
    };
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!removal.is_finished());
    gate.release();
    removal.await.unwrap().unwrap();
    assert_eq!((client.keys().len(), client.calls(Op::DeleteObject), waiting(&fs)), (0, 1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renamed_directory_leaves_no_marker_under_its_old_name() {
    let (client, dir, clock) = (MemoryClient::new(), tempfile::tempdir().unwrap(), Clock::manual());
    let fs = marking(Commit::Disk, &client, dir.path(), &clock);
    let old = mkdir(&fs, ROOT, "old").await;
    mkdir(&fs, old, "below").await;
    // An empty directory that waits, too, is replaced.
    mkdir(&fs, ROOT, "new").await;
    rename(&fs, "old", "new").await.unwrap();
    assert_eq!((client.keys(), waiting(&fs)), (vec!["new/".to_owned(), "new/below/".to_owned()], 0));
    assert_eq!(fs.area().undurable(), 0, "nor does a loss of power store one there");
    assert_eq!(ino(&fs, "new").await.unwrap(), old);
    fs.rmdir(old, OsStr::new("below")).await.unwrap();
    fs.rmdir(ROOT, OsStr::new("new")).await.unwrap();
    clock.advance(LATER);
    kill(fs, dir.path()).await;
    assert_eq!(client.keys(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_another_host_made_meanwhile_is_one_directory() {
    let (client, dir, clock) = (MemoryClient::new(), tempfile::tempdir().unwrap(), Clock::manual());
    let fs = marking(Commit::Disk, &client, dir.path(), &clock);
    let d = mkdir(&fs, ROOT, "d").await;
    client.insert("d/", "");
    client.insert("d/theirs", "content");
    clock.advance(LATER);
    testkit::until_async("nothing waits", || waiting(&fs) == 0).await;
    assert_eq!(client.keys(), ["d/", "d/theirs"]);
    assert_eq!(ino(&fs, "d").await.unwrap(), d);
    fs.lookup(d, OsStr::new("theirs")).await.unwrap();
    assert_eq!(errno(fs.rmdir(ROOT, OsStr::new("d")).await), Errno::NOTEMPTY);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_mount_shows_what_a_killed_one_made_and_sends_its_markers() {
    let (client, dir, clock) = (MemoryClient::new(), tempfile::tempdir().unwrap(), Clock::manual());
    client.insert("above/stored", "content");
    let fs = marking(Commit::Disk, &client, dir.path(), &clock);
    let above = ino(&fs, "above").await.unwrap();
    let below = mkdir(&fs, above, "below").await;
    mkdir(&fs, below, "empty").await;
    kill(fs, dir.path()).await;
    assert_eq!(client.keys(), ["above/stored"]);
    let gate = client.hold(FaultPlan::on(Op::PutObject).always());
    for op in [Op::HeadObject, Op::ListObjects] {
        client.inject(FaultPlan::on(op).always().fail(ErrorKind::Timeout));
    }
    let fs = marking(Commit::Disk, &client, dir.path(), &clock);
    let mut parent = ROOT;
    for name in ["above", "below", "empty"] {
        parent = fs.lookup(parent, OsStr::new(name)).await.unwrap().attr.ino;
    }
    client.clear_faults();
    drop(gate);
    let all = ["above/below/", "above/below/empty/", "above/stored"];
    testkit::until_async("both are stored", || client.keys() == all).await;
    testkit::until_async("nothing waits", || waiting(&fs) == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_fsync_of_a_directory_stores_its_marker_with_commit_fsync() {
    for (commit, keys) in [(Commit::Disk, &[][..]), (Commit::Fsync, &["d/", "d/e/"][..])] {
        let (client, dir) = (MemoryClient::new(), tempfile::tempdir().unwrap());
        let fs = marking(commit, &client, dir.path(), &Clock::manual());
        let d = mkdir(&fs, ROOT, "d").await;
        mkdir(&fs, d, "e").await;
        mkdir(&fs, ROOT, "other").await;
        let handle = fs.opendir(d).await.unwrap();
        fs.sync_names(handle).await.unwrap();
        assert_eq!(client.keys(), keys, "{commit:?}");
        fs.releasedir(handle);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sync_and_the_end_of_the_mount_store_markers_and_name_those_refused() {
    let (client, dir) = (MemoryClient::new(), tempfile::tempdir().unwrap());
    let fs = marking(Commit::Disk, &client, dir.path(), &Clock::manual());
    let d = mkdir(&fs, ROOT, "d").await;
    mkdir(&fs, d, "e").await;
    mkdir(&fs, ROOT, "other").await;
    client.inject(FaultPlan::on(Op::PutObject).key("d/e/").times(1).fail(ErrorKind::Denied));
    let unsynced = Arc::clone(&fs).sync_below(Path::new("d"), Duration::ZERO).await.unwrap();
    assert_eq!(unsynced.iter().map(|left| left.path.as_str()).collect::<Vec<_>>(), ["d/e/"]);
    assert_eq!(client.keys(), ["d/"]);
    let unsynced = Arc::clone(&fs).sync_below(Path::new("d"), Duration::ZERO).await.unwrap();
    assert_eq!((unsynced, client.keys().len()), (vec![], 2));
    fs.end(Duration::from_secs(60), MountEnd::Unmounted).await;
    assert_eq!(client.keys(), ["d/", "d/e/", "other/"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_whose_last_file_goes_before_its_marker_stays_until_rmdir() {
    let (client, dir, clock) = (MemoryClient::new(), tempfile::tempdir().unwrap(), Clock::manual());
    let fs = marking(Commit::Disk, &client, dir.path(), &clock);
    let (flags, me) = (OpenFlags::default(), std::process::id());
    let d = mkdir(&fs, ROOT, "d").await;
    let made = fs.create(d, OsStr::new("file"), flags, Maker::default(), me).await.unwrap();
    let due = fs.release(made.1.handle).unwrap().expect("it is in the stage");
    fs.finish_released(made.1.handle, due).await;
    let unsynced = Arc::clone(&fs).sync_below(Path::new("d/file"), Duration::ZERO).await.unwrap();
    assert_eq!((unsynced.len(), client.keys()), (0, vec!["d/file".to_owned()]));
    fs.unlink(d, OsStr::new("file")).await.unwrap();
    assert_eq!((ino(&fs, "d").await.unwrap(), client.keys().len()), (d, 0));
    fs.rmdir(ROOT, OsStr::new("d")).await.unwrap();
    assert_eq!(errno(ino(&fs, "d").await), Errno::NOENT);
    clock.advance(LATER);
    kill(fs, dir.path()).await;
    assert_eq!((client.keys().len(), client.calls(Op::PutObject)), (0, 1));
}
