//! The error of a network setting that can't be used: the only error of this room that does not come from a connection.

use std::fmt;

/// A setting of the network that can't be used, with the next thing to check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Error {
    /// The flag (`--bind`) or the subject (`TLS`, `proxy`).
    pub(crate) setting: &'static str,
    /// The problem with the setting, without a password.
    pub(crate) message: String,
}

/// Result of reading a setting.
pub(crate) type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error about `setting`.
    pub(crate) fn new(setting: &'static str, message: impl Into<String>) -> Self {
        Self { setting, message: message.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.setting, self.message)
    }
}

impl std::error::Error for Error {}
