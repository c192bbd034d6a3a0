//! Abilities of the file system below a stage, found by trial with files that have no name.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use super::lease;

/// Whether the kernel tells if somebody writes a file of a directory. A file in memory (tmpfs) does not show when a mapping changes it.
pub(super) fn tells_writers(dir: &Path) -> bool {
    const TMPFS: i64 = 0x0102_1994;
    const RAMFS: i64 = 0x8584_58f6;
    let is_in_memory = rustix::fs::statfs(dir).is_ok_and(|about| [TMPFS, RAMFS].contains(&about.f_type));
    let grants = || {
        let writer = nameless(dir)?;
        let reader = File::open(format!("/proc/self/fd/{}", writer.as_raw_fd()))?;
        let is_refused = !lease::is_granted(&reader);
        drop(writer);
        io::Result::Ok(is_refused && lease::is_granted(&reader))
    };
    !is_in_memory && grants().unwrap_or(false)
}

/// A file without a name.
fn nameless(dir: &Path) -> io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    Ok(rustix::fs::open(dir, flags, Mode::RUSR | Mode::WUSR).map(File::from)?)
}

/// Whether the file system of a directory clones files. The two files of the trial have no names.
pub(super) fn can_clone(dir: &Path) -> bool {
    let cloned = || {
        let (from, to) = (nameless(dir)?, nameless(dir)?);
        from.write_all_at(&[1], 0)?;
        io::Result::Ok(rustix::fs::ioctl_ficlone(&to, &from)?)
    };
    cloned().is_ok()
}
