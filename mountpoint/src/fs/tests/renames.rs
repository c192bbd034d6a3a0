//! Renames: the names of the mount follow the store's content, also after earlier requests.

use super::*;
use crate::inode::InodeNo;
use crate::moves::{self, Mover};
use crate::s3::ErrorKind;

pub(super) fn renaming(client: &MemoryClient, allow_overwrite: bool) -> Arc<FileSystem> {
    let config = moves::Config {
        copy_max: 1 << 20,
        part: 5 << 20,
        parts_at_once: 4,
        names_max: 1000,
        ..moves::Config::default()
    };
    let mover = Mover::new(client.arc(), config);
    Arc::new(made(client, allow_overwrite).renaming(mover))
}

pub(super) async fn rename(fs: &FileSystem, from: &str, to: &str) -> Result<()> {
    fs.rename(ROOT, OsStr::new(from), ROOT, OsStr::new(to), 0).await
}

pub(super) async fn ino(fs: &FileSystem, name: &str) -> Result<InodeNo> {
    fs.lookup(ROOT, OsStr::new(name)).await.map(|entry| entry.attr.ino)
}

async fn names(fs: &FileSystem) -> Vec<String> {
    let dir = fs.opendir(ROOT).await.unwrap();
    let (mut names, mut offset) = (Vec::new(), 0);
    loop {
        let items = fs.readdir(dir, offset, 100).await.unwrap();
        let Some(last) = items.last() else { break };
        offset = last.offset;
        names.extend(items.iter().map(|item| item.name().to_string_lossy().into_owned()));
    }
    fs.releasedir(dir);
    names.retain(|name| !name.starts_with('.'));
    names
}

pub(super) async fn read(fs: &FileSystem, handle: HandleNo, offset: u64, len: usize) -> Result<Vec<u8>> {
    let (send, receive) = tokio::sync::oneshot::channel();
    fs.read(handle, offset, len, move |result| drop(send.send(result.map(|bytes| bytes.to_vec()))));
    receive.await.unwrap()
}

pub(super) fn errno<T: std::fmt::Debug>(result: Result<T>) -> Errno {
    result.unwrap_err().errno()
}

#[tokio::test]
async fn a_renamed_file_keeps_its_number_and_its_readers_go_on() {
    let client = MemoryClient::new();
    let bytes: Vec<u8> = (0..3_000_000u32).map(|i| i as u8).collect();
    client.insert("old", bytes.clone());
    let fs = renaming(&client, false);
    let before = ino(&fs, "old").await.unwrap();
    let opened = fs.open(before, OpenFlags::default(), 1).await.unwrap();
    assert_eq!(read(&fs, opened.handle, 0, 10).await.unwrap(), bytes[..10]);
    rename(&fs, "old", "new").await.unwrap();
    assert_eq!(client.keys(), ["new"]);
    assert_eq!(errno(ino(&fs, "old").await), Errno::NOENT);
    assert_eq!(ino(&fs, "new").await.unwrap(), before);
    assert_eq!(names(&fs).await, ["new"]);
    rename(&fs, "new", "newer").await.unwrap();
    assert_eq!(read(&fs, opened.handle, 2_500_000, 10).await.unwrap(), bytes[2_500_000..2_500_010]);
    assert_eq!(fs.getattr(before).await.unwrap().size, 3_000_000);
    fs.release(opened.handle).unwrap();
    let again = fs.open(ino(&fs, "newer").await.unwrap(), OpenFlags::default(), 1).await.unwrap();
    assert_eq!(read(&fs, again.handle, 1, 3).await.unwrap(), bytes[1..4]);
}

