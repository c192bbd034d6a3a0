//! Space on the disk of the spill directory, freed by another user of the disk. Parts of files that are being written have precedence over
//! cached bytes, which can be fetched again.

use std::fmt;

use crate::sync::Arc;

/// Bytes to free at once on a full disk. Doubling it asks half as often, and takes more from the other user of the disk than a part may
/// need.
const EACH: u64 = 64 << 20;
/// Most requests for space by one write; beyond them the write fails. Freed space may be taken before the write uses it.
pub(super) const ASKED_MAX: u32 = 4;

/// Frees space on the spill directory's disk through the disk's other user.
#[derive(Clone)]
pub struct Reclaim(Arc<Free>);

type Free = dyn Fn(u64) -> u64 + Send + Sync;

impl Reclaim {
    /// Makes a `Reclaim` from `free`, which gets the number of bytes needed and returns the number that it freed. `free` may wait for the
    /// disk.
    pub fn new(free: impl Fn(u64) -> u64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(free))
    }

    /// Frees [`EACH`] bytes, and returns the number of bytes that were freed.
    pub(super) fn free(&self) -> u64 {
        (self.0)(EACH)
    }
}

impl fmt::Debug for Reclaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reclaim")
    }
}
