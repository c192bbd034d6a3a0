//! Abilities of the file system below a stage, found by trial with files that have no name.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::fs::{Mode, OFlags};

use super::lease;

/// The longest tick of a file system's clock that [`super::lent::YOUNG`] allows for.
const TICK_MAX: Duration = Duration::from_millis(10);

/// Whether the kernel tells if somebody writes a file of a directory. A file in memory (tmpfs) does not show when a mapping changes it.
pub(super) fn tells_writers(dir: &Path) -> bool {
    const TMPFS: i64 = 0x0102_1994;
    const RAMFS: i64 = 0x8584_58f6;
    let is_in_memory = rustix::fs::statfs(dir).is_ok_and(|about| [TMPFS, RAMFS].contains(&about.f_type));
    let grants = || {
        let writer = nameless(dir)?;
        if !has_fine_times(&writer)? {
            return Ok(false);
        }
        let reader = File::open(format!("/proc/self/fd/{}", writer.as_raw_fd()))?;
        let is_refused = !lease::is_granted(&reader);
        drop(writer);
        io::Result::Ok(is_refused && lease::is_granted(&reader))
    };
    !is_in_memory && grants().unwrap_or(false)
}

/// Whether times of the file have fractions of a second. ext3, and ext4 with inodes of 128 bytes, count in seconds: two changes within one show
/// the same.
fn has_fine_times(file: &File) -> io::Result<bool> {
    let fine = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 987_654_321);
    file.set_modified(fine)?;
    Ok(is_fine(fine, file.metadata()?.modified()?))
}

/// Whether a time is as fine as the engine expects, if `shown` is what the file system made of `set`.
fn is_fine(set: SystemTime, shown: SystemTime) -> bool {
    set.duration_since(shown).is_ok_and(|lost| lost <= TICK_MAX)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_are_cut_to_seconds_are_not_fine() {
        let set = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_001, 987_654_321);
        assert!(is_fine(set, set) && is_fine(set, set - Duration::from_nanos(321)));
        for seconds in [1_000_000_000, 1_000_000_001, 1_000_000_002] {
            assert!(!is_fine(set, SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)), "{seconds}");
        }
        let file = tempfile::tempfile().unwrap();
        assert!(has_fine_times(&file).unwrap(), "the machine of the tests");
    }
}
