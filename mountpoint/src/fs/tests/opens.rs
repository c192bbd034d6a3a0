//! `--mode full`: opens of a file while it is removed, renamed, or replaced by a rename.

use super::full::promising;
use super::renames::{ino, read, rename};
use super::*;
use crate::inode::InodeNo;
use crate::stage::Commit;

/// Bytes of a file, of which an open asks for the first ones alone.
const LEN: u64 = 3_000_000;

const COMMITS: [Commit; 2] = [Commit::Close, Commit::Disk];

fn bytes(of: u8) -> Vec<u8> {
    vec![of; LEN as usize]
}

/// Opens a file by its name, as the kernel does: if the inode that it knows is stale, it looks the name up anew, once. Returns the byte at
/// the end that the program reads once `is_over` is.
async fn open_and_read(
    fs: &FileSystem,
    (known, name): (InodeNo, &str),
    is_over: impl Future<Output = ()>,
) -> Result<u8> {
    let opened = match fs.open(known, OpenFlags::default(), 1).await {
        Err(error) if error.errno() == Errno::STALE => {
            fs.open(ino(fs, name).await?, OpenFlags::default(), 1).await
        }
        opened => opened,
    };
    let handle = opened?.handle;
    is_over.await;
    let bytes = read(fs, handle, LEN - 10, 10).await?;
    assert!(bytes.len() == 10 && bytes.iter().all(|byte| *byte == bytes[0]), "{bytes:?}");
    release(fs, handle).await;
    Ok(bytes[0])
}

async fn release(fs: &FileSystem, handle: HandleNo) {
    if let Some(due) = fs.release(handle).unwrap() {
        fs.finish_released(handle, due).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_during_a_rename_over_its_file_reads_the_new_one() {
    for commit in COMMITS {
        let (client, dir) = (MemoryClient::new(), tempfile::tempdir().unwrap());
        client.insert("file", bytes(1));
        client.insert("new", bytes(2));
        let fs = promising(commit, &client, dir.path(), Clock::machine());
        let known = ino(&fs, "file").await.unwrap();
        let copies = client.hold(FaultPlan::on(Op::CopyObject));
        let (renamer, opener) = (Arc::clone(&fs), Arc::clone(&fs));
        let (over, is_over) = tokio::sync::oneshot::channel::<()>();
        let renames = tokio::spawn(async move { rename(&renamer, "new", "file").await });
        copies.arrived(1).await;
        let reads = tokio::spawn(async move {
            open_and_read(&opener, (known, "file"), async { _ = is_over.await }).await
        });
        // Time for an open that does not wait.
        tokio::time::sleep(Duration::from_millis(50)).await;
        copies.release();
        renames.await.unwrap().unwrap();
        drop(over);
        assert_eq!(reads.await.unwrap().unwrap(), 2, "{commit:?}");
        assert_eq!(client.keys(), ["file"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_during_an_unlink_finds_no_file() {
    for commit in COMMITS {
        let (client, dir) = (MemoryClient::new(), tempfile::tempdir().unwrap());
        client.insert("file", bytes(1));
        let fs = promising(commit, &client, dir.path(), Clock::machine());
        let known = ino(&fs, "file").await.unwrap();
        let deletes = client.hold(FaultPlan::on(Op::DeleteObject));
        let (remover, opener) = (Arc::clone(&fs), Arc::clone(&fs));
        let (over, is_over) = tokio::sync::oneshot::channel::<()>();
        let removes = tokio::spawn(async move { remover.unlink(ROOT, OsStr::new("file")).await });
        deletes.arrived(1).await;
        let reads = tokio::spawn(async move {
            open_and_read(&opener, (known, "file"), async { _ = is_over.await }).await
        });
        tokio::time::sleep(Duration::from_millis(50)).await;
        deletes.release();
        removes.await.unwrap().unwrap();
        drop(over);
        assert_eq!(reads.await.unwrap().unwrap_err().errno(), Errno::NOENT, "{commit:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_begins_during_a_rename_is_stored_under_the_new_name() {
    for commit in COMMITS {
        let (client, dir) = (MemoryClient::new(), tempfile::tempdir().unwrap());
        client.insert("old", "0123456789");
        let fs = promising(commit, &client, dir.path(), Clock::machine());
        let known = ino(&fs, "old").await.unwrap();
        let copies = client.hold_answer(FaultPlan::on(Op::CopyObject));
        let (renamer, writer) = (Arc::clone(&fs), Arc::clone(&fs));
        let renames = tokio::spawn(async move { rename(&renamer, "old", "new").await });
        copies.arrived(1).await;
        let writes = tokio::spawn(async move {
            let flags = OpenFlags { write: true, ..OpenFlags::default() };
            let handle = writer.open(known, flags, 1).await?.handle;
            writer.write(handle, 3, b"X", 0, |written| written.unwrap());
            let synced = writer.fsync(handle).await;
            release(&writer, handle).await;
            synced
        });
        tokio::time::sleep(Duration::from_millis(50)).await;
        copies.release();
        renames.await.unwrap().unwrap();
        writes.await.unwrap().unwrap();
        fs.end(Duration::from_secs(60), MountEnd::Unmounted).await;
        assert_eq!(client.keys(), ["new"], "{commit:?}");
        assert_eq!(client.object("new").unwrap(), "012X456789", "{commit:?}");
        assert_eq!(std::fs::read_dir(dir.path().join("kept")).unwrap().count(), 0, "{commit:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_of_before_goes_on_after_an_unlink_and_a_rename() {
    for commit in COMMITS {
        let (client, dir) = (MemoryClient::new(), tempfile::tempdir().unwrap());
        client.insert("removed", bytes(1));
        client.insert("replaced", bytes(2));
        client.insert("new", bytes(3));
        let fs = promising(commit, &client, dir.path(), Clock::machine());
        let mut readers = Vec::new();
        for name in ["removed", "replaced"] {
            let known = ino(&fs, name).await.unwrap();
            readers.push(fs.open(known, OpenFlags::default(), 1).await.unwrap().handle);
        }
        fs.unlink(ROOT, OsStr::new("removed")).await.unwrap();
        rename(&fs, "new", "replaced").await.unwrap();
        assert_eq!(client.keys(), ["replaced"]);
        for (handle, of) in readers.into_iter().zip([1, 2]) {
            for at in [0, 1 << 20, LEN - 1000] {
                assert_eq!(read(&fs, handle, at, 1000).await.unwrap(), vec![of; 1000], "{commit:?} {at}");
            }
            release(&fs, handle).await;
        }
        assert_eq!(fs.stage().unwrap().bytes, 0, "nothing stays in the stage");
    }
}
