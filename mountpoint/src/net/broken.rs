//! Why an exchange on a connection broke off. The code on the connection reports it; the caller decides what to do next.

use std::error::Error;
use std::fmt;
use std::io;

use crate::net::flow::watch::Expired;

/// Why an exchange broke off.
#[derive(Debug)]
pub(crate) enum Broken {
    /// An error of hyper: closed, reset, or no HTTP.
    Http(hyper::Error),
    /// An error of the system.
    Io(io::Error),
    /// The received bytes are not HTTP.
    Malformed(String),
    /// The bytes do not even begin an answer: they may be left over from the one before.
    OutOfStep(String),
    /// The connection ended without a word.
    Closed,
    /// Our patience.
    Expired(Expired),
}

impl Broken {
    /// Whether bytes came that begin no answer.
    pub(crate) fn is_out_of_step(&self) -> bool {
        match self {
            Self::Http(e) => e.is_parse(),
            Self::OutOfStep(_) => true,
            _ => false,
        }
    }

    /// Whether bytes came, and they are not HTTP.
    pub(crate) fn is_no_http(&self) -> bool {
        match self {
            Self::Http(e) => e.is_parse(),
            Self::Malformed(_) | Self::OutOfStep(_) => true,
            Self::Io(_) | Self::Closed | Self::Expired(_) => false,
        }
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http(e) => e.fmt(f),
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
            Self::Http(e) => Error::source(e),
            Self::Io(e) => Error::source(e),
            Self::Malformed(_) | Self::OutOfStep(_) | Self::Closed | Self::Expired(_) => None,
        }
    }
}
