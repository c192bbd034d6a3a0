//! Files that programs write past the engine: here the test does, as the kernel would.

use super::*;
use crate::stage::{Error, Loan};

impl Engine {
    /// Lends a file to the kernel, which opens it.
    async fn opened_by_kernel(&self, staged: &Arc<Staged>) -> (Loan, fs::File) {
        staged.is_opened_by_kernel().await.unwrap();
        let loan = staged.lend(true).expect("all of it is here");
        let path = self.shared.folder.path(staged.number());
        (loan, fs::File::options().read(true).write(true).open(path).unwrap())
    }
}

async fn store(staged: &Arc<Staged>) -> Result<Option<crate::object::ObjectMeta>, Error> {
    staged.store(&staged.turn().await).await
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_past_the_engine_outlive_a_kill_and_synced_a_loss_of_power() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let engine = engine(dir.path(), "one", &client);
    let left = || left(dir.path(), &client);
    let new = engine.new_file("new");
    let (loan, kernel) = engine.opened_by_kernel(&new).await;
    kernel.write_all_at(b"abc", 0).unwrap();
    assert_eq!((new.size(), new.is_dirty(), new.is_synced()), (3, true, false));
    assert_eq!(left().await, (files([("new", b"abc")]), files([]), 1));
    new.sync().await.unwrap();
    assert_eq!(left().await, (files([("new", b"abc")]), files([("new", b"abc")]), 0));
    new.unlinked().unwrap();
    assert_eq!(left().await, (files([]), files([]), 0));
    drop((loan, kernel, new));

    // Opened once more: from then on the disk may have a change in part.
    let again = engine.new_file("again");
    again.write(0, b"abc").unwrap();
    again.sync().await.unwrap();
    again.closed();
    assert_eq!(left().await.1, files([("again", b"abc")]));
    let (_loan, kernel) = engine.opened_by_kernel(&again).await;
    assert_eq!(left().await, (files([("again", b"abc")]), files([]), 1));
    kernel.write_all_at(b"X", 1).unwrap();
    assert_eq!(left().await, (files([("again", b"aXc")]), files([]), 1));

    // The log counted the ranges of a patched file, and counts none of what the kernel writes.
    let patched = engine.file_over(&client, "patched");
    patched.write(8, b"AB").unwrap();
    assert!(patched.lend(true).is_none(), "the object has a part of it");
    patched.make_whole(&patched.turn().await).await.unwrap();
    let (_loan, kernel) = engine.opened_by_kernel(&patched).await;
    kernel.write_all_at(b"--", 0).unwrap();
    assert_eq!(left().await.0["patched"], b"--234567AB");
    patched.set_size(4).unwrap();
    assert_eq!(left().await.0["patched"], b"--23");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_somebody_may_write_is_never_clean_however_often_it_is_sent() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let engine = engine(dir.path(), "one", &client);
    let file = engine.new_file("file");
    let (loan, kernel) = engine.opened_by_kernel(&file).await;
    kernel.write_all_at(b"first", 0).unwrap();
    // Sent while a program has it open.
    assert!(store(&file).await.unwrap().is_some());
    assert_eq!(stored(&client, "file"), b"first");
    assert!(store(&file).await.unwrap().is_none() && !file.is_dirty(), "it has not changed since");
    kernel.write_all_at(b"second", 0).unwrap();
    assert!(file.is_dirty());
    assert_eq!(left(dir.path(), &client).await.0["file"], b"second", "the log has not forgotten it");
    // Closed, but a mapping lives on.
    drop(loan);
    file.closed();
    file.rest();
    assert!(store(&file).await.unwrap().is_some());
    assert_eq!(stored(&client, "file"), b"second");
    assert!(store(&file).await.unwrap().is_none(), "no request without a change");
    assert!(file.is_dirty(), "the mapping may change it");
    kernel.write_all_at(b"third!", 0).unwrap();
    assert!(store(&file).await.unwrap().is_some());
    assert_eq!(stored(&client, "file"), b"third!");
    kernel.write_all_at(b"last", 2).unwrap();
    kernel.set_len(6).unwrap();
    drop(kernel);
    assert!(store(&file).await.unwrap().is_some());
    assert_eq!(stored(&client, "file"), b"thlast");
    assert!(!file.is_dirty());
    assert!(store(&file).await.unwrap().is_none());
    assert_eq!(left(dir.path(), &client).await.0, files([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_mount_waits_for_who_still_writes_a_file_of_before() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let before = engine(dir.path(), "one", &client);
    let (loan, kernel) = before.opened_by_kernel(&before.new_file("file")).await;
    kernel.write_all_at(b"before", 0).unwrap();
    drop((loan, before));
    let mut engine = engine(dir.path(), "one", &client);
    let pending = engine.pending.pop().unwrap();
    let file = Arc::new(Staged::pending(Arc::clone(&engine.shared), pending));
    kernel.write_all_at(b"after!", 0).unwrap();
    assert!(store(&file).await.unwrap().is_some() && file.is_dirty());
    assert_eq!(stored(&client, "file"), b"after!");
    kernel.write_all_at(b"the end", 0).unwrap();
    drop(kernel);
    assert!(store(&file).await.unwrap().is_some() && !file.is_dirty());
    assert_eq!(stored(&client, "file"), b"the end");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_written_past_the_engine_is_sent_as_of_one_moment_or_not() {
    const LEN: u64 = 3 << 20;
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let engine = engine(dir.path(), "one", &client);
    let file = engine.new_file("file");
    let (_loan, kernel) = engine.opened_by_kernel(&file).await;
    kernel.set_len(LEN).unwrap();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let writer = std::thread::spawn(move || {
        // The second number is never newer than the first.
        for n in 1_u64.. {
            for at in [0, LEN - 8] {
                kernel.write_all_at(&n.to_le_bytes(), at).unwrap();
            }
            if stopped.try_recv().is_ok() {
                return n;
            }
            // Now and then it rests, for as long as a copy takes, or less.
            if n % 1000 == 0 {
                std::thread::sleep(std::time::Duration::from_millis(n / 1000 % 7 * 40));
            }
        }
        unreachable!("numbers do not end")
    });
    let numbers = || {
        let bytes = stored(&client, "file");
        let of = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        (of(0), of(LEN as usize - 8))
    };
    for _ in 0..6 {
        match store(&file).await {
            Ok(_) => {
                let (first, second) = numbers();
                assert!(first == second || first == second + 1, "{first} {second}");
            }
            Err(error) => assert!(matches!(error, Error::Restless { .. }), "{error}"),
        }
    }
    stop.send(()).unwrap();
    let last = writer.join().unwrap();
    store(&file).await.unwrap();
    assert_eq!(numbers(), (last, last));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_the_kernel_could_write_and_did_not_is_not_sent() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let engine = engine(dir.path(), "one", &client);
    let etag = client.insert("empty", Vec::new());
    for writes in [false, true] {
        let file = engine.over("empty", etag.clone(), 0);
        let (loan, kernel) = engine.opened_by_kernel(&file).await;
        if writes {
            kernel.write_all_at(b"x", 0).unwrap();
        }
        drop((loan, kernel));
        file.closed();
        assert_eq!(store(&file).await.unwrap().is_some(), writes);
        assert!(!file.is_dirty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mapping_is_looked_after_while_a_reader_has_the_file() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let engine = engine(dir.path(), "one", &client);
    let file = engine.new_file("file");
    assert!(file.lend(false).is_none(), "for a reader alone the engine reads");
    let (loan, mapping) = engine.opened_by_kernel(&file).await;
    let reader = file.lend(false).expect("it is lent");
    mapping.write_all_at(b"first", 0).unwrap();
    drop(loan);
    file.closed();
    assert!(store(&file).await.unwrap().is_some());
    assert!(file.is_dirty() && file.is_out(), "the mapping may change it");
    mapping.write_all_at(b"second", 0).unwrap();
    assert!(store(&file).await.unwrap().is_some());
    assert_eq!(stored(&client, "file"), b"second");
    drop(mapping);
    // A state that was sent while somebody could write goes once more: a change in progress may have been sent in part.
    assert!(store(&file).await.unwrap().is_some());
    assert!(!file.is_dirty(), "nobody can write it");
    assert!(store(&file).await.unwrap().is_none());
    let (loan, writer) = engine.opened_by_kernel(&file).await;
    writer.write_all_at(b"third", 0).unwrap();
    assert!(file.is_dirty());
    drop((loan, writer));
    file.closed();
    assert!(store(&file).await.unwrap().is_some() && !file.is_dirty());
    assert_eq!(stored(&client, "file"), b"thirdd");
    drop(reader);
    assert!(store(&file).await.unwrap().is_none() && !file.is_dirty() && !file.is_out());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_leases_what_an_earlier_mount_lent_is_never_clean_in_this_boot() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let before = engine(dir.path(), "one", &client);
    let (loan, kernel) = before.opened_by_kernel(&before.new_file("file")).await;
    kernel.write_all_at(b"before", 0).unwrap();
    drop((loan, before));
    for round in [b"first!", b"second"] {
        let Engine { shared, mut pending, .. } = engine(dir.path(), "one", &client);
        let shared = Arc::into_inner(shared).unwrap();
        let shared = Arc::new(Shared { folder: shared.folder.without_leases(), ..shared });
        let file = Arc::new(Staged::pending(shared, pending.pop().unwrap()));
        kernel.write_all_at(round, 0).unwrap();
        assert!(store(&file).await.unwrap().is_some() && file.is_dirty());
        assert_eq!(stored(&client, "file"), round);
    }
    kernel.write_all_at(b"last", 0).unwrap();
    assert_eq!(left(dir.path(), &client).await.0["file"], b"lastnd");
}
