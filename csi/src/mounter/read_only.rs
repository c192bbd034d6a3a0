//! Access to one directory alone: a copy of its mount, above which nothing can be reached; and files below it, opened by name. Enters: a
//! directory, names that are not trusted. Leaves: a copy, open files, or an error.
//!
//! The kernel opens a registered file with this process's rights, for each program that opens the bucket's file. Only a read-only mount
//! keeps programs from a handle that writes into the pod's directory.
//!
//! Never here: following a link, another file system.
#![expect(unsafe_code, reason = "mount_setattr(2) has no safe wrapper")]

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::mount::{MountAttrFlags, OpenTreeFlags};

/// The kernel's `struct mount_attr`.
#[repr(C)]
#[derive(Default)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

/// A detached mount of this directory, without the mounts below it: read-only, without devices, programs and set-user-ID bits.
///
/// # Errors
/// The directory is missing, or the kernel is older than Linux 5.12.
pub(super) fn copy(directory: &Path) -> io::Result<OwnedFd> {
    detached(directory, MountAttrFlags::MOUNT_ATTR_RDONLY)
}

/// A directory, opened in a detached mount of it, so that `..` stays there: without devices, programs and set-user-ID bits, but to be written.
///
/// # Errors
/// An error as from [`copy`].
pub(super) fn alone(directory: &Path) -> io::Result<OwnedFd> {
    let mount = detached(directory, MountAttrFlags::empty())?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(&mount, c".", flags, Mode::empty())?)
}

fn detached(directory: &Path, more: MountAttrFlags) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW
        | OpenTreeFlags::AT_NO_AUTOMOUNT;
    let mount = rustix::mount::open_tree(CWD, directory, flags)?;
    let set = more
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let attributes = MountAttr { set: set.bits().into(), ..MountAttr::default() };
    // SAFETY: the descriptor, the path and the structure live over the call, which only reads them; the size is the structure's.
    let set = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<MountAttr>(),
        )
    };
    if set == 0 { Ok(mount) } else { Err(io::Error::last_os_error()) }
}

/// Opens a file below a directory for reading.
///
/// # Errors
/// The file is missing, or its path leaves the directory, follows a link, or enters another mount.
pub(super) fn open_below(directory: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    // A FIFO in its place must not block this process.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    Ok(rustix::fs::openat2(directory, name, flags, Mode::empty(), resolve)?)
}
