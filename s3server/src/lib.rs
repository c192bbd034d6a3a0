//! A folder as S3 buckets, on loopback: for tests, for the quick start, for a bucket on a laptop.
//!
//! ```text
//! network - wire/ - s3s (router, signatures, XML) - api/ - store/ - the folder
//!             |                                      |
//!             +----------- fault.rs, requests.rs ----+
//! ```
//!
//! It keeps what S3 promises about one object: reads, conditions, checksums, multipart, listings. It has no versions,
//! no policies, no users but one, and no TLS; what it does not know it answers with 501, never with something similar.

mod api;
mod config;
mod fault;
mod requests;
mod server;
mod store;
mod sums;
mod wire;

pub use config::Config;
pub use fault::{Effect, Fault, FaultPlan};
pub use requests::RequestLog;
pub use server::Server;
