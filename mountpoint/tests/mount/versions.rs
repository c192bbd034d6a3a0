//! A bucket that keeps versions: a delete leaves a marker, a replaced object an old version, and files behave as in other buckets.

use std::fs::{self, File};
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::FileExt as _;

use rustix::io::Errno;

use crate::common::{Pattern, Setup, Store, TestMount, until};

const LEN: usize = 24 << 20;

#[test]
fn a_file_deleted_from_a_versioned_bucket_is_gone_and_its_version_is_kept() {
    let store = Store::new();
    if store.stands_in() {
        return;
    }
    store.keep_versions();
    let Some(mount) = TestMount::of(&store, &Setup::new(&["--allow-delete"])) else { return };
    let path = mount.path("file");
    let mut file = File::create_new(&path).unwrap();
    std::io::Write::write_all(&mut file, b"one").unwrap();
    drop(file);
    assert_eq!(fs::read(&path).unwrap(), b"one");
    assert_eq!(File::create_new(&path).unwrap_err().kind(), ErrorKind::AlreadyExists);
    fs::remove_file(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(fs::read_dir(mount.dir()).unwrap().count(), 0, "a marker shows as no file");
    let (versions, markers) = store.versions();
    assert_eq!((versions, markers), (1, 1), "nothing was lost");
}

#[test]
fn a_file_made_anew_behind_a_delete_marker_is_stored() {
    let store = Store::new();
    if store.stands_in() {
        return;
    }
    store.keep_versions();
    let Some(mount) = TestMount::of(&store, &Setup::new(&["--allow-delete"])) else { return };
    // The small file is stored by one request, the large one in parts.
    for (name, len) in [("small", 3), ("large", LEN)] {
        let path = mount.path(name);
        for seed in [1, 2] {
            let mut file = File::create_new(&path).unwrap();
            std::io::Write::write_all(&mut file, &Pattern(seed).bytes(0, len)).unwrap();
            file.sync_all().unwrap_or_else(|e| panic!("{name} {seed}: {e}\n{}", mount.log()));
            drop(file);
            assert!(Pattern(seed).is(0, &fs::read(&path).unwrap()), "{name} {seed}");
            let taken = File::create_new(&path).unwrap_err();
            assert_eq!(taken.kind(), ErrorKind::AlreadyExists, "{name}");
            if seed == 1 {
                fs::remove_file(&path).unwrap();
                assert_eq!(fs::metadata(&path).unwrap_err().kind(), ErrorKind::NotFound);
            }
        }
    }
}

#[test]
fn a_reader_in_a_versioned_bucket_hears_estale_once_its_version_goes() {
    let store = Store::new();
    if store.stands_in() {
        return;
    }
    store.keep_versions();
    store.put("file", Pattern(1).bytes(0, LEN));
    let Some(mount) = TestMount::of(&store, &Setup::new(&[])) else { return };
    let path = mount.path("file");
    let begun = |seed| {
        let mut file = File::open(&path).unwrap();
        let mut first = [0; 4096];
        file.read_exact(&mut first).unwrap();
        assert!(Pattern(seed).is(0, &first));
        file
    };
    let is_stale = |file: &File| {
        let read = file.read_at(&mut [0; 4096], LEN as u64 - 4096);
        assert_eq!(read.unwrap_err().raw_os_error(), Some(Errno::STALE.raw_os_error()));
    };
    let old = begun(1);
    store.put("file", Pattern(2).bytes(0, LEN));
    is_stale(&old);
    assert!(Pattern(2).is(0, &fs::read(&path).unwrap()), "a new open reads the version that is there");
    let new = begun(2);
    store.remove("file");
    is_stale(&new);
    until("the marker is seen", || File::open(&path).is_err_and(|it| it.kind() == ErrorKind::NotFound));
}

#[test]
fn locked_versions_stay_when_files_are_replaced_renamed_and_removed() {
    let store = Store::new();
    if store.stands_in() {
        return;
    }
    store.keep_versions();
    let flags = ["--allow-delete", "--allow-overwrite", "--allow-rename"];
    let Some(mount) = TestMount::of(&store, &Setup::new(&flags)) else { return };
    // The small file is stored by one request, the large one in parts; the locks come once the first version is there.
    let files = [("small", 3), ("large", LEN)];
    for (name, len) in files {
        fs::write(mount.path(name), Pattern(1).bytes(0, len)).unwrap();
    }
    store.lock_versions(&["small", "large"]);
    for (name, len) in files {
        let (path, moved) = (mount.path(name), mount.path(&format!("moved-{name}")));
        let is = |path: &std::path::Path, seed| {
            let bytes = fs::read(path).unwrap_or_else(|e| panic!("{name} {seed}: {e}\n{}", mount.log()));
            assert!(bytes.len() == len && Pattern(seed).is(0, &bytes), "{name} {seed}");
        };
        fs::write(&path, Pattern(2).bytes(0, len)).unwrap_or_else(|e| panic!("{name}: {e}\n{}", mount.log()));
        is(&path, 2);
        fs::rename(&path, &moved).unwrap_or_else(|e| panic!("{name}: {e}\n{}", mount.log()));
        assert_eq!(fs::metadata(&path).unwrap_err().kind(), ErrorKind::NotFound, "{name}");
        is(&moved, 2);
        fs::remove_file(&moved).unwrap_or_else(|e| panic!("{name}: {e}\n{}", mount.log()));
        assert_eq!(fs::metadata(&moved).unwrap_err().kind(), ErrorKind::NotFound, "{name}");
        // The held version, the one that replaced it, and the copy under the other name.
        assert_eq!((store.refused_versions(name), store.refused_versions(&format!("moved-{name}"))), (2, 1));
    }
    assert_eq!(fs::read_dir(mount.dir()).unwrap().count(), 0);
    assert_eq!(store.versions(), (6, 4), "nothing was lost");
}
