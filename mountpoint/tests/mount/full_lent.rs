//! Staged files that the kernel writes by itself (`--stage-passthrough auto`): a byte that the test changes in the stage shows
//! whether a program's file is the staged one, or pages of the mount.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use rustix::fs::OFlags;
use tempfile::TempDir;

use super::full::{FullMount, kept, setup};
use super::passthrough::has_passthrough;
use crate::common::{Pattern, Store, python, until};

const LENT: &[&str] = &["--commit", "disk", "--stage-passthrough", "auto"];

fn mounted(store: &Arc<Store>) -> Option<FullMount> {
    if !has_passthrough() || crate::TRANSPORT == "fuser" {
        return None;
    }
    FullMount::of(store, LENT)
}

fn files_of(stage: &TempDir) -> usize {
    fs::read_dir(stage.path().join("files")).unwrap().count()
}

/// Whether this open file, the only one of its length, is the one in the stage.
fn is_the_kernels(stage: &TempDir, file: &File) -> bool {
    let len = file.metadata().unwrap().len();
    let mut read = [0];
    file.read_exact_at(&mut read, len - 1).unwrap();
    let all = fs::read_dir(stage.path().join("files")).unwrap().map(|entry| entry.unwrap().path());
    let staged = all.into_iter().find(|path| path.metadata().is_ok_and(|about| about.len() == len)).unwrap();
    let staged = File::options().write(true).open(staged).unwrap();
    staged.write_all_at(&[!read[0]], len - 1).unwrap();
    let mut seen = [0];
    file.read_exact_at(&mut seen, len - 1).unwrap();
    staged.write_all_at(&read, len - 1).unwrap();
    seen != read
}

fn create(path: &Path) -> File {
    File::options().read(true).write(true).create(true).truncate(true).open(path).unwrap()
}

#[test]
fn what_the_kernel_writes_by_itself_shows_at_once_and_is_stored() {
    let store = Store::new();
    store.plant("replaced", &Pattern(1).bytes(0, 5_000_000));
    let Some(full) = mounted(&store) else { return };
    let mut expected = Pattern(2).bytes(0, 3_000_000);
    for name in ["new", "replaced"] {
        let mut file = create(&full.path(name));
        file.write_all(&expected).unwrap();
        assert!(is_the_kernels(&full.stage, &file), "{name}");
        let before = file.metadata().unwrap();
        assert_eq!(before.len(), 3_000_000);
        // Other programs, before it is closed.
        assert!(fs::read(full.path(name)).unwrap() == expected);
        let mut end = File::options().append(true).open(full.path(name)).unwrap();
        end.write_all(b"the end").unwrap();
        std::thread::sleep(Duration::from_millis(20));
        file.write_all_at(b"start", 0).unwrap();
        let about = fs::metadata(full.path(name)).unwrap();
        assert_eq!(about.len(), 3_000_007);
        assert!(about.modified().unwrap() > before.modified().unwrap());
        file.sync_all().unwrap();
        file.set_len(2_500_000).unwrap();
        file.set_len(2_600_000).unwrap();
        let synced = OFlags::WRONLY | OFlags::DSYNC;
        let synced = rustix::fs::open(full.path(name), synced, rustix::fs::Mode::empty()).map(File::from);
        synced.unwrap().write_all_at(b"durable", 1_000_000).unwrap();
        let mut seen = vec![0; 2_600_000];
        file.read_exact_at(&mut seen, 0).unwrap();
        expected[..5].copy_from_slice(b"start");
        expected[1_000_000..1_000_007].copy_from_slice(b"durable");
        expected.truncate(2_500_000);
        expected.resize(2_600_000, 0);
        assert!(seen == expected, "{name}");
        fs::rename(full.path(name), full.path("other")).unwrap();
        drop((file, end));
        // By the engine again: the kernel's pages are not those of before.
        assert!(fs::read(full.path("other")).unwrap() == expected);
        until("it is stored", || files_of(&full.stage) == 0);
        assert!(store.get("other").unwrap() == expected, "{name}");
        assert!(fs::read(full.path("other")).unwrap() == expected);
        assert_eq!(fs::metadata(full.path("other")).unwrap().size(), 2_600_000);
        expected = Pattern(2).bytes(0, 3_000_000);
    }
    assert_eq!(store.keys(), ["other"]);
    assert!(kept(&full.stage).is_empty());
    // The same without the kernel's help, as by default.
    let Some(full) = FullMount::of(&store, &["--commit", "disk"]) else { return };
    let mut file = create(&full.path("new"));
    file.write_all(b"by the engine").unwrap();
    assert!(!is_the_kernels(&full.stage, &file));
}