#[tokio::test]
async fn a_file_opened_while_its_rename_deletes_the_old_object_is_read() {
    let client = MemoryClient::new();
    let bytes: Vec<u8> = (0..3_000_000u32).map(|i| i as u8).collect();
    client.insert("old", bytes.clone());
    let fs = renaming(&client, false);
    let number = ino(&fs, "old").await.unwrap();
    let gate = client.hold(FaultPlan::on(Op::DeleteObject));
    let renaming = tokio::spawn({
        let fs = Arc::clone(&fs);
        async move { rename(&fs, "old", "new").await }
    });
    gate.arrived(1).await;
    let opened = fs.open(number, OpenFlags::default(), 1).await.unwrap();
    gate.release();
    renaming.await.unwrap().unwrap();
    assert_eq!(read(&fs, opened.handle, 2_000_000, 10).await.unwrap(), bytes[2_000_000..2_000_010]);
    fs.release(opened.handle).unwrap();
}

#[tokio::test]
async fn a_rename_asks_no_name_again_that_was_looked_up_just_before() {
    let client = MemoryClient::new();
    client.insert("old", "1");
    let fs = renaming(&client, false);
    // The kernel looks up both names, then renames.
    ino(&fs, "old").await.unwrap();
    assert_eq!(errno(ino(&fs, "new").await), Errno::NOENT);
    client.reset_log();
    rename(&fs, "old", "new").await.unwrap();
    let sent: Vec<_> = client.log().iter().map(|call| call.op).collect();
    // The second HEAD is the proof: a copy has an ETag of its own here.
    assert_eq!(sent, [Op::HeadObject, Op::CopyObject, Op::HeadObject, Op::DeleteObject]);
    // A name that another client took since is not replaced.
    client.insert("old", "2");
    ino(&fs, "old").await.unwrap();
    assert_eq!(errno(ino(&fs, "newer").await), Errno::NOENT);
    client.insert("newer", "theirs");
    assert!(rename(&fs, "old", "newer").await.is_err());
    assert_eq!(client.keys(), ["new", "newer", "old"]);
    assert_eq!(client.object("newer").unwrap(), "theirs");
}

#[tokio::test]
async fn a_rename_replaces_only_where_that_is_allowed() {
    let client = MemoryClient::new();
    client.insert("a", "one");
    client.insert("b", "two");
    let fs = renaming(&client, false);
    assert_eq!(errno(rename(&fs, "a", "b").await), Errno::PERM);
    let no_replace = fs.rename(ROOT, OsStr::new("a"), ROOT, OsStr::new("b"), 1).await;
    assert_eq!(errno(no_replace), Errno::EXIST);
    let exchange = fs.rename(ROOT, OsStr::new("a"), ROOT, OsStr::new("b"), 2).await;
    assert_eq!(errno(exchange), Errno::INVAL);
    assert_eq!(errno(rename(&fs, "missing", "c").await), Errno::NOENT);
    assert_eq!(client.object("b").unwrap(), "two");
    let fs = renaming(&client, true);
    rename(&fs, "a", "a").await.unwrap();
    rename(&fs, "a", "b").await.unwrap();
    assert_eq!((client.keys(), client.object("b").unwrap()), (vec!["b".to_owned()], "one".into()));
    // Another client takes the name, which this mount has just seen free.
    client.insert("c", "three");
    assert_eq!(errno(ino(&fs, "d").await), Errno::NOENT);
    client.insert("d", "theirs");
    rename(&fs, "c", "d").await.unwrap();
    assert_eq!(client.object("d").unwrap(), "three", "looked at again, and replaced as it may be");
    let fs = renaming(&client, false);
    assert_eq!(errno(ino(&fs, "e").await), Errno::NOENT);
    client.insert("e", "theirs");
    assert_eq!(errno(rename(&fs, "d", "e").await), Errno::PERM);
    assert_eq!(client.object("e").unwrap(), "theirs");
}

