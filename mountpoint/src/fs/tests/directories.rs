//! Renames of directories: all facts about a tree move with it, and earlier requests neither bring the old name back nor hide the new
//! one.

use super::renames::{errno, ino, read, rename, renaming};
use super::*;
use crate::inode::InodeNo;
use crate::s3::ErrorKind;

async fn below(fs: &FileSystem, directory: InodeNo, name: &str) -> Result<InodeNo> {
    fs.lookup(directory, OsStr::new(name)).await.map(|entry| entry.attr.ino)
}

async fn rest(fs: &FileSystem, dir: HandleNo, mut offset: u64) -> Vec<String> {
    let mut names = Vec::new();
    loop {
        let items = fs.readdir(dir, offset, 2).await.unwrap();
        let Some(last) = items.last() else { break };
        offset = last.offset;
        names.extend(items.iter().map(|item| item.name().to_string_lossy().into_owned()));
    }
    names.retain(|name| !name.starts_with('.'));
    names
}

async fn names(fs: &FileSystem, directory: InodeNo) -> Vec<String> {
    let dir = fs.opendir(directory).await.unwrap();
    let names = rest(fs, dir, 0).await;
    fs.releasedir(dir);
    names
}

fn tree(client: &MemoryClient) {
    for name in ["old/a", "old/b/c", "old/b/d", "old/e/f/g"] {
        client.insert(name, format!("the bytes of {name}"));
    }
    client.insert("other", "1");
}

const MOVED: [&str; 5] = ["new/a", "new/b/c", "new/b/d", "new/e/f/g", "other"];

#[tokio::test]
async fn a_directory_moves_with_its_inodes_readers_and_open_listings() {
    let client = MemoryClient::with(Settings { page_max: 1, ..Settings::default() });
    tree(&client);
    let fs = renaming(&client, false);
    let old = ino(&fs, "old").await.unwrap();
    let b = below(&fs, old, "b").await.unwrap();
    let (c, d) = (below(&fs, b, "c").await.unwrap(), below(&fs, b, "d").await.unwrap());
    let opened = fs.open(c, OpenFlags::default(), 1).await.unwrap();
    let dir = fs.opendir(old).await.unwrap();
    let first = fs.readdir(dir, 2, 1).await.unwrap();
    assert_eq!(first.last().unwrap().name(), "a");
    rename(&fs, "old", "new").await.unwrap();
    assert_eq!(client.keys(), MOVED);
    assert_eq!(rest(&fs, dir, first.last().unwrap().offset).await, ["b", "e"], "an open directory goes on");
    assert_eq!(rest(&fs, dir, 0).await, ["a", "b", "e"]);
    assert_eq!(errno(ino(&fs, "old").await), Errno::NOENT);
    assert_eq!(ino(&fs, "new").await.unwrap(), old);
    assert_eq!(below(&fs, old, "b").await.unwrap(), b);
    assert_eq!((below(&fs, b, "c").await.unwrap(), below(&fs, b, "d").await.unwrap()), (c, d));
    assert_eq!(read(&fs, opened.handle, 0, 100).await.unwrap(), b"the bytes of old/b/c");
    let again = fs.open(d, OpenFlags::default(), 1).await.unwrap();
    assert_eq!(read(&fs, again.handle, 4, 5).await.unwrap(), b"bytes");
    assert_eq!(names(&fs, ROOT).await, ["new", "other"]);
    assert_eq!(names(&fs, old).await, ["a", "b", "e"]);
    assert_eq!(errno(fs.rename(ROOT, OsStr::new("new"), b, OsStr::new("in"), 0).await), Errno::INVAL);
    // Into another directory, and back.
    client.insert("there/x", "1");
    let there = ino(&fs, "there").await.unwrap();
    fs.rename(old, OsStr::new("b"), there, OsStr::new("b2"), 0).await.unwrap();
    assert_eq!(below(&fs, there, "b2").await.unwrap(), b);
    assert_eq!(names(&fs, there).await, ["b2", "x"]);
    assert_eq!(names(&fs, old).await, ["a", "e"]);
    assert_eq!(read(&fs, opened.handle, 0, 3).await.unwrap(), b"the");
}

#[tokio::test]
async fn a_file_opened_while_its_renamed_directory_is_deleted_is_read() {
    let client = MemoryClient::new();
    tree(&client);
    let fs = renaming(&client, false);
    let old = ino(&fs, "old").await.unwrap();
    let a = below(&fs, old, "a").await.unwrap();
    let gate = client.hold_answer(FaultPlan::on(Op::DeleteObject).key("old/a"));
    let renaming = tokio::spawn({
        let fs = Arc::clone(&fs);
        async move { rename(&fs, "old", "new").await }
    });
    gate.arrived(1).await;
    let opened = fs.open(a, OpenFlags::default(), 1).await.unwrap();
    assert_eq!(read(&fs, opened.handle, 0, 100).await.unwrap(), b"the bytes of old/a");
    gate.release();
    renaming.await.unwrap().unwrap();
    fs.release(opened.handle).unwrap();
}

