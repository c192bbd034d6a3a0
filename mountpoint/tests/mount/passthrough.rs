//! Cached files that the kernel reads by itself (FUSE passthrough): a changed byte in the cache's own file shows whether the kernel or the engine reads.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use rustix::fs::OFlags;

use super::cache::{LEN, data_files, gets_of_one_reading, open_direct, reads_all_right, setup, until_kept};
use crate::common::{Pattern, Setup, Store, TestMount, need_tool, python, until};

/// A byte of the third block.
const PLACE: u64 = (2 << 20) + 5;

/// A store with the file, and a mount with the whole file in its cache. `None` without FUSE or passthrough.
fn cached(cache: &Path, more: &[&str]) -> Option<(Arc<Store>, TestMount)> {
    if !has_passthrough() || !need_tool("python3") {
        return None;
    }
    let store = Store::new();
    store.put("file", Pattern(1).bytes(0, LEN));
    let options: Vec<&str> = ["--cache", cache.to_str().unwrap(), "--max-cache-size", "64"]
        .into_iter()
        .chain(more.iter().copied())
        .collect();
    let mount = TestMount::of(&store, &Setup::new(&options))?;
    fill(cache, &mount.path("file"));
    Some((store, mount))
}

/// Linux 6.9 and root. Elsewhere these promises are not made.
pub(super) fn has_passthrough() -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok());
    let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    version >= (6, 9) && rustix::process::geteuid().is_root()
}

fn fill(cache: &Path, path: &Path) {
    assert!(is_right(&fs::read(path).unwrap()));
    // The kernel keeps pages of what it read: it would not ask for a lost block again.
    until_kept("the cache holds the file", path, || is_kept(cache));
}

fn is_right(bytes: &[u8]) -> bool {
    bytes.len() == LEN && Pattern(1).is(0, bytes)
}

/// Changes a byte in the cache, runs `look`, and changes it back.
fn with_a_changed_byte<T>(cache: &Path, look: impl FnOnce() -> T) -> T {
    let is_it = |file: &PathBuf| fs::read(file).is_ok_and(|bytes| is_right(&bytes));
    let file = data_files(cache).into_iter().find(is_it).expect("the file is in the cache");
    let file = fs::File::options().read(true).write(true).open(file).unwrap();
    let right = Pattern(1).bytes(PLACE, 1)[0];
    file.write_all_at(&[!right], PLACE).unwrap();
    let seen = look();
    // An engine that reads has noticed, and fetches the block anew: before this or after it.
    file.write_all_at(&[right], PLACE).unwrap();
    seen
}

/// Whether reads of this open file are the kernel's own, which compares no checksum.
pub(super) fn kernel_reads(cache: &Path, file: &fs::File) -> bool {
    with_a_changed_byte(cache, || {
        let mut byte = [0];
        file.read_exact_at(&mut byte, PLACE).unwrap();
        !Pattern(1).is(PLACE, &byte)
    })
}

/// The file's bytes in a mapping, opened anew with these flags of Python's `os`.
fn mapped(path: &Path, flags: &str) -> Vec<u8> {
    const PROGRAM: &str = "
import mmap, os, sys
file = os.open(sys.argv[1], eval(sys.argv[2]))
mapping = mmap.mmap(file, 0, mmap.MAP_PRIVATE, mmap.PROT_READ)
open(sys.argv[3], 'wb').write(mapping[:])
";
    let seen = tempfile::NamedTempFile::new().unwrap();
    python(PROGRAM, path, &[flags, seen.path().to_str().unwrap()]);
    fs::read(seen.path()).unwrap()
}

/// A program that mapped a file, and has closed its descriptor.
struct Mapping(Child);

impl Mapping {
    fn of(path: &Path) -> Self {
        const PROGRAM: &str = "
import ctypes, mmap, os, sys
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
file = os.open(sys.argv[1], os.O_RDONLY)
length = os.fstat(file).st_size
at = libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, file, 0)
os.close(file)
print('mapped', flush=True)
sys.stdin.readline()
sys.stdout.buffer.write(ctypes.string_at(at, length))
";
        let mut command = Command::new("python3");
        command.args(["-c", PROGRAM]).arg(path).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut program = Self(command.spawn().unwrap());
        let mut line = [0; 7];
        program.0.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
        assert_eq!(&line, b"mapped\n");
        program
    }

    /// The bytes that the mapping shows now.
    fn bytes(mut self) -> Vec<u8> {
        drop(self.0.stdin.take());
        let mut bytes = Vec::new();
        self.0.stdout.take().unwrap().read_to_end(&mut bytes).unwrap();
        assert!(self.0.wait().unwrap().success());
        bytes
    }
}

/// Whether the cache has the whole file.
pub(super) fn is_kept(cache: &Path) -> bool {
    data_files(cache).iter().any(|file| fs::read(file).is_ok_and(|bytes| is_right(&bytes)))
}

