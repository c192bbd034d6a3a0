//! Translates the FUSE protocol into calls of the engine, and results into replies.
//!
//! Enters: a request that a FUSE thread read from the kernel. Leaves: its reply. If memory has the answer, that thread replies.
//! Otherwise it hands the request and its reply over to the thread that will have the answer. A FUSE thread never waits for the
//! network. This room decides nothing about files; no other room knows the crate `fuser`.

mod answer;
mod auto_unmount;
mod backing;
mod caller;
mod capability;
mod channel;
mod device;
mod encode;
mod fuser;
mod gate;
mod helper;
mod inbox;
mod mounted;
mod on_runtime;
mod operations;
mod options;
mod pages;
mod pending;
mod reply;
mod request;
mod request_buffer;
mod ring;
mod serve;
mod session;

pub use auto_unmount::Watcher;
pub use backing::{forget_here, is_privileged, register_here};
pub use caller::is_ended_by_signal;
pub use device::{connection_of, is_device};
pub use gate::Requests;
pub use helper::helper;
pub use mounted::unmount_here;
pub use operations::Operations;
pub use options::{Device, MountOptions, Outliving, Transport};
pub use pending::UnderWay;
#[cfg(feature = "testing")]
pub use request::fuzzing;
pub use session::{Session, Unmounter};

/// Largest WRITE and READ that the kernel may send, in bytes: one block. The kernel splits larger ones.
const TRANSFER_MAX: u32 = crate::buffer::BLOCK as u32;
/// Largest WRITE by FUSE over io_uring, in bytes. One call of the kernel may bring dozens of WRITEs, each into memory of its own. Doubling
/// this limit doubles that memory. `write_1g` costs the same with 1 MiB: `docs/decisions/measurements.md`.
const RING_WRITE_MAX: u32 = TRANSFER_MAX / 4;
/// Most background requests (read-ahead, and the RELEASE of files) that the kernel may have open; the kernel holds further ones back. This
/// is the largest value of the field: with a limit of 64, and 64 readers that wait for the store, no RELEASE arrived. The memory budget
/// limits what readers hold.
const BACKGROUND_MAX: u16 = u16::MAX;
/// Number of background requests beyond which the kernel stops reading ahead. Doubling it allows read-ahead on more files at once.
const CONGESTED_AT: u16 = 48;

const _: () = assert!(crate::inode::ROOT.0 == 1, "the root's number is the kernel's");
