//! A folder as S3 buckets, on loopback: for tests, for the quick start, for a bucket on a laptop.
//!
//! ```text
//! network - wire/ - s3s (router, signatures, XML) - api/ - store/ - the folder
//!             |                                      |
//!             +----------- fault.rs, requests.rs ----+
//! ```
//!
//! The server behaves as S3 for one object: reads, conditions, checksums, multipart uploads, listings. It has one user, and no versions
//! or TLS. It answers 501 to every unknown request, and never does something similar instead.

mod api;
mod config;
mod fault;
mod requests;
mod server;
mod store;
mod sums;
mod wire;

pub use config::Config;
pub use fault::{Effect, EtagForm, Fault, FaultPlan};
pub use requests::RequestLog;
pub use server::Server;
