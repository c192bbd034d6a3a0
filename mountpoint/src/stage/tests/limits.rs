//! Limits of what a stage takes on its disk.

use std::os::unix::fs::PermissionsExt as _;

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn where_kept_files_fill_the_stage_nothing_grows_until_some_go() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let engine = engine_with(dir.path(), "one", &client, MIB as u64);
    let staged = engine.new_file("file");
    staged.write(0, b"abc").unwrap();
    // No file system makes them shorter.
    let mut bytes = vec![0; 900_000];
    fastrand::fill(&mut bytes);
    for key in ["first.json", "second"] {
        let file = engine.new_file(key);
        file.write(0, &bytes).unwrap();
        file.keep("a test").await.unwrap();
    }
    let kept = engine.shared.folder.kept_files();
    assert!(kept.files == 2 && kept.bytes >= 1_800_000, "{kept:?}");
    let refused = staged.write(3, b"d").unwrap_err();
    assert!(matches!(refused, Error::KeptFull { files: 2, .. }), "{refused}");
    // Bytes that are there may change, and what waits is sent.
    staged.write(0, b"A").unwrap();
    let turn = staged.turn().await;
    staged.store(&turn).await.unwrap().expect("there was a change");
    assert_eq!(stored(&client, "file"), b"Abc");

    assert_eq!(engine.shared.folder.kept_files().files, 2, "the refusal counted the folder");

    kept_in(dir.path()).unwrap()[0].remove().unwrap();
    let mut written = staged.write(3, b"d");
    for _ in 0..3_000 {
        if written.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        written = staged.write(3, b"d");
    }
    written.unwrap();
    assert_eq!(engine.shared.folder.kept_files().files, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_write_after_the_user_emptied_kept_succeeds() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let engine = engine_with(dir.path(), "one", &client, MIB as u64);
    let (file, staged) = (engine.new_file("kept.json"), engine.new_file("file"));
    let mut bytes = vec![0; MIB];
    fastrand::fill(&mut bytes);
    file.write(0, &bytes).unwrap();
    file.keep("a test").await.unwrap();
    drop(file);
    assert!(staged.waits_for_disk(), "it may have to count what is there");
    std::fs::remove_dir_all(dir.path().join("kept")).unwrap();
    staged.write(0, b"a").unwrap();
    assert_eq!(engine.shared.folder.kept_files(), KeptFiles::default());
    assert!(!staged.waits_for_disk());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_kept_though_the_user_removed_the_folder_kept() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let engine = engine(dir.path(), "one", &client);
    let file = engine.new_file("file");
    file.write(0, b"bytes").unwrap();
    std::fs::remove_dir_all(dir.path().join("kept")).unwrap();
    let kept = file.keep("a test").await.unwrap();
    assert_eq!(std::fs::read(kept).unwrap(), b"bytes");
    assert_eq!(std::fs::metadata(dir.path().join("kept")).unwrap().permissions().mode() & 0o777, 0o700);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_files_that_an_earlier_mount_kept_count() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    {
        let engine = engine(dir.path(), "one", &client);
        let file = engine.new_file("file");
        file.write(0, &[1; MIB]).unwrap();
        file.keep("a test").await.unwrap();
    }
    let engine = engine_with(dir.path(), "one", &client, MIB as u64);
    assert_eq!(engine.shared.folder.kept_files().files, 1);
    assert!(matches!(engine.new_file("next").write(0, b"x"), Err(Error::KeptFull { .. })));
}