/// Files with together twice the cache's limit.
pub(super) struct Others(Vec<String>);

impl Others {
    const LEN: usize = 4 << 20;

    pub(super) fn planted(store: &Store) -> Self {
        let names: Vec<String> = (0..30).map(|n| format!("other-{n}")).collect();
        for (n, name) in names.iter().enumerate() {
            store.plant(name, &Pattern(2 + n as u64).bytes(0, Self::LEN));
        }
        Self(names)
    }

    /// Reads all of them. Blocks for which a slow disk has no time are dropped: a repeated read offers them again.
    pub(super) fn read(&self, mount: &Path) {
        for (n, name) in self.0.iter().enumerate() {
            assert!(reads_all_right(&mount.join(name), Self::LEN, Pattern(2 + n as u64)), "{name}");
        }
    }
}

fn open(path: &Path) -> fs::File {
    fs::File::open(path).unwrap()
}

/// Opens the file so that the kernel reads it: waits until the cache has noted the last block, and the last reader's release has come.
fn open_whole(cache: &Path, path: &Path) -> fs::File {
    let mut whole = None;
    until("the kernel reads the cached file", || {
        fill(cache, path);
        whole = Some(open(path)).filter(|file| kernel_reads(cache, file));
        whole.is_some()
    });
    whole.unwrap()
}

fn all_of(file: &fs::File) -> Vec<u8> {
    let mut bytes = vec![0; LEN + 1];
    let mut filled = 0;
    while let n @ 1.. = file.read_at(&mut bytes[filled..], filled as u64).unwrap() {
        filled += n;
    }
    bytes.truncate(filled);
    bytes
}

#[test]
fn the_kernel_reads_a_cached_file_and_its_mappings_by_itself() {
    let cache = tempfile::tempdir().unwrap();
    let Some((_store, mount)) = cached(cache.path(), &[]) else { return };
    let file = open_whole(cache.path(), &mount.path("file"));
    assert!(is_right(&all_of(&file)) && is_right(&mapped(&mount.path("file"), "os.O_RDONLY")));
    assert_eq!(fs::read(mount.path("file")).unwrap().len(), LEN, "a second reader beside");
    let direct = open_direct(&mount.path("file"));
    assert!(
        !kernel_reads(cache.path(), &direct),
        "O_DIRECT reads go to the engine, which compares checksums"
    );
    assert!(is_right(&all_of(&file)), "what it found to be wrong is not taken from under the others");
    assert!(is_right(&mapped(&mount.path("file"), "os.O_DIRECT")));
}

#[test]
fn with_cache_passthrough_off_the_engine_reads() {
    let cache = tempfile::tempdir().unwrap();
    let Some((_store, mount)) = cached(cache.path(), &["--cache-passthrough", "off"]) else { return };
    let file = open(&mount.path("file"));
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    assert!(!kernel_reads(cache.path(), &file));
}

/// Mounts with these options, and asserts that the kernel reads the cached file by itself.
pub(super) fn is_the_kernel_s(options: &[&str]) {
    let cache = tempfile::tempdir().unwrap();
    let Some((_store, mount)) = cached(cache.path(), options) else { return };
    let file = open_whole(cache.path(), &mount.path("file"));
    assert!(is_right(&all_of(&file)));
}

#[test]
fn what_an_earlier_mount_kept_is_compared_before_the_kernel_reads_it() {
    let cache = tempfile::tempdir().unwrap();
    if !has_passthrough() {
        return;
    }
    let store = Store::new();
    store.put("file", Pattern(1).bytes(0, LEN));
    if gets_of_one_reading(&store, cache.path()).is_none() {
        return;
    }
    let mount = TestMount::of(&store, &setup(cache.path())).unwrap();
    let path = mount.path("file");
    assert!(!kernel_reads(cache.path(), &open(&path)), "nothing of it was read since the start");
    drop(open_whole(cache.path(), &path));
}

#[test]
fn a_file_that_may_be_changed_in_memory_is_not_the_cache_s() {
    let cache = tempfile::tempdir().unwrap();
    let Some((_store, mount)) = cached(cache.path(), &[]) else { return };
    let file = open_whole(cache.path(), &mount.path("file"));
    let both = fs::File::options().read(true).write(true).open(mount.path("file")).unwrap();
    assert!(is_right(&all_of(&both)));
    assert!(both.write_at(b"x", PLACE).is_err(), "an object can't be changed in place");
    const PROGRAM: &str = "
import mmap, os, sys
file = os.open(sys.argv[1], os.O_RDWR)
try:
    mapping = mmap.mmap(file, 0, mmap.MAP_SHARED)
    mapping[int(sys.argv[2])] = 0
    mapping.flush()
except OSError:
    print('refused')
";
    assert_eq!(python(PROGRAM, &mount.path("file"), &[&PLACE.to_string()]).trim(), "refused");
    drop(both);
    assert!(
        is_right(&all_of(&file)) && is_right(&mapped(&mount.path("file"), "os.O_RDONLY")),
        "the cache's file is as it was"
    );
    assert!(is_right(&fs::read(&data_files(cache.path())[0]).unwrap()));
}

