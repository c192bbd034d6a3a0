//! Facts about other processes, from `/proc`: whether two threads belong to one process, and whether a process holds a file open. Reading
//! it never waits, neither for a network nor for the process.
//!
//! A program closes its close-on-exec files inside execve(2), and the kernel locks the process until these FLUSH are answered. Reading
//! `stat`, `maps` or `environ` of the thread, or following one of its links (`fd/N`, `exe`, `ns/`), waits for that lock: the FUSE thread
//! and the program would wait for each other for ever. `status`, `task/`, `fdinfo/` and `mountinfo` do not take it. This file reads nothing
//! else in `/proc`.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use rustix::fs::OFlags;

use crate::broker::{self, Question};
use crate::inode::InodeNo;
use crate::mountinfo;

/// Number of a file system, as in stat(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceNo {
    /// 0 for file systems without a disk.
    pub major: u32,
    /// Unique among file systems without a disk.
    pub minor: u32,
}

impl DeviceNo {
    /// Whether a field of mountinfo has this number.
    pub(crate) fn is(self, shown: &str) -> bool {
        Self::of(shown) == Some(self)
    }

    /// Parses a device number from mountinfo.
    pub(crate) fn of(shown: &str) -> Option<Self> {
        let (major, minor) = shown.split_once(':')?;
        Some(Self { major: major.parse().ok()?, minor: minor.parse().ok()? })
    }
}

/// A mount of this engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OwnMount {
    pub(super) device: DeviceNo,
    /// The mount's number in our table of mounts. It identifies descriptors whose mount was detached and left the table.
    pub(super) id: Option<u32>,
}

impl OwnMount {
    /// The mount of this device; the last one, if there are several.
    pub(super) fn of(device: DeviceNo) -> Self {
        let table = fs::read(mountinfo::OWN).unwrap_or_default();
        let id = mountinfo::lines(&table).rfind(|line| device.is(line.device)).map(|line| line.id);
        Self { device, id }
    }
}

/// Most descriptors of one process that `holds` examines; for a process with more, the answer is unknown. Doubling it doubles the
/// longest time that a FUSE thread spends here.
const DESCRIPTORS_MAX: usize = 1024;

/// Most threads of one process that are examined; further ones are ignored. Usually the first thread has the descriptors, and only ended
/// threads lack them. Doubling it doubles the longest time that a FUSE thread spends here.
const THREADS_MAX: usize = 64;

/// Whether a thread belongs to a process. FUSE names the calling *thread*; a file is opened by one thread and often closed by another of
/// the same process. `process` was [`thread_group`] of the opener: the thread itself may be gone.
pub(super) fn is_of_process(process: u32, thread: u32) -> bool {
    process == thread || thread_group(thread) == Some(process)
}

/// Name of the program that a thread runs, at most 15 bytes. `None` as for [`thread_group`].
pub(super) fn program(tid: u32) -> Option<Box<str>> {
    let status = fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    Some(status.lines().next()?.strip_prefix("Name:")?.trim().into())
}

/// The process of a thread. `None` if the thread is gone, or in a process namespace that the engine can't see.
pub(super) fn thread_group(tid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
}

/// The descriptors to look for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    /// Descriptors that read or write.
    All,
    /// Descriptors that write.
    Writing,
}

