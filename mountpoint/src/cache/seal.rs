//! Seals complete files by fs-verity, where the file system has it, before the kernel reads them by itself.
//!
//! Enters: an open that could let the kernel read a file. Leaves: whether that open leaves the file to the engine, and behind its answer
//! the seal. A file that can't be sealed is lent without.
//!
//! The seal covers the bytes that the file has when the kernel hashes them. So the version is compared with its checksums once more behind
//! the seal: the kernel then gives a program these bytes or an error.

use std::os::fd::OwnedFd;

use rustix::io::Errno;

use super::CACHE_BLOCK;
use super::file::{Entry, Seal};
use super::read::Hold;
use super::store::Store;
use super::verity::Verity;
use crate::object::ObjectId;
use crate::sync::atomic::Ordering::Relaxed;

/// Largest file that is sealed, in bytes. The kernel reads and hashes all of it, which was not measured. Doubling it doubles the longest
/// seal, for which other files wait.
const SEALED_MAX: u64 = 1 << 30;

/// Whether the engine reads a file instead of the kernel.
fn is_kept_back(verity: Verity, seal: Seal) -> bool {
    match (verity, seal) {
        (Verity::Missing, _) | (_, Seal::Settled) => false,
        (_, Seal::Unsure) => true,
        // An earlier run sealed it, and this one has compared all of it since: otherwise no open came so far.
        (_, Seal::None) => verity == Verity::Possible,
    }
}

impl Store {
    /// Whether an open leaves this file to the engine until it is sealed.
    pub(super) fn awaits_seal(&self, entry: &Entry, file: &OwnedFd) -> bool {
        if !self.seals.load(Relaxed) || entry.object_size > SEALED_MAX {
            return false;
        }
        // The file system is asked first: a file that is found sealed was marked before.
        let verity = self.io.verity(file);
        if verity == Verity::Missing {
            self.seals.store(false, Relaxed);
        }
        is_kept_back(verity, entry.seal())
    }

    /// Seals the file of a version, if an open was left to the engine for that. One at a time: without its turn a file stays as it is
    /// until the next open.
    pub(super) fn seal(&self, id: &ObjectId, object_size: u64) {
        if !self.seals.load(Relaxed) || object_size > SEALED_MAX || self.is_away() {
            return;
        }
        let Some(_turn) = self.sealing.try_lock() else { return };
        let entry = self.index.get(&self.identity(id)).filter(|entry| entry.object_size == object_size);
        let Some(entry) = entry.filter(|entry| entry.seal() == Seal::None) else { return };
        let Some(_hold) = Hold::of(&entry, &self.uses) else { return };
        let Ok(file) = self.open(&entry) else { return };
        if entry.is_removed() || !self.awaits_seal(&entry, &file) {
            return;
        }
        entry.set_seal(Seal::Unsure);
        let began = self.clock.now();
        match self.io.seal(&file) {
            Ok(()) if self.is_sound_throughout(id, object_size) => {
                entry.compared(began);
                entry.set_seal(Seal::Settled);
            }
            // The comparison dropped unsound bytes, or did not come to its end: the engine reads the file.
            Ok(()) => {}
            Err(error) if Errno::from_io_error(&error) == Some(Errno::TXTBSY) => entry.set_seal(Seal::None),
            Err(error) => {
                tracing::debug!("cache: {} is lent without a seal by fs-verity: {error}", id.key);
                entry.set_seal(Seal::Settled);
            }
        }
    }

    /// Compares a whole version with its checksums, from the disk. Drops what is not sound.
    fn is_sound_throughout(&self, id: &ObjectId, object_size: u64) -> bool {
        let mut into = vec![0; CACHE_BLOCK.min(object_size) as usize];
        (0..object_size).step_by(CACHE_BLOCK as usize).all(|start| {
            let range = start..object_size.min(start + CACHE_BLOCK);
            self.read(id, object_size, &range, &mut into[..(range.end - range.start) as usize])
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_kept_back_until_its_seal_is_settled() {
        for (seal, kept_back) in [
            (Seal::None, [false, true, false]),
            (Seal::Unsure, [false, true, true]),
            (Seal::Settled, [false, false, false]),
        ] {
            let found = [Verity::Missing, Verity::Possible, Verity::Sealed].map(|it| is_kept_back(it, seal));
            assert_eq!(found, kept_back, "{seal:?}");
        }
    }
}
