//! Bytes of the FUSE protocol into our calls, and our answers back.
//!
//! Enters: a request that a FUSE thread read from the kernel. Leaves: its reply. What can be answered from memory is answered on
//! that thread; the rest is handed over with its reply, to the thread that will have the answer. A FUSE thread never waits
//! for the network. This room decides nothing about files; it alone knows the crate `fuser`.

mod capability;
mod device;
mod encode;
mod fuser;
mod on_runtime;
mod operations;
mod pending;
mod process;
mod reply;
mod request;
mod serve;
mod session;

pub use operations::Operations;
#[cfg(feature = "testing")]
pub use request::fuzzing;
pub use session::{Device, MountOptions, Session, Transport, Unmounter};

/// Bytes of the largest WRITE (and READ) we ask the kernel for: one block.
const TRANSFER_MAX: u32 = crate::buffer::BLOCK as u32;
/// Requests in the background (read-ahead, direct reads) the kernel may have open; past three quarters of it
/// it stops reading ahead.
const BACKGROUND_MAX: u16 = 64;
/// Names of a directory that are prepared for one reply: more than fit the kernel's buffer.
const DIR_BATCH: usize = 512;

const _: () = assert!(crate::inode::ROOT.0 == 1, "the root's number is the kernel's");
