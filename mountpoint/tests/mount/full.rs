//! `--mode full`: any change of any file, by way of a local disk.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use rustix::io::Errno;
use s3server::{Effect, Fault};
use tempfile::TempDir;

use super::renaming::names_follow;
use super::semantics::assert_errno;
use crate::common::{Pattern, Setup, Store, TestMount, command, python, run, until};

/// A mount with a stage beside it.
pub(super) struct FullMount {
    pub(super) mount: TestMount,
    pub(super) stage: TempDir,
}

/// The setup of a mount with this stage.
pub(super) fn setup(stage: &TempDir, options: &[&str]) -> Setup {
    let stage = stage.path().to_str().unwrap();
    Setup::new(&[&["--mode", "full", "--stage", stage, "--store", "aws"], options].concat())
}

impl FullMount {
    pub(super) fn of(store: &Arc<Store>, options: &[&str]) -> Option<Self> {
        let stage = tempfile::tempdir().unwrap();
        let mount = TestMount::of(store, &setup(&stage, options))?;
        Some(Self { mount, stage })
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.mount.path(name)
    }

    fn stored(&self, name: &str) -> Vec<u8> {
        self.mount.store().get(name).unwrap_or_else(|| panic!("{name} is not stored"))
    }

    /// The bytes of the files in `kept/`.
    fn kept(&self) -> Vec<Vec<u8>> {
        kept(&self.stage)
    }
}

pub(super) fn kept(stage: &TempDir) -> Vec<Vec<u8>> {
    let files = fs::read_dir(stage.path().join("kept")).unwrap().map(|entry| entry.unwrap().path());
    files
        .filter(|path| path.extension().is_none_or(|end| end != "json"))
        .map(|path| fs::read(path).unwrap())
        .collect()
}

fn open(path: PathBuf) -> File {
    File::options().read(true).write(true).open(path).unwrap()
}

#[test]
fn a_write_anywhere_shows_at_once_and_is_stored_at_close() {
    const LEN: usize = 20_000_000;
    let store = Store::new();
    store.plant("file", &Pattern(1).bytes(0, LEN));
    let Some(full) = FullMount::of(&store, &[]) else { return };
    let mut reader = File::open(full.path("file")).unwrap();
    let mut expected = Pattern(1).bytes(0, LEN);
    let file = open(full.path("file"));
    for (at, piece) in [(19_999_990, &b"behind the end"[..]), (0, b"start"), (7_000_001, b"middle")] {
        file.write_all_at(piece, at as u64).unwrap();
        expected.resize(expected.len().max(at + piece.len()), 0);
        expected[at..at + piece.len()].copy_from_slice(piece);
    }
    assert!(store.get("file").unwrap() == Pattern(1).bytes(0, LEN), "the bucket has whole files only");
    assert_eq!(fs::metadata(full.path("file")).unwrap().len(), expected.len() as u64);
    let mut seen = Vec::new();
    reader.read_to_end(&mut seen).unwrap();
    assert!(seen == expected, "a reader of before sees it");
    assert!(fs::read(full.path("file")).unwrap() == expected, "and one of now");
    drop((file, reader));
    assert!(full.stored("file") == expected);
    assert!(fs::read(full.path("file")).unwrap() == expected);
    assert_eq!(store.pending_uploads(), 0);
}

#[test]
fn a_file_that_other_programs_wrote_is_stored_while_it_is_read() {
    let store = Store::new();
    store.plant("file", b"before");
    let Some(full) = FullMount::of(&store, &[]) else { return };
    let reader = File::open(full.path("file")).unwrap();
    run(Command::new("sh").args(["-c", "(echo one; echo two) > \"$0\""]).arg(full.path("file")));
    until("it is stored", || full.stored("file") == b"one\ntwo\n");
    let mut bytes = [0; 8];
    reader.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"one\ntwo\n");
}

