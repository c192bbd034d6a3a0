//! The files that the helper of a sandboxed engine registers for the kernel's own reads: those of the cache, and no others.
//!
//! The helper has the privilege of passthrough, so a descriptor from an intruder in the engine must not decide what the kernel reads.
//! Landlock covers neither `O_PATH` nor descriptors from before the sandbox.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, fcntl_getfl, fstat, open, readlink};

use crate::fuse;

/// The folder of a cache, held open: a later folder of its name does not count.
#[derive(Debug)]
pub(super) struct Lent(OwnedFd);

impl Lent {
    /// Opens the folder of a cache.
    ///
    /// # Errors
    /// The folder can't be opened.
    pub(super) fn of(cache: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(open(cache, flags, Mode::empty())?))
    }

    /// Checks that a descriptor reads a file of the cache.
    ///
    /// # Errors
    /// The descriptor does not.
    pub(super) fn check(&self, file: impl AsFd) -> io::Result<()> {
        let flags = fcntl_getfl(file.as_fd())?;
        let is_regular = FileType::from_raw_mode(fstat(file.as_fd())?.st_mode) == FileType::RegularFile;
        let reads = !flags.contains(OFlags::PATH) && flags & OFlags::ACCMODE != OFlags::WRONLY;
        match reads && is_regular && path_of(file)?.starts_with(path_of(&self.0)?) {
            true => Ok(()),
            false => Err(refused("a file that is none of the cache")),
        }
    }
}

/// Checks that a descriptor is a FUSE device: ioctls of other devices have the same numbers and other meanings.
///
/// # Errors
/// The descriptor is of another file.
pub(super) fn check_device(device: impl AsFd) -> io::Result<()> {
    match fuse::is_device(device)? {
        true => Ok(()),
        false => Err(refused("a device that is not of FUSE")),
    }
}

/// The path of an open file, as the kernel has it now.
fn path_of(file: impl AsFd) -> io::Result<PathBuf> {
    use std::os::unix::ffi::OsStringExt as _;
    let path = readlink(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()), Vec::new())?;
    Ok(PathBuf::from(std::ffi::OsString::from_vec(path.into_bytes())))
}

fn refused(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, format!("the helper registers no {what}"))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;

    #[test]
    fn only_files_of_the_cache_that_were_opened_to_be_read_are_lent() {
        let dir = tempfile::tempdir().unwrap();
        let cache = dir.path().join("cache");
        fs::create_dir_all(cache.join("v2/00")).unwrap();
        fs::create_dir(dir.path().join("cache-of-others")).unwrap();
        for name in ["cache/v2/00/file", "cache-of-others/file", "secret"] {
            fs::write(dir.path().join(name), "x").unwrap();
        }
        std::os::unix::fs::symlink(dir.path().join("secret"), cache.join("link")).unwrap();
        let lent = Lent::of(&cache).unwrap();
        let file = cache.join("v2/00/file");
        lent.check(File::open(&file).unwrap()).unwrap();
        for name in ["secret", "cache-of-others/file", "cache/link", "cache/v2"] {
            assert!(lent.check(File::open(dir.path().join(name)).unwrap()).is_err(), "{name}");
        }
        let held = |path: &Path| open(path, OFlags::PATH, Mode::empty()).unwrap();
        assert!(lent.check(held(&file)).is_err(), "by O_PATH");
        assert!(lent.check(held("/etc/shadow".as_ref())).is_err());
        assert!(lent.check(File::options().write(true).open(&file).unwrap()).is_err());
        // An engine may rename folders of its own.
        fs::rename(&cache, dir.path().join("moved")).unwrap();
        std::os::unix::fs::symlink(dir.path(), &cache).unwrap();
        assert!(lent.check(File::open(cache.join("secret")).unwrap()).is_err());
        lent.check(File::open(dir.path().join("moved/v2/00/file")).unwrap()).unwrap();
    }

    #[test]
    fn a_device_that_is_not_of_fuse_gets_no_ioctl() {
        assert!(check_device(File::open("/dev/null").unwrap()).is_err());
        assert!(check_device(tempfile::tempfile().unwrap()).is_err());
        if let Ok(device) = File::open("/dev/fuse") {
            check_device(device).unwrap();
        }
    }
}
