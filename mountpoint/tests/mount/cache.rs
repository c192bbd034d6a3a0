//! A cache on disk, from one mount to the next: the engine does not fetch cached bytes again, except damaged ones.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mountpoint::first;

use crate::common::{Pattern, Setup, Store, TestMount, until};

/// Five blocks and a bit.
pub(super) const LEN: usize = (5 << 20) + 12_345;

/// Mounts, reads the file, unmounts; how many GETs that took. `None` where there is no FUSE.
pub(super) fn gets_of_one_reading(store: &Arc<Store>, cache: &Path) -> Option<u64> {
    let mount = TestMount::of(store, &setup(cache))?;
    store.requests().reset();
    let bytes = fs::read(mount.path("file")).unwrap();
    assert!(bytes.len() == LEN && Pattern(1).is(0, &bytes), "wrong bytes");
    let gets = store.requests().count("GetObject");
    // Blocks that still wait to be written at the unmount are not kept.
    until_kept("the cache holds what was read", &mount.path("file"), || {
        data_files(cache).iter().any(|file| holds_all(file) && is_described(file) && is_proven(file))
    });
    drop(mount);
    Some(gets)
}

/// Waits until the cache holds this file. A cache whose disk is busy rests, and drops the blocks that come meanwhile; a repeated read
/// offers them again. Each reading uses an open of its own: a long-lived open has its bytes in memory, and requests none anew.
pub(super) fn until_kept(what: &str, path: &Path, is_kept: impl Fn() -> bool) {
    until(what, || {
        is_kept() || {
            assert!(reads_all_right(path, LEN, Pattern(1)), "wrong bytes");
            is_kept()
        }
    });
}

/// A mount with this cache, on a disk however full.
pub(super) fn setup(cache: &Path) -> Setup {
    Setup::new(&["--cache", cache.to_str().unwrap(), "--max-cache-size", "64"])
}

