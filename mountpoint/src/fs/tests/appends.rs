//! Appends beside renames of directories, deletes and other writers: no byte is lost, and nothing else is replaced.

use super::renames::{errno, ino, release, rename, renaming};
use super::*;
use crate::inode::InodeNo;
use crate::moves::{self, Mover};
use crate::s3::ErrorKind;
use crate::testing::Gate;

const MIB: usize = 1 << 20;
const APPEND: OpenFlags =
    OpenFlags { write: true, append: true, read: false, truncate: false, direct: false, sync: false };
const REPLACE: OpenFlags = OpenFlags { truncate: true, append: false, ..APPEND };

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 3 + seed) as u8).collect()
}

async fn write_all(fs: &Arc<FileSystem>, handle: HandleNo, mut at: usize, bytes: &[u8]) {
    for piece in bytes.chunks(MIB) {
        write(fs, handle, at, piece).await.unwrap();
        at += piece.len();
    }
}

/// A file in a directory that is open to append to it: its inode, its handle, and its bytes.
async fn opened(client: &MemoryClient, fs: &Arc<FileSystem>, len: usize) -> (InodeNo, HandleNo, Vec<u8>) {
    let before = bytes(len, 1);
    client.insert("old/f", before.clone());
    client.insert("old/other", "other");
    let directory = ino(fs, "old").await.unwrap();
    let file = fs.lookup(directory, OsStr::new("f")).await.unwrap().attr.ino;
    (file, fs.open(file, APPEND, 1).await.unwrap().handle, before)
}

/// Bytes that the file gets before the rename: none, less than a part, or more than two, so that the upload has begun.
const FIRST: [usize; 3] = [0, 100, 20 * MIB];

#[tokio::test]
async fn an_append_goes_on_where_its_renamed_directory_is() {
    for len in [100, 6 * MIB] {
        for first in FIRST {
            for names in [&["new"][..], &["new", "newer"], &["new", "old"]] {
                let client = MemoryClient::new();
                let fs = renaming(&client, false);
                let (file, handle, before) = opened(&client, &fs, len).await;
                let (added, rest) = (bytes(first, 2), bytes(1000, 3));
                write_all(&fs, handle, len, &added).await;
                let mut from = "old";
                for &to in names {
                    rename(&fs, from, to).await.unwrap();
                    from = to;
                }
                write_all(&fs, handle, len + first, &rest).await;
                fs.fsync(handle).await.unwrap();
                release(&fs, handle).await;
                let case = format!("{len} and {first}, {names:?}");
                assert_eq!(client.keys(), [format!("{from}/f"), format!("{from}/other")], "{case}");
                let stored = client.object(format!("{from}/f")).unwrap();
                assert!(stored == [before, added, rest].concat(), "{case}: {} bytes", stored.len());
                assert_eq!(fs.getattr(file).await.unwrap().size, stored.len() as u64, "{case}");
                assert_eq!(client.pending_uploads(), [], "{case}");
                let again = fs.open(file, OpenFlags::default(), 1).await.unwrap();
                assert!(
                    super::renames::read(&fs, again.handle, 0, 10).await.unwrap() == stored[..10],
                    "{case}"
                );
            }
        }
    }
}

#[tokio::test]
async fn an_append_that_added_nothing_shows_the_object_of_its_new_name() {
    for len in [100, 6 * MIB] {
        let client = MemoryClient::new();
        let fs = renaming(&client, false);
        let (file, handle, before) = opened(&client, &fs, len).await;
        rename(&fs, "old", "new").await.unwrap();
        fs.fsync(handle).await.unwrap();
        release(&fs, handle).await;
        assert!(client.object("new/f").unwrap() == before);
        let again = fs.open(file, OpenFlags::default(), 1).await.unwrap();
        assert!(super::renames::read(&fs, again.handle, 0, 10).await.unwrap() == before[..10]);
    }
}

/// Starts a rename of the directory, which stops before its first request of this kind.
async fn held_rename(
    client: &MemoryClient,
    fs: &Arc<FileSystem>,
    op: Op,
) -> (Gate, tokio::task::JoinHandle<Result<()>>) {
    let gate = client.hold(FaultPlan::on(op));
    let fs = Arc::clone(fs);
    let renames = tokio::spawn(async move { rename(&fs, "old", "new").await });
    gate.arrived(1).await;
    (gate, renames)
}

