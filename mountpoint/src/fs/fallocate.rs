//! fallocate: reserves space for bytes that a program is about to write.
//!
//! A bucket has plenty of room, so there is nothing to reserve. An object is written from its start to its end, so a call can neither make
//! it longer nor punch a hole. The errno matters: on EOPNOTSUPP, glibc's `posix_fallocate` writes single bytes into the file instead, which
//! breaks the file that is being written. On EINVAL, `posix_fallocate` reports that the file system does not support it, and programs go
//! on.

use rustix::io::Errno;

use super::{Error, FileSystem, HandleNo, Result};

/// A call of fallocate(2).
#[derive(Clone, Copy, Debug)]
pub struct Fallocate {
    /// The first byte of the range.
    pub offset: u64,
    /// The length in bytes.
    pub len: u64,
    /// Flags FALLOC_FL_*. With 0 the file reaches to the end of the range afterwards.
    pub mode: u32,
}

/// FALLOC_FL_KEEP_SIZE: reserves space without a change of the file's size.
const KEEP_SIZE: u32 = 1;

impl FileSystem {
    /// Reserves space for bytes of a file that is being written. Changes nothing.
    ///
    /// # Errors
    /// `INVAL`: the file would have to be longer; `OPNOTSUPP`: a hole, or another mode; `BADF`: the handle is open for reading.
    pub fn fallocate(&self, handle: HandleNo, wish: Fallocate) -> Result<()> {
        let open = self.files.get(handle)?;
        if let super::handle::Mode::Staged(staged) = &open.mode {
            return self.fallocate_staged(&open, staged, wish);
        }
        let writer = open.writer()?;
        let size = writer.upload.size();
        let Err(errno) = answer(wish, size) else { return Ok(()) };
        let why = match errno {
            Errno::INVAL => "a file becomes longer only by what is written at its end",
            _ => "an object has neither holes nor parts that move",
        };
        let Fallocate { offset, len, mode } = wish;
        let what = format!(
            "fallocate of \"{}\", {size} bytes: mode {mode:#x}, {len} from {offset}",
            writer.upload.key()
        );
        Err(Error::new(errno, format!("{what}: {why}")))
    }
}

/// The answer to a call about a file of this size. Success with `KEEP_SIZE`, and without flags if the file has these bytes already.
fn answer(wish: Fallocate, size: u64) -> std::result::Result<(), Errno> {
    match wish.mode {
        KEEP_SIZE => Ok(()),
        0 if wish.offset.saturating_add(wish.len) <= size => Ok(()),
        0 => Err(Errno::INVAL),
        _ => Err(Errno::OPNOTSUPP),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_there_and_a_longer_file_or_a_hole_is_not() {
        let ask = |mode, offset, len| answer(Fallocate { offset, len, mode }, 10);
        assert_eq!(ask(KEEP_SIZE, 0, u64::MAX), Ok(()));
        assert_eq!((ask(0, 4, 6), ask(0, 4, 7)), (Ok(()), Err(Errno::INVAL)));
        assert_eq!(ask(0, u64::MAX, 1), Err(Errno::INVAL));
        // Punch a hole, collapse, zero.
        for mode in [0x3, 0x8, 0x10, 0x11] {
            assert_eq!(ask(mode, 0, 4), Err(Errno::OPNOTSUPP), "{mode:#x}");
        }
    }
}