/// The living threads of a process, at most [`THREADS_MAX`]; none if the engine can't see the process.
pub(super) fn threads(process: u32) -> impl Iterator<Item = u32> {
    let entries = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten();
    entries.take(THREADS_MAX).filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// Whether this thread has a usable descriptor of this file of our mount. A descriptor of `O_PATH` neither reads nor writes, and its
/// close reaches no file system, so it does not count. `None`: the engine can't see the answer, for a process of another user or
/// namespace, a process with more than [`DESCRIPTORS_MAX`] descriptors, and before Linux 5.14.
///
/// The main thread of a process can end before other threads, so this reads the table of the thread. A thread that exits has no table any
/// more: the kernel closes all its descriptors.
///
/// A sandboxed engine sees no descriptors of others: its helper looks.
pub(super) fn holds(tid: u32, mount: OwnMount, ino: InodeNo, which: Which) -> Option<bool> {
    let Some(broker) = broker::of_this_process() else { return holds_here(tid, mount, ino, which) };
    let OwnMount { device, id } = mount;
    broker.holds(&Question::Holds {
        tid,
        device: (device.major, device.minor),
        mount: id,
        ino: ino.0,
        writing: which == Which::Writing,
    })
}

/// The answer of `holds` from the helper of a sandboxed engine. `device`: major and minor number of the mount, `mount`: the mount's own
/// number.
pub fn holds_for(tid: u32, device: (u32, u32), mount: Option<u32>, ino: u64, writing: bool) -> Option<bool> {
    let which = if writing { Which::Writing } else { Which::All };
    let device = DeviceNo { major: device.0, minor: device.1 };
    holds_here(tid, OwnMount { device, id: mount }, InodeNo(ino), which)
}

fn holds_here(tid: u32, mount: OwnMount, ino: InodeNo, which: Which) -> Option<bool> {
    let process = Path::new("/proc").join(tid.to_string());
    let (mut mounts, mut is_sure) = (None, true);
    for (n, entry) in fs::read_dir(process.join("fdinfo")).ok()?.enumerate() {
        let entry = entry.ok()?;
        if n == DESCRIPTORS_MAX {
            return None;
        }
        let place = match fs::read_to_string(entry.path()) {
            Ok(info) => FdInfo::of(&info)?,
            // Closed meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(_) => return None,
        };
        if place.is_path || place.ino != ino.0 || which == Which::Writing && !place.writes {
            continue;
        }
        // A node of Kubernetes has thousands of mounts: the table is read only now, and once.
        let table = match &mounts {
            Some(table) => table,
            None => mounts.insert(fs::read(process.join("mountinfo")).ok()?),
        };
        match device_of_mount(table, place.mount) {
            Some(of) if of == mount.device => return Some(true),
            Some(_) => {}
            // Not in the table: detached.
            None if mount.id == Some(place.mount) => return Some(true),
            // A mount of the kernel's own (pipes, sockets), or a detached copy of ours.
            None => is_sure = false,
        }
    }
    is_sure.then_some(false)
}

/// The facts about a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FdInfo {
    mount: u32,
    ino: u64,
    /// Whether the file was opened with `O_PATH`.
    is_path: bool,
    /// Whether the file was opened for writing.
    writes: bool,
}

impl FdInfo {
    /// Parses `fdinfo`, which has the inode number since Linux 5.14.
    fn of(info: &str) -> Option<Self> {
        let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let flags = u32::from_str_radix(field("flags:")?, 8).ok()?;
        Some(Self {
            mount: field("mnt_id:")?.parse().ok()?,
            ino: field("ino:")?.parse().ok()?,
            is_path: OFlags::from_bits_retain(flags).contains(OFlags::PATH),
            writes: OFlags::from_bits_retain(flags) & OFlags::RWMODE != OFlags::RDONLY,
        })
    }
}

