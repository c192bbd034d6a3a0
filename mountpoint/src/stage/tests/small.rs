//! Small files, of which programs make many: what each costs until the bucket has it.

use super::*;
use crate::stage::disk::read_cached;
use crate::stage::log::{self, Record};

/// The records of the log after that of the mount.
fn said(dir: &Path) -> Vec<&'static str> {
    let log = log::read(&fs::read(dir.join("log")).unwrap());
    let name = |record: &Record| match record {
        Record::Dirty(_) => "dirty",
        Record::Synced { .. } => "synced",
        Record::Sending { .. } => "sending",
        Record::Gone { .. } => "gone",
        _ => "another",
    };
    assert!(matches!(log.records[0], Record::Mount(_)));
    log.records[1..].iter().map(name).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_says_each_fact_of_a_new_file_once() {
    for is_synced in [false, true] {
        let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
        let engine = engine(dir.path(), "one", &client);
        let staged = engine.new_file("file");
        staged.write(0, b"abc").unwrap();
        if is_synced {
            staged.sync().await.unwrap();
        }
        let turn = staged.turn().await;
        staged.store(&turn).await.unwrap().expect("there was a change");
        drop((turn, staged));
        engine.shared.folder.sweep().unwrap();
        assert_eq!(fs::read_dir(dir.path().join("files")).unwrap().count(), 0);
        let expected: &[_] = match is_synced {
            true => &["dirty", "synced", "sending", "gone"],
            false => &["dirty", "sending", "gone"],
        };
        assert_eq!(said(dir.path()), expected);
        assert_eq!(stored(&client, "file"), b"abc");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sends_that_need_a_durable_log_share_one_sync() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let engine = engine(dir.path(), "one", &client);
    let staged = engine.new_file("file");
    let disk = engine.shared.folder.disk();
    disk.fail(0..0);
    disk.hold(1..2);
    let waits: Vec<_> = (0..20)
        .map(|_| {
            let shared = Arc::clone(&engine.shared);
            tokio::spawn(async move { shared.sync_log().await })
        })
        .collect();
    while disk.calls() < 1 {
        tokio::task::yield_now().await;
    }
    disk.hold(0..0);
    for wait in waits {
        wait.await.unwrap().unwrap();
    }
    assert_eq!((disk.calls(), engine.shared.folder.undurable()), (1, 0));
    // The failure reaches its caller, and the next one writes the log anew.
    staged.closed();
    staged.write(0, b"abc").unwrap();
    disk.fail(1..2);
    assert!(engine.shared.sync_log().await.is_err());
    engine.shared.sync_log().await.unwrap();
    assert_eq!(engine.shared.folder.undurable(), 0);
    assert_eq!(left(dir.path(), &client).await.0, files([("file", b"abc")]));
}

#[test]
fn bytes_that_memory_lacks_are_not_waited_for() {
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(b"0123456789", 0).unwrap();
    let mut bytes = [0; 4];
    // Not every file system can tell.
    if read_cached(&file, &mut bytes, 3) {
        assert_eq!(&bytes, b"3456");
    }
    assert!(!read_cached(&file, &mut bytes, 8), "there are only two");
}
