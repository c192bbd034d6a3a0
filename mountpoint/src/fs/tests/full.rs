//! `--mode full` over a bucket in memory: what becomes of files that another client stores meanwhile.

use std::path::Path;

use super::renames::{ino, rename};
use super::*;
use crate::inode::InodeNo;
use crate::moves::{self, Mover};
use crate::stage::{self, Area, Commit};

/// A file system with its stage in this directory, which may rename and overwrite.
fn staging(client: &MemoryClient, dir: &Path, clock: Clock) -> Arc<FileSystem> {
    let fs = by_clock(client, true, clock.clone());
    let config = stage::Config {
        dir: dir.to_owned(),
        size_max: 1 << 30,
        bucket: "bucket".into(),
        prefix: String::new(),
        endpoint: "memory".into(),
        commit: Commit::Close,
    };
    let pool = Pool::new(&buffer::Config { target: 64 << 20, network: 8 << 20 });
    let runtime = tokio::runtime::Handle::current();
    let area = Area::open(config, fs.uploader.clone(), fs.prefetcher.clone(), pool, clock, runtime).unwrap();
    Arc::new(fs.renaming(Mover::new(client.arc(), moves::Config::default())).in_full(area))
}

async fn open_to_write(fs: &FileSystem, ino: InodeNo) -> HandleNo {
    let wish = OpenFlags { write: true, ..OpenFlags::default() };
    fs.open(ino, wish, std::process::id()).await.unwrap().handle
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rename_does_not_mix_an_open_file_with_another_clients_version() {
    for (old, new, theirs) in [
        ("old", "new", None),
        ("old", "new", Some("abcdefghij")),
        ("old/file", "new/file", None),
        ("old/file", "new/file", Some("abcdefghij")),
    ] {
        let (client, dir) = (MemoryClient::new(), tempfile::tempdir().unwrap());
        client.insert(old, "0123456789");
        let fs = staging(&client, dir.path(), Clock::machine());
        let mut file = ino(&fs, "old").await.unwrap();
        if old.ends_with("file") {
            file = fs.lookup(file, OsStr::new("file")).await.unwrap().attr.ino;
        }
        let handle = open_to_write(&fs, file).await;
        if let Some(theirs) = theirs {
            client.insert(old, theirs);
        }
        rename(&fs, "old", "new").await.unwrap();
        assert_eq!(client.keys(), [new]);
        fs.write(handle, 3, b"X", 0, |result| result.unwrap());
        let synced = fs.fsync(handle).await;
        assert_eq!(synced.is_ok(), theirs.is_none(), "{old} {theirs:?}: {synced:?}");
        assert_eq!(client.object(new).unwrap(), theirs.unwrap_or("012X456789"));
        assert_eq!(client.keys(), [new]);
    }
}