#[test]
fn bytes_stay_while_a_program_reads_them_however_full_the_cache_gets() {
    let cache = tempfile::tempdir().unwrap();
    let Some((store, mount)) = cached(cache.path(), &[]) else { return };
    let file = open_whole(cache.path(), &mount.path("file"));
    let others = Others::planted(&store);
    until("the cache is full", || {
        others.read(&mount.path(""));
        let used: u64 =
            data_files(cache.path()).iter().map(|file| fs::metadata(file).map_or(0, |m| m.len())).sum();
        used > 50 << 20
    });
    assert!(kernel_reads(cache.path(), &file), "it is still the same file");
    assert!(is_right(&all_of(&file)));
}

#[test]
fn a_mapping_keeps_its_bytes_after_close_however_full_the_cache_gets() {
    let cache = tempfile::tempdir().unwrap();
    let Some((store, mount)) = cached(cache.path(), &[]) else { return };
    let file = open_whole(cache.path(), &mount.path("file"));
    let mapping = Mapping::of(&mount.path("file"));
    drop(file);
    let others = Others::planted(&store);
    until("the cache has made room of the file", || {
        others.read(&mount.path(""));
        !is_kept(cache.path())
    });
    assert!(is_right(&mapping.bytes()));
    assert!(is_right(&fs::read(mount.path("file")).unwrap()), "opened anew, it is fetched again");
}

#[test]
fn a_killed_engines_reader_keeps_its_bytes_when_the_next_mount_evicts() {
    let cache = tempfile::tempdir().unwrap();
    let Some((store, mut mount)) = cached(cache.path(), &[]) else { return };
    let file = open_whole(cache.path(), &mount.path("file"));
    let mapping = Mapping::of(&mount.path("file"));
    mount.kill_9();
    let mount = mount.remount(&setup(cache.path()));
    let others = Others::planted(&store);
    until("the cache has made room of the file", || {
        others.read(&mount.path(""));
        !is_kept(cache.path())
    });
    assert!(is_right(&all_of(&file)) && is_right(&mapping.bytes()));
}

#[test]
fn a_new_open_reads_the_replaced_object_and_an_old_one_keeps_its_version() {
    let cache = tempfile::tempdir().unwrap();
    let Some((store, mount)) = cached(cache.path(), &["--metadata-ttl", "minimal"]) else { return };
    let file = open_whole(cache.path(), &mount.path("file"));
    store.put("file", Pattern(9).bytes(0, LEN));
    let new = open(&mount.path("file"));
    assert!(Pattern(9).is(0, &all_of(&new)) && Pattern(9).is(0, &mapped(&mount.path("file"), "os.O_RDONLY")));
    assert!(is_right(&all_of(&file)));
}

#[test]
fn a_file_that_was_read_so_can_be_replaced_and_deleted_through_the_mount() {
    let cache = tempfile::tempdir().unwrap();
    let Some((_store, mount)) = cached(cache.path(), &["--allow-overwrite", "--allow-delete"]) else {
        return;
    };
    let path = mount.path("file");
    let file = open_whole(cache.path(), &path);
    let refused = fs::File::options().write(true).truncate(true).open(&path).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(rustix::io::Errno::PERM.raw_os_error()), "{refused}");
    drop(file);
    fs::write(&path, Pattern(3).bytes(0, LEN)).unwrap();
    assert!(Pattern(3).is(0, &fs::read(&path).unwrap()));
    let file = open(&path);
    fs::remove_file(&path).unwrap();
    assert!(Pattern(3).is(0, &all_of(&file)[..4096]));
}

#[test]
fn many_that_open_and_close_one_file_at_once_all_read_it() {
    let cache = tempfile::tempdir().unwrap();
    let Some((_store, mount)) = cached(cache.path(), &[]) else { return };
    let path = mount.path("file");
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let path = &path;
            scope.spawn(move || {
                for n in 0..40 {
                    let options = || fs::File::options().read(true).clone();
                    let file = match (thread + n) % 4 {
                        0 => {
                            use std::os::unix::fs::OpenOptionsExt as _;
                            options().custom_flags(OFlags::DIRECT.bits().cast_signed()).open(path)
                        }
                        1 => options().write(true).open(path),
                        _ => options().open(path),
                    };
                    assert!(is_right(&all_of(&file.unwrap())));
                }
            });
        }
    });
}
