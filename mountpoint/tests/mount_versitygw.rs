//! Reading, writing, semantics and tools once more, on versitygw over HTTPS: a store that shares no line with ours.

#[expect(dead_code, unused_imports, reason = "the modules that are left out use the rest")]
mod common;

/// The transport of requests.
const TRANSPORT: &str = "dev";

/// Whether reads go through the page cache.
const READ_MODE: &str = "direct";

/// The store that the tests mount.
const STORE: common::Kind = common::Kind::Versitygw;

/// The other modules of `mount/` need a store that counts requests or makes faults.
#[path = "mount"]
mod on_versitygw {
    mod by_hand;
    mod reading;
    mod semantics;
    mod tools;
    // trees: 20,000 files planted without the ETags that versitygw writes beside them.
    mod versions;
    mod writing;
}