#[test]
fn pages_of_before_do_not_show_after_the_kernel_wrote_the_file_itself() {
    let store = Store::new();
    let Some(full) = mounted(&store) else { return };
    let path = full.path("file");
    fs::write(&path, vec![b'a'; 8192]).unwrap();
    for round in 0..3_u8 {
        // Pages of the mount, by a reader.
        let mut bytes = Vec::new();
        File::open(&path).unwrap().read_to_end(&mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == b'a' + round), "{round}");
        let file = File::options().write(true).open(&path).unwrap();
        file.write_all_at(&[b'a' + round + 1; 8192], 0).unwrap();
        drop(file);
        assert_eq!(fs::read(&path).unwrap(), [b'a' + round + 1; 8192]);
        if round == 1 {
            until("it is stored", || files_of(&full.stage) == 0);
        }
    }
}

#[test]
fn a_mapping_that_writes_behind_the_last_close_is_stored_to_the_end() {
    let store = Store::new();
    let Some(full) = mounted(&store) else { return };
    let script = "
import ctypes, time
path, bucket = sys.argv[1:3]
file = os.open(path, os.O_RDWR | os.O_CREAT)
os.ftruncate(file, 100000)
# The module mmap keeps a descriptor of its own.
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
address = libc.mmap(None, ctypes.c_size_t(100000), 3, 1, file, ctypes.c_long(0))
mapped = (ctypes.c_char * 100000).from_address(address)
mapped[:5] = b'first'
os.close(file)
def until_stored(bytes):
    while True:
        try:
            if bytes in open(bucket, 'rb').read():
                return
        except FileNotFoundError:
            pass
        time.sleep(0.05)
until_stored(b'first')
mapped[50000:50006] = b'second'
until_stored(b'second')
mapped[90000:90005] = b'third'
mapped[:5] = b'FIRST'
print(open(path, 'rb').read()[90000:90005])
";
    let bucket = store.bucket_folder().join("file");
    let said = python(script, &full.path("file"), &[bucket.to_str().unwrap()]);
    assert_eq!(said, "b'third'\n");
    until("nothing stays in the stage", || files_of(&full.stage) == 0);
    let stored = store.get("file").unwrap();
    assert_eq!(
        (&stored[..5], &stored[50_000..50_006], &stored[90_000..90_005]),
        (&b"FIRST"[..], &b"second"[..], &b"third"[..])
    );
    assert!(stored.len() == 100_000 && kept(&full.stage).is_empty());
}

#[test]
fn what_the_kernel_wrote_around_the_death_of_the_engine_is_stored() {
    let store = Store::new();
    let Some(mut full) = mounted(&store) else { return };
    let open = create(&full.path("open"));
    open.write_all_at(b"synced, ", 0).unwrap();
    open.sync_all().unwrap();
    open.write_all_at(b"written, ", 8).unwrap();
    fs::write(full.path("closed"), b"closed").unwrap();
    full.mount.kill_9();
    // The kernel needs no engine for it.
    open.write_all_at(b"after it, ", 17).unwrap();
    let mount = full.mount.remount(&setup(&full.stage, LENT));
    open.write_all_at(b"and later", 27).unwrap();
    assert_eq!(fs::read(mount.path("closed")).unwrap(), b"closed");
    until("the closed one is stored", || store.get("closed").is_some());
    drop(open);
    until("nothing stays in the stage", || files_of(&full.stage) == 0);
    assert_eq!(store.get("open").unwrap(), b"synced, written, after it, and later");
    assert_eq!(store.get("closed").unwrap(), b"closed");
    assert!(kept(&full.stage).is_empty(), "{:?}", mount.complaints());
}

