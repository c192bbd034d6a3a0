//! Code that the tests of several crates share.
//!
//! Never here: the engine, the driver, a store. Tests pass addresses, commands and closures. No product code depends on
//! this crate.

pub mod built;
pub mod dead_port;
pub mod hostile;
pub mod isolated;
pub mod moto;
pub mod need;
pub mod port;
pub mod prometheus;
pub mod proxy;
pub mod real_store;
pub mod scenario;
mod server;
pub mod settings;
pub mod systemd_node;
pub mod until;
pub mod versitygw;

pub use dead_port::DeadPort;
pub use hostile::{hostile_keys, is_path};
pub use isolated::isolated;
pub use moto::Moto;
pub use need::{A_SLOW_DISK, BTRFS, FS_VERITY, need, need_fuse_over_io_uring, need_large, need_tool};
pub use prometheus::Prometheus;
pub use real_store::RealStore;
pub use systemd_node::{Node, in_systemd_node};
pub use until::{until, until_async, until_it_ends, until_within};
pub use versitygw::Versitygw;