/// The device of a mount in `mountinfo`.
fn device_of_mount(table: &[u8], mount: u32) -> Option<DeviceNo> {
    let line = mountinfo::lines(table).find(|line| line.id == mount)?;
    DeviceNo::of(line.device)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    /// A mount that is in no table by a number of its own.
    fn of(device: DeviceNo) -> OwnMount {
        OwnMount { device, id: None }
    }

    #[test]
    fn threads_of_one_process_are_recognised_and_strangers_are_not() {
        let me = std::process::id();
        let other_thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        assert!(is_of_process(me, other_thread));
        // Not process 1: in a namespace of its own this test may be that one.
        let mut stranger = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(!is_of_process(me, stranger.id()));
        stranger.kill().unwrap();
        stranger.wait().unwrap();
        assert_eq!(thread_group(other_thread), Some(me));
    }

    #[test]
    fn a_descriptor_is_found_by_device_and_number_until_it_is_closed() {
        // In a process of its own: a file of another test may have the same number, on a mount that no table shows.
        testkit::isolated(|| {
            let thread = || rustix::thread::gettid().as_raw_nonzero().get() as u32;
            // A file system that shows the device of its mount; btrfs and overlays do not.
            let new = || tempfile::tempfile_in("/dev/shm").unwrap();
            let number = |file: &fs::File| file.metadata().unwrap().ino();
            // Standard input is on a mount outside, which no table of this namespace has, and the first files of a tmpfs have numbers as
            // low as those of devices.
            let inherited =
                fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| entry.ok()?.path().metadata().ok());
            let inherited: Vec<_> = inherited.map(|meta| meta.ino()).collect();
            let file = std::iter::repeat_with(new).find(|file| !inherited.contains(&number(file))).unwrap();
            let meta = file.metadata().unwrap();
            let dev = meta.dev();
            let device = DeviceNo { major: rustix::fs::major(dev), minor: rustix::fs::minor(dev) };
            let other = DeviceNo { minor: device.minor + 1, ..device };
            let ino = InodeNo(meta.ino());
            let duplicate = file.try_clone().unwrap();
            assert_eq!(holds(thread(), of(device), ino, Which::All), Some(true));
            assert_eq!(holds(thread(), of(other), ino, Which::All), Some(false), "the same number elsewhere");
            drop(file);
            let elsewhere = std::thread::spawn(move || holds(thread(), of(device), ino, Which::All));
            assert_eq!(elsewhere.join().unwrap(), Some(true));
            let path = format!("/proc/self/fd/{}", duplicate.as_raw_fd());
            let reader = fs::File::open(&path).unwrap();
            assert_eq!(holds(thread(), of(device), ino, Which::Writing), Some(true));
            let path = rustix::fs::open(path, OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
            drop(duplicate);
            assert_eq!(holds(thread(), of(device), ino, Which::All), Some(true));
            assert_eq!(
                holds(thread(), of(device), ino, Which::Writing),
                Some(false),
                "one that reads does not count"
            );
            drop(reader);
            assert_eq!(
                holds(thread(), of(device), ino, Which::All),
                Some(false),
                "one of O_PATH does not count"
            );
            drop(path);
            assert_eq!(holds(thread(), of(device), ino, Which::All), Some(false));
            assert_eq!(holds(0, of(device), ino, Which::All), None, "of another namespace");

            // Not in the table of mounts.
            let file = rustix::fs::memfd_create("file", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
            let ino = InodeNo(std::fs::File::from(file.try_clone().unwrap()).metadata().unwrap().ino());
            assert_eq!(holds(thread(), of(device), ino, Which::All), None);
            let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd())).unwrap();
            let detached = OwnMount { device, id: Some(FdInfo::of(&info).unwrap().mount) };
            assert_eq!(
                holds(thread(), detached, ino, Which::All),
                Some(true),
                "a mount of ours that was detached"
            );
        });
    }

    #[test]
    fn the_place_of_a_descriptor_is_its_mount_and_its_inode_number() {
        let info = "pos:\t0\nflags:\t0100001\nmnt_id:\t29\nino:\t7\n";
        let place = FdInfo { mount: 29, ino: 7, is_path: false, writes: true };
        assert_eq!(FdInfo::of(info), Some(place));
        let path = info.replace("0100001", "012100000");
        assert_eq!(
            FdInfo::of(&path),
            Some(FdInfo { is_path: true, writes: false, ..place }),
            "O_PATH, O_CLOEXEC and O_LARGEFILE"
        );
        assert_eq!(FdInfo::of("pos:\t0\nflags:\t0100001\nmnt_id:\t29\n"), None, "before Linux 5.14");
        let table =
            "22 28 0:21 / /proc rw - proc proc rw\n29 28 0:44 / /a\\040b rw,nosuid - fuse.mount-s3 s rw\n";
        assert_eq!(device_of_mount(table.as_bytes(), 29), Some(DeviceNo { major: 0, minor: 44 }));
        assert_eq!(device_of_mount(table.as_bytes(), 2), None);
        assert_eq!(device_of_mount(b"29\n", 29), None);
    }

    #[test]
    fn a_process_with_more_descriptors_than_are_looked_at_is_not_known() {
        let script =
            "ulimit -n 1200; for i in {10..1100}; do eval \"exec $i</dev/null\"; done; echo all; read";
        let mut command = std::process::Command::new("bash");
        command.args(["-c", script]).stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut said = [0; 4];
        std::io::Read::read_exact(&mut child.stdout.take().unwrap(), &mut said).unwrap();
        assert_eq!(&said, b"all\n");
        assert_eq!(
            holds(child.id(), of(DeviceNo { major: 0, minor: u32::MAX }), InodeNo(u64::MAX), Which::All),
            None
        );
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