/// The files with the bytes of objects.
pub(super) fn data_files(below: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(below).unwrap().map(|entry| entry.unwrap().path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let here = files.into_iter().filter(|path| path.extension().is_some_and(|e| e == "data"));
    here.chain(folders.iter().flat_map(|folder| data_files(folder))).collect()
}

/// Whether the next mount may serve this file: the sidecar records the comparison with the store's checksum, or that the file came over
/// TLS.
pub(super) fn is_proven(file: &Path) -> bool {
    fs::read(file.with_extension("meta")).is_ok_and(|sidecar| sidecar.get(38) == Some(&1))
}

/// Whether the sidecar was written behind the last bytes.
fn is_described(file: &Path) -> bool {
    let written = |file: &Path| fs::metadata(file).and_then(|meta| meta.modified()).ok();
    written(&file.with_extension("meta")) >= written(file)
}

fn holds_all(file: &Path) -> bool {
    fs::read(file).is_ok_and(|bytes| bytes.len() == LEN && Pattern(1).is(0, &bytes))
}

#[test]
fn what_an_earlier_mount_read_is_not_asked_for_again_and_rot_is_noticed() {
    let (store, cache) = (Store::new(), tempfile::tempdir().unwrap());
    store.put("file", Pattern(1).bytes(0, LEN));
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

#[test]
fn a_cache_of_one_store_is_not_served_for_a_bucket_of_that_name_elsewhere() {
    let cache = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let store = Store::new();
        store.put("file", Pattern(1).bytes(0, LEN));
        let Some(gets) = gets_of_one_reading(&store, cache.path()) else { return };
        assert!(gets > 0, "key, bytes and so the ETag are the same, and the endpoint is not");
    }
}

/// Opens a file with O_DIRECT, past the page cache.
pub(super) fn open_direct(path: &Path) -> fs::File {
    use std::os::unix::fs::OpenOptionsExt as _;
    let direct = rustix::fs::OFlags::DIRECT.bits().cast_signed();
    fs::File::options().read(true).custom_flags(direct).open(path).unwrap()
}

/// Reads a whole file past the page cache. Returns whether it has these bytes.
pub(super) fn reads_all_right(path: &Path, len: usize, pattern: Pattern) -> bool {
    let mut bytes = Vec::new();
    open_direct(path).read_to_end(&mut bytes).unwrap();
    bytes.len() == len && pattern.is(0, &bytes)
}

/// Reads past the page cache of the mount, so that each read reaches the engine.
fn reads_right(file: &fs::File, at: u64, len: usize) -> bool {
    let mut bytes = vec![0; len];
    let n = file.read_at(&mut bytes, at).unwrap();
    n == len && Pattern(1).is(at, &bytes)
}

/// Reads the whole file anew from the engine, as after a shortage of memory: the kernel drops its pages first.
fn reads_right_after_dropped_pages(path: &Path) -> bool {
    let file = fs::File::open(path).unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let mut bytes = vec![0; LEN];
    file.read_exact_at(&mut bytes, 0).unwrap();
    Pattern(1).is(0, &bytes)
}

#[test]
fn cached_bytes_changed_after_a_first_read_are_fetched_anew() {
    type Damage = fn(&fs::File);
    let damage: [(&str, Damage); 3] = [
        ("a bit flipped", |file| {
            let mut byte = [0];
            file.read_exact_at(&mut byte, (2 << 20) + 5).unwrap();
            file.write_all_at(&[byte[0] ^ 1], (2 << 20) + 5).unwrap();
        }),
        ("cut off", |file| file.set_len(2 << 20).unwrap()),
        ("cut off, and zeros where it was", |file| {
            file.set_len(2 << 20).and_then(|()| file.set_len(LEN as u64)).unwrap();
        }),
    ];
    let (store, cache) = (Store::new(), tempfile::tempdir().unwrap());
    store.put("file", Pattern(1).bytes(0, LEN));
    let Some(mount) = TestMount::of(&store, &setup(cache.path())) else { return };
    let path = mount.path("file");
    // Direct: the kernel may keep pages that it was asked to drop. A put may be lost, as when its block is just being dropped: then
    // the next reading keeps it.
    let kept = || {
        until("the cache holds what was read", || {
            let is_written = data_files(cache.path()).iter().any(|file| holds_all(file));
            // The engine takes note of a block behind its bytes: a reading that costs nothing shows that it did.
            store.requests().reset();
            assert!(reads_all_right(&path, LEN, Pattern(1)));
            is_written && store.requests().count("GetObject") == 0
        });
    };
    assert!(reads_right_after_dropped_pages(&path));
    kept();
    for (what, damage) in damage {
        let file = open_direct(&path);
        store.requests().reset();
        for _ in 0..2 {
            assert!(reads_right(&file, 2 << 20, 4096) && reads_right(&file, 2 << 20, 1 << 20));
            assert!(reads_right_after_dropped_pages(&path));
        }
        assert_eq!(store.requests().count("GetObject"), 0, "{what}: all of it comes out of the cache");
        damage(&fs::File::options().read(true).write(true).open(&data_files(cache.path())[0]).unwrap());
        assert!(reads_right(&file, 2 << 20, 4096), "{what}: a page, direct");
        assert!(reads_right(&file, 2 << 20, 1 << 20), "{what}: a block, direct");
        assert!(reads_right_after_dropped_pages(&path), "{what}: all of it, through the page cache");
        assert!(store.requests().count("GetObject") > 0, "{what}: what is not sound is asked for");
        // Open, it would hold bytes in memory whose put was lost, and no reading would fetch them again.
        drop(file);
        kept();
    }
}

#[test]
fn a_random_4_kib_read_costs_a_page_without_a_cache_and_64_kib_with_one() {
    const BLOCKS: u64 = 24;
    // A request's answer also has a head.
    const HEAD: u64 = 400;
    /// Most passes: a busy machine writes to the cache late, and notices late that it can not.
    const PASSES: u64 = 12;
    /// Passes in which the engine learns when an answer is late; no request goes out a second time before ...
    const LEARN: u64 = 2;
    /// ... and later this many may at once.
    const LATE_MAX: u64 = 4;
    const ALL: u64 = u64::MAX;
    let store = Store::new();
    let len = (BLOCKS << 20) as usize;
    store.put("file", Pattern(1).bytes(0, len));
    let cost = |options: &[&str], least: u64, most: u64, spoil: &dyn Fn()| {
        let mount = TestMount::of(&store, &Setup::new(options))?;
        store.requests().reset();
        let file = open_direct(&mount.path("file"));
        spoil();
        // On a busy machine the open comes long after its lookup, and brings the first bytes.
        let brought = store.requests().count("GetObject") * first::LEN as u64;
        until("the open is counted", || store.requests().bytes_sent() >= brought);
        let mut each = 0;
        for pass in 0..PASSES {
            store.requests().reset();
            // The reads come from both ends in turn: reads at a constant distance would be fetched ahead.
            for n in 1..BLOCKS {
                let block = if n % 2 == 1 { n.div_ceil(2) } else { BLOCKS - n / 2 };
                assert!(reads_right(&file, (block << 20) + 8192 + pass * (64 << 10), 4096));
            }
            let asked = store.requests().count("GetObject");
            let late_max = if pass < LEARN { 0 } else { LATE_MAX };
            assert!((BLOCKS - 1..=BLOCKS - 1 + late_max).contains(&asked), "{asked} requests in pass {pass}");
            // The server counts an answer when it was taken, which may be a moment after it came.
            let count = || store.requests().bytes_sent() / (BLOCKS - 1);
            until("the answers are counted", || count() >= least);
            each = count();
            if each < most {
                break;
            }
        }
        Some(each)
    };
    let nothing = || ();
    let Some(without) = cost(&[], 4096, ALL, &nothing) else { return };
    assert!((4096..4096 + HEAD).contains(&without), "without a cache: {without} bytes each");
    let (full, healthy, dead) = (tempfile::tempdir(), tempfile::tempdir(), tempfile::tempdir());
    let folders = [full, healthy, dead].map(Result::unwrap);
    let [full, healthy, dead] = folders.each_ref().map(|folder| folder.path().to_str().unwrap());
    let full = cost(&["--cache", full, "--max-cache-size", "1"], 4096, ALL, &nothing).unwrap();
    assert!((4096..4096 + HEAD).contains(&full), "no room for a block: {full} bytes each");
    let kept = cost(&["--cache", healthy, "--max-cache-size", "64"], 65_536, ALL, &nothing).unwrap();
    assert!((65_536..65_536 + HEAD).contains(&kept), "a cache that keeps it: {kept} bytes each");
    let gone = cost(&["--cache", dead, "--max-cache-size", "64"], 4096, 32_768, &|| {
        // The open may have brought bytes, and their put makes files while this removes them.
        let cache = Path::new(dead).join("mount-s3-cache");
        until("the cache's directory is removed", || fs::remove_dir_all(&cache).is_ok());
    });
    let gone = gone.unwrap();
    assert!(gone < 32_768, "a directory that is gone is noticed after a few: {gone} bytes each");
}

#[test]
fn two_direct_readers_in_lockstep_fetch_a_file_once() {
    const EACH: usize = 128 << 10;
    let store = Store::new();
    let len = (24 << 20) + 777;
    store.put("file", Pattern(1).bytes(0, len));
    let Some(mount) = TestMount::of(&store, &Setup::new(&[])) else { return };
    store.requests().reset();
    let files = [0, 1].map(|_| open_direct(&mount.path("file")));
    for at in (0..len).step_by(EACH) {
        for file in &files {
            assert!(reads_right(file, at as u64, EACH.min(len - at)), "at {at}");
        }
    }
    until("the answers are counted", || store.requests().bytes_sent() >= len as u64);
    let (sent, heads) = (store.requests().bytes_sent(), store.requests().count("GetObject") * 400);
    // Both opens may bring the first bytes.
    let most = (len + first::LEN) as u64 + heads + 4000;
    assert!((len as u64..=most).contains(&sent), "{sent} bytes for {len}");
}

/// Looks after a rename, before another one is tried.
const CARRY_LOOKS: u32 = 200;
const CARRY_LOOK_EVERY: Duration = Duration::from_millis(20);

#[test]
fn cached_bytes_of_a_renamed_file_are_not_fetched_again() {
    let (store, cache) = (Store::new(), tempfile::tempdir().unwrap());
    store.plant("file", &Pattern(1).bytes(0, LEN));
    let mut setup = setup(cache.path());
    setup.options.extend(["--allow-rename", "--store", "aws"].map(str::to_owned));
    let Some(mount) = TestMount::of(&store, &setup) else { return };
    let whole = || data_files(cache.path()).into_iter().filter(|file| holds_all(file)).collect::<Vec<_>>();
    let mut name = mount.path("file");
    let mut new = (1..).map(|n| mount.path(&format!("new-{n}")));
    // A block that a busy disk gives or takes late is not carried: then the next rename shows it.
    until("the cache holds it under its new name alone", || {
        until_kept("the cache holds what was read", &name, || whole().iter().any(|file| is_described(file)));
        let (before, to) = (data_files(cache.path()), new.next().unwrap());
        fs::rename(&name, &to).unwrap();
        name = to;
        (0..CARRY_LOOKS).any(|_| {
            std::thread::sleep(CARRY_LOOK_EVERY);
            let now = data_files(cache.path());
            let is_there = whole().iter().any(|file| !before.contains(file) && is_described(file));
            is_there && now.len() <= before.len()
        })
    });
    store.requests().reset();
    assert!(reads_all_right(&name, LEN, Pattern(1)));
    // A lookup may bring the first bytes along.
    assert!(store.requests().bytes_sent() < 1 << 20, "{} bytes came", store.requests().bytes_sent());
}
