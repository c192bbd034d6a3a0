//! The tests of `mount.rs` again, by FUSE over io_uring (`--fuse-transport io-uring`).
//!
//! They need Linux 6.18.3 and its switch, `/sys/module/fuse/parameters/enable_uring`, which `ci/test` turns on where it may. Tests that do
//! not depend on the transport are left out, each with its reason. `cargo test -- --skip by_io_uring::` leaves out all.

#[expect(dead_code, unused_imports, reason = "the modules that are left out use the rest")]
mod common;

/// The transport of requests.
const TRANSPORT: &str = "io-uring";

/// Whether reads go through the page cache.
const READ_MODE: &str = "auto";

/// The store that the tests mount.
const STORE: common::Kind = common::Kind::S3server;

#[path = "mount"]
mod by_io_uring {
    mod adopted;
    mod answers;
    mod appending;
    mod attributes;
    mod cache;
    mod crash;
    // credentials: requests to S3, the same for each transport of the kernel's requests.
    // emptied: which names there are is decided behind the transport.
    // encryption: the same.
    mod execve;
    mod faults;
    // flipped: effects of a bad network, the same for each transport of the kernel's requests.
    // fstab: how a command line becomes flags.
    mod interrupts;
    mod kept;
    // large: 6 GiB take minutes, and many parts are in `tools`.
    // left_behind: what is kept on the disk about requests to S3.
    mod mapping;
    mod memory;
    mod model;
    mod names;
    mod namespaces;
    mod notified;
    // options: flags on the wire and on the disk.
    // outlive: refused, since the kernel sends requests of a ring to no other process.
    // packaged: which files a package holds.
    mod passthrough;
    // policy: refusals of the store, the same for each transport of the kernel's requests.
    // proxy: how the store is reached.
    mod read_mode;
    mod reading;
    mod ready;
    mod refused;
    mod released;
    mod renaming;
    // requests: how many S3 sees is decided behind the transport.
    mod ring;
    mod sandbox;
    mod semantics;
    mod shared;
    // sources: as credentials.
    // stalls: the clocks of requests to S3, the same for each transport of the kernel's requests.
    mod start;
    // systemd: the life of a unit, whatever it mounts by.
    mod tools;
    // trees: 20,000 files take a minute, and smaller trees are in `tools`.
    mod unprivileged;
    // weather: what the network does is dealt with behind the transport.
    mod writers;
    mod writing;
}