#[tokio::test]
async fn what_was_asked_for_before_does_not_bring_the_old_name_back() {
    for op in [Op::HeadObject, Op::ListObjects] {
        let client = MemoryClient::new();
        client.insert("old", "1");
        client.insert("other", "2");
        let fs = renaming(&client, false);
        let number = ino(&fs, "old").await.unwrap();
        let copies = client.hold(FaultPlan::on(Op::CopyObject));
        let renamer = Arc::clone(&fs);
        let renames = tokio::spawn(async move { rename(&renamer, "old", "new").await });
        copies.arrived(1).await;
        // Asked, and answered by the store, before the name changes; the answer comes after.
        let answer = client.hold_answer(FaultPlan::on(op));
        let asker = Arc::clone(&fs);
        let asks = tokio::spawn(async move {
            match op {
                Op::HeadObject => {
                    let wish = OpenFlags { direct: true, ..OpenFlags::default() };
                    drop(asker.open(number, wish, 1).await);
                }
                _ => drop(names(&asker).await),
            }
        });
        answer.arrived(1).await;
        copies.release();
        renames.await.unwrap().unwrap();
        answer.release();
        asks.await.unwrap();
        assert_eq!(errno(ino(&fs, "old").await), Errno::NOENT, "{op:?}");
        assert_eq!(ino(&fs, "new").await.unwrap(), number, "{op:?}");
        assert_eq!(names(&fs).await, ["new", "other"], "{op:?}");
        assert_eq!(client.keys(), ["new", "other"]);
    }
}

#[tokio::test]
async fn a_store_that_does_not_delete_leaves_the_old_name_and_no_other() {
    let client = MemoryClient::new();
    client.insert("old", "1");
    let fs = renaming(&client, true);
    client.inject(FaultPlan::on(Op::DeleteObject).key("old").fail(ErrorKind::Denied));
    assert_eq!(errno(rename(&fs, "old", "new").await), Errno::ACCESS);
    assert_eq!(client.keys(), ["old"]);
    ino(&fs, "old").await.unwrap();
    assert_eq!(errno(ino(&fs, "new").await), Errno::NOENT);
    client.inject(FaultPlan::on(Op::CopyObject).fail(ErrorKind::Denied));
    assert_eq!(errno(rename(&fs, "old", "new").await), Errno::ACCESS);
    assert_eq!(client.keys(), ["old"]);
    rename(&fs, "old", "new").await.unwrap();
    assert_eq!(client.keys(), ["new"]);
}

/// A new file of this many bytes that is still open, and its bytes.
async fn written(fs: &Arc<FileSystem>, name: &str, len: usize) -> (HandleNo, Vec<u8>) {
    let wish = OpenFlags { write: true, ..OpenFlags::default() };
    let (_, opened) = fs.create(ROOT, OsStr::new(name), wish, Maker::default(), 1).await.unwrap();
    let bytes: Vec<u8> = (0..len).map(|i| (i / 3) as u8).collect();
    for (i, piece) in bytes.chunks(1 << 20).enumerate() {
        write(fs, opened.handle, i << 20, piece).await.unwrap();
    }
    (opened.handle, bytes)
}

/// A new file of 20 MiB, whose upload has begun, and its bytes.
async fn long_file(fs: &Arc<FileSystem>, name: &str) -> (HandleNo, Vec<u8>) {
    written(fs, name, 20 << 20).await
}

pub(super) async fn release(fs: &FileSystem, handle: HandleNo) {
    if let Some(due) = fs.release(handle).unwrap() {
        fs.finish_released(handle, due).await;
    }
}

#[tokio::test]
async fn a_file_that_is_being_written_is_stored_under_the_name_it_got() {
    for len in [100, 20 << 20] {
        let client = MemoryClient::new();
        let fs = renaming(&client, false);
        let (handle, bytes) = written(&fs, "tmp", len).await;
        let number = ino(&fs, "tmp").await.unwrap();
        rename(&fs, "tmp", "final").await.unwrap();
        assert_eq!(errno(ino(&fs, "tmp").await), Errno::NOENT, "{len}");
        assert_eq!(ino(&fs, "final").await.unwrap(), number);
        fs.fsync(handle).await.unwrap();
        release(&fs, handle).await;
        assert_eq!(client.keys(), ["final"], "{len}");
        assert!(client.object("final").unwrap() == bytes, "{len}");
        assert_eq!(names(&fs).await, ["final"]);
        assert_eq!(fs.getattr(number).await.unwrap().size, len as u64);
        assert_eq!(client.pending_uploads(), []);
    }
}

