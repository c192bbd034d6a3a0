//! Space on the disk of the spill directory, reclaimed from another user of it: parts of files that are being written go before what can be
//! fetched again.

use std::fmt;

use crate::sync::Arc;

/// The space that a full disk is asked to give up at once. Doubling it asks half as often, and takes more from the other user of the disk than a part
/// may need.
const EACH: u64 = 64 << 20;
/// Most times that one write asks for space: freed space may be taken before the write uses it.
pub(super) const ASKED_MAX: u32 = 4;

/// Asks the other user of the spill directory's disk to free space.
#[derive(Clone)]
pub struct Reclaim(Arc<Free>);

type Free = dyn Fn(u64) -> u64 + Send + Sync;

impl Reclaim {
    /// `free` gets the number of bytes needed, and returns the number of bytes that it freed. It may wait for the disk.
    pub fn new(free: impl Fn(u64) -> u64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(free))
    }

    /// Asks once, and returns the number of freed bytes.
    pub(super) fn free(&self) -> u64 {
        (self.0)(EACH)
    }
}

impl fmt::Debug for Reclaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reclaim")
    }
}
