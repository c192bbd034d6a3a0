//! The tests of `mount.rs` again, on the loop of the crate `fuser` (`--fuse-transport fuser`).
//!
//! Tests that do not depend on the transport are left out, each with its reason. `cargo test -- --skip by_fuser::` leaves out all.

#[expect(dead_code, unused_imports, reason = "the modules that are left out use the rest")]
mod common;

/// The transport of requests.
const TRANSPORT: &str = "fuser";

/// Whether reads go through the page cache.
const READ_MODE: &str = "buffered";

/// The store that the tests mount.
const STORE: common::Kind = common::Kind::S3server;

#[path = "mount"]
mod by_fuser {
    mod adopted;
    mod answers;
    mod appending;
    mod attributes;
    mod cache;
    mod crash;
    // credentials: requests to S3, the same for each transport of the kernel's requests.
    mod execve;
    mod faults;
    // flipped: effects of a bad network, the same for each transport of the kernel's requests.
    // interrupts: fuser answers INTERRUPT with ENOSYS, so a program that is killed waits for the store.
    // large: 6 GiB take minutes, and many parts are in `tools`.
    mod mapping;
    mod memory;
    mod model;
    mod names;
    mod namespaces;
    // notified: fuser can't mount over a dead mount, and nothing else in it depends on the transport.
    // left_behind: what is kept on the disk about requests to S3.
    // options: flags on the wire and on the disk.
    // outlive: refused, since fuser can't take a mount over.
    // policy: refusals of the store, the same for each transport of the kernel's requests.
    mod reading;
    mod ready;
    mod refused;
    mod released;
    mod renaming;
    // requests: how many S3 sees is decided behind the transport.
    mod semantics;
    mod shared;
    // sources: as credentials.
    // stalls: the clocks of requests to S3, the same for each transport of the kernel's requests.
    mod start;
    mod tools;
    // trees: 20,000 files take a minute, and smaller trees are in `tools`.
    mod unprivileged;
    // weather: what the network does is dealt with behind the transport.
    mod writers;
    mod writing;
}