#[test]
fn appends_sizes_and_holes_are_stored_as_a_local_disk_has_them() {
    let store = Store::new();
    let local = tempfile::tempdir().unwrap();
    let Some(full) = FullMount::of(&store, &[]) else { return };
    for (name, len) in [("empty", 0), ("small", 10_000), ("large", 9_000_000)] {
        store.plant(name, &Pattern(3).bytes(0, len));
        fs::write(local.path().join(name), Pattern(3).bytes(0, len)).unwrap();
        for path in [full.path(name), local.path().join(name)] {
            run(Command::new("sh").args(["-c", "echo one >> \"$0\"; echo two >> \"$0\""]).arg(&path));
            let file = open(path.clone());
            let size = file.metadata().unwrap().len();
            file.set_len(size / 2).unwrap();
            file.set_len(size + 5_000).unwrap();
            file.write_all_at(b"end", size + 4_000).unwrap();
            drop(file);
            // The file is truncated by its path, so that no close follows.
            python("os.truncate(sys.argv[1], int(sys.argv[2]))", &path, &[&(size + 1).to_string()]);
        }
        assert!(full.stored(name) == fs::read(local.path().join(name)).unwrap(), "{name}");
    }
}

#[test]
fn a_shared_mapping_writes_the_file() {
    let store = Store::new();
    store.plant("file", &[b'a'; 10_000]);
    let Some(full) = FullMount::of(&store, &[]) else { return };
    let script = "
import mmap
file = os.open(sys.argv[1], os.O_RDWR)
mapped = mmap.mmap(file, 10000)
mapped[5000:5004] = b'here'
print(os.pread(file, 4, 5000))
mapped.flush()
os.close(file)
mapped[9000:9005] = b'later'
mapped.close()
";
    assert_eq!(python(script, &full.path("file"), &[]), "b'here'\n");
    let mut expected = vec![b'a'; 10_000];
    expected[5000..5004].copy_from_slice(b"here");
    expected[9000..9005].copy_from_slice(b"later");
    until("what was mapped is stored", || store.get("file").unwrap() == expected);
}

#[test]
fn a_removed_file_goes_on_for_those_that_have_it_open() {
    let store = Store::new();
    store.plant("stored", &Pattern(1).bytes(0, 3_000_000));
    store.plant("read", &Pattern(2).bytes(0, 3_000_000));
    let Some(full) = FullMount::of(&store, &[]) else { return };
    let stored = open(full.path("stored"));
    let mut read = File::open(full.path("read")).unwrap();
    let new = File::options().read(true).write(true).create_new(true).open(full.path("new")).unwrap();
    new.write_all_at(b"never stored", 0).unwrap();
    for name in ["stored", "read", "new"] {
        fs::remove_file(full.path(name)).unwrap();
        assert_errno(fs::metadata(full.path(name)), Errno::NOENT);
    }
    assert_eq!(store.keys(), [""; 0]);
    stored.write_all_at(b"on", 10).unwrap();
    assert_eq!(stored.metadata().unwrap().len(), 3_000_000);
    let mut bytes = vec![0; 3_000_000];
    stored.read_exact_at(&mut bytes, 0).unwrap();
    assert!(&bytes[10..12] == b"on" && Pattern(1).is(12, &bytes[12..]));
    bytes.clear();
    read.read_to_end(&mut bytes).unwrap();
    assert!(bytes.len() == 3_000_000 && Pattern(2).is(0, &bytes));
    let mut bytes = [0; 12];
    new.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"never stored");
    // The name is free.
    fs::write(full.path("new"), b"another").unwrap();
    drop((stored, read, new));
    assert_eq!((store.keys(), full.stored("new")), (vec!["new".to_owned()], b"another".to_vec()));
    until("nothing stays in the stage", || {
        fs::read_dir(full.stage.path().join("files")).unwrap().count() == 0
    });
    assert!(full.kept().is_empty());
}

