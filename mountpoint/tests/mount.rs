//! Real mounts of a real S3 server: the binary as users run it, the kernel between, tools as users run them.
//!
//! One module per promise. A machine without FUSE skips aloud; `MOUNT_S3_LARGE=1` adds what takes gigabytes.

mod common;

/// What carries requests; `mount_fuser.rs` has the other one.
const TRANSPORT: &str = "dev";

/// The modules lie in `mount/`.
mod mount {
    mod adopted;
    mod cache;
    mod crash;
    mod credentials;
    mod faults;
    mod interrupts;
    mod large;
    mod memory;
    mod model;
    mod names;
    mod options;
    mod reading;
    mod ready;
    mod released;
    mod requests;
    mod semantics;
    mod shared;
    mod start;
    mod tools;
    mod writing;
}
