//! Real mounts of a real S3 server: the binary as users run it, the kernel between, tools as users run them.
//!
//! One module per promise. On a machine without FUSE the tests report that they were skipped; `MOUNT_S3_LARGE=1` adds tests that take
//! gigabytes, tens of thousands of files, or most of a minute of waiting.

#[expect(dead_code, reason = "what tests of other stores use")]
mod common;

/// The transport of requests; `mount_fuser.rs` and `mount_io_uring.rs` have the others.
const TRANSPORT: &str = "dev";

/// Whether reads go through the page cache.
const READ_MODE: &str = "auto";

/// The store that the tests mount; `mount_https.rs` and `mount_versitygw.rs` have others.
const STORE: common::Kind = common::Kind::S3server;

/// The modules lie in `mount/`.
mod mount {
    mod adopted;
    mod answers;
    mod appending;
    mod attributes;
    mod cache;
    mod canary;
    mod copies;
    mod crash;
    mod credentials;
    mod emptied;
    mod encryption;
    mod execve;
    mod faults;
    mod first_contact;
    mod flipped;
    mod folder_marks;
    mod fstab;
    mod full;
    mod full_directories;
    mod full_early;
    mod full_holes;
    mod full_later;
    mod full_lent;
    mod full_model;
    mod full_programs;
    mod hung_disk;
    mod interrupts;
    mod kept;
    mod kept_directories;
    mod kept_model;
    mod large;
    mod left_behind;
    mod mapping;
    mod memory;
    mod model;
    mod names;
    mod namespaces;
    mod notified;
    mod nth;
    mod odd_sizes;
    mod odd_stores;
    mod options;
    mod outlive;
    mod packaged;
    mod passthrough;
    mod policy;
    mod proxy;
    mod read_mode;
    mod reading;
    mod ready;
    mod refused;
    mod registered;
    mod released;
    mod renaming;
    mod requests;
    mod resolver;
    mod ring;
    mod sandbox;
    mod semantics;
    mod shared;
    mod sources;
    mod sparse;
    mod stalls;
    mod start;
    mod states;
    mod strangers;
    mod stress;
    mod systemd;
    mod tools;
    mod trees;
    mod unprivileged;
    mod wall_clock;
    mod weather;
    mod writers;
    mod writing;
}