#[test]
fn an_open_file_is_renamed_and_stored_under_its_new_name() {
    let store = Store::new();
    store.plant("old", b"0123456789");
    store.plant("target", b"replaced");
    let Some(full) = FullMount::of(&store, &[]) else { return };
    let (old, new) = (open(full.path("old")), File::create_new(full.path("new")).unwrap());
    old.write_all_at(b"ab", 3).unwrap();
    new.write_all_at(b"new bytes", 0).unwrap();
    let target = File::open(full.path("target")).unwrap();
    fs::rename(full.path("old"), full.path("moved")).unwrap();
    fs::rename(full.path("new"), full.path("target")).unwrap();
    assert_errno(fs::metadata(full.path("old")), Errno::NOENT);
    assert_eq!(fs::read(full.path("moved")).unwrap(), b"012ab56789");
    assert_eq!(fs::read(full.path("target")).unwrap(), b"new bytes");
    old.write_all_at(b"cd", 8).unwrap();
    new.write_all_at(b" more", 9).unwrap();
    let mut bytes = [0; 8];
    target.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"replaced", "a reader of the replaced file has it still");
    drop((old, new, target));
    until("the names are those of the renames", || store.keys() == ["moved", "target"]);
    assert_eq!(
        (full.stored("moved"), full.stored("target")),
        (b"012ab567cd".to_vec(), b"new bytes more".to_vec())
    );
    assert!(full.kept().is_empty());
}

#[test]
fn a_file_that_another_is_renamed_over_is_read_whole_meanwhile() {
    const LEN: usize = 3_000_000;
    let store = Store::new();
    for commit in ["close", "disk"] {
        store.plant("file", &Pattern(1).bytes(0, LEN));
        store.plant("new", &Pattern(2).bytes(0, LEN));
        let Some(full) = FullMount::of(&store, &["--commit", commit]) else { return };
        // The kernel knows the name: the rename has the lock of the directory.
        fs::metadata(full.path("file")).unwrap();
        store.faults().add(Fault::on("CopyObject", Effect::Hold));
        let copies = store.requests().count("CopyObject");
        let (new, path) = (full.path("new"), full.path("file"));
        let (to, (over, is_over)) = (path.clone(), std::sync::mpsc::channel::<()>());
        let renames = std::thread::spawn(move || fs::rename(new, to));
        until("the copy is held", || store.requests().count("CopyObject") > copies);
        let reads = std::thread::spawn(move || {
            let file = File::open(path)?;
            _ = is_over.recv();
            let mut bytes = vec![0; LEN];
            file.read_exact_at(&mut bytes, 0).map(|()| bytes)
        });
        // Time for an open that does not wait.
        std::thread::sleep(std::time::Duration::from_millis(300));
        store.faults().clear();
        renames.join().unwrap().unwrap();
        drop(over);
        assert!(Pattern(2).is(0, &reads.join().unwrap().unwrap()), "{commit}");
    }
}

#[test]
fn a_directory_with_open_files_is_renamed_and_they_go_on_there() {
    let store = Store::new();
    store.plant("dir/below/stored", b"0123456789");
    let Some(full) = FullMount::of(&store, &[]) else { return };
    let (stored, new) =
        (open(full.path("dir/below/stored")), File::create_new(full.path("dir/new")).unwrap());
    stored.write_all_at(b"ab", 3).unwrap();
    new.write_all_at(b"1", 0).unwrap();
    fs::rename(full.path("dir"), full.path("other")).unwrap();
    stored.write_all_at(b"cd", 5).unwrap();
    new.write_all_at(b"2", 1).unwrap();
    drop((stored, new));
    until("both are stored", || store.get("other/new").is_some_and(|bytes| bytes == b"12"));
    assert_eq!(store.keys(), ["other/below/stored", "other/new"]);
    assert_eq!(full.stored("other/below/stored"), b"012abcd789");
    assert_eq!(fs::read(full.path("other/below/stored")).unwrap(), b"012abcd789");
}

#[test]
fn what_changes_below_a_directory_during_its_rename_comes_along_in_full() {
    for commit in ["close", "disk"] {
        let store = Store::new();
        let Some(full) = FullMount::of(&store, &["--commit", commit]) else { return };
        names_follow(&store, full.mount.dir());
    }
}