#[tokio::test]
async fn a_file_made_and_not_written_and_a_taken_name_are_looked_at() {
    let client = MemoryClient::new();
    client.insert("taken", "1");
    let fs = renaming(&client, false);
    let wish = OpenFlags { write: true, ..OpenFlags::default() };
    fs.make_file(ROOT, OsStr::new("made"), Maker::default()).await.unwrap();
    rename(&fs, "made", "here").await.unwrap();
    let made = ino(&fs, "here").await.unwrap();
    let opened = fs.open(made, wish, 1).await.unwrap();
    // Another client stores an object under the name that it is to get.
    rename(&fs, "here", "theirs").await.unwrap();
    client.insert("theirs", "2");
    assert_eq!(errno(fs.fsync(opened.handle).await), Errno::EXIST);
    assert_eq!(client.object("theirs").unwrap(), "2");
    assert_eq!(errno(rename(&fs, "theirs", "taken").await), Errno::PERM);
    assert_eq!(client.keys(), ["taken", "theirs"]);
}

#[tokio::test]
async fn an_old_name_is_free_once_the_renamed_file_is_stored() {
    let client = MemoryClient::new();
    client.insert("other", "other");
    let fs = renaming(&client, true);
    let (handle, bytes) = long_file(&fs, "log").await;
    rename(&fs, "log", "log.1").await.unwrap();
    let wish = OpenFlags { write: true, ..OpenFlags::default() };
    let create = async || fs.create(ROOT, OsStr::new("log"), wish, Maker::default(), 1).await;
    assert_eq!(errno(create().await), Errno::BUSY, "its upload would replace the new file");
    assert_eq!(errno(rename(&fs, "other", "log").await), Errno::BUSY);
    fs.fsync(handle).await.unwrap();
    assert!(client.object("log.1").unwrap() == bytes);
    let (_, new) = create().await.unwrap();
    fs.fsync(new.handle).await.unwrap();
    release(&fs, new.handle).await;
    release(&fs, handle).await;
    assert!(client.object("log.1").unwrap() == bytes);
    assert_eq!(client.keys(), ["log", "log.1", "other"]);
}

#[tokio::test]
async fn a_file_renamed_there_and_back_is_stored_under_its_first_name() {
    let client = MemoryClient::new();
    let fs = renaming(&client, false);
    let (handle, bytes) = long_file(&fs, "here").await;
    rename(&fs, "here", "there").await.unwrap();
    rename(&fs, "there", "here").await.unwrap();
    fs.fsync(handle).await.unwrap();
    release(&fs, handle).await;
    assert!(client.object("here").unwrap() == bytes);
    assert_eq!(client.keys(), ["here"]);
}

#[tokio::test]
async fn what_others_store_under_an_old_name_is_not_replaced_nor_moved() {
    let client = MemoryClient::new();
    let fs = renaming(&client, true);
    let (handle, _) = long_file(&fs, "log").await;
    rename(&fs, "log", "log.1").await.unwrap();
    client.insert("log", "theirs");
    assert_eq!(errno(fs.fsync(handle).await), Errno::EXIST);
    release(&fs, handle).await;
    assert_eq!(client.object("log").unwrap(), "theirs");
    client.remove("log");

    let (handle, _) = long_file(&fs, "log").await;
    rename(&fs, "log", "log.1").await.unwrap();
    let answer = client.hold_answer(FaultPlan::on(Op::CompleteMultipartUpload));
    let fsync = tokio::spawn({
        let fs = Arc::clone(&fs);
        async move { fs.fsync(handle).await }
    });
    answer.arrived(1).await;
    client.insert("log", "theirs");
    answer.release();
    fsync.await.unwrap().unwrap_err();
    release(&fs, handle).await;
    assert_eq!(client.keys(), ["log"]);
    assert_eq!(client.object("log").unwrap(), "theirs");
}

