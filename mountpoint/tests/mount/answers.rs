//! Small answers that programs and scripts rely on: figures of `df`, times, offsets of a listing, inode numbers, and the errno of
//! operations that a bucket can't do.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, SystemTime};

use rustix::io::Errno;

use super::semantics::assert_errno;
use crate::common::{Pattern, Setup, Store, TestMount, need_tool, python, until};

#[test]
fn a_stored_file_keeps_its_time_when_the_store_is_asked_again() {
    /// Seconds by which the time of the store's answer and the object's may differ.
    const ABOUT_THE_SAME: u64 = 2;
    let Some(mount) = TestMount::new(&[]) else { return };
    let times = |names: &[String; 2]| {
        names.each_ref().map(|name| {
            let meta = fs::metadata(mount.path(name)).unwrap();
            (meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec())
        })
    };
    let object = |name: &str| fs::metadata(mount.store().bucket_folder().join(name)).unwrap().mtime();
    let (mut round, mut names, mut first) = (0, <[String; 2]>::default(), [(0, 0, 0, 0); 2]);
    // A machine may stand still between the two times: other files are stored then.
    until("the store answers at once", || {
        round += 1;
        names = ["small", "of-parts"].map(|name| format!("{name}-{round}"));
        fs::write(mount.path(&names[0]), b"small").unwrap();
        fs::write(mount.path(&names[1]), Pattern(1).bytes(0, 20 << 20)).unwrap();
        first = times(&names);
        names.iter().zip(&first).all(|(name, shown)| shown.0.abs_diff(object(name)) <= ABOUT_THE_SAME)
    });
    // The mount's knowledge of it is a second old at most.
    std::thread::sleep(Duration::from_millis(1_200));
    mount.store().requests().reset();
    assert_eq!(times(&names), first);
    assert!(mount.store().requests().total() > 0, "it was not asked");
}

#[test]
fn the_file_system_has_the_figures_that_mounts_of_aws_have() {
    let Some(mount) = TestMount::new(&[]) else { return };
    let space = rustix::fs::statvfs(mount.dir()).unwrap();
    let plenty = u64::MAX / 1024;
    assert_eq!((space.f_bsize, space.f_frsize, space.f_namemax), (512, 512, 255));
    assert_eq!((space.f_blocks, space.f_bfree, space.f_bavail), (plenty, plenty, plenty));
    assert_eq!((space.f_files, space.f_ffree), (plenty, plenty));
}

#[test]
fn a_new_file_shows_the_times_that_are_set_until_it_is_stored() {
    let Some(mount) = TestMount::new(&[]) else { return };
    let path = mount.path("file");
    let then =
        |days: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(days * 86_400) + Duration::from_millis(250);
    let times = |accessed: u64, modified: u64| {
        fs::FileTimes::new().set_accessed(then(accessed)).set_modified(then(modified))
    };
    let shown = || {
        let meta = fs::metadata(&path).unwrap();
        (meta.accessed().unwrap(), meta.modified().unwrap())
    };
    let mut file = File::create_new(&path).unwrap();
    file.set_times(times(7_000, 8_000)).unwrap();
    assert_eq!(shown(), (then(7_000), then(8_000)));
    file.set_times(fs::FileTimes::new().set_modified(then(9_000))).unwrap();
    assert_eq!(shown(), (then(7_000), then(9_000)), "one is set, the other stays");
    std::io::Write::write_all(&mut file, b"1").unwrap();
    let (accessed, modified) = shown();
    assert_eq!(accessed, then(7_000));
    assert!(modified.elapsed().unwrap() < Duration::from_secs(600), "a write sets the time of modification");
    // `cp -p` sets the times in this way.
    file.set_times(times(7_000, 8_000)).unwrap();
    file.sync_all().unwrap();
    assert_errno(file.set_times(times(7_000, 8_000)), Errno::PERM);
    drop(file);
    let (accessed, modified) = shown();
    assert!(
        accessed == modified && modified.elapsed().unwrap() < Duration::from_secs(600),
        "the object's time"
    );
}

#[test]
fn what_a_bucket_has_no_word_for_has_the_errno_that_programs_expect() {
    let store = Store::new();
    store.plant("file", b"hello world");
    store.plant("file2", b"");
    let Some(mount) = TestMount::of(&store, &Setup::new(&[])) else { return };
    if !need_tool("python3") {
        return;
    }
    let script = "
import ctypes, fcntl, stat
libc = ctypes.CDLL(None, use_errno=True)
def fallocate(file, mode, end):
    if libc.fallocate(file, mode, ctypes.c_long(0), ctypes.c_long(end)):
        raise OSError(ctypes.get_errno(), 'fallocate')
path = sys.argv[1]
says('getxattr', lambda: os.getxattr(path, 'user.a'))
says('setxattr', lambda: os.setxattr(path, 'user.a', b'1'))
says('listxattr', lambda: os.listxattr(path))
says('removexattr', lambda: os.removexattr(path, 'user.a'))
says('readlink', lambda: os.readlink(path))
says('fifo', lambda: os.mkfifo(path + '-fifo'))
says('device', lambda: os.mknod(path + '-null', 0o600 | stat.S_IFCHR, os.makedev(1, 3)))
says('bind', lambda: __import__('socket').socket(1).bind(path + '-socket'))
says('exchange', lambda: libc.renameat2(-100, path.encode(), -100, path.encode() + b'2', 2) and (_ for _ in ()).throw(OSError(ctypes.get_errno(), '')))
one, two = os.open(path, os.O_RDONLY), os.open(path, os.O_RDONLY)
says('ioctl', lambda: fcntl.ioctl(one, 0x12, b'0000'))
says('flock', lambda: fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB))
says('flock by another', lambda: fcntl.flock(two, fcntl.LOCK_EX | fcntl.LOCK_NB))
says('fcntl', lambda: fcntl.lockf(one, fcntl.LOCK_SH | fcntl.LOCK_NB))
print('data', os.lseek(one, 3, os.SEEK_DATA), 'hole', os.lseek(one, 3, os.SEEK_HOLE))
os.lseek(one, 0, os.SEEK_SET)
directory = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
says('fsync of a directory', lambda: os.fsync(directory))
new = os.open(path + '-copy', os.O_WRONLY | os.O_CREAT | os.O_EXCL)
for mode in [0, 1, 3]:
    says('fallocate %d' % mode, lambda: fallocate(new, mode, 10))