#[tokio::test]
async fn an_append_closed_during_the_rename_of_its_directory_is_stored() {
    for op in [Op::CopyObject, Op::DeleteObject] {
        for len in [100, 6 * MIB] {
            for first in FIRST {
                let client = MemoryClient::new();
                let fs = renaming(&client, false);
                let (_, handle, before) = opened(&client, &fs, len).await;
                let (added, rest) = (bytes(first, 2), bytes(1000, 3));
                write_all(&fs, handle, len, &added).await;
                let (gate, renames) = held_rename(&client, &fs, op).await;
                write_all(&fs, handle, len + first, &rest).await;
                let closer = Arc::clone(&fs);
                let closes = tokio::spawn(async move { closer.fsync(handle).await });
                tokio::time::sleep(Duration::from_millis(20)).await;
                gate.release();
                renames.await.unwrap().unwrap();
                closes.await.unwrap().unwrap();
                release(&fs, handle).await;
                let case = format!("{op:?}, {len} and {first}");
                assert_eq!(client.keys(), ["new/f", "new/other"], "{case}");
                assert!(client.object("new/f").unwrap() == [before, added, rest].concat(), "{case}");
                assert_eq!(client.pending_uploads(), [], "{case}");
            }
        }
    }
}

#[tokio::test]
async fn an_append_spares_another_clients_version_that_its_directory_took_along() {
    for len in [100, 6 * MIB] {
        for first in FIRST {
            for is_replaced in [true, false] {
                let client = MemoryClient::new();
                let fs = renaming(&client, true);
                let (_, handle, _) = opened(&client, &fs, len).await;
                write_all(&fs, handle, len, &bytes(first, 2)).await;
                if is_replaced {
                    client.insert("old/f", "theirs");
                } else {
                    client.remove("old/f");
                }
                rename(&fs, "old", "new").await.unwrap();
                let _ = write(&fs, handle, len + first, b"more").await;
                let case = format!("{len} and {first}, {is_replaced}");
                let refused = errno(fs.fsync(handle).await);
                // The copy of parts finds nothing at the old key, which is EIO.
                assert!([Errno::STALE, Errno::IO].contains(&refused), "{case}: {refused:?}");
                release(&fs, handle).await;
                assert_eq!(client.object("new/f"), is_replaced.then(|| "theirs".into()), "{case}");
                assert_eq!(client.object("old/f"), None, "{case}");
                testkit::until_async("its upload is aborted", || client.pending_uploads().is_empty()).await;
            }
        }
    }
}

#[tokio::test]
async fn an_append_goes_on_where_a_rename_that_failed_late_left_its_object() {
    for len in [100, 6 * MIB] {
        let client = MemoryClient::new();
        let fs = renaming(&client, false);
        let (_, handle, before) = opened(&client, &fs, len).await;
        client.inject(FaultPlan::on(Op::DeleteObject).key("old/other").fail(ErrorKind::Denied));
        assert_eq!(errno(rename(&fs, "old", "new").await), Errno::IO);
        write_all(&fs, handle, len, b"more").await;
        fs.fsync(handle).await.unwrap();
        release(&fs, handle).await;
        assert!(client.object("new/f").unwrap() == [&before[..], b"more"].concat(), "{len}");
        assert_eq!(client.keys(), ["new/f", "new/other", "old/other"], "{len}");
    }
}

#[tokio::test]
async fn nothing_is_stored_below_a_directory_while_its_objects_are_deleted() {
    let client = MemoryClient::new();
    client.insert("old/a", "1");
    client.insert("old/b", "2");
    let fs = renaming(&client, true);
    let directory = ino(&fs, "old").await.unwrap();
    let file = fs.lookup(directory, OsStr::new("b")).await.unwrap().attr.ino;
    let handle = fs.open(file, REPLACE, 1).await.unwrap().handle;
    let (gate, renames) = held_rename(&client, &fs, Op::DeleteObject).await;
    write(&fs, handle, 0, b"anew").await.unwrap();
    let closer = Arc::clone(&fs);
    let closes = tokio::spawn(async move { closer.fsync(handle).await });
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(
        client.calls(Op::PutObject),
        0,
        "a store that ignores the condition of the delete would lose it"
    );
    gate.release();
    renames.await.unwrap().unwrap();
    closes.await.unwrap().unwrap();
    release(&fs, handle).await;
    assert_eq!(
        (client.keys(), client.object("new/b").unwrap()),
        (vec!["new/a".into(), "new/b".into()], "anew".into())
    );
}