#[test]
fn an_object_replaced_meanwhile_is_stale_and_the_bytes_are_kept() {
    let store = Store::new();
    store.plant("replaced", b"0123456789");
    store.plant("removed", b"0123456789");
    let Some(full) = FullMount::of(&store, &[]) else { return };
    for name in ["replaced", "removed", "made"] {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(full.path(name)).unwrap();
        file.write_all_at(name.as_bytes(), 0).unwrap();
        file.set_len(name.len() as u64).unwrap();
        match name {
            "removed" => store.remove(name),
            _ => store.put(name, "theirs"),
        }
        assert_errno(file.sync_all(), Errno::STALE);
        assert_errno(file.write_all_at(b"more", 0), Errno::STALE);
        drop(file);
        assert_eq!(store.get(name), (name != "removed").then(|| b"theirs".to_vec()));
        assert!(full.kept().contains(&name.as_bytes().to_vec()), "{name}");
        // The name is the bucket's again.
        until("it is out of the stage", || fs::read(full.path(name)).ok() == store.get(name));
    }
    let lines = full.mount.complaints();
    assert_eq!(lines.iter().filter(|line| line.contains("/kept/")).count(), 3, "{lines:?}");
    fs::write(full.path("replaced"), b"ours").unwrap();
    assert_eq!(full.stored("replaced"), b"ours");
}

#[test]
fn close_says_that_another_client_was_first() {
    let store = Store::new();
    store.plant("file", b"0123456789");
    let Some(full) = FullMount::of(&store, &[]) else { return };
    let script = "
file = os.open(sys.argv[1], os.O_RDWR)
os.pwrite(file, b'ours', 0)
open(sys.argv[2], 'w').close()
while os.path.exists(sys.argv[2]): pass
says('close', lambda: os.close(file))
";
    let go = full.mount.scratch("go");
    let said = std::thread::scope(|scope| {
        let waits = scope.spawn(|| python(script, &full.path("file"), &[go.to_str().unwrap()]));
        until("it has written", || go.exists());
        store.put("file", "theirs");
        fs::remove_file(&go).unwrap();
        waits.join().unwrap()
    });
    assert_eq!(said, "close ESTALE\n");
    // Bytes that were not changed here were the object's, which is gone.
    assert_eq!((full.stored("file"), full.kept()), (b"theirs".to_vec(), vec![b"ours\0\0\0\0\0\0".to_vec()]));
}

#[test]
fn what_a_killed_engine_had_not_stored_is_kept_and_named() {
    let store = Store::new();
    store.plant("patched", b"0123456789");
    store.plant("untouched", b"0123456789");
    let Some(mut full) = FullMount::of(&store, &[]) else { return };
    let new = File::create_new(full.path("dir-less new")).unwrap();
    new.write_all_at(b"not stored", 0).unwrap();
    let synced = File::create_new(full.path("synced")).unwrap();
    synced.write_all_at(b"synced", 0).unwrap();
    synced.sync_all().unwrap();
    let (patched, untouched) = (open(full.path("patched")), open(full.path("untouched")));
    patched.write_all_at(b"ab", 4).unwrap();
    full.mount.kill_9();
    drop((new, synced, patched, untouched));
    assert_eq!(store.keys(), ["patched", "synced", "untouched"]);
    let mount = full.mount.remount(&setup(&full.stage, &[]));
    assert_eq!(fs::read(mount.path("patched")).unwrap(), b"0123456789", "the bucket has whole files only");
    assert_eq!(fs::read(mount.path("synced")).unwrap(), b"synced");
    let mut bytes = kept(&full.stage);
    bytes.sort();
    assert_eq!(bytes, [b"\0\0\0\0ab\0\0\0\0".to_vec(), b"not stored".to_vec()]);
    let lines = mount.complaints();
    assert!(lines.iter().any(|line| line.contains("dir-less new") && line.contains("/kept/")), "{lines:?}");
    assert!(
        lines
            .iter()
            .any(|line| line.contains("patched") && line.contains("only the bytes that were written"))
    );
    assert!(!lines.iter().any(|line| line.contains("untouched")), "{lines:?}");
}

