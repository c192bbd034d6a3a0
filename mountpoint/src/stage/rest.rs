//! Looks at a staged file that do not wait for its lock: a thread that has it may wait for a disk that hangs.

use super::Staged;
use super::image::Fate;

/// The state of a file without users.
#[derive(Clone, Copy, Debug)]
pub struct Rest {
    /// Whether the file may leave the stage: the bucket has its changes, or `kept/`.
    pub is_done: bool,
    /// Whether the file was ever lent to the kernel.
    pub was_lent: bool,
    /// Whether the file's bytes are kept, or have no name.
    pub is_without_object: bool,
}

impl Staged {
    /// Bytes of the file, if the bucket lacks a change of it. A file that another thread has, which may wait for the disk, counts as
    /// changed, without bytes.
    pub fn try_pending(&self) -> Option<u64> {
        let Some(mut state) = self.state.try_lock() else { return Some(0) };
        self.observe(&mut state);
        (state.image.is_dirty() || self.is_loose(&state)).then(|| state.image.size())
    }

    /// Holds the file, as a change does that waits for the disk.
    #[cfg(test)]
    pub(crate) fn hold(&self) -> impl Sized + '_ {
        self.state.lock()
    }

    /// The state of a file without users. `None`: another thread has the file, and may wait for the disk.
    pub fn try_rest(&self) -> Option<Rest> {
        let mut state = self.state.try_lock()?;
        self.observe(&mut state);
        let is_kept = state.image.is_kept();
        Some(Rest {
            is_done: is_kept || !state.image.is_dirty() && !self.is_loose(&state),
            was_lent: state.was_lent,
            is_without_object: is_kept || state.image.fate() == Fate::Unlinked,
        })
    }
}
