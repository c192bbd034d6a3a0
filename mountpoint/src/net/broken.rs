//! The reason why an exchange on a connection broke off. The connection reports it; the caller decides what to do next.

use std::error::Error;
use std::fmt;
use std::io;

use crate::net::flow::watch::Expired;

/// The reason why an exchange broke off.
#[derive(Debug)]
pub(crate) enum Broken {
    /// An I/O error of the system.
    Io(io::Error),
    /// The received bytes are not HTTP.
    Malformed(String),
    /// The bytes do not begin an answer: they may be left over from the earlier answer.
    OutOfStep(String),
    /// The connection ended without an answer.
    Closed,
    /// A time limit was reached.
    Expired(Expired),
}

impl Broken {
    /// Whether the received bytes do not begin an answer.
    pub(crate) fn is_out_of_step(&self) -> bool {
        matches!(self, Self::OutOfStep(_))
    }

    /// Whether the received bytes are not HTTP.
    pub(crate) fn is_no_http(&self) -> bool {
        matches!(self, Self::Malformed(_) | Self::OutOfStep(_))
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(e) => e.fmt(f),
            Self::Malformed(what) | Self::OutOfStep(what) => f.write_str(what),
            Self::Closed => f.write_str("the connection was closed"),
            Self::Expired(e) => e.fmt(f),
        }
    }
}

impl Error for Broken {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Io(e) => Error::source(e),
            Self::Malformed(_) | Self::OutOfStep(_) | Self::Closed | Self::Expired(_) => None,
        }
    }
}