#[test]
fn a_full_stage_is_enospc_and_room_comes_back() {
    let store = Store::new();
    let Some(full) = FullMount::of(&store, &["--stage-size", "2"]) else { return };
    let file = File::create_new(full.path("file")).unwrap();
    file.write_all_at(&[1; 1 << 20], 0).unwrap();
    let error = (&file).write_all(&[2; 3 << 20]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
    file.set_len(1 << 20).unwrap();
    file.sync_all().unwrap();
    drop(file);
    assert_eq!(full.stored("file").len(), 1 << 20);
    // A long file is patched in a small stage, whatever its length: the stage does not fetch bytes for which it has no room.
    store.plant("long", &Pattern(1).bytes(0, 8 << 20));
    let long = open(full.path("long"));
    long.write_all_at(b"patch", 100).unwrap();
    assert_eq!(fs::read(full.path("long")).unwrap().len(), 8 << 20);
    long.sync_all().unwrap();
    drop(long);
    let stored = full.stored("long");
    assert!(stored[100..105] == *b"patch" && Pattern(1).is(105, &stored[105..]));
    assert!(full.kept().is_empty());
    fs::write(full.path("after"), vec![1; 1 << 20]).unwrap();
    assert_eq!(full.stored("after").len(), 1 << 20);
}

#[test]
fn a_store_that_refuses_fails_fsync_and_a_later_one_stores_the_file() {
    let store = Store::new();
    let Some(full) = FullMount::of(&store, &[]) else { return };
    let denied = || Effect::Error { status: 403, code: "AccessDenied".to_owned() };
    let file = File::create_new(full.path("file")).unwrap();
    file.write_all_at(b"1", 0).unwrap();
    store.faults().add(Fault::on("PutObject", denied()).times(1));
    assert_errno(file.sync_all(), Errno::ACCESS);
    file.write_all_at(b"2", 1).unwrap();
    file.sync_all().unwrap();
    assert_eq!(full.stored("file"), b"12");
    // The last close has nobody to tell who could try again.
    file.write_all_at(b"3", 2).unwrap();
    store.faults().add(Fault::on("PutObject", denied()).times(2));
    drop(file);
    until("what was written is kept", || full.kept() == [b"123".to_vec()]);
    assert_eq!(full.stored("file"), b"12");
    until("the log names it", || full.mount.complaints().iter().any(|line| line.contains("/kept/")));
}

#[test]
fn a_stage_belongs_to_one_mount_at_a_time() {
    let store = Store::new();
    let Some(full) = FullMount::of(&store, &[]) else { return };
    assert_eq!(fs::metadata(full.stage.path()).unwrap().mode() & 0o777, 0o700);
    let dir = full.mount.scratch("another");
    fs::create_dir(&dir).unwrap();
    let output = command(&store, &dir, &setup(&full.stage, &[])).output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(!output.status.success() && said.contains("in use by another mount"), "{said}");
}

#[test]
fn modes_and_times_show_as_long_as_the_mount_lasts() {
    let store = Store::new();
    let Some(full) = FullMount::of(&store, &[]) else { return };
    let path = full.path("script");
    fs::write(&path, b"#!/bin/sh\necho it runs\n").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let output = run(&mut Command::new(&path));
    assert_eq!(output.stdout, b"it runs\n");
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    let file = open(path.clone());
    file.set_modified(time).unwrap();
    assert_eq!(file.metadata().unwrap().modified().unwrap(), time);
    drop(file);
    assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), time);
    fs::write(&path, b"#!/bin/sh\n").unwrap();
    let about = fs::metadata(&path).unwrap();
    assert!(about.modified().unwrap() > time && about.mode() & 0o777 == 0o755);
}

