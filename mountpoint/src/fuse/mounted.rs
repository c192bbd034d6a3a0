//! A mount at its directory: the number that the kernel gave it, whether a later mount covers it, and its unmount.
//!
//! Enters: a directory, and the number of our mount where it is known. Leaves: that number, or the directory without our mount. A mount of
//! somebody else at the same path stays.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use crate::clock::Clock;
use crate::fs::DeviceNo;
use crate::mountinfo;

/// How long an unmount waits for room for one more process.
const PROCESS_WITHIN: Duration = Duration::from_secs(2);

/// The number of the file system that is mounted there, without a request to it.
pub(super) fn device_of(dir: &Path) -> Option<DeviceNo> {
    let ask = || {
        let root = rustix::fs::open(
            dir,
            rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        )?;
        rustix::fs::statx(
            root.as_fd(),
            "",
            rustix::fs::AtFlags::EMPTY_PATH | rustix::fs::AtFlags::STATX_DONT_SYNC,
            rustix::fs::StatxFlags::empty(),
        )
    };
    match ask() {
        Ok(stat) => Some(DeviceNo { major: stat.stx_dev_major, minor: stat.stx_dev_minor }),
        Err(error) => {
            tracing::debug!("the device of {} is not known: {error}", dir.display());
            None
        }
    }
}

/// The same for an adopted device, from Linux 6.17 on.
pub(super) fn device_behind(fuse: &OwnedFd) -> Option<DeviceNo> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fuse.as_raw_fd())).ok()?;
    let minor = info.lines().find_map(|line| line.strip_prefix("fuse_connection:"))?.trim().parse().ok()?;
    Some(DeviceNo { major: 0, minor })
}

/// Where our mount stands at its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// The path leads to it.
    Top,
    /// The path leads to a later mount.
    Covered,
    Gone,
}

/// Of the mount of `device` on `dir`, by a table of mounts. A later line covers an earlier one.
fn standing(table: &[u8], dir: &Path, device: DeviceNo) -> Standing {
    let mut here = mountinfo::lines(table).filter(|line| line.point.is(dir)).rev();
    let is_ours = |line: mountinfo::Line<'_>| device.is(line.device);
    match here.next() {
        Some(top) if is_ours(top) => Standing::Top,
        _ if here.any(is_ours) => Standing::Covered,
        _ => Standing::Gone,
    }
}

/// Unmounts our mount of `device` from `dir`; a mount in use is detached, and ends with its last open file. umount(2) and fusermount3 take
/// whatever is topmost at the path, so a mount of somebody else there is left alone.
///
/// # Errors
/// Another mount covers ours; or an error of umount(2) or fusermount3.
pub(super) fn unmount_directory(dir: &Path, device: Option<DeviceNo>) -> anyhow::Result<()> {
    if !is_topmost(dir, device)? {
        return Ok(());
    }
    match unmount(dir, UnmountFlags::empty()) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => {
            tracing::warn!("{} is in use: detached, it ends with its last open file", dir.display());
            unmount(dir, UnmountFlags::DETACH).with_context(|| format!("detaching {}", dir.display()))
        }
        // Not a mount any more: another process unmounted it first.
        Err(Errno::INVAL) => Ok(()),
        Err(Errno::PERM) => {
            match fusermount(dir, &Clock::machine()).context("starting fusermount3 to unmount")? {
                status if status.success() => Ok(()),
                status => bail!("fusermount3 -u {}: {status}", dir.display()),
            }
        }
        Err(error) => Err(error).with_context(|| format!("unmounting {}", dir.display())),
    }
}

/// Has fusermount3 detach it. Where the user's limit of processes refuses one more, a thread of ours that ends just now may make room.
fn fusermount(dir: &Path, clock: &Clock) -> io::Result<ExitStatus> {
    let until = clock.now() + PROCESS_WITHIN;
    loop {
        match Command::new("fusermount3").args(["-u", "-z", "--"]).arg(dir).status() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && clock.now() < until => {
                std::thread::sleep(Duration::from_millis(20));
            }
            result => return result,
        }
    }
}

/// Whether our mount of `device` is what an unmount of `dir` would unmount. `false`: it is there no more. What can't be known is assumed.
///
/// # Errors
/// Another mount covers ours.
pub(super) fn is_topmost(dir: &Path, device: Option<DeviceNo>) -> anyhow::Result<bool> {
    let (Some(device), Ok(table)) = (device, std::fs::read(mountinfo::OWN)) else { return Ok(true) };
    match standing(&table, dir, device) {
        Standing::Top => Ok(true),
        Standing::Gone => Ok(false),
        Standing::Covered => {
            bail!("{} is covered by another mount: unmount that first", dir.display())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_mount_is_told_from_those_before_and_after_it_at_the_same_path() {
        let line = |id: u32, minor: u32, point: &str| format!("{id} 1 0:{minor} / {point} rw - any any rw\n");
        let (ours, other) = (line(7, 44, "/a\\040b"), line(8, 45, "/a\\040b"));
        let elsewhere = line(9, 46, "/a") + &line(10, 44, "/c");
        let device = DeviceNo { major: 0, minor: 44 };
        for (table, means) in [
            (format!("{ours}{elsewhere}"), Standing::Top),
            (format!("{other}{ours}{elsewhere}"), Standing::Top),
            (format!("{ours}{other}{elsewhere}"), Standing::Covered),
            (format!("{other}{elsewhere}"), Standing::Gone),
            (elsewhere, Standing::Gone),
        ] {
            assert_eq!(standing(table.as_bytes(), Path::new("/a b"), device), means, "{table}");
        }
    }
}
