//! Memory: blocks to receive into and answer from, under one budget.
//!
//! Enters: "a block of this many bytes, for a reader / a writer / read-ahead". Leaves: a [`BlockMut`] to fill, frozen to a
//! [`Block`] that many may read; its bytes return to the budget when the last holder drops it. This room knows
//! nothing of S3, files or FUSE, and never calls another room: a caller short of memory waits, and a caller that grows checks
//! [`Pool::pressure`] first.

mod block;
mod budget;
mod fill;
mod ledger;
mod page;
mod pool;
mod scratch;
mod short;

pub use block::{Block, BlockMut, charge};
pub use budget::{Pressure, Use};
pub use fill::Fill;
pub use pool::{Pool, Reservation};
pub use scratch::Scratch;
pub use short::Beside;

/// Bytes of a block: the largest FUSE read (1 MiB), so an aligned read never straddles two.
pub const BLOCK: usize = 1 << 20;

/// The sizes of one budget.
#[derive(Clone, Debug)]
pub struct Config {
    /// Total memory of the engine's data, in bytes (`--memory-target`). Doubling it lets more readers and writers run at full speed at
    /// once; a small value makes nothing fail, down to [`Config::TARGET_MIN`].
    pub target: u64,
    /// The part of `target` for the network's own buffers: the number of connections times the limit of each.
    pub network: u64,
}

impl Config {
    /// The smallest target that always makes progress, in bytes.
    pub const TARGET_MIN: u64 = 128 << 20;
}

impl Default for Config {
    fn default() -> Self {
        Self { target: 1 << 30, network: 8 << 20 }
    }
}