#[tokio::test]
async fn what_was_asked_of_a_tree_before_it_moved_does_not_count() {
    for (op, key) in [
        (Op::HeadObject, "old/b/d"),
        (Op::HeadObject, "old/b/c"),
        (Op::ListObjects, "old/b/"),
        (Op::ListObjects, "old/"),
    ] {
        let client = MemoryClient::new();
        tree(&client);
        let fs = renaming(&client, false);
        let old = ino(&fs, "old").await.unwrap();
        let b = below(&fs, old, "b").await.unwrap();
        let c = below(&fs, b, "c").await.unwrap();
        // The open that follows a lookup asks nothing; the next one does.
        let opened = fs.open(c, OpenFlags::default(), 1).await.unwrap();
        fs.release(opened.handle).unwrap();
        let copies = client.hold(FaultPlan::on(Op::DeleteObject));
        let renamer = Arc::clone(&fs);
        let renames = tokio::spawn(async move { rename(&renamer, "old", "new").await });
        copies.arrived(1).await;
        let answer = client.hold_answer(FaultPlan::on(op).key(key));
        let asker = Arc::clone(&fs);
        let asks = tokio::spawn(async move {
            match (op, key) {
                (Op::HeadObject, "old/b/d") => drop(below(&asker, b, "d").await),
                (Op::HeadObject, _) => {
                    let wish = OpenFlags { direct: true, ..OpenFlags::default() };
                    drop(asker.open(c, wish, 1).await);
                }
                (_, "old/b/") => drop(names(&asker, b).await),
                _ => drop(names(&asker, old).await),
            }
        });
        answer.arrived(1).await;
        copies.release();
        renames.await.unwrap().unwrap();
        answer.release();
        asks.await.unwrap();
        assert_eq!(errno(ino(&fs, "old").await), Errno::NOENT, "{op:?} {key}");
        assert_eq!(ino(&fs, "new").await.unwrap(), old, "{op:?} {key}");
        assert_eq!(below(&fs, old, "b").await.unwrap(), b, "{op:?} {key}");
        assert_eq!(below(&fs, b, "c").await.unwrap(), c, "{op:?} {key}");
        assert_eq!(names(&fs, b).await, ["c", "d"], "{op:?} {key}");
        assert_eq!(names(&fs, ROOT).await, ["new", "other"], "{op:?} {key}");
        assert_eq!(client.keys(), MOVED);
    }
}

#[tokio::test]
async fn a_directory_replaces_an_empty_one_only() {
    let client = MemoryClient::new();
    tree(&client);
    client.insert("full/x", "1");
    client.insert("marked/", "");
    let fs = renaming(&client, true);
    assert_eq!(errno(rename(&fs, "old", "full").await), Errno::NOTEMPTY);
    assert_eq!(errno(rename(&fs, "old", "other").await), Errno::NOTDIR);
    fs.mkdir(ROOT, OsStr::new("made"), Maker::default()).await.unwrap();
    let made = ino(&fs, "made").await.unwrap();
    fs.make_file(made, OsStr::new("inside"), Maker::default()).await.unwrap();
    assert_eq!(errno(rename(&fs, "old", "made").await), Errno::NOTEMPTY);
    fs.mkdir(ROOT, OsStr::new("empty"), Maker::default()).await.unwrap();
    let no_replace = fs.rename(ROOT, OsStr::new("old"), ROOT, OsStr::new("empty"), 1).await;
    assert_eq!(errno(no_replace), Errno::EXIST);
    assert_eq!(client.calls(Op::CopyObject), 0);
    rename(&fs, "old", "empty").await.unwrap();
    rename(&fs, "empty", "marked").await.unwrap();
    assert_eq!(
        client.keys(),
        ["full/x", "marked/", "marked/a", "marked/b/c", "marked/b/d", "marked/e/f/g", "other"]
    );
    // A directory made here alone moves with all that is in it, without a request that changes something.
    client.reset_log();
    rename(&fs, "made", "again").await.unwrap();
    assert_eq!(client.calls(Op::CopyObject) + client.calls(Op::DeleteObject), 0);
    assert_eq!(ino(&fs, "again").await.unwrap(), made);
    assert_eq!(names(&fs, made).await, ["inside"]);
    assert_eq!(errno(ino(&fs, "made").await), Errno::NOENT);
}

#[tokio::test]
async fn a_directory_of_too_many_objects_is_left_to_programs_that_copy() {
    let client = MemoryClient::new();
    for number in 0..1001 {
        client.insert(format!("old/{number}"), "");
    }
    let fs = renaming(&client, false);
    assert_eq!(errno(rename(&fs, "old", "new").await), Errno::XDEV);
    assert_eq!((client.calls(Op::CopyObject), client.keys().len()), (0, 1001));
}

