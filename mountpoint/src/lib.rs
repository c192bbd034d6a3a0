//! An S3 bucket as a Linux file system.
//!
//! The rooms follow the path of a byte; data goes down and comes back up, and nobody below calls anybody above:
//!
//! ```text
//! kernel - fuse/ - fs/ -+- inode/ ----------------+
//!                       +- prefetch/ - cache/ -+  +- s3/ - network
//!                       +- upload/ ------------+--+
//!          buffer/ (blocks of memory, the budget) under prefetch, cache, upload, s3
//! ```

pub mod buffer;
pub mod cache;
pub mod checksum;
pub mod clock;
pub mod inode;
pub mod metrics;
pub mod object;
pub mod prefetch;
pub mod s3;
pub mod sync;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod upload;