#[tokio::test]
async fn a_delete_that_may_still_run_takes_no_copy_back() {
    for (kind, stay) in [(ErrorKind::Timeout, vec!["new", "old"]), (ErrorKind::Denied, vec!["old"])] {
        let client = MemoryClient::new();
        client.insert("old", "1");
        client.insert("dir/x", "1");
        let fs = renaming(&client, false);
        client.inject(FaultPlan::on(Op::DeleteObject).fail(kind.clone()));
        rename(&fs, "old", "new").await.unwrap_err();
        let mut keys = client.keys();
        keys.retain(|key| !key.contains('/'));
        assert_eq!(keys, stay, "{kind:?}");
        client.inject(FaultPlan::on(Op::DeleteObject).fail(kind.clone()));
        rename(&fs, "dir", "moved").await.unwrap_err();
        let is_there = client.object("moved/x").is_some();
        assert_eq!(is_there, kind == ErrorKind::Timeout, "{kind:?}");
    }
}

/// Stores nothing before the gate opens, and returns once the request has come.
async fn closing(
    (client, fs): (&MemoryClient, &Arc<FileSystem>),
    op: Op,
    handle: HandleNo,
) -> (crate::testing::Gate, tokio::task::JoinHandle<()>) {
    let gate = client.hold(FaultPlan::on(op));
    let fs = Arc::clone(fs);
    let closes = tokio::spawn(async move { release(&fs, handle).await });
    gate.arrived(1).await;
    (gate, closes)
}

#[tokio::test]
async fn a_rename_waits_for_the_store_of_a_closed_file_that_it_replaces() {
    let client = MemoryClient::new();
    client.insert("a", "one");
    let fs = renaming(&client, true);
    // `touch b; mv a b`
    let (handle, _) = written(&fs, "b", 0).await;
    let (gate, closes) = closing((&client, &fs), Op::PutObject, handle).await;
    let renamer = Arc::clone(&fs);
    let renames = tokio::spawn(async move { rename(&renamer, "a", "b").await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!renames.is_finished());
    gate.release();
    renames.await.unwrap().unwrap();
    closes.await.unwrap();
    assert_eq!((client.keys(), client.object("b").unwrap()), (vec!["b".to_owned()], "one".into()));
    // `: > b; mv b c`
    let wish = OpenFlags { write: true, truncate: true, ..OpenFlags::default() };
    let opened = fs.open(ino(&fs, "b").await.unwrap(), wish, 1).await.unwrap();
    let (gate, closes) = closing((&client, &fs), Op::PutObject, opened.handle).await;
    let renamer = Arc::clone(&fs);
    let renames = tokio::spawn(async move { rename(&renamer, "b", "c").await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!renames.is_finished());
    gate.release();
    renames.await.unwrap().unwrap();
    closes.await.unwrap();
    assert_eq!((client.keys(), client.object("c").unwrap()), (vec!["c".to_owned()], "".into()));
}

#[tokio::test]
async fn a_rename_over_a_file_that_a_program_writes_is_refused() {
    let client = MemoryClient::new();
    client.insert("a", "one");
    let fs = renaming(&client, true);
    let (handle, bytes) = written(&fs, "b", 10).await;
    assert_eq!(errno(rename(&fs, "a", "b").await), Errno::PERM);
    fs.fsync(handle).await.unwrap();
    release(&fs, handle).await;
    assert!(client.object("b").unwrap() == bytes && client.object("a").unwrap() == "one");
}
