//! Directories that owe their markers: what the next mount finds of them.

use super::*;
use crate::stage::log::Record;

type Owing = Vec<(u64, String)>;

/// The directories that owe a marker in the next mount: after a kill, and after a loss of power.
fn left(dir: &Path, client: &MemoryClient) -> [Owing; 2] {
    ["one", "two"].map(|boot| {
        let copied = tempfile::tempdir().unwrap();
        copy(dir, copied.path());
        let next = engine(copied.path(), boot, client);
        assert_eq!((next.kept.len(), next.pending.len()), (0, 0));
        let all = Area(next.shared).left_directories();
        assert_eq!(fs::read_dir(copied.path().join("files")).unwrap().count(), all.len());
        all.into_iter().map(|(number, key)| (number, key.as_str().to_owned())).collect()
    })
}

fn owing<const N: usize>(all: [(u64, &str); N]) -> [Owing; 2] {
    let all: Owing = all.into_iter().map(|(number, key)| (number, key.to_owned())).collect();
    [all.clone(), all]
}

#[tokio::test]
async fn a_directory_owes_its_marker_in_the_next_mount_until_it_is_settled() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let engine = engine(dir.path(), "one", &client);
    let area = Area(Arc::clone(&engine.shared));
    let first = area.owe_marker(&"a/".into()).unwrap();
    let second = area.owe_marker(&"a/b/".into()).unwrap();
    assert_eq!(left(dir.path(), &client), owing([(first, "a/"), (second, "a/b/")]));
    area.owes_no_marker(second).unwrap();
    assert_eq!(left(dir.path(), &client), owing([(first, "a/")]));
    // The file that stands for a directory leaves the disk behind the record.
    assert!(area.is_to_sweep() && engine.shared.folder.path(second).exists());
    area.sync_all(Vec::new()).await.unwrap();
    assert!(!engine.shared.folder.path(second).exists());
    assert_eq!(left(dir.path(), &client), owing([(first, "a/")]));
    area.owes_no_marker(first).unwrap();
    assert_eq!(left(dir.path(), &client), owing([]));
}

#[tokio::test]
async fn a_directory_whose_file_a_loss_of_power_took_owes_its_marker() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let engine = engine(dir.path(), "one", &client);
    let number = Area(Arc::clone(&engine.shared)).owe_marker(&"a/".into()).unwrap();
    fs::remove_file(engine.shared.folder.path(number)).unwrap();
    assert_eq!(left(dir.path(), &client), owing([(number, "a/")]));
    // No file gets its number.
    drop(engine);
    let (next, _file) = super::engine(dir.path(), "two", &client).shared.folder.create().unwrap();
    assert!(next > number);
}

#[tokio::test]
async fn an_end_behind_damage_counts_and_the_directory_does_not_come_back() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let engine = engine(dir.path(), "one", &client);
    let area = Area(Arc::clone(&engine.shared));
    let numbers = ["gone/", "stays/"].map(|key| area.owe_marker(&key.into()).unwrap());
    let begin = engine.shared.folder.records();
    engine.shared.folder.append(&[Record::Synced { file: 77, is_whole: true }]).unwrap();
    area.owes_no_marker(numbers[0]).unwrap();
    drop((area, engine));
    // A loss of power took one record and left the one behind it.
    let path = dir.path().join("log");
    let (mut bytes, lost) =
        (fs::read(&path).unwrap(), Record::Synced { file: 77, is_whole: true }.frame(begin));
    let at = bytes.windows(lost.len()).position(|window| window == lost).expect("the log has the record");
    bytes[at..at + lost.len()].fill(0);
    fs::write(&path, bytes).unwrap();
    assert_eq!(left(dir.path(), &client), owing([(numbers[1], "stays/")]));
}

#[tokio::test]
async fn a_stage_that_owes_markers_is_refused_to_another_bucket() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let engine = engine(dir.path(), "one", &client);
    Area(Arc::clone(&engine.shared)).owe_marker(&"a/".into()).unwrap();
    drop(engine);
    let open = |bucket: &str, commit| {
        let mount = Mount { bucket: bucket.into(), boot: "one".into(), commit, ..Mount::default() };
        Folder::open(dir.path(), mount, 1 << 30, Clock::machine()).map(|(folder, ..)| folder.owing())
    };
    let other = format!("{:#}", open("other", Commit::Disk).unwrap_err());
    assert!(other.contains("still to be stored in bucket"), "{other}");
    let close = format!("{:#}", open("", Commit::Close).unwrap_err());
    assert!(close.contains("--commit disk or fsync"), "{close}");
    assert_eq!(open("", Commit::Fsync).unwrap().len(), 1);
}

#[tokio::test]
async fn a_directory_that_the_log_does_not_take_is_not_made() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let engine = engine(dir.path(), "one", &client);
    let area = Area(Arc::clone(&engine.shared));
    let first = area.owe_marker(&"a/".into()).unwrap();
    engine.shared.folder.refuse_records(true);
    area.owe_marker(&"b/".into()).unwrap_err();
    area.owes_no_marker(first).unwrap_err();
    engine.shared.folder.refuse_records(false);
    assert_eq!(left(dir.path(), &client), owing([(first, "a/")]));
    assert!(!area.is_to_sweep(), "its file stays");
}
