//! `--mode full` over a bucket in memory: which operations of programs store a file, and which end a send.

use std::path::Path;
use std::pin::pin;

use super::full::{LONG, at_once, open_to_write, promising};
use super::renames::ino;
use super::*;
use crate::inode::InodeNo;
use crate::stage::Commit;

async fn release(fs: &FileSystem, handle: HandleNo) {
    if let Some(due) = fs.release(handle).unwrap() {
        fs.finish_released(handle, due).await;
    }
}

async fn open_to_read(fs: &FileSystem, file: InodeNo) -> HandleNo {
    fs.open(file, OpenFlags::default(), std::process::id()).await.unwrap().handle
}

/// Makes a file, which stays open.
async fn create(fs: &FileSystem, name: &str) -> HandleNo {
    let (flags, me) = (OpenFlags::default(), std::process::id());
    fs.create(ROOT, OsStr::new(name), flags, Maker::default(), me).await.unwrap().1.handle
}

#[tokio::test(flavor = "multi_thread")]
async fn fsync_by_a_reader_of_before_waits_for_what_others_wrote() {
    let (client, dir) = (MemoryClient::new(), tempfile::tempdir().unwrap());
    client.insert("file", "0123456789");
    let fs = promising(Commit::Fsync, &client, dir.path(), Clock::manual());
    let file = ino(&fs, "file").await.unwrap();
    let reader = open_to_read(&fs, file).await;
    let writer = open_to_write(&fs, file).await;
    fs.write(writer, 3, b"X", 0, |written| written.unwrap());
    release(&fs, writer).await;
    assert_eq!(client.object("file").unwrap(), "0123456789", "close waits for nothing");
    fs.fsync(reader).await.unwrap();
    assert_eq!(client.object("file").unwrap(), "012X456789");
    release(&fs, reader).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_stored_while_programs_that_only_read_have_it_open() {
    let (client, dir) = (MemoryClient::new(), tempfile::tempdir().unwrap());
    client.insert("file", "0123456789");
    let fs = promising(Commit::Close, &client, dir.path(), Clock::manual());
    let file = ino(&fs, "file").await.unwrap();
    let writers = [open_to_write(&fs, file).await, open_to_write(&fs, file).await];
    // Both are in the stage.
    let reader = open_to_read(&fs, file).await;
    // Without a close of a descriptor: as by a mapping, or an heir of it.
    fs.write(writers[0], 3, b"X", 0, |written| written.unwrap());
    release(&fs, writers[0]).await;
    assert_eq!(client.object("file").unwrap(), "0123456789", "another program writes it");
    release(&fs, writers[1]).await;
    assert_eq!(client.object("file").unwrap(), "012X456789");
    fs.setattr(file, SetAttr { size: Some(5), ..SetAttr::default() }).await.unwrap();
    assert_eq!(client.object("file").unwrap(), "012X4", "truncate(2), which no close follows");
    release(&fs, reader).await;
    assert_eq!(fs.stage().unwrap().pending, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_was_made_and_never_opened_is_stored() {
    let (client, dir) = (MemoryClient::new(), tempfile::tempdir().unwrap());
    for (commit, pending) in [(Commit::Close, 0), (Commit::Disk, 1)] {
        let name = format!("{commit:?}");
        let fs = promising(commit, &client, &dir.path().join(&name), Clock::manual());
        let made = fs.mknod(ROOT, OsStr::new(&name), Maker::default()).await.unwrap();
        assert_eq!(ino(&fs, &name).await.unwrap(), made.attr.ino);
        assert_eq!(fs.stage().unwrap().pending, pending, "{name}");
        fs.end(Duration::from_secs(60), MountEnd::Unmounted).await;
        assert_eq!(client.object(&name).unwrap(), "", "{name}");
    }
    // No file is left of a call that fails.
    let fs = promising(Commit::Close, &client, &dir.path().join("refused"), Clock::manual());
    client.inject(FaultPlan::on(Op::PutObject).always().fail(crate::s3::ErrorKind::Denied));
    fs.mknod(ROOT, OsStr::new("refused"), Maker::default()).await.unwrap_err();
    assert_eq!(ino(&fs, "refused").await.unwrap_err().errno(), Errno::NOENT);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unlink_of_a_file_that_is_not_sent_waits_for_no_request() {
    let (client, dir) = (MemoryClient::new(), tempfile::tempdir().unwrap());
    for commit in [Commit::Fsync, Commit::Disk] {
        let fs = promising(commit, &client, &dir.path().join(format!("{commit:?}")), Clock::manual());
        client.reset_log();
        for is_open in [false, true] {
            let name = format!("{commit:?} {is_open}");
            let handle = create(&fs, &name).await;
            fs.write(handle, 0, b"a journal", 0, |written| written.unwrap());
            if commit == Commit::Disk {
                fs.fsync(handle).await.unwrap();
            }
            if !is_open {
                release(&fs, handle).await;
            }
            client.reset_log();
            at_once(fs.unlink(ROOT, OsStr::new(&name))).unwrap();
            assert_eq!(client.log().len(), 0, "{name}");
            assert_eq!(fs.stage().unwrap().pending, 0, "{name}");
        }
    }
    assert_eq!(client.keys(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_send_is_given_up_for_an_unlink_or_a_rename_of_the_file() {
    let to_refuse = [Op::CompleteMultipartUpload, Op::CopyObject, Op::DeleteObject];
    for what in ["unlink", "rename", "rename over"] {
        let (client, dir, clock) = (MemoryClient::new(), tempfile::tempdir().unwrap(), Clock::manual());
        let fs = promising(Commit::Disk, &client, dir.path(), clock.clone());
        let sends = tokio::spawn(Arc::clone(&fs).keep_sending());
        let gate = client.hold(FaultPlan::on(Op::UploadPart).always());
        let handle = create(&fs, "long").await;
        let file = ino(&fs, "long").await.unwrap();
        let wish = SetAttr { size: Some(LONG as u64), handle: Some(handle), ..SetAttr::default() };
        fs.setattr(file, wish).await.unwrap();
        release(&fs, handle).await;
        clock.advance(Duration::from_secs(3));
        gate.arrived(1).await;
        let other = create(&fs, "other").await;
        let change = async {
            match what {
                "unlink" => fs.unlink(ROOT, OsStr::new("long")).await,
                "rename" => super::renames::rename(&fs, "long", "new").await,
                _ => super::renames::rename(&fs, "other", "long").await,
            }
        };
        let mut change = pin!(change);
        let staged = fs.full.as_ref().unwrap().find(file).unwrap();
        // The send may drop its parts on their way, or wait for them.
        let done = tokio::select! {
            biased;
            done = &mut change => Some(done),
            () = testkit::until_async("it waits", || staged.is_sent_in_vain()) => None,
        };
        drop((gate, staged));
        match done {
            Some(done) => done.unwrap(),
            None => change.await.unwrap(),
        }
        for op in to_refuse {
            assert_eq!(client.calls(op), 0, "{what} {op:?}");
        }
        testkit::until_async("no upload is left", || client.pending_uploads().is_empty()).await;
        release(&fs, other).await;
        fs.full.as_ref().unwrap().end_sending();
        sends.await.unwrap();
        assert_eq!(fs.stage().unwrap().pending, if what == "rename" { 2 } else { 1 }, "{what}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_is_the_buckets_again_while_programs_have_the_kept_file_open() {
    let me = std::process::id();
    for commit in [Commit::Close, Commit::Disk] {
        let (client, dir) = (MemoryClient::new(), tempfile::tempdir().unwrap());
        client.insert("file", "0123456789");
        let fs = promising(commit, &client, dir.path(), Clock::manual());
        let file = ino(&fs, "file").await.unwrap();
        let mut open = vec![open_to_read(&fs, file).await];
        let writer = open_to_write(&fs, file).await;
        fs.write(writer, 3, b"X", 0, |written| written.unwrap());
        client.insert("file", "theirs");
        if commit == Commit::Close {
            assert_eq!(fs.fsync(writer).await.unwrap_err().errno(), Errno::STALE);
            open.push(writer);
        } else {
            release(&fs, writer).await;
            let lost = Arc::clone(&fs).sync_below(Path::new(""), Duration::ZERO).await.unwrap();
            assert_eq!(lost.len(), 1, "{lost:?}");
        }
        let anew = ino(&fs, "file").await.unwrap();
        assert_ne!(anew, file, "{commit:?}");
        let replace = OpenFlags { write: true, truncate: true, ..OpenFlags::default() };
        let again = fs.open(anew, replace, me).await.unwrap().handle;
        fs.write(again, 0, b"ours", 0, |written| written.unwrap());
        release(&fs, again).await;
        for handle in open {
            release(&fs, handle).await;
        }
        fs.end(Duration::from_secs(60), MountEnd::Unmounted).await;
        assert_eq!(client.object("file").unwrap(), "ours", "{commit:?}");
        assert_eq!(ino(&fs, "file").await.unwrap(), anew);
        assert_eq!(fs.stage().unwrap().kept.files, 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_synced_file_that_is_removed_while_it_is_open_leaves_the_disk() {
    let (client, dir, clock) = (MemoryClient::new(), tempfile::tempdir().unwrap(), Clock::manual());
    let fs = promising(Commit::Disk, &client, dir.path(), clock.clone());
    let syncs = tokio::spawn(Arc::clone(&fs).keep_syncing());
    let handle = create(&fs, "file").await;
    fs.write(handle, 0, b"content", 0, |written| written.unwrap());
    fs.fsync(handle).await.unwrap();
    fs.unlink(ROOT, OsStr::new("file")).await.unwrap();
    release(&fs, handle).await;
    let left = || std::fs::read_dir(dir.path().join("files")).unwrap().count();
    assert_eq!(left(), 1, "the log on the disk still names it");
    testkit::until_async("the disk has its room again", || {
        clock.advance(Duration::from_secs(10));
        left() == 0
    })
    .await;
    syncs.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_durable_before_it_replaces_one_that_waits_and_is_durable() {
    let (client, dir) = (MemoryClient::new(), tempfile::tempdir().unwrap());
    let fs = promising(Commit::Disk, &client, dir.path(), Clock::manual());
    for is_durable in [false, true] {
        let target = create(&fs, "file").await;
        if is_durable {
            fs.fsync(target).await.unwrap();
        }
        release(&fs, target).await;
        let source = create(&fs, "new").await;
        fs.write(source, 0, b"content", 0, |written| written.unwrap());
        release(&fs, source).await;
        super::renames::rename(&fs, "new", "file").await.unwrap();
        let replaced = fs.full.as_ref().unwrap().find(ino(&fs, "file").await.unwrap()).unwrap();
        assert_eq!((replaced.size(), replaced.is_synced()), (7, is_durable));
        fs.unlink(ROOT, OsStr::new("file")).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_is_renamed_while_a_program_has_a_kept_file_of_it_open() {
    let (client, dir) = (MemoryClient::new(), tempfile::tempdir().unwrap());
    client.insert("dir/file", "0123456789");
    let fs = promising(Commit::Close, &client, dir.path(), Clock::manual());
    let parent = ino(&fs, "dir").await.unwrap();
    let file = fs.lookup(parent, OsStr::new("file")).await.unwrap().attr.ino;
    let writer = open_to_write(&fs, file).await;
    fs.write(writer, 3, b"X", 0, |written| written.unwrap());
    client.insert("dir/file", "theirs");
    assert_eq!(fs.fsync(writer).await.unwrap_err().errno(), Errno::STALE);
    super::renames::rename(&fs, "dir", "moved").await.unwrap();
    assert_eq!(client.keys(), ["moved/file"]);
    release(&fs, writer).await;
    assert_eq!(client.object("moved/file").unwrap(), "theirs");
    assert_eq!(fs.stage().unwrap().kept.files, 1);
}
