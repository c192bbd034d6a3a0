//! A mount at its directory: the number that the kernel gave it, whether a later mount covers it, and its unmount.
//!
//! Enters: a directory, and the number of our mount where it is known. Leaves: that number, or the directory without our mount. Another
//! process's mount at the same path stays.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use super::device::connection_of;
use super::helper::helper;
use crate::broker;
use crate::clock::Clock;
use crate::fs::DeviceNo;
use crate::mountinfo;

/// Longest time for retries to start fusermount3 while the limit of processes refuses it; then the unmount fails.
const PROCESS_WITHIN: Duration = Duration::from_secs(2);

/// The device number of the file system mounted on `dir`, without a request to it.
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

/// The device number of the file system of an adopted FUSE device; `None` if the kernel does not report it.
pub(super) fn device_behind(fuse: &OwnedFd) -> Option<DeviceNo> {
    let minor = connection_of(fuse).ok()??;
    Some(DeviceNo { major: 0, minor })
}

/// The place of the mount in a table of mounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// The mount is reachable at this path.
    Top(PathBuf),
    /// A later mount at this path covers ours.
    Covered(PathBuf),
    Gone,
}

/// The place of the mount of `device` on `dir` in a table of mounts. A later line covers an earlier one. `anywhere`: also accept another
/// path of the mount, because a directory above it may have been renamed. If the mount has several paths, as after a bind mount, `dir` goes
/// first, then the last path.
pub(super) fn standing(table: &[u8], dir: &Path, device: DeviceNo, anywhere: bool) -> Standing {
    let ours = || mountinfo::lines(table).rev().filter(|line| device.is(line.device));
    let here = ours().find(|line| line.point.is(dir));
    let Some(line) = here.or_else(|| ours().next().filter(|_| anywhere)) else { return Standing::Gone };
    let point = line.point.path();
    match mountinfo::lines(table).rfind(|line| line.point.is(&point)) {
        Some(top) if device.is(top.device) => Standing::Top(point),
        _ => Standing::Covered(point),
    }
}

/// Unmounts our mount of `device` from `dir`; a mount in use is detached, and ends with its last open file. umount(2) and fusermount3 take
/// whatever is topmost at the path, so another process's mount there is left alone.
///
/// # Errors
/// Another mount covers ours; or an error of umount(2) or fusermount3.
pub(super) fn unmount_directory(
    dir: &Path,
    device: Option<DeviceNo>,
    is_connected: bool,
) -> anyhow::Result<()> {
    match broker::of_this_process().filter(|broker| broker.knows_mount()) {
        Some(broker) => broker.unmount(is_connected).map_err(anyhow::Error::new),
        None => unmount_here(dir, device, is_connected),
    }
}

/// Whether a helper unmounts for this process.
pub(super) fn is_helped() -> bool {
    broker::of_this_process().is_some_and(|broker| broker.knows_mount())
}

/// Unmounts from this process itself, as `unmount_directory` does. A sandboxed engine may not do this.
///
/// # Errors
/// The errors of `unmount_directory`.
pub fn unmount_here(dir: &Path, device: Option<DeviceNo>, is_connected: bool) -> anyhow::Result<()> {
    let Some(dir) = topmost(dir, device, is_connected)? else { return Ok(()) };
    let dir = dir.as_path();
    match unmount(dir, UnmountFlags::empty()) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => {
            tracing::warn!("{} is in use: detached, it ends with its last open file", dir.display());
            unmount(dir, UnmountFlags::DETACH).with_context(|| format!("detaching {}", dir.display()))
        }
        // The path is not a mount any more: another process unmounted it first.
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

/// Detaches the mount by fusermount3. If the user's limit of processes refuses a new one, retries for [`PROCESS_WITHIN`]: a thread of ours
/// that is about to end may make room.
pub(super) fn fusermount(dir: &Path, clock: &Clock) -> io::Result<ExitStatus> {
    let until = clock.now() + PROCESS_WITHIN;
    loop {
        match helper("fusermount3").args(["-u", "-z", "--"]).arg(dir).status() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && clock.now() < until => {
                std::thread::sleep(Duration::from_millis(20));
            }
            result => return result,
        }
    }
}

/// The path whose unmount unmounts our mount of `device` on `dir`. `None`: the mount is gone. If the table can't be read, the mount is
/// assumed to exist.
///
/// Once the kernel has taken the file system down, another file system may get its number, at any path. So other paths than `dir` are
/// searched only while the mount `is_connected`.
///
/// # Errors
/// Another mount covers ours.
pub(super) fn topmost(
    dir: &Path,
    device: Option<DeviceNo>,
    is_connected: bool,
) -> anyhow::Result<Option<PathBuf>> {
    let (Some(device), Ok(table)) = (device, std::fs::read(mountinfo::OWN)) else {
        return Ok(Some(dir.to_owned()));
    };
    match standing(&table, dir, device, is_connected) {
        Standing::Top(point) => Ok(Some(point)),
        Standing::Gone => Ok(None),
        Standing::Covered(point) => {
            bail!("{} is covered by another mount: unmount that first", point.display())
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
        let (top, covered) = (Standing::Top("/a b".into()), Standing::Covered("/a b".into()));
        for (table, means) in [
            (format!("{ours}{elsewhere}"), &top),
            (format!("{other}{ours}{elsewhere}"), &top),
            (format!("{ours}{other}{elsewhere}"), &covered),
            (format!("{other}{}", line(9, 46, "/a")), &Standing::Gone),
        ] {
            assert_eq!(standing(table.as_bytes(), Path::new("/a b"), device, true), *means, "{table}");
        }
    }

    #[test]
    fn our_mount_is_found_by_its_device_where_its_path_has_changed() {
        let line = |id: u32, minor: u32, point: &str| format!("{id} 1 0:{minor} / {point} rw - any any rw\n");
        let (moved, bound, other) = (line(7, 44, "/new"), line(8, 44, "/bound"), line(9, 45, "/old"));
        let device = DeviceNo { major: 0, minor: 44 };
        let top = |point: &str| Standing::Top(point.into());
        for (table, dir, means) in [
            (moved.clone(), "/old", top("/new")),
            // Mounts that came to the old path belong to other processes.
            (format!("{moved}{other}"), "/old", top("/new")),
            (format!("{moved}{}", line(9, 45, "/new")), "/old", Standing::Covered("/new".into())),
            (format!("{moved}{bound}"), "/new", top("/new")),
            (format!("{moved}{bound}"), "/old", top("/bound")),
            (other, "/old", Standing::Gone),
        ] {
            assert_eq!(standing(table.as_bytes(), Path::new(dir), device, true), means, "{dir} in {table}");
            // Without a connection the number may be another's by now, except at its own path.
            let means = if means == top(dir) { means } else { Standing::Gone };
            assert_eq!(standing(table.as_bytes(), Path::new(dir), device, false), means, "{dir} in {table}");
        }
    }
}
