//! Space on the disk of the spill directory, reclaimed from another user of the disk: parts of files that are being written precede bytes
//! that can be fetched again.

use std::fmt;

use crate::sync::Arc;

/// Bytes to reclaim at once on a full disk. Doubling it asks half as often, and takes more from the other user of the disk than a part
/// may need.
const EACH: u64 = 64 << 20;
/// Most times that one write asks for space: freed space may be taken before the write uses it.
pub(super) const ASKED_MAX: u32 = 4;

/// Asks the other user of the spill directory's disk to free space.
#[derive(Clone)]
pub struct Reclaim(Arc<Free>);

type Free = dyn Fn(u64) -> u64 + Send + Sync;

impl Reclaim {
    /// A way to reclaim space. `free` gets the number of bytes needed, and returns the number that it freed. It may wait for the disk.
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
