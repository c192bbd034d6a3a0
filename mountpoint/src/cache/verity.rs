//! fs-verity: the file system compares what is read of a sealed file, also by the kernel itself, with hashes that it made when the file was
//! sealed. Rot is a read error then, and nobody can change the file.
#![expect(unsafe_code, reason = "the two ioctls of fs-verity have no safe wrapper")]

use std::io;
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, Updater, ioctl, opcode};

/// The kernel's letter for ioctls of file systems.
const MAGIC: u8 = b'f';
/// `FS_IOC_ENABLE_VERITY`.
const ENABLE: Opcode = opcode::write::<Enable>(MAGIC, 133);
/// `FS_IOC_MEASURE_VERITY`. Its number counts the digest's header alone.
const MEASURE: Opcode = opcode::read_write::<[u16; 2]>(MAGIC, 134);
/// `FS_VERITY_HASH_ALG_SHA256`.
const SHA256: u32 = 1;
/// Bytes under one hash: the only size that kernels before 6.3 take, where pages have 4 KiB.
const HASHED: u32 = 4096;
/// `BTRFS_SUPER_MAGIC`.
const BTRFS: u64 = 0x9123_683e;

/// `struct fsverity_enable_arg`.
#[repr(C)]
struct Enable {
    version: u32,
    hash_algorithm: u32,
    block_size: u32,
    salt_size: u32,
    salt: u64,
    signature_size: u32,
    reserved: u32,
    signature: u64,
    reserved_more: [u64; 11],
}

/// `struct fsverity_digest` with room for the longest digest.
#[repr(C)]
struct Digest {
    algorithm: u16,
    size: u16,
    bytes: [u8; 64],
}

/// The state of a file under fs-verity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verity {
    /// The file system has no fs-verity, or does without: btrfs compares all reads with checksums of its own.
    Missing,
    /// The file could be sealed.
    Possible,
    /// The file is sealed.
    Sealed,
}

/// Asks the file system about a file, without reading it.
pub(super) fn of(file: impl AsFd) -> Verity {
    if rustix::fs::fstatfs(&file).is_ok_and(|stat| u64::try_from(stat.f_type) == Ok(BTRFS)) {
        return Verity::Missing;
    }
    let mut digest = Digest { algorithm: 0, size: 64, bytes: [0; 64] };
    // SAFETY: this ioctl reads the header of `Digest`, and writes it and at most as many bytes behind it as `size` says.
    match unsafe { ioctl(file, Updater::<MEASURE, Digest>::new(&mut digest)) } {
        Ok(()) | Err(Errno::OVERFLOW) => Verity::Sealed,
        Err(Errno::NODATA) => Verity::Possible,
        Err(_) => Verity::Missing,
    }
}

/// Seals a file that is open for reading: the kernel reads all of it, and writes hashes of 0.8 % of its size behind it.
///
/// # Errors
/// `TXTBSY`: somebody has the file open for writing. `ACCESS`: its mode does not allow this process to write, and it may not ignore modes.
/// `INVAL`: the blocks of the file system are smaller than those of the hashes. `NOSPC` and others of the disk.
pub(super) fn seal(file: impl AsFd) -> io::Result<()> {
    let enable = Enable {
        version: 1,
        hash_algorithm: SHA256,
        block_size: HASHED,
        salt_size: 0,
        salt: 0,
        signature_size: 0,
        reserved: 0,
        signature: 0,
        reserved_more: [0; 11],
    };
    // SAFETY: `Enable` is what this ioctl reads. It names neither salt nor signature, so that the kernel follows no address.
    match unsafe { ioctl(file, Setter::<ENABLE, Enable>::new(enable)) } {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_the_ioctls_are_the_kernels() {
        assert_eq!((ENABLE, MEASURE, size_of::<Enable>()), (0x4080_6685, 0xc004_6686, 128));
    }

    #[test]
    fn a_file_in_memory_can_not_be_sealed() {
        let memory = rustix::fs::memfd_create("file", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        assert_eq!(of(&memory), Verity::Missing);
        assert!(seal(&memory).is_err());
    }
}
