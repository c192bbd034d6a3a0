//! A cache on disk, from one mount to the next: what it holds is not asked for again, what it holds wrong is.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{Pattern, Setup, Store, TestMount};

/// Five blocks and a bit.
pub(super) const LEN: usize = (5 << 20) + 12_345;

/// Mounts, reads the file, unmounts; how many GETs that took. `None` where there is no FUSE.
pub(super) fn gets_of_one_reading(store: &Arc<Store>, cache: &Path) -> Option<u64> {
    let mount = TestMount::of(store, &setup(cache))?;
    store.requests().reset();
    let bytes = fs::read(mount.path("file")).unwrap();
    assert!(bytes.len() == LEN && Pattern(1).is(0, &bytes), "wrong bytes");
    let gets = store.requests().count("GetObject");
    // What still waits to be written at the unmount is not kept.
    let until = Instant::now() + Duration::from_secs(60);
    while !data_files(cache).iter().any(|file| holds_all(file)) {
        assert!(Instant::now() < until, "the cache never holds what was read");
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(mount);
    Some(gets)
}

/// A mount with this cache, on a disk however full.
pub(super) fn setup(cache: &Path) -> Setup {
    Setup::new(&["--cache", cache.to_str().unwrap(), "--max-cache-size", "64"])
}

fn data_files(below: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(below).unwrap().map(|entry| entry.unwrap().path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let here = files.into_iter().filter(|path| path.extension().is_some_and(|e| e == "data"));
    here.chain(folders.iter().flat_map(|folder| data_files(folder))).collect()
}

fn holds_all(file: &Path) -> bool {
    fs::read(file).is_ok_and(|bytes| bytes.len() == LEN && Pattern(1).is(0, &bytes))
}

#[test]
fn what_an_earlier_mount_read_is_not_asked_for_again_and_rot_is_noticed() {
    let (store, cache) = (Store::new(), tempfile::tempdir().unwrap());
    store.plant("file", &Pattern(1).bytes(0, LEN));
    let Some(cold) = gets_of_one_reading(&store, cache.path()) else { return };
    assert!(cold > 0, "the first time it comes from the store");
    assert_eq!(gets_of_one_reading(&store, cache.path()), Some(0), "the second time it is all here");

    let files = data_files(cache.path());
    assert_eq!(files.len(), 1, "one object version: {files:?}");
    let file = fs::File::options().read(true).write(true).open(&files[0]).unwrap();
    let (place, mut byte) = ((2 << 20) + 5, [0]);
    file.read_exact_at(&mut byte, place).unwrap();
    assert!(Pattern(1).is(place, &byte), "bytes lie at their offsets");
    file.write_all_at(&[!byte[0]], place).unwrap();

    let mended = gets_of_one_reading(&store, cache.path()).unwrap();
    assert!(mended > 0, "the block that rotted is asked for");
    assert_eq!(gets_of_one_reading(&store, cache.path()), Some(0), "and kept again");
}
