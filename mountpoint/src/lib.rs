//! An S3 bucket as a Linux file system.
//!
//! The rooms follow the path of a byte. Calls go down and data comes back up; a lower room never calls an upper room:
//!
//! ```text
//! kernel - fuse/ - fs/ -+- inode/ - listing/ -----+
//!                       +- prefetch/ - cache/ -+  +- s3/ - net/ - network
//!                       +- upload/, moves/ ----+--+
//!                       +- stage/ (--mode full: a disk in front) - upload/, prefetch/
//!          first/ (a file's first bytes, with its attributes) under inode, prefetch
//!          buffer/ (blocks of memory, the budget) under prefetch, cache, upload, s3
//!          outlive/ (what the next engine of a mount must know) under fs, inode
//! ```
//!
//! Two folders beside them do not belong to the library: `ctl/`, the command `mount-s3-ctl`, and `logging/`, the log of `mount-s3`.

pub mod broker;
pub mod buffer;
pub mod cache;
pub mod checksum;
pub mod cli;
pub mod clock;
pub mod config;
pub mod daemon;
pub mod doorbell;
pub mod first;
pub mod fs;
pub mod fuse;
pub mod handover;
pub mod inode;
pub mod kept;
pub mod listing;
pub mod metrics;
pub mod mount;
pub mod mountinfo;
pub mod moves;
pub mod net;
pub mod object;
pub mod outlive;
mod owner;
pub mod prefetch;
pub mod s3;
pub mod sandbox;
pub mod stage;
pub mod supervise;
pub mod sync;
pub mod telemetry;
pub mod upload;

#[cfg(any(test, feature = "testing"))]
pub mod testing;
