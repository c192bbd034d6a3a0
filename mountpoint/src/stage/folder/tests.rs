//! The directory of a stage: what is in it, for how long, and what the next mount finds.

use std::os::unix::fs::FileExt as _;

use super::*;

fn open(dir: &Path) -> anyhow::Result<(Folder, Vec<Kept>)> {
    let mount = log::Mount { bucket: "bucket".into(), ..log::Mount::default() };
    let (folder, kept, pending) = Folder::open(dir, mount, 100, Clock::manual())?;
    assert_eq!(pending, [], "the mount promised the bucket at close");
    Ok((folder, kept))
}

fn dirty(file: u64, key: Option<&str>, is_partial: bool) -> Dirty {
    Dirty { file, key: key.map(str::to_owned), is_partial, ..Dirty::default() }
}

fn note(folder: &Folder, dirty: Dirty) {
    folder.note_dirty(dirty, &Runs::default()).unwrap();
}

#[test]
fn what_was_not_stored_is_kept_and_named_by_the_next_mount() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, left) = open(dir.path()).unwrap();
    assert!(left.is_empty());
    let made: Vec<_> = (0..6).map(|_| folder.create().unwrap()).collect();
    let numbers: Vec<u64> = made.iter().map(|(number, _)| *number).collect();
    for (number, file) in &made[..5] {
        file.write_all_at(&number.to_le_bytes(), 0).unwrap();
    }
    note(&folder, dirty(numbers[0], Some("dir/new\n.txt"), false));
    note(&folder, dirty(numbers[1], Some("stored"), false));
    folder.remove(numbers[1], false).unwrap();
    note(&folder, dirty(numbers[2], Some("patched"), true));
    note(&folder, dirty(numbers[3], None, false));
    // The last two files have no record; the disk shows that one of them was written.
    assert!(open(dir.path()).unwrap_err().to_string().contains("another mount"));
    drop(folder);
    let (folder, left) = open(dir.path()).unwrap();
    let named: Vec<_> = left.iter().map(|kept| (kept.key.as_deref(), kept.is_partial)).collect();
    assert_eq!(named, [(Some("dir/new\n.txt"), false), (Some("patched"), true), (None, true)]);
    assert_eq!(fs::read(&left[0].file).unwrap(), numbers[0].to_le_bytes());
    assert!(left[0].file.ends_with(format!("kept/{}-new_.txt", numbers[0])));
    assert_eq!(fs::read_dir(dir.path().join("files")).unwrap().count(), 0);
    assert_eq!(fs::read_dir(dir.path().join("kept")).unwrap().count(), 6);
    assert!(folder.create().unwrap().0 > numbers[5], "no file takes the place of a kept one");
    drop(folder);
    assert!(open(dir.path()).unwrap().1.is_empty(), "once");
    assert_eq!(fs::metadata(dir.path()).unwrap().permissions().mode() & 0o777, 0o700);
}

#[test]
fn a_sealed_file_is_whole_and_a_change_after_it_says_so_too() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, _) = open(dir.path()).unwrap();
    let (number, _file) = folder.create().unwrap();
    note(&folder, dirty(number, Some("a"), true));
    folder.append(&[Record::Sealed { file: number }]).unwrap();
    drop(folder);
    assert!(!open(dir.path()).unwrap().1[0].is_partial);
}

#[test]
fn the_log_stays_short_and_says_what_lives() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, _) = open(dir.path()).unwrap();
    let (lives, _file) = folder.create().unwrap();
    let key = "k".repeat(500);
    note(&folder, dirty(lives, Some("lives"), true));
    for _ in 0..3_000 {
        let (number, _file) = folder.create().unwrap();
        note(&folder, dirty(number, Some(&key), false));
        folder.remove(number, false).unwrap();
    }
    assert!(fs::metadata(dir.path().join("log")).unwrap().len() <= LOG_MAX + LOG_AHEAD + 10_000);
    drop(folder);
    let left = open(dir.path()).unwrap().1;
    assert_eq!(left.iter().map(|kept| kept.key.as_deref()).collect::<Vec<_>>(), [Some("lives")]);
}

