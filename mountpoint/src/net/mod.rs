//! Bytes to a host and back: names, addresses, connections, TLS, HTTP/1.1, and how much may flow at once. No word of S3.
//!
//! Enters: an HTTP request and the host it is for. Leaves: the head of the answer, and its body where the caller wants it. This room
//! never signs, never retries, and knows neither buckets nor keys.

mod address;
pub(crate) mod authority;
pub(crate) mod body;
pub(crate) mod broken;
mod config;
pub(crate) mod connection;
mod dial;
mod error;
pub(crate) mod flow;
#[cfg(feature = "testing")]
pub mod fuzzing;
mod handshake;
mod http1;
pub(crate) mod pool;
mod proxy;
mod question;
mod stream;
pub(crate) mod tcp;
mod tls;
mod unsent;

pub(crate) use config::Config;
pub use config::ProxyVariables;
pub(crate) use error::{Error, Result};
pub use handshake::{Certificate, Handshake};
