//! Reading, writing, semantics and tools once more, over HTTPS with `--ca-bundle`, the bucket in the host's name.
//!
//! The tests look at the bucket past TLS, so each byte that a mount sent or received is compared with one that came another way.

#[expect(dead_code, unused_imports, reason = "the modules that are left out use the rest")]
mod common;

/// The transport of requests.
const TRANSPORT: &str = "dev";

/// Whether reads go through the page cache.
const READ_MODE: &str = "direct";

/// The store that the tests mount.
const STORE: common::Kind = common::Kind::S3serverOverHttps;

/// The tested modules. The other modules of `mount/` are about parts before or behind the requests, or put a proxy between that has to
/// read them.
#[path = "mount"]
mod over_https {
    mod reading;
    mod semantics;
    mod tampered;
    mod tools;
    mod writing;
}