#[test]
fn what_a_bucket_can_not_hold_is_refused_in_full_mode_too() {
    let store = Store::new();
    store.plant("file", b"1");
    let Some(full) = FullMount::of(&store, &[]) else { return };
    assert_errno(fs::hard_link(full.path("file"), full.path("link")), Errno::PERM);
    assert_errno(symlink("file", full.path("symlink")), Errno::PERM);
    let made = Command::new("mkfifo").arg(full.path("fifo")).output().unwrap();
    assert!(!made.status.success());
    let synced = rustix::fs::open(
        full.path("file"),
        rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::SYNC,
        rustix::fs::Mode::empty(),
    );
    assert_errno(synced.map_err(std::io::Error::from), Errno::INVAL);
    assert_eq!(store.keys(), ["file"]);
}

#[test]
fn a_file_that_is_written_all_the_time_is_stored_as_of_one_moment() {
    let store = Store::new();
    let Some(full) = FullMount::of(&store, &[]) else { return };
    // Two numbers far apart are written one after the other: no object has the second one newer than the first.
    const LEN: u64 = 17 << 20;
    let file = File::create_new(full.path("file")).unwrap();
    file.set_len(LEN).unwrap();
    let (file, stop) = (&file, &std::sync::atomic::AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for n in 1_u64.. {
                file.write_all_at(&n.to_le_bytes(), 0).unwrap();
                file.write_all_at(&n.to_le_bytes(), LEN - 8).unwrap();
                if stop.load(std::sync::atomic::Ordering::Relaxed) {
                    break;
                }
            }
        });
        for _ in 0..5 {
            file.sync_data().unwrap();
            let stored = full.stored("file");
            let of = |at: usize| u64::from_le_bytes(stored[at..at + 8].try_into().unwrap());
            let (first, second) = (of(0), of(LEN as usize - 8));
            assert!(first == second || first == second + 1, "{first} {second}");
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(store.pending_uploads(), 0);
}

#[test]
fn directories_and_removed_files_look_as_on_a_local_disk() {
    let store = Store::new();
    for options in [&[][..], &["--commit", "disk"]] {
        let Some(full) = FullMount::of(&store, options) else { return };
        let script = "
import errno, time
os.chdir(sys.argv[1])
os.umask(0)
for mode in [0o700, 0o755, 0o1777]:
    os.mkdir(f'd{mode:o}', mode)
    print(oct(os.stat(f'd{mode:o}').st_mode))
    print(abs(os.stat(f'd{mode:o}').st_mtime - time.time()) < 3600)
os.makedirs('top/below')
def refused(call, *names):
    try: call(*names)
    except OSError as error: print(errno.errorcode[error.errno])
refused(os.rmdir, 'top')
open('top/below/file', 'w').close()
refused(os.rmdir, 'top')
refused(os.rmdir, 'top/below')
def changes(what):
    old = 1_000_000_000
    os.utime('top', (old, old))
    what()
    print(os.stat('top').st_mtime != old)
changes(lambda: open('top/new', 'w').close())
changes(lambda: open('top/new', 'w').close())
changes(lambda: os.rename('top/new', 'top/other'))
changes(lambda: os.rename('top/other', 'out'))
changes(lambda: os.rename('out', 'top/in'))
changes(lambda: os.unlink('top/in'))
changes(lambda: os.mkdir('top/dir'))
changes(lambda: os.rmdir('top/dir'))
for name in ['here', 'other', 'below']:
    file = open('gone', 'w+')
    if name == 'here': os.unlink('gone')
    else: open(name, 'w').close(); os.rename(name, 'gone')
    file.write('x')
    file.flush()
    print(os.fstat(file.fileno()).st_nlink, os.fstat(file.fileno()).st_size)
";
        let local = tempfile::tempdir().unwrap();
        fs::create_dir(full.path("tried")).unwrap();
        assert_eq!(
            python(script, &full.path("tried"), &[]),
            python(script, local.path(), &[]),
            "with {options:?}"
        );
        fs::remove_dir_all(full.path("tried")).unwrap();
    }
}
