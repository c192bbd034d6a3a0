//! Listings that name another size than an object has, where an open believes them: a program reads the object's bytes, and never zeros behind
//! them.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::io::Errno;
use s3server::{Effect, Fault};

use crate::common::{Pattern, Setup, Store, TestMount};

/// Sizes of objects, and of their listings: the end within the first page, at its end, at the end of a request, within a later one, one
/// byte short, and at once.
const SIZES: [(usize, usize); 8] = [
    (1000, 300_000),
    (1000, 1001),
    (4096, 300_000),
    (131_072, 900_000),
    (262_144, 900_000),
    (300_000, 900_000),
    (3_000_000, 9_000_000),
    (0, 300_000),
];

/// Whether the kernel learns that a file ends earlier than its size. Linux before 5.17 may overlook it: there such a file is an error once.
fn kernel_learns_sizes() -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0u32), numbers.next().unwrap_or(0u32)) >= (5, 17)
}

/// A store with an honest file and one whose size the listing gets wrong; both are older than the mount.
fn store_that_lists(len: usize, listed: usize) -> Arc<Store> {
    let store = Store::new();
    for (name, len) in [("honest", 1000), ("file", len)] {
        let path = store.bucket_folder().join("dir").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, Pattern(1).bytes(0, len)).unwrap();
        let time = SystemTime::now() - Duration::from_secs(100);
        File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
    }
    let text = Some(listed.to_string());
    let size = Effect::Entry { key: Some("dir/file".to_owned()), element: "Size".to_owned(), text };
    store.faults().add(Fault::on("ListObjectsV2", size));
    store
}

/// Lists the directory, so that the kernel has the attributes of both files from a listing that the mount believes.
fn list(mount: &TestMount) {
    let entries = || fs::read_dir(mount.path("dir")).unwrap().map(|entry| entry.unwrap().metadata().unwrap());
    assert_eq!(entries().count(), 2);
    let honest = fs::read(mount.path("dir/honest")).unwrap_or_else(|e| panic!("{e}: {}", mount.log()));
    assert!(Pattern(1).is(0, &honest));
    assert_eq!(entries().count(), 2);
}

fn mounted(store: &Arc<Store>, options: &[&str]) -> Option<TestMount> {
    let options = [options, &["--metadata-ttl", "60"]].concat();
    let mount = TestMount::of(store, &Setup::new(&options))?;
    list(&mount);
    Some(mount)
}

/// Reads to the end in pieces, as a program without fstat does.
fn read_on(file: &File, piece: usize) -> io::Result<Vec<u8>> {
    let (mut all, mut bytes) = (Vec::new(), vec![0; piece]);
    loop {
        match file.read_at(&mut bytes, all.len() as u64)? {
            0 => return Ok(all),
            n => all.extend_from_slice(&bytes[..n]),
        }
    }
}

/// Whether a read gave all bytes, and none behind them. If the kernel does not learn sizes, or the file is past its cache, the first open
/// may be an error.
fn is_all(read: io::Result<Vec<u8>>, len: usize, may_fail: bool, what: &str) {
    let may_fail = may_fail && (!kernel_learns_sizes() || what.contains("direct"));
    match read {
        Ok(bytes) => {
            assert!(bytes.len() <= len, "{what}: {} bytes behind the end", bytes.len() - len);
            assert!(bytes.len() == len && Pattern(1).is(0, &bytes), "{what}: {} bytes", bytes.len());
        }
        Err(error) => {
            let is_stale = error.raw_os_error() == Some(Errno::STALE.raw_os_error());
            assert!(is_stale && may_fail, "{what}: {error}");
        }
    }
}

#[test]
fn a_file_that_is_shorter_than_its_listing_is_read_to_its_end() {
    for (len, listed) in SIZES {
        for (piece, options) in [
            (4096, ["--fuse-transport", "dev"]),
            (100_000, ["--fuse-transport", "fuser"]),
            (100_000, ["--fuse-transport", "io-uring"]),
            (1 << 20, ["--read-mode", "buffered"]),
            (1 << 20, ["--read-mode", "direct"]),
        ] {
            let store = store_that_lists(len, listed);
            let Some(mount) = mounted(&store, &options) else { return };
            let what = format!("{len} of {listed}, by {piece}, {options:?}");
            for round in 0..4 {
                let file = File::open(mount.path("dir/file")).unwrap();
                is_all(read_on(&file, piece), len, round == 0, &format!("{what}, open {round}"));
                is_all(read_on(&file, piece), len, round == 0, &format!("{what}, again"));
            }
            assert_eq!(fs::metadata(mount.path("dir/file")).unwrap().len(), len as u64, "{what}");
        }
    }
}

#[test]
fn many_readers_of_a_shorter_file_see_no_byte_behind_its_end() {
    for (len, listed) in SIZES {
        let store = store_that_lists(len, listed);
        let folder = tempfile::tempdir().unwrap();
        let Some(mount) = mounted(&store, &["--cache", folder.path().to_str().unwrap()]) else { return };
        std::thread::scope(|scope| {
            for reader in 0..8 {
                let path = mount.path("dir/file");
                scope.spawn(move || {
                    for round in 0..4 {
                        let what = format!("{len} of {listed}, reader {reader}, round {round}");
                        if reader == 7 {
                            let size = fs::metadata(&path).unwrap().len() as usize;
                            assert!(size == len || size == listed, "{what}: {size}");
                        }
                        let file = File::open(&path).unwrap();
                        is_all(read_on(&file, 1 << (12 + reader)), len, true, &what);
                    }
                });
            }
        });
    }
}

#[test]
fn a_read_behind_the_end_of_a_shorter_file_has_no_bytes() {
    let (len, listed) = (300_000, 900_000);
    for at in [300_000, 300_001, 310_000, 500_000, 899_992] {
        let store = store_that_lists(len, listed);
        let Some(mount) = mounted(&store, &[]) else { return };
        let file = File::open(mount.path("dir/file")).unwrap();
        for _ in 0..3 {
            match file.read_at(&mut [0; 8], at) {
                Ok(n) => assert_eq!(n, 0, "at {at}"),
                Err(error) => assert_eq!(error.raw_os_error(), Some(Errno::STALE.raw_os_error())),
            }
        }
        drop(file);
        let file = File::open(mount.path("dir/file")).unwrap();
        is_all(read_on(&file, 50_000), len, false, &format!("behind a read at {at}"));
    }
}

#[test]
fn a_file_that_is_longer_than_its_listing_is_read_to_its_end() {
    for (len, listed) in [(300_000, 1000), (300_000, 299_999), (9_000_000, 4096), (1000, 0)] {
        for piece in [4096, 1 << 20] {
            let store = store_that_lists(len, listed);
            let Some(mount) = mounted(&store, &[]) else { return };
            let what = format!("{len} of {listed}, by {piece}");
            for round in 0..3 {
                let file = File::open(mount.path("dir/file")).unwrap();
                is_all(read_on(&file, piece), len, false, &format!("{what}, open {round}"));
            }
        }
    }
}
