//! HTTP exchanges with a host: names, addresses, connections, TLS, HTTP/1.1, and flow control. Nothing here is about S3.
//!
//! Enters: an HTTP request and its host. Leaves: the head of the answer, and its body in the caller's memory. This room never signs, never
//! retries, and knows neither buckets nor keys.

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
