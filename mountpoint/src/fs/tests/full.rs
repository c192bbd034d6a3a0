//! `--mode full` over a bucket in memory: what becomes of files that another client stores meanwhile.

use std::path::Path;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use super::renames::{ino, read, rename};
use super::*;
use crate::inode::InodeNo;
use crate::moves::{self, Mover};
use crate::s3::ErrorKind;
use crate::stage::{self, Area, Commit};

/// A file system with its stage in this directory, which may rename and overwrite.
fn staging(client: &MemoryClient, dir: &Path, clock: Clock) -> Arc<FileSystem> {
    promising(Commit::Close, client, dir, clock)
}

/// A file system whose stage in this directory promises this much.
pub(crate) fn promising(commit: Commit, client: &MemoryClient, dir: &Path, clock: Clock) -> Arc<FileSystem> {
    Arc::new(mounted(commit, client, dir, clock))
}

pub(super) fn mounted(commit: Commit, client: &MemoryClient, dir: &Path, clock: Clock) -> FileSystem {
    let names = inode::Config { unasked: inode::Unasked::SECOND, ..inode::Config::default() };
    let fs = with_names(client, true, clock.clone(), names);
    let config = stage::Config {
        dir: dir.to_owned(),
        size_max: 1 << 30,
        bucket: "bucket".into(),
        prefix: String::new(),
        endpoint: "memory".into(),
        commit,
        lends: false,
        is_confined: false,
    };
    let pool = Pool::new(&buffer::Config { target: 64 << 20, network: 8 << 20 });
    let runtime = tokio::runtime::Handle::current();
    let area = Area::open(config, fs.uploader.clone(), fs.prefetcher.clone(), pool, clock, runtime).unwrap();
    fs.renaming(Mover::new(client.arc(), moves::Config::default())).in_full(area)
}

pub(super) async fn open_to_write(fs: &FileSystem, ino: InodeNo) -> HandleNo {
    let wish = OpenFlags { write: true, ..OpenFlags::default() };
    fs.open(ino, wish, std::process::id()).await.unwrap().handle
}

