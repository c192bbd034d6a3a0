//! Passthrough (Linux 6.9 or later): the kernel itself reads a file for an open file of the mount. Registers such files with the
//! connection, and unregisters them.
#![expect(unsafe_code, reason = "the two ioctls of passthrough have no safe wrapper")]

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};

use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, Setter, ioctl, opcode};

use crate::broker::{self, Broker};

/// `FUSE_DEV_IOC_MAGIC`.
const MAGIC: u8 = 229;

/// `struct fuse_backing_map`.
#[repr(C)]
struct BackingMap {
    fd: i32,
    flags: u32,
    padding: u64,
}

// SAFETY: the opcode belongs to this structure, which the kernel only reads; the result is the number.
unsafe impl Ioctl for BackingMap {
    type Output = u32;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        opcode::write::<Self>(MAGIC, 1)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        (&raw mut *self).cast()
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> rustix::io::Result<u32> {
        Ok(out.cast_unsigned())
    }
}

/// Whether this process, or its helper, may register files, as far as this process can find out.
pub(super) fn is_allowed() -> bool {
    broker::of_this_process().map_or_else(is_privileged, Broker::registers)
}

/// Whether this process has the privilege of passthrough.
pub fn is_privileged() -> bool {
    rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(rustix::thread::CapabilitySet::SYS_ADMIN))
}

/// Registers a file, and returns its number for the answers to OPEN.
///
/// # Errors
/// `PERM` without CAP_SYS_ADMIN in the initial user namespace; `LOOP`: the file lies on a file system that is stacked on another, as
/// overlayfs is.
pub(super) fn register(device: impl AsFd, file: BorrowedFd<'_>) -> io::Result<u32> {
    match broker::of_this_process() {
        Some(broker) => broker.register(device.as_fd(), file),
        None => register_here(device, file),
    }
}

/// Registers a file from this process itself.
///
/// # Errors
/// `PERM` without CAP_SYS_ADMIN in the initial user namespace; `LOOP`: the file lies on a file system that is stacked on another.
pub fn register_here(device: impl AsFd, file: BorrowedFd<'_>) -> io::Result<u32> {
    let map = BackingMap { fd: file.as_raw_fd(), flags: 0, padding: 0 };
    // SAFETY: `BackingMap` is what this ioctl of /dev/fuse takes.
    Ok(unsafe { ioctl(device, map) }?)
}

/// Unregisters a file's number. Open files with this number keep it.
pub(super) fn forget(device: impl AsFd, id: u32) -> io::Result<()> {
    match broker::of_this_process() {
        Some(broker) => broker.forget(device.as_fd(), id),
        None => forget_here(device, id),
    }
}

/// Unregisters a file's number from this process itself. Open files with this number keep it.
///
/// # Errors
/// The number is not registered with the kernel.
pub fn forget_here(device: impl AsFd, id: u32) -> io::Result<()> {
    // SAFETY: this ioctl of /dev/fuse takes a number of 32 bits.
    Ok(unsafe { ioctl(device, Setter::<{ opcode::write::<u32>(MAGIC, 2) }, u32>::new(id)) }?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_the_ioctls_are_the_kernels() {
        let map = BackingMap { fd: 0, flags: 0, padding: 0 };
        assert_eq!((map.opcode(), opcode::write::<u32>(MAGIC, 2)), (0x4010_e501, 0x4004_e502));
    }
}
