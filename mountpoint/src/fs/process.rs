//! Facts about other processes, from `/proc`: whether two threads belong to one process, and whether a process holds a file open. Reading
//! it never waits for a network.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use crate::inode::InodeNo;

/// Number of a file system as stat(2) shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceNo {
    /// 0 for file systems without a disk.
    pub major: u32,
    /// Unique among file systems without a disk.
    pub minor: u32,
}

/// Descriptors of one process that [`holds`] looks at; with more, it does not know. Doubling it doubles the longest time that a
/// FUSE thread spends here.
const DESCRIPTORS_MAX: usize = 1024;

/// FUSE names the calling *thread*; a file is opened by one thread and often closed by another of the same process.
/// `process` was [`thread_group`] of the opener: the thread itself may be gone.
pub(super) fn is_of_process(process: u32, thread: u32) -> bool {
    process == thread || thread_group(thread) == Some(process)
}

/// `None` when the thread is gone or is of a process namespace that we can't see.
pub(super) fn thread_group(tid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
}

/// Whether this thread has a descriptor of this file of our mount. `None`: the engine can't see that, for a process of another user or
/// namespace, or one with more than [`DESCRIPTORS_MAX`] descriptors.
///
/// The main thread of a process can end before other threads, so this reads the table of the thread. A thread that exits has no table any
/// more: the kernel closes all its descriptors.
pub(super) fn holds(tid: u32, device: DeviceNo, ino: InodeNo) -> Option<bool> {
    let table = Path::new("/proc").join(tid.to_string());
    for (n, entry) in fs::read_dir(table.join("fdinfo")).ok()?.enumerate() {
        let entry = entry.ok()?;
        if n == DESCRIPTORS_MAX {
            return None;
        }
        let number = match fs::read_to_string(entry.path()) {
            Ok(info) => inode_of(&info),
            // Closed meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(_) => return None,
        };
        // No stat of other files: on a network file system it could wait for a server.
        if number.is_some_and(|number| number != ino.0) {
            continue;
        }
        // Before Linux 5.14 only the stat knows the number. DONT_SYNC: the kernel answers for a file of ours without a request to us.
        let wanted = if number.is_some() { StatxFlags::empty() } else { StatxFlags::INO };
        let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
        match statx(CWD, table.join("fd").join(entry.file_name()), flags, wanted) {
            Ok(stat) => {
                let is_ours = (stat.stx_dev_major, stat.stx_dev_minor) == (device.major, device.minor);
                if is_ours && (number.is_some() || stat.stx_ino == ino.0) {
                    return Some(true);
                }
            }
            Err(rustix::io::Errno::NOENT) => {}
            Err(_) => return None,
        }
    }
    Some(false)
}

/// The number of the file behind a descriptor.
fn inode_of(info: &str) -> Option<u64> {
    info.lines().find_map(|line| line.strip_prefix("ino:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn threads_of_one_process_are_recognised_and_strangers_are_not() {
        let me = std::process::id();
        let other_thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        assert!(is_of_process(me, other_thread));
        assert!(!is_of_process(me, 1));
        assert_eq!(thread_group(other_thread), Some(me));
    }

    #[test]
    fn a_descriptor_is_found_by_device_and_number_until_it_is_closed() {
        let thread = || rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let file = tempfile::tempfile().unwrap();
        let meta = file.metadata().unwrap();
        let dev = meta.dev();
        let device = DeviceNo { major: rustix::fs::major(dev), minor: rustix::fs::minor(dev) };
        let other = DeviceNo { minor: device.minor + 1, ..device };
        let ino = InodeNo(meta.ino());
        let duplicate = file.try_clone().unwrap();
        assert_eq!(holds(thread(), device, ino), Some(true));
        assert_eq!(holds(thread(), other, ino), Some(false), "the same number elsewhere");
        drop(file);
        assert_eq!(std::thread::spawn(move || holds(thread(), device, ino)).join().unwrap(), Some(true));
        drop(duplicate);
        assert_eq!(holds(thread(), device, ino), Some(false));
        assert_eq!(holds(0, device, ino), None, "of another namespace");
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
        assert_eq!(holds(child.id(), DeviceNo { major: 0, minor: u32::MAX }, InodeNo(u64::MAX)), None);
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