#[test]
fn what_is_written_without_a_pause_is_renamed_and_stored_at_last() {
    let store = Store::new();
    let Some(full) = mounted(&store) else { return };
    fs::create_dir(full.path("dir")).unwrap();
    fs::write(full.path("dir/app.log"), b"stored").unwrap();
    until("it is stored", || files_of(&full.stage) == 0);
    let file = create(&full.path("dir/app.log"));
    file.write_all_at(b"12345678", 0).unwrap();
    assert!(is_the_kernels(&full.stage, &file));
    let stop = AtomicBool::new(false);
    let (last, renamed) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for n in 1_u64.. {
                file.write_all_at(&n.to_le_bytes(), 0).unwrap();
                if stop.load(Relaxed) {
                    return n;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            unreachable!("numbers do not end")
        });
        let renames = [("dir/app.log", "dir/app.log.1"), ("dir", "other")];
        let renamed = renames.map(|(from, to)| fs::rename(full.path(from), full.path(to)));
        stop.store(true, Relaxed);
        (writer.join().unwrap(), renamed)
    });
    renamed.into_iter().for_each(|renamed| renamed.unwrap());
    drop(file);
    until("nothing stays in the stage", || files_of(&full.stage) == 0);
    assert_eq!(store.get("other/app.log.1").unwrap(), last.to_le_bytes());
    assert!(store.get("dir/app.log").is_none() && kept(&full.stage).is_empty());
}

#[test]
fn programs_that_open_a_file_which_a_mapping_writes_share_its_pages() {
    let store = Store::new();
    let Some(mut full) = mounted(&store) else { return };
    let script = "
import ctypes, mmap, time
path, bucket = sys.argv[1:3]
file = os.open(path, os.O_RDWR | os.O_CREAT)
os.ftruncate(file, 8192)
# The module mmap keeps a descriptor of its own.
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
address = libc.mmap(None, ctypes.c_size_t(8192), 3, 1, file, ctypes.c_long(0))
mapped = (ctypes.c_char * 8192).from_address(address)
mapped[:5] = b'first'
os.close(file)
def is_stored():
    try:
        return b'first' in open(bucket, 'rb').read()
    except FileNotFoundError:
        return False
while not is_stored():
    time.sleep(0.05)
for flags in [os.O_RDONLY, os.O_RDWR | os.O_SYNC, os.O_RDONLY | os.O_DIRECT]:
    reader = os.open(path, flags)
    page = mmap.mmap(-1, 4096)
    assert os.preadv(reader, [page], 0) == 4096 and page[:5] == b'first'
    mapped[5:10] = b'again'
    assert os.preadv(reader, [page], 0) == 4096 and page[:10] == b'firstagain', (flags, page[:10])
    writer = os.open(path, os.O_RDWR)
    second = mmap.mmap(writer, 8192)
    second[100:106] = b'second'
    mapped[200:205] = b'third'
    second.flush()
    second.close()
    os.close(writer)
    os.preadv(reader, [page], 0)
    seen = page[100:106], page[200:205]
    assert seen == (b'second', b'third'), (flags, seen)
    os.close(reader)
    mapped[5:10] = mapped[200:205] = b'-' * 5
mapped[300:303] = b'end'
print(open(path, 'rb').read()[300:303])
";
    let bucket = store.bucket_folder().join("file");
    let said = python(script, &full.path("file"), &[bucket.to_str().unwrap()]);
    assert_eq!(said, "b'end'\n");
    until("nothing stays in the stage", || files_of(&full.stage) == 0);
    let stored = store.get("file").unwrap();
    assert_eq!((&stored[100..106], &stored[300..303]), (&b"second"[..], &b"end"[..]));
    // Descriptors of a mount that died write on, too, and the next mount has pages of its own.
    let open = create(&full.path("left"));
    open.write_all_at(b"before", 0).unwrap();
    full.mount.kill_9();
    let mount = full.mount.remount(&setup(&full.stage, LENT));
    let reader = File::open(mount.path("left")).unwrap();
    let mut seen = [0; 6];
    for bytes in [b"before", b"after!", b"later!"] {
        open.write_all_at(bytes, 0).unwrap();
        reader.read_exact_at(&mut seen, 0).unwrap();
        assert_eq!(seen, *bytes);
    }
    drop((open, reader));
    until("nothing stays in the stage", || files_of(&full.stage) == 0);
    assert_eq!(store.get("left").unwrap(), b"later!");
    drop(mount);
    assert!(kept(&full.stage).is_empty());
}
