//! Files that are put into the folder of a store by hand. They have no ETag of the store's. The tests read, copy and replace them.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use crate::common::{Pattern, Setup, Store, TestMount, run, until};

const LEN: usize = 300_000;

/// Puts a file there in one step, with a time this many seconds ago.
fn put(folder: &Path, name: &str, pattern: u64, ago: u64) {
    let (path, new) = (folder.join(name), folder.join("new"));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&new, Pattern(pattern).bytes(0, LEN)).unwrap();
    let time = SystemTime::now() - Duration::from_secs(ago);
    File::options().write(true).open(&new).unwrap().set_modified(time).unwrap();
    fs::rename(new, path).unwrap();
}

#[test]
fn files_put_into_the_folder_of_a_store_are_read_and_seen_to_be_replaced() {
    let store = Store::new();
    if store.stands_in() {
        return;
    }
    let folder = store.bucket_folder();
    let names = ["dir/a", "dir/b", "dir/c"];
    names.iter().zip(1..).for_each(|(name, pattern)| put(&folder, name, pattern, 100));
    let cache = tempfile::tempdir().unwrap();
    let with_cache = ["--cache", cache.path().to_str().unwrap(), "--metadata-ttl", "minimal"];
    let mut newest = 1;
    for (options, listed) in [(&[][..], false), (&[], true), (&with_cache, false), (&with_cache, true)] {
        let Some(mount) = TestMount::of(&store, &Setup::new(options)) else { return };
        let is_read = |name: &str, pattern: u64| {
            let bytes = fs::read(mount.path(name)).unwrap_or_else(|e| panic!("{name}: {e}\n{}", mount.log()));
            bytes.len() == LEN && Pattern(pattern).is(0, &bytes)
        };
        if listed {
            assert_eq!(fs::read_dir(mount.path("dir")).unwrap().count(), names.len());
        }
        assert!(is_read(names[0], newest) && is_read(names[1], 2) && is_read(names[2], 3), "{options:?}");
        let copy = mount.scratch("copy");
        run(Command::new("cp").arg("-r").arg(mount.path("dir")).arg(&copy));
        assert!(Pattern(2).is(0, &fs::read(copy.join("b")).unwrap()));
        // The size is equal, the second is another.
        newest += 10;
        put(&folder, names[0], newest, 90 - newest);
        let is_new = |bytes: Vec<u8>| Pattern(newest).is(0, &bytes);
        until("the replacement is read", || fs::read(mount.path(names[0])).is_ok_and(is_new));
    }
}
