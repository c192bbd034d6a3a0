//! Asks the kernel whether anybody can write a file: by a descriptor or a shared mapping, of whatever process.
#![expect(unsafe_code, reason = "leases have no safe wrapper")]

use std::fs::File;
use std::os::fd::AsRawFd as _;

/// `F_SETSIG` of fcntl(2).
const F_SETSIG: i32 = 10;

/// Whether nobody can write the file, which is open for reading only: then the kernel grants a read lease. It ends within this call.
pub(super) fn is_granted(file: &File) -> bool {
    let set = |command: i32, value: i32| {
        // SAFETY: both commands take a number, and the descriptor is open.
        unsafe { libc::fcntl(file.as_raw_fd(), command, value) == 0 }
    };
    // An open for writing meanwhile makes the kernel send a signal: one that is ignored, since the usual one ends the process.
    if !set(F_SETSIG, libc::SIGURG) {
        return false;
    }
    let is_granted = set(libc::F_SETLEASE, libc::F_RDLCK);
    is_granted && set(libc::F_SETLEASE, libc::F_UNLCK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_granted_once_nobody_can_write_the_file() {
        let place = tempfile::NamedTempFile::new().unwrap();
        let reader = File::open(place.path()).unwrap();
        assert!(!is_granted(&reader), "a descriptor that writes is open");
        let path = place.into_temp_path();
        assert!(is_granted(&reader));
        let writer = File::options().read(true).write(true).open(&path).unwrap();
        assert!(!is_granted(&reader));
        drop(writer);
        assert!(is_granted(&reader));
    }
}
