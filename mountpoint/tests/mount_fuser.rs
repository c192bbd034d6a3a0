//! The tests of `mount.rs` once more, carried by the loop of the crate `fuser` (`--fuse-transport fuser`).
//!
//! Left out, each with its reason, is what says nothing about a transport. `cargo test -- --skip by_fuser::` leaves out all.

#[expect(dead_code, unused_imports, reason = "the modules that are left out use the rest")]
mod common;

/// What carries requests.
const TRANSPORT: &str = "fuser";

#[path = "mount"]
mod by_fuser {
    mod adopted;
    mod cache;
    mod crash;
    // credentials: requests to S3, whoever carried those of the kernel.
    mod faults;
    // interrupts: fuser answers INTERRUPT with ENOSYS, so a program that is killed waits for the store.
    // large: 6 GiB take minutes, and many parts are in `tools`.
    mod memory;
    mod model;
    mod names;
    // options: flags on the wire and on the disk.
    mod reading;
    mod ready;
    mod released;
    // requests: how many S3 sees is decided behind the transport.
    mod semantics;
    mod shared;
    mod start;
    mod tools;
    mod writing;
}
