//! Checks the directory on which to mount. Enters: the path from the command line. Leaves: the absolute path, or the reason why nothing can
//! be mounted there, with a remedy.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

/// The absolute path of a directory that can be a mount point. `over_dead`: also accepts a mount whose process has ended.
pub(super) fn fit(directory: &Path, over_dead: bool) -> anyhow::Result<PathBuf> {
    use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
    use rustix::io::Errno;
    // The flag bypasses the kernel's cache, which would answer for a dead mount.
    let asked = over_dead.then(|| statx(CWD, directory, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS));
    // CONNABORTED: the mount's process has just ended, and the kernel was still dismantling its io_uring.
    if let Some(Err(Errno::NOTCONN | Errno::CONNABORTED)) = asked {
        let shown = directory.display();
        if let Some(point) = dead_mount(directory).with_context(|| format!("mount point {shown}"))? {
            tracing::warn!("mounting over a mount at {shown} whose process has ended");
            return Ok(point);
        }
    }
    let absolute = std::fs::canonicalize(directory).map_err(|error| {
        let shown = directory.display();
        match Errno::from_io_error(&error) {
            Some(Errno::NOTCONN | Errno::CONNABORTED) => anyhow::anyhow!(
                "{shown}: a mount whose process has ended is still there; remove it with: umount -l {shown}"
            ),
            Some(Errno::NOENT) => {
                anyhow::anyhow!("mount point {shown} does not exist: make it with `mkdir -p {shown}`")
            }
            _ => anyhow::Error::new(error).context(format!("mount point {shown}")),
        }
    })?;
    let shown = directory.display();
    match std::fs::metadata(&absolute).map_err(|error| (Errno::from_io_error(&error), error)) {
        Ok(about) if about.is_dir() => {}
        Ok(_) => bail!("mount point {shown} is not a directory: name a directory, and `mkdir -p` makes one"),
        Err((Some(Errno::NOTCONN | Errno::CONNABORTED), _)) => bail!(
            "{shown}: a mount whose process has ended is still there; remove it with: umount -l {shown}"
        ),
        Err((_, error)) => return Err(anyhow::Error::new(error).context(format!("mount point {shown}"))),
    }
    let stat = statx(CWD, &absolute, AtFlags::empty(), StatxFlags::BASIC_STATS)?;
    let is_mounted = stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
    let autofs = rustix::fs::statfs(&absolute).is_ok_and(|s| s.f_type == 0x0187);
    if is_mounted && !autofs {
        bail!("mount point {shown} is already mounted: unmount it first (`umount {shown}`)");
    }
    if !autofs && std::fs::read_dir(&absolute).is_ok_and(|mut entries| entries.next().is_some()) {
        tracing::warn!("mount point {shown} is not empty: what is in it is hidden until it is unmounted");
    }
    Ok(absolute)
}

/// The path of a mount whose process has ended, as in the kernel's table. The function never accesses the mount itself: it resolves the
/// directory from its parent, and reads it only as a possible symbolic link.
pub(super) fn dead_mount(directory: &Path) -> std::io::Result<Option<PathBuf>> {
    let mut path = std::path::absolute(directory)?;
    // The kernel follows at most the same number of links.
    for _ in 0..40 {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(None) };
        path = parent.canonicalize()?.join(name);
        match std::fs::read_link(&path) {
            Ok(target) => path = path.with_file_name(target),
            Err(_) => return Ok(Some(path)),
        }
    }
    Ok(None)
}