/// The outcome of an operation that needs no other thread.
pub(super) fn at_once<T>(operation: impl Future<Output = T>) -> T {
    match pin!(operation).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => panic!("it waits"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mkdir_of_a_name_that_another_host_just_took_is_refused() {
    let (client, dir, name) = (MemoryClient::new(), tempfile::tempdir().unwrap(), OsStr::new("lock"));
    let mut fs = mounted(Commit::Close, &client, dir.path(), Clock::manual());
    fs.config.directory_markers = true;
    assert_eq!(fs.lookup(ROOT, name).await.unwrap_err().errno(), Errno::NOENT);
    client.insert("lock/", "");
    client.insert("lock/theirs", "content");
    assert_eq!(fs.mkdir(ROOT, name, Maker::default()).await.unwrap_err().errno(), Errno::EXIST);
    let directory = fs.lookup(ROOT, name).await.unwrap().attr.ino;
    fs.lookup(directory, OsStr::new("theirs")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn files_come_and_go_in_a_directory_made_here_without_a_wait() {
    let (client, dir, me) = (MemoryClient::new(), tempfile::tempdir().unwrap(), std::process::id());
    let fs = promising(Commit::Disk, &client, dir.path(), Clock::manual());
    let directory = fs.mkdir(ROOT, OsStr::new("d"), Maker::default()).await.unwrap().attr.ino;
    client.reset_log();
    for name in ["a", "b"].map(OsStr::new) {
        assert!(fs.try_lookup(directory, name).expect("it is known").is_err());
        let made = at_once(fs.create(directory, name, OpenFlags::default(), Maker::default(), me));
        let handle = made.unwrap().1.handle;
        fs.write(handle, 0, b"content", 0, |written| written.unwrap());
        let released = fs.release(handle).unwrap().expect("it is in the stage");
        at_once(fs.finish_released(handle, released));
        let found = fs.try_lookup(directory, name).expect("it is known").unwrap();
        let again = at_once(fs.open(found.attr.ino, OpenFlags { write: true, ..OpenFlags::default() }, me));
        let handle = again.unwrap().handle;
        let released = fs.release(handle).unwrap().expect("it is in the stage");
        at_once(fs.finish_released(handle, released));
    }
    at_once(fs.unlink(directory, OsStr::new("a"))).unwrap();
    assert!(fs.try_lookup(directory, OsStr::new("a")).expect("it is known").is_err());
    assert_eq!(client.log().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn attributes_of_a_file_made_here_hold_from_the_answer_to_create() {
    let (client, dir) = (MemoryClient::new(), tempfile::tempdir().unwrap());
    for commit in [Commit::Close, Commit::Disk] {
        let dir = dir.path().join(format!("{commit:?}"));
        let fs = promising(commit, &client, &dir, Clock::manual());
        let maker = Maker { mode: 0o640, uid: fs.config.ownership.uid, ..Maker::default() };
        let name = format!("{commit:?}");
        let made = fs
            .create(ROOT, OsStr::new(&name), OpenFlags::default(), maker, std::process::id())
            .await
            .unwrap();
        let attr = made.0.attr;
        assert!(!attr.valid_for.is_zero(), "the kernel would ask before the first write");
        assert_eq!((attr.mode, attr.size, attr.links), (0o640, 0, 1));
        assert_eq!(fs.getattr(attr.ino).await.unwrap(), attr);
        assert!(made.0.valid_for.is_zero(), "the name waits for the store");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_file_is_closed_without_a_word_where_close_waits_for_nothing() {
    let (client, dir) = (MemoryClient::new(), tempfile::tempdir().unwrap());
    for (commit, is_unseen) in [(Commit::Close, false), (Commit::Fsync, true), (Commit::Disk, true)] {
        let name = format!("{commit:?}");
        let fs = promising(commit, &client, &dir.path().join(&name), Clock::machine());
        let me = std::process::id();
        let made = fs.create(ROOT, OsStr::new(&name), OpenFlags::default(), Maker::default(), me);
        let (entry, made) = made.await.unwrap();
        assert_eq!(made.closes_unseen, is_unseen, "{name}");
        let again = OpenFlags { write: true, ..OpenFlags::default() };
        let again = fs.open(entry.attr.ino, again, me).await.unwrap();
        assert!(!again.closes_unseen, "another client's version may be an error of its close");
        fs.write(made.handle, 0, b"content", 0, |written| written.unwrap());
        for handle in [made.handle, again.handle] {
            let released = fs.release(handle).unwrap().expect("it is in the stage");
            fs.finish_released(handle, released).await;
        }
        assert_eq!(fs.stage().unwrap().pending, u64::from(is_unseen), "its release queued it");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rename_does_not_mix_an_open_file_with_another_clients_version() {
    for (old, new, theirs) in [
        ("old", "new", None),
        ("old", "new", Some("abcdefghij")),
        ("old/file", "new/file", None),
        ("old/file", "new/file", Some("abcdefghij")),
    ] {
        let (client, dir) = (MemoryClient::new(), tempfile::tempdir().unwrap());
        client.insert(old, "0123456789");
        let fs = staging(&client, dir.path(), Clock::machine());
        let mut file = ino(&fs, "old").await.unwrap();
        if old.ends_with("file") {
            file = fs.lookup(file, OsStr::new("file")).await.unwrap().attr.ino;
        }
        let handle = open_to_write(&fs, file).await;
        if let Some(theirs) = theirs {
            client.insert(old, theirs);
        }
        rename(&fs, "old", "new").await.unwrap();
        assert_eq!(client.keys(), [new]);
        fs.write(handle, 3, b"X", 0, |result| result.unwrap());
        let synced = fs.fsync(handle).await;
        assert_eq!(synced.is_ok(), theirs.is_none(), "{old} {theirs:?}: {synced:?}");
        assert_eq!(client.object(new).unwrap(), theirs.unwrap_or("012X456789"));
        assert_eq!(client.keys(), [new]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sync_names_a_file_that_was_kept_between_two_of_its_passes() {
    let (client, dir, clock) = (MemoryClient::new(), tempfile::tempdir().unwrap(), Clock::manual());
    client.insert("file", "0123456789");
    let fs = staging(&client, dir.path(), clock.clone());
    let handle = open_to_write(&fs, ino(&fs, "file").await.unwrap()).await;
    fs.write(handle, 3, b"X", 0, |result| result.unwrap());
    let mut sync = std::pin::pin!(Arc::clone(&fs).sync_below(Path::new(""), Duration::from_secs(60)));
    // One pass: the file is open.
    tokio::select! {
        biased;
        lost = &mut sync => panic!("it waits for the close: {lost:?}"),
        () = std::future::ready(()) => {}
    }
    client.insert("file", "theirs");
    let due = fs.release(handle).unwrap().expect("it was written");
    fs.finish_released(handle, due).await;
    clock.advance(Duration::from_secs(1));
    let lost = sync.await.unwrap();
    assert_eq!(lost.iter().map(|file| file.path.as_str()).collect::<Vec<_>>(), ["file"], "{lost:?}");
    assert!(lost[0].why.contains("kept"), "{lost:?}");
    assert_eq!(client.object("file").unwrap(), "theirs");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pending_file_is_found_in_its_directories_while_the_store_is_away() {
    let (client, dir, clock) = (MemoryClient::new(), tempfile::tempdir().unwrap(), Clock::manual());
    client.insert("above/stored", "content");
    let fs = promising(Commit::Disk, &client, dir.path(), clock.clone());
    let above = ino(&fs, "above").await.unwrap();
    let below = fs.mkdir(above, OsStr::new("below"), Maker::default()).await.unwrap().attr.ino;
    let (flags, me) = (OpenFlags::default(), std::process::id());
    let made = fs.create(below, OsStr::new("new"), flags, Maker::default(), me).await.unwrap();
    fs.write(made.1.handle, 0, b"content", 0, |written| written.unwrap());
    let due = fs.release(made.1.handle).unwrap().expect("it is in the stage");
    fs.finish_released(made.1.handle, due).await;
    for op in [Op::HeadObject, Op::ListObjects, Op::GetObject] {
        client.inject(FaultPlan::on(op).always().fail(ErrorKind::Timeout));
    }
    for _ in 0..3 {
        clock.advance(Duration::from_secs(60));
        client.reset_log();
        let mut parent = ROOT;
        for (name, directory) in [("above", above), ("below", below)] {
            parent = fs.lookup(parent, OsStr::new(name)).await.unwrap().attr.ino;
            assert_eq!(parent, directory, "{name}");
        }
        let found = fs.lookup(parent, OsStr::new("new")).await.unwrap().attr;
        assert_eq!((found.ino, found.size), (made.0.attr.ino, 7));
        let opened = fs.open(found.ino, flags, me).await.unwrap();
        assert_eq!(read(&fs, opened.handle, 0, 10).await.unwrap(), b"content");
        let due = fs.release(opened.handle).unwrap().expect("it is in the stage");
        fs.finish_released(opened.handle, due).await;
        assert_eq!(client.log().len(), 0, "the store need not be asked");
    }
    // The mount does not know what else is there.
    assert_eq!(fs.lookup(above, OsStr::new("other")).await.unwrap_err().errno(), Errno::IO);
    let listing = fs.opendir(above).await.unwrap();
    assert_eq!(fs.readdir(listing, 2, 10).await.unwrap_err().errno(), Errno::IO, "behind . and ..");
    // Once nothing waits below them, the store is asked about the directories again.
    client.clear_faults();
    fs.unlink(below, OsStr::new("new")).await.unwrap();
    client.remove("above/stored");
    clock.advance(Duration::from_secs(60));
    client.reset_log();
    fs.lookup(ROOT, OsStr::new("above")).await.unwrap();
    assert!(!client.log().is_empty());
}

/// Size of a file of which the store copies parts.
pub(super) const LONG: usize = 160 << 20;

/// The end of a mount on which a byte of a long file was changed.
async fn end_with_a_patched_file(
    client: &MemoryClient,
    dir: &Path,
    clock: Clock,
) -> tokio::task::JoinHandle<()> {
    client.insert("long", vec![7; LONG]);
    let fs = staging(client, dir, clock);
    let handle = open_to_write(&fs, ino(&fs, "long").await.unwrap()).await;
    fs.write(handle, 100 << 20, b"X", 0, |result| result.unwrap());
    tokio::spawn(async move {
        fs.end(Duration::from_secs(4), MountEnd::Unmounted).await;
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_mount_waits_while_the_store_copies_parts_of_a_long_file() {
    let (client, dir, clock) = (MemoryClient::new(), tempfile::tempdir().unwrap(), Clock::manual());
    let gate = client.hold_answer(FaultPlan::on(Op::UploadPartCopy).always());
    let end = end_with_a_patched_file(&client, dir.path(), clock.clone()).await;
    gate.arrived(2).await;
    // No byte moves while the store copies, and the limit passes twice.
    for _ in 0..4 {
        clock.advance(Duration::from_secs(3));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(!end.is_finished(), "it gave up");
    drop(gate);
    end.await.unwrap();
    let stored = client.object("long").unwrap();
    assert!(stored.len() == LONG && stored[100 << 20] == b'X');
    assert_eq!(std::fs::read_dir(dir.path().join("kept")).unwrap().count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_mount_leaves_a_store_that_finishes_no_copy() {
    let (client, dir, clock) = (MemoryClient::new(), tempfile::tempdir().unwrap(), Clock::manual());
    let gate = client.hold(FaultPlan::on(Op::UploadPartCopy).always());
    let end = end_with_a_patched_file(&client, dir.path(), clock.clone()).await;
    gate.arrived(2).await;
    for _ in 0..1200 {
        clock.advance(Duration::from_secs(3));
        tokio::time::sleep(Duration::from_millis(5)).await;
        if end.is_finished() {
            break;
        }
    }
    assert!(end.is_finished(), "it waits for an hour");
    assert_eq!(std::fs::read_dir(dir.path().join("kept")).unwrap().count(), 2, "bytes and a note");
}

/// Makes a small file and closes it.
async fn make(fs: Arc<FileSystem>, name: &'static str) -> Result<()> {
    let (flags, me) = (OpenFlags::default(), std::process::id());
    let (_, opened) = fs.create(ROOT, OsStr::new(name), flags, Maker::default(), me).await?;
    fs.write(opened.handle, 0, b"content", 0, |written| written.unwrap());
    if let Some(due) = fs.release(opened.handle)? {
        fs.finish_released(opened.handle, due).await;
    }
    Ok(())
}

/// A file system whose stage takes this many files.
fn with_places(
    files: usize,
    commit: Commit,
    client: &MemoryClient,
    dir: &Path,
    clock: Clock,
) -> Arc<FileSystem> {
    let mut fs = mounted(commit, client, dir, clock);
    fs.full.as_mut().unwrap().files_max = files;
    Arc::new(fs)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_waits_for_a_place_where_many_files_wait_for_the_store() {
    let (client, dir, clock) = (MemoryClient::new(), tempfile::tempdir().unwrap(), Clock::manual());
    let fs = with_places(3, Commit::Disk, &client, dir.path(), clock.clone());
    let sends = tokio::spawn(Arc::clone(&fs).keep_sending());
    let gate = client.hold(FaultPlan::on(Op::PutObject).always());
    for name in ["a", "b", "c"] {
        make(Arc::clone(&fs), name).await.unwrap();
    }
    let fourth = tokio::spawn(make(Arc::clone(&fs), "d"));
    // They go at once, and not two seconds behind their last close.
    gate.arrived(3).await;
    assert!(!fourth.is_finished());
    // A file that is there needs no other place.
    let handle = open_to_write(&fs, ino(&fs, "a").await.unwrap()).await;
    let due = fs.release(handle).unwrap().expect("it is in the stage");
    fs.finish_released(handle, due).await;
    drop(gate);
    fourth.await.unwrap().unwrap();
    let gate = client.hold(FaultPlan::on(Op::PutObject).always());
    let mut refused = Vec::new();
    // One by one: programs that come at once may all find the last place free.
    for name in ["e", "f", "g", "h"] {
        let made = tokio::spawn(make(Arc::clone(&fs), name));
        while !made.is_finished() {
            clock.advance(Duration::from_secs(10));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        refused.extend(made.await.unwrap().err().map(|error| error.errno()));
    }
    assert!(!refused.is_empty() && refused.iter().all(|errno| *errno == Errno::NOSPC), "{refused:?}");
    drop(gate);
    fs.full.as_ref().unwrap().end_sending();
    sends.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn more_open_files_than_the_stage_takes_are_enospc_until_one_is_closed() {
    let (client, dir, me) = (MemoryClient::new(), tempfile::tempdir().unwrap(), std::process::id());
    let fs = with_places(2, Commit::Close, &client, dir.path(), Clock::manual());
    let mut open = Vec::new();
    for name in ["a", "b"].map(OsStr::new) {
        let made = fs.create(ROOT, name, OpenFlags::default(), Maker::default(), me).await.unwrap();
        open.push(made.1.handle);
    }
    assert_eq!(make(Arc::clone(&fs), "c").await.unwrap_err().errno(), Errno::NOSPC);
    assert!(fs.lookup(ROOT, OsStr::new("c")).await.is_err(), "nothing is left of it");
    client.insert("stored", b"bytes".to_vec());
    let cut = SetAttr { size: Some(1), ..SetAttr::default() };
    let stored = ino(&fs, "stored").await.unwrap();
    assert_eq!(fs.setattr(stored, cut).await.unwrap_err().errno(), Errno::NOSPC, "by a path as well");
    let due = fs.release(open[0]).unwrap().expect("it is in the stage");
    fs.finish_released(open[0], due).await;
    make(Arc::clone(&fs), "c").await.unwrap();
    fs.setattr(stored, cut).await.unwrap();
    assert_eq!(client.keys(), ["a", "c", "stored"]);
}
