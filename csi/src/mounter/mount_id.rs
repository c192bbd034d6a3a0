//! The mount at a path, without the mount table: a Kubernetes node has hundreds of mounts, and every publish needs to know two of them. The
//! mount itself is not called, so this works when an engine is dead or hangs.
//!
//! Never here: the owner of a mount.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;

/// The kernel's id of a mount. The kernel may reuse it after the mount is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MountId(u64);

/// Flags of an open(2) that only resolves the path: the file system is not called.
const PLACE: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl MountId {
    /// The uppermost mount at this path; `None` if the path is missing, or not a mount point. The path has no
    /// symbolic link in it.
    ///
    /// # Errors
    /// An error of open(2), or `/proc` is missing.
    pub fn at(path: &Path) -> io::Result<Option<Self>> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a mount point has a directory and a name",
            ));
        };
        let opened = openat(CWD, parent, PLACE, Mode::empty())
            .and_then(|directory| Ok((openat(&directory, name, PLACE, Mode::empty())?, directory)));
        let (place, directory) = match opened {
            Ok(opened) => opened,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let (of_place, of_directory) = (Self::of(&place)?, Self::of(&directory)?);
        Ok((of_place != of_directory).then_some(of_place))
    }

    fn of(place: &OwnedFd) -> io::Result<Self> {
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", place.as_raw_fd()))?;
        let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
        id.map(Self).ok_or_else(|| io::Error::other("/proc/self/fdinfo has no mnt_id"))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;
    use crate::mounter::sys::{self, Busy};
    use crate::mounter::testing::{dirs, fuse, isolated};

    fn at(path: &Path) -> Option<MountId> {
        MountId::at(path).unwrap()
    }

    #[test]
    fn a_path_without_a_mount_of_its_own_has_none() {
        let ([directory], _folder) = dirs();
        let file = directory.join("file");
        std::fs::write(&file, "").unwrap();
        for path in
            [&directory, &file, &directory.join("missing"), &directory.join("missing/below"), &file.join("x")]
        {
            assert_eq!(at(path), None, "{}", path.display());
        }
        assert!(MountId::at(Path::new("/")).is_err(), "it has no directory");
    }

    #[test]
    fn each_mount_has_a_number_of_its_own_and_the_uppermost_one_counts() {
        isolated(|| {
            let ([source, target, link_to], _folder) = dirs();
            let tmpfs =
                || rustix::mount::mount("tmpfs", &source, "tmpfs", rustix::mount::MountFlags::empty(), None);
            tmpfs().unwrap();
            let first = at(&source);
            sys::bind(&source, &target, false).unwrap();
            let bound = at(&target);
            assert!(first.is_some() && bound.is_some() && first != bound);
            assert_eq!(at(&source), first, "it stays as long as the mount");
            tmpfs().unwrap();
            assert!(at(&source).is_some() && at(&source) != first);
            assert!(sys::unmount(&target, Busy::Refuse).unwrap(), "no descriptor is left that keeps it busy");
            assert_eq!(at(&target), None);
            let link = link_to.join("link");
            std::os::unix::fs::symlink(&source, &link).unwrap();
            assert_eq!(at(&link), None, "the link itself, not where it leads");
        });
    }

    /// Goal: a publish does not hang where an engine does.
    #[test]
    fn an_unserved_mount_and_one_of_a_dead_engine_have_numbers_at_once() {
        isolated(|| {
            let Some(device) = fuse() else { return };
            let ([point], _folder) = dirs();
            sys::mount_fuse(device.as_fd(), &point, false).unwrap();
            let unserved = at(&point);
            drop(device);
            assert!(unserved.is_some() && at(&point) == unserved);
            assert!(sys::unmount(&point, Busy::Detach).unwrap());
            assert_eq!(at(&point), None);
        });
    }
}