#[test]
fn removed_files_leave_the_disk_though_one_of_them_can_not() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, _) = open(dir.path()).unwrap();
    let numbers: Vec<_> = (0..3).map(|_| folder.create().unwrap().0).collect();
    for number in &numbers {
        note(&folder, dirty(*number, Some("a"), false));
        folder.remove(*number, true).unwrap();
    }
    fs::remove_file(folder.path(numbers[0])).unwrap();
    fs::create_dir(folder.path(numbers[0])).unwrap();
    folder.sweep().unwrap_err();
    assert!(!folder.path(numbers[1]).exists() && !folder.path(numbers[2]).exists());
    fs::remove_dir(folder.path(numbers[0])).unwrap();
    assert!(folder.is_to_sweep());
    folder.sweep().unwrap();
    assert!(!folder.is_to_sweep());
}

#[test]
fn names_that_could_not_be_synced_once_are_never_said_to_be_safe() {
    let dir = tempfile::tempdir().unwrap();
    let (mut folder, _) = open(dir.path()).unwrap();
    folder.sync_names(folder.names_made()).unwrap();
    // A pipe can't be synced.
    let pipe = File::from(rustix::pipe::pipe().unwrap().0);
    let names = std::mem::replace(&mut folder.names.dir, pipe);
    folder.create().unwrap();
    folder.sync_names(folder.names_made()).unwrap_err();
    folder.names.dir = names;
    assert!(folder.sync_names(folder.names_made()).unwrap_err().to_string().contains("an earlier sync"));
}

#[test]
fn a_failed_sync_of_names_fails_for_each_thread_that_waits_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, _) = open(dir.path()).unwrap();
    folder.create().unwrap();
    folder.disk.fail(1..2);
    folder.disk.hold(1..2);
    std::thread::scope(|threads| {
        let sync = || folder.sync_names(folder.names_made());
        let first = threads.spawn(sync);
        while folder.disk.calls() < 1 {
            std::thread::yield_now();
        }
        let second = threads.spawn(sync);
        std::thread::sleep(std::time::Duration::from_millis(50));
        folder.disk.hold(0..0);
        assert!(first.join().unwrap().is_err() && second.join().unwrap().is_err());
    });
}

#[test]
fn the_log_has_room_on_the_disk_ahead_of_its_records() {
    use std::os::unix::fs::MetadataExt as _;

    let dir = tempfile::tempdir().unwrap();
    let (folder, _) = open(dir.path()).unwrap();
    // File systems without fallocate reserve no room.
    let probe = fs::File::create(dir.path().join("probe")).unwrap();
    if rustix::fs::fallocate(&probe, rustix::fs::FallocateFlags::KEEP_SIZE, 0, LOG_AHEAD).is_err() {
        return;
    }
    for number in 0..5_000 {
        note(&folder, dirty(number, Some("some/key"), false));
        let (log, records) = (fs::metadata(dir.path().join("log")).unwrap(), folder.log.lock().len);
        assert!(log.blocks() * 512 >= records + LOG_AHEAD / 4, "{number}: {}", log.blocks());
        // A sync of the next records is one of bytes alone.
        assert!(log.len() >= records + LOG_AHEAD / 4, "{number}: {}", log.len());
    }
}

#[test]
fn a_record_behind_a_refused_one_is_found_by_the_next_mount() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, _) = open(dir.path()).unwrap();
    let made = [0; 3].map(|_| folder.create().unwrap().0);
    note(&folder, dirty(made[0], Some("first"), false));
    // Half of the record gets to the disk.
    folder.disk.fail(1..2);
    folder.note_dirty(dirty(made[1], Some("refused"), false), &Runs::default()).unwrap_err();
    folder.disk.fail(0..0);
    note(&folder, dirty(made[2], Some("third"), false));
    drop(folder);
    let (_, left) = open(dir.path()).unwrap();
    assert_eq!(
        left.iter().map(|kept| kept.key.as_deref()).collect::<Vec<_>>(),
        [Some("first"), Some("third")]
    );
}

#[test]
fn bytes_beyond_the_limit_are_refused_and_room_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, _) = open(dir.path()).unwrap();
    folder.take(100).unwrap();
    assert!(matches!(folder.take(1), Err(Error::Full { limit: 100 })));
    folder.give(50);
    folder.take(50).unwrap();
    assert_eq!(folder.used(), 100);
}
