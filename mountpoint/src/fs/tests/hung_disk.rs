//! A disk of the stage that hangs holds up the file in question, and nothing else.

use super::full::promising;
use super::renames::ino;
use super::*;
use crate::stage::Commit;

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_hangs_at_a_new_file_leaves_the_lock_of_all_files_free() {
    let mut held = 0;
    for calls in 0.. {
        let (client, dir) = (MemoryClient::new(), tempfile::tempdir().unwrap());
        let fs = promising(Commit::Disk, &client, dir.path(), Clock::machine());
        let free = fs.area().hold_disk_behind(calls);
        let making = Arc::clone(&fs);
        let made = tokio::spawn(async move {
            making.create(ROOT, OsStr::new("new"), OpenFlags::default(), Maker::default(), 1).await
        });
        let is_held = || fs.area().disk_calls() > free;
        testkit::until_async("it is made, or the disk hangs", || is_held() || made.is_finished()).await;
        let was_held = is_held();
        let is_free = fs.full.as_ref().unwrap().is_free();
        fs.hold_disk(false);
        made.await.unwrap().unwrap();
        assert!(is_free, "call {calls} of the disk holds up all files");
        if !was_held {
            break;
        }
        held += 1;
    }
    assert!(held > 1, "the file, and its record in the log");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_use_of_the_stage_is_told_while_its_disk_hangs() {
    let (client, dir) = (MemoryClient::new(), tempfile::tempdir().unwrap());
    let fs = promising(Commit::Disk, &client, dir.path(), Clock::machine());
    for name in ["hangs", "waits"] {
        let wish = OpenFlags { write: true, ..OpenFlags::default() };
        let (_, opened) = fs.create(ROOT, OsStr::new(name), wish, Maker::default(), 1).await.unwrap();
        fs.write(opened.handle, 0, b"bytes", 0, |written| written.unwrap());
    }
    let staged = fs.full.as_ref().unwrap().find(ino(&fs, "hangs").await.unwrap()).unwrap();
    let change = staged.hold();
    let asking = Arc::clone(&fs);
    let asked = std::thread::spawn(move || asking.stage().unwrap());
    for _ in 0..6_000 {
        if asked.is_finished() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let is_told = asked.is_finished();
    drop(change);
    let stage = asked.join().unwrap();
    assert!(is_told, "it waits for the disk");
    assert_eq!((stage.pending, stage.pending_bytes), (2, 5), "a file that hangs counts, without bytes");
    assert_eq!(fs.stage().unwrap().pending_bytes, 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_write_that_waited_for_room_holds_no_worker_while_the_disk_hangs() {
    let (client, dir) = (MemoryClient::new(), tempfile::tempdir().unwrap());
    let fs = promising(Commit::Disk, &client, dir.path(), Clock::machine());
    let wish = OpenFlags { write: true, ..OpenFlags::default() };
    let (_, opened) = fs.create(ROOT, OsStr::new("file"), wish, Maker::default(), 1).await.unwrap();
    let free = fs.area().hold_disk_behind(0);
    let writing = Arc::clone(&fs);
    let write =
        async move { writing.write_once_there_is_room(opened.handle, (0, b"bytes".to_vec()), 0).await };
    let written = tokio::spawn(write);
    // This thread belongs to no runtime: a worker that waits for the disk drives no timer.
    testkit::until("the disk hangs", || fs.area().disk_calls() > free);
    let other = tokio::spawn(async {});
    for _ in 0..6_000 {
        if other.is_finished() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let went_on = other.is_finished() && !written.is_finished();
    fs.hold_disk(false);
    written.await.unwrap().unwrap();
    assert!(went_on, "the worker waits for the disk");
}
