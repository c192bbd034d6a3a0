//! A buffer in a mapping of its own: only its filled part takes memory, and a drop returns all of it.
//!
//! The allocator would zero the buffer, so that all of it would be resident from the start, and would keep freed memory.
#![expect(
    unsafe_code,
    reason = "mmap, munmap, madvise and the slice over what they give: fence 1 of ci/tidy/fences.md"
)]

use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// A buffer for one owner, zero where no byte was written.
#[derive(Debug)]
pub struct Scratch {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: a Scratch is the only way to its bytes, and plain bytes may be used from any thread.
unsafe impl Send for Scratch {}
// SAFETY: through a shared reference only shared slices are made; what `at` gives is used by unsafe code alone, which has to answer for it.
unsafe impl Sync for Scratch {}

impl Scratch {
    /// Maps a buffer of `len` bytes, at least one.
    ///
    /// # Errors
    /// The kernel has no memory.
    pub fn new(len: usize) -> std::io::Result<Self> {
        let len = len.max(1);
        // SAFETY: a fresh private mapping at an address of the kernel's choice aliases nothing.
        let at = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        // Advice only: in a huge page, the first byte of it would take all.
        // SAFETY: the mapping just made, which is ours.
        let _ = unsafe { madvise(at, len, Advice::LinuxNoHugepage) };
        let at = NonNull::new(at.cast()).ok_or(std::io::ErrorKind::OutOfMemory)?;
        Ok(Self { at, len })
    }

    /// The address of the first byte, aligned to a page. The kernel may write to the memory after the call; the address is valid until the
    /// drop.
    pub fn at(&self) -> NonNull<u8> {
        self.at
    }

    /// Returns the buffer's memory to the kernel. All bytes are zero then, and take memory again once they are written.
    pub fn let_go(&mut self) {
        self.let_go_of(0..self.len);
    }

    /// Returns the memory of some pages, as [`Scratch::let_go`] does. `part` begins at a page and ends at one, or at the buffer's end.
    pub fn let_go_of(&mut self, part: Range<usize>) {
        if part.start > part.end || part.end > self.len {
            return;
        }
        // SAFETY: within the mapping of `new`, which lives as long as we; `&mut self` is the only way to its bytes, and zeros are bytes.
        let given = unsafe {
            let at = self.at.as_ptr().add(part.start);
            madvise(at.cast(), part.end - part.start, Advice::LinuxDontNeed)
        };
        debug_assert_eq!(given, Ok(()), "whole pages of our own");
    }
}

impl Deref for Scratch {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len` mapped bytes, zeroed by the kernel, so initialised; `&self` keeps writers out.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` makes this the only way to the bytes.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`; its only owner is going.
        let _ = unsafe { munmap(self.at.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_holds_what_is_put_and_zeros_once_it_was_let_go() {
        let mut scratch = Scratch::new(3 * 4096 + 5).unwrap();
        assert!(scratch.len() == 3 * 4096 + 5 && scratch.iter().all(|byte| *byte == 0));
        scratch.fill(7);
        assert!(scratch.iter().all(|byte| *byte == 7));
        scratch.let_go();
        assert!(scratch.iter().all(|byte| *byte == 0));
        scratch.fill(8);
        let moved = std::thread::spawn(move || scratch.iter().all(|byte| *byte == 8));
        assert!(moved.join().unwrap());
    }
}