#[tokio::test]
async fn an_open_for_writing_waits_for_the_rename_of_its_file() {
    for op in [Op::CopyObject, Op::DeleteObject] {
        for flags in [APPEND, REPLACE] {
            let client = MemoryClient::new();
            client.insert("a", "one");
            let fs = renaming(&client, true);
            let file = ino(&fs, "a").await.unwrap();
            let gate = client.hold(FaultPlan::on(op));
            let renamer = Arc::clone(&fs);
            let renames = tokio::spawn(async move { rename(&renamer, "a", "b").await });
            gate.arrived(1).await;
            let opener = Arc::clone(&fs);
            let opens = tokio::spawn(async move { opener.open(file, flags, 1).await });
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert!(!opens.is_finished());
            gate.release();
            renames.await.unwrap().unwrap();
            let handle = opens.await.unwrap().unwrap().handle;
            write(&fs, handle, if flags.append { 3 } else { 0 }, b"two").await.unwrap();
            fs.fsync(handle).await.unwrap();
            release(&fs, handle).await;
            let expected = if flags.append { "onetwo" } else { "two" };
            assert_eq!((client.keys(), client.object("b").unwrap()), (vec!["b".to_owned()], expected.into()));
        }
    }
}

#[tokio::test]
async fn an_append_continues_what_another_stored_during_its_open() {
    let client = MemoryClient::new();
    client.insert("f", "one");
    let fs = renaming(&client, false);
    let file = ino(&fs, "f").await.unwrap();
    let gate = client.hold_answer(FaultPlan::on(Op::HeadObject));
    let opener = Arc::clone(&fs);
    let opens = tokio::spawn(async move { opener.open(file, APPEND, 1).await });
    gate.arrived(1).await;
    let first = fs.open(file, APPEND, 1).await.unwrap().handle;
    write(&fs, first, 3, b"two").await.unwrap();
    fs.fsync(first).await.unwrap();
    release(&fs, first).await;
    gate.release();
    let second = opens.await.unwrap().unwrap().handle;
    write(&fs, second, 6, b"three").await.unwrap();
    fs.fsync(second).await.unwrap();
    release(&fs, second).await;
    assert_eq!(client.object("f").unwrap(), "onetwothree");
}

#[tokio::test]
async fn attributes_of_a_file_change_before_its_rename_or_after() {
    let client = MemoryClient::new();
    client.insert("a", "one");
    let mover = || Mover::new(client.arc(), moves::Config::default());
    let keeper = crate::kept::Keeper::new(client.arc(), mover(), None);
    let fs = made(&client, false).renaming(mover()).keeping(Keeping::new(keeper, true, false));
    let fs = Arc::new(fs);
    let file = ino(&fs, "a").await.unwrap();
    let gate = client.hold(FaultPlan::on(Op::DeleteObject));
    let renamer = Arc::clone(&fs);
    let renames = tokio::spawn(async move { rename(&renamer, "a", "b").await });
    gate.arrived(1).await;
    let changer = Arc::clone(&fs);
    let wish = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    let changes = tokio::spawn(async move { changer.setattr(file, wish).await });
    tokio::time::sleep(Duration::from_millis(20)).await;
    gate.release();
    renames.await.unwrap().unwrap();
    assert_eq!(changes.await.unwrap().unwrap().mode, 0o600);
    assert_eq!((client.keys(), client.object("b").unwrap()), (vec!["b".to_owned()], "one".into()));
}

#[tokio::test]
async fn a_file_renamed_out_of_a_directory_moves_before_the_directory_does() {
    let client = MemoryClient::new();
    client.insert("old/other", "other");
    let fs = renaming(&client, false);
    let directory = ino(&fs, "old").await.unwrap();
    let wish = OpenFlags { append: false, ..APPEND };
    let (_, made) = fs.create(directory, OsStr::new("f"), wish, Maker::default(), 1).await.unwrap();
    let written = bytes(20 * MIB, 2);
    write_all(&fs, made.handle, 0, &written).await;
    fs.rename(directory, OsStr::new("f"), ROOT, OsStr::new("out"), 0).await.unwrap();
    // The object is stored under its old name, and not moved yet.
    let gate = client.hold(FaultPlan::on(Op::CreateMultipartUpload).key("out"));
    let closer = Arc::clone(&fs);
    let closes = tokio::spawn(async move { closer.fsync(made.handle).await });
    gate.arrived(1).await;
    let renamer = Arc::clone(&fs);
    let renames = tokio::spawn(async move { rename(&renamer, "old", "new").await });
    tokio::time::sleep(Duration::from_millis(20)).await;
    gate.release();
    renames.await.unwrap().unwrap();
    closes.await.unwrap().unwrap();
    release(&fs, made.handle).await;
    assert_eq!(client.keys(), ["new/other", "out"]);
    assert!(client.object("out").unwrap() == written);
}
