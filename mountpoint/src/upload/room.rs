//! Room on a disk that others use too: parts of files that are being written go before what can be had again.

use std::fmt;

use crate::sync::Arc;

/// The space that a full disk is asked to give up at once. Doubling it asks half as often, and takes more from the other user of the disk than a part
/// may need.
const EACH: u64 = 64 << 20;
/// How often one write asks for it: what was given may be taken before it is used.
pub(super) const ASKED_MAX: u32 = 4;

/// The other user of the spill directory's disk, which gives room up where there is none.
#[derive(Clone)]
pub struct Room(Arc<Give>);

type Give = dyn Fn(u64) -> u64 + Send + Sync;

impl Room {
    /// `give` gets the number of bytes needed, and returns how many it gave. It may wait for the disk.
    pub fn new(give: impl Fn(u64) -> u64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(give))
    }

    /// Asks once; the bytes that were given.
    pub(super) fn give(&self) -> u64 {
        (self.0)(EACH)
    }
}

impl fmt::Debug for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Room")
    }
}