says('posix_fallocate', lambda: os.posix_fallocate(new, 0, 10))
print('copied', os.copy_file_range(one, new, 11))
says('posix_fallocate of what is there', lambda: os.posix_fallocate(new, 0, 11))
says('close', lambda: os.close(new))
print('access', os.access(path, os.R_OK | os.W_OK))
";
    let said = python(script, &mount.path("file"), &[]);
    let expected = [
        "getxattr EOPNOTSUPP",
        "setxattr EOPNOTSUPP",
        "listxattr EOPNOTSUPP",
        "removexattr EOPNOTSUPP",
        "readlink EINVAL",
        "fifo EPERM",
        "device EPERM",
        "bind EPERM",
        "exchange EINVAL",
        "ioctl ENOTTY",
        "flock ok",
        "flock by another EAGAIN",
        "fcntl ok",
        "data 3 hole 11",
        "fsync of a directory ok",
        "fallocate 0 EINVAL",
        "fallocate 1 ok",
        "fallocate 3 EOPNOTSUPP",
        "posix_fallocate EINVAL",
        "copied 11",
        "posix_fallocate of what is there ok",
        "close ok",
        "access True",
    ];
    assert_eq!(said.lines().map(|line| line.replace("ENOTSUP", "EOPNOTSUPP")).collect::<Vec<_>>(), expected);
    assert_eq!(store.keys(), ["file", "file-copy", "file2"]);
    assert_eq!(store.get("file-copy").unwrap(), b"hello world");
}

#[test]
fn a_listing_goes_on_from_any_offset_that_it_gave_and_begins_anew_at_0() {
    let store = Store::new();
    for i in 0..2_500 {
        store.plant(&format!("dir/{i:04}"), b"");
    }
    let Some(mount) = TestMount::of(&store, &Setup::new(&[])) else { return };
    if !need_tool("python3") {
        return;
    }
    let script = "
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.opendir.restype = ctypes.c_void_p
libc.telldir.restype = ctypes.c_long
libc.readdir.restype = ctypes.c_void_p
directory = ctypes.c_void_p(libc.opendir(sys.argv[1].encode()))
def names():
    while True:
        ctypes.set_errno(0)
        entry = libc.readdir(directory)
        if not entry:
            if ctypes.get_errno():
                print('readdir', errno.errorcode[ctypes.get_errno()])
            return
        yield ctypes.string_at(entry + 19).decode()
listed, places = [], [libc.telldir(directory)]
for name in names():
    listed.append(name)
    places.append(libc.telldir(directory))
print(len(listed), len(set(places)) == len(places))
for start in [2000, 3, 1000, 2501, 2502, 0, 999]:
    libc.seekdir(directory, ctypes.c_long(places[start]))
    print(start, list(names()) == listed[start:])
libc.rewinddir(directory)
print('rewound', list(names()) == listed)
";
    let said = python(script, &mount.path("dir"), &[]);
    let starts = ["2000", "3", "1000", "2501", "2502", "0", "999"].map(|start| format!("{start} True"));
    let expected: Vec<_> =
        ["2502 True".to_owned()].into_iter().chain(starts).chain(["rewound True".to_owned()]).collect();
    assert_eq!(said.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn each_version_of_a_file_has_an_inode_number_of_its_own() {
    let store = Store::new();
    store.plant("dir/file", b"1");
    let Some(mount) = TestMount::of(&store, &Setup::new(&[])) else { return };
    let number = |name: &str| fs::metadata(mount.path(name)).unwrap().ino();
    assert_eq!(number(""), 1);
    let directory = number("dir");
    let mut seen = BTreeSet::from([1, directory]);
    for version in 0..3 {
        store.put("dir/file", format!("version {version}"));
        until("the new version shows", || {
            fs::read(mount.path("dir/file")).unwrap().ends_with(version.to_string().as_bytes())
        });
        assert!(seen.insert(number("dir/file")), "version {version} has the number of another: {seen:?}");
        assert_eq!(number("dir"), directory);
    }
    assert_eq!(number("dir/file"), *seen.last().unwrap(), "an unchanged file keeps its number");
}

#[test]
fn a_reader_keeps_writers_out_until_its_last_descriptor_is_closed() {
    let store = Store::new();
    store.plant("file", b"old");
    let Some(mount) = TestMount::of(&store, &Setup::new(&["--allow-overwrite"])) else { return };
    let path = mount.path("file");
    let reader = File::open(&path).unwrap();
    let copy = reader.try_clone().unwrap();
    drop(reader);
    assert_errno(File::create(&path), Errno::PERM);
    assert_eq!(std::io::read_to_string(&copy).unwrap(), "old");
    drop(copy);
    // The kernel releases the file behind the close; a machine that is busy for longer than the open waits for that refuses.
    until("it can be replaced", || fs::write(&path, b"new").is_ok());
    assert_eq!(store.get("file").unwrap(), b"new");
}
