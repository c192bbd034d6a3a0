//! Programs that change a stored file in memory (`mmap` with MAP_SHARED): they get an error, and nothing changes.

use std::time::Duration;

use crate::common::{Pattern, Setup, Store, TestMount, need_tool, python};

/// The time after which the mount is aborted: the kernel and a FUSE thread wait for each other.
const HANGS: Duration = Duration::from_secs(120);
/// The length of the file: more than the kernel sends at once.
const LEN: usize = (5 << 20) + 123;

/// Changes all of the file `argv[1]` in a mapping, and prints the result of each call. A child does it: Rust has no safe mapping.
const PROGRAM: &str = "
import mmap, time
path, way, length = sys.argv[1], sys.argv[2], int(sys.argv[3])
def shows():
    with open(path, 'rb') as file:
        return file.read()
reader = os.open(path, os.O_RDONLY)
before = os.read(reader, length)
file = os.open(path, os.O_RDWR)
mapping = mmap.mmap(file, length, mmap.MAP_SHARED)
mapping[:] = b'N' * length
if way == 'msync':
    says('msync', mapping.flush)
    says('msync', mapping.flush)
    says('fsync', lambda: os.fsync(file))
elif way == 'fsync':
    says('fsync', lambda: os.fsync(file))
    says('fsync', lambda: os.fsync(file))
elif way == 'close':
    says('close', lambda: os.close(file))
elif way == 'exit':
    os._exit(0)
print('anew' if shows() == before else 'CHANGED')
# What is open already, and the mapping itself: as soon as the kernel has dropped the pages.
end = time.monotonic() + 60
while os.pread(reader, length, 0) != before or mapping[:] != before:
    if time.monotonic() > end:
        sys.exit('the kernel still has the pages')
    time.sleep(0.005)
mapping.close()
if way != 'close':
    says('close', lambda: os.close(file))
file = os.open(path, os.O_RDWR)
says('close', lambda: os.close(file))
";

#[test]
fn mapped_changes_of_a_stored_file_fail_at_msync_fsync_and_close() {
    let store = Store::new();
    let bytes = Pattern(1).bytes(0, LEN);
    let ways = [
        ("msync", "msync EIO\nmsync EIO\nfsync EIO\nanew\nclose EIO\nclose ok\n"),
        ("fsync", "fsync EIO\nfsync EIO\nanew\nclose EIO\nclose ok\n"),
        ("close", "close EIO\nanew\nclose ok\n"),
        ("exit", ""),
    ];
    ways.iter().for_each(|(way, _)| store.plant(way, &bytes));
    let setup = Setup::new(&["--allow-overwrite"]).limit(HANGS);
    let Some(mount) = TestMount::of(&store, &setup) else { return };
    if !need_tool("python3") {
        return;
    }
    for (way, says) in ways {
        assert_eq!(python(PROGRAM, &mount.path(way), &[way, &LEN.to_string()]), says, "{way}");
        assert!(std::fs::read(mount.path(way)).unwrap() == bytes, "{way}: the mount shows something else");
        assert!(store.get(way).unwrap() == bytes, "{way}: the store has something else");
        let said = mount.log().matches(&format!("\"{way}\": a program changed the stored file")).count();
        assert_eq!(said, 1, "{way}: {}", mount.log());
    }
}

/// Maps the file `argv[1]`, closes its descriptor, and only then changes all of it; older and newer readers close the file.
const LATE: &str = "
import ctypes, mmap
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.msync.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
MS_SYNC = 4
path, way, length = sys.argv[1], sys.argv[2], int(sys.argv[3])
def checked(failed):
    if failed:
        raise OSError(ctypes.get_errno(), '')
before = os.open(path, os.O_RDONLY)
file = os.open(path, os.O_RDWR)
at = libc.mmap(None, length, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, file, 0)
says('close', lambda: os.close(file))
ctypes.memset(at, ord('N'), length)
if way == 'msync':
    says('msync', lambda: checked(libc.msync(at, length, MS_SYNC)))
libc.munmap(at, length)
says('reader', lambda: os.close(before))
for flags in (os.O_RDONLY, os.O_RDWR):
    after = os.open(path, flags)
    says('fsync', lambda: os.fsync(after))
    says('reader', lambda: os.close(after))
";

#[test]
fn a_mapped_change_behind_the_last_close_is_logged_and_fails_no_reader() {
    let store = Store::new();
    let bytes = Pattern(2).bytes(0, LEN);
    let ways = ["msync", "munmap"];
    ways.iter().for_each(|way| store.plant(way, &bytes));
    let Some(mount) = TestMount::of(&store, &Setup::new(&["--allow-overwrite"]).limit(HANGS)) else { return };
    if !need_tool("python3") {
        return;
    }
    for way in ways {
        let msync = if way == "msync" { "msync EIO\n" } else { "" };
        let says = format!("close ok\n{msync}reader ok\nfsync ok\nreader ok\nfsync ok\nreader ok\n");
        assert_eq!(python(LATE, &mount.path(way), &[way, &LEN.to_string()]), says, "{way}");
        assert!(std::fs::read(mount.path(way)).unwrap() == bytes, "{way}: the mount shows something else");
        assert!(store.get(way).unwrap() == bytes, "{way}: the store has something else");
        let said = mount.log().matches(&format!("\"{way}\": a program changed the stored file")).count();
        assert_eq!(said, 1, "{way}: {}", mount.log());
    }
}

/// Writes the file `argv[1]` in two pieces, and maps it in between.
const WRITTEN: &str = "
import mmap
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_TRUNC)
os.write(file, b'a' * 8192)
says('mmap', lambda: mmap.mmap(file, 8192, mmap.MAP_SHARED))
os.write(file, b'b')
says('close', lambda: os.close(file))
";

#[test]
fn a_mapping_of_a_file_being_written_is_refused_and_writing_continues() {
    let store = Store::new();
    let Some(mount) = TestMount::of(&store, &Setup::new(&["--read-mode", "buffered"]).limit(HANGS)) else {
        return;
    };
    if !need_tool("python3") {
        return;
    }
    assert_eq!(python(WRITTEN, &mount.path("file"), &[]), "mmap ENODEV\nclose ok\n");
    assert!(store.get("file").unwrap() == [&[b'a'; 8192][..], b"b"].concat());
}

#[test]
fn an_open_for_reading_and_writing_of_a_stored_file_reads() {
    let store = Store::new();
    store.plant("file", b"stored");
    for options in [&[][..], &["--allow-overwrite"]] {
        let Some(mount) = TestMount::of(&store, &Setup::new(options)) else { return };
        let mut file = std::fs::File::options().read(true).write(true).open(mount.path("file")).unwrap();
        let written = std::io::Write::write(&mut file, b"new");
        super::semantics::assert_errno(written, rustix::io::Errno::BADF);
        let mut read = String::new();
        std::io::Read::read_to_string(&mut file, &mut read).unwrap();
        assert_eq!(read, "stored");
        file.sync_all().unwrap();
    }
    assert_eq!(store.get("file").unwrap(), b"stored");
}