#[tokio::test]
async fn files_written_in_a_renamed_directory_are_stored_under_its_new_name() {
    for len in [100, 20 << 20] {
        let client = MemoryClient::new();
        tree(&client);
        let fs = renaming(&client, false);
        let old = ino(&fs, "old").await.unwrap();
        let b = below(&fs, old, "b").await.unwrap();
        let wish = OpenFlags { write: true, ..OpenFlags::default() };
        let (entry, opened) = fs.create(b, OsStr::new("made"), wish, Maker::default(), 1).await.unwrap();
        let bytes: Vec<u8> = (0..len).map(|i| (i / 3) as u8).collect();
        for (piece, at) in bytes.chunks(1 << 20).zip((0..).step_by(1 << 20)) {
            let (send, receive) = tokio::sync::oneshot::channel();
            fs.write(opened.handle, at, piece, 1, move |result| drop(send.send(result)));
            receive.await.unwrap().unwrap();
        }
        rename(&fs, "old", "new").await.unwrap();
        assert_eq!(below(&fs, b, "made").await.unwrap(), entry.attr.ino);
        fs.fsync(opened.handle).await.unwrap();
        if let Some(due) = fs.release(opened.handle).unwrap() {
            fs.finish_released(opened.handle, due).await;
        }
        assert!(client.object("new/b/made").unwrap() == bytes, "{len}");
        assert!(!client.keys().iter().any(|key| key.starts_with("old/")), "{len}: {:?}", client.keys());
        assert_eq!(names(&fs, b).await, ["c", "d", "made"]);
        assert_eq!(client.pending_uploads(), []);
    }
}

#[tokio::test]
async fn files_stored_below_a_directory_during_its_rename_come_along() {
    // The copies, or the listing that proves them.
    for held in [FaultPlan::on(Op::CopyObject).always(), FaultPlan::on(Op::ListObjects).key("new/").nth(2)] {
        let client = MemoryClient::new();
        tree(&client);
        let fs = renaming(&client, true);
        let old = ino(&fs, "old").await.unwrap();
        let b = below(&fs, old, "b").await.unwrap();
        let wish = OpenFlags { write: true, truncate: true, ..OpenFlags::default() };
        let (made, first) = fs.create(b, OsStr::new("made"), wish, Maker::default(), 1).await.unwrap();
        let c = below(&fs, b, "c").await.unwrap();
        let second = fs.open(c, wish, 1).await.unwrap();
        let held = client.hold(held);
        let renamer = Arc::clone(&fs);
        let renamed = tokio::spawn(async move { rename(&renamer, "old", "new").await });
        held.arrived(1).await;
        for (handle, bytes) in [(first.handle, "made"), (second.handle, "anew")] {
            fs.write(handle, 0, bytes.as_bytes(), 1, |written| written.unwrap());
            fs.fsync(handle).await.unwrap();
            if let Some(due) = fs.release(handle).unwrap() {
                fs.finish_released(handle, due).await;
            }
        }
        held.release();
        renamed.await.unwrap().unwrap();
        assert_eq!(client.keys(), ["new/a", "new/b/c", "new/b/d", "new/b/made", "new/e/f/g", "other"]);
        assert_eq!(
            (client.object("new/b/c").unwrap(), client.object("new/b/made").unwrap()),
            ("anew".into(), "made".into())
        );
        assert_eq!(errno(ino(&fs, "old").await), Errno::NOENT);
        assert_eq!(below(&fs, b, "made").await.unwrap(), made.attr.ino);
        assert_eq!(below(&fs, b, "c").await.unwrap(), c);
        assert_eq!(fs.getattr(c).await.unwrap().size, 4);
        assert_eq!(names(&fs, b).await, ["c", "d", "made"]);
    }
}

#[tokio::test]
async fn a_directory_whose_rename_fails_is_where_it_was() {
    let client = MemoryClient::new();
    tree(&client);
    let fs = renaming(&client, false);
    let old = ino(&fs, "old").await.unwrap();
    for plan in [FaultPlan::on(Op::CopyObject).nth(3), FaultPlan::on(Op::DeleteObject)] {
        client.inject(plan.fail(ErrorKind::Denied));
        assert_eq!(errno(rename(&fs, "old", "new").await), Errno::ACCESS);
        assert_eq!(ino(&fs, "old").await.unwrap(), old);
        assert_eq!(names(&fs, old).await, ["a", "b", "e"]);
        assert_eq!(errno(ino(&fs, "new").await), Errno::NOENT);
        assert_eq!(client.keys(), ["old/a", "old/b/c", "old/b/d", "old/e/f/g", "other"]);
    }
    client.inject(FaultPlan::on(Op::DeleteObject).nth(3).fail(ErrorKind::Denied));
    assert_eq!(errno(rename(&fs, "old", "new").await), Errno::IO, "some are deleted: it can't be taken back");
    assert_eq!(names(&fs, ino(&fs, "new").await.unwrap()).await, ["a", "b", "e"]);
    assert_eq!(client.keys().iter().filter(|key| key.starts_with("old/")).count(), 1);
    ino(&fs, "old").await.unwrap();
}
