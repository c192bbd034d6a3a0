//! Errors of names.

use std::fmt;

use crate::s3;
use crate::sync::Arc;

/// Result of an operation on names.
pub type Result<T> = std::result::Result<T, Error>;

/// The kind tells the caller what to do next. `fs/error.rs` turns these into errno.
#[derive(Clone, Debug)]
pub enum ErrorKind {
    /// No file or directory of that name.
    NotFound,
    /// A file stands where a directory is needed.
    NotADirectory,
    /// A directory stands where a file is needed.
    IsADirectory,
    /// The name exists already.
    Exists,
    /// The directory has entries.
    NotEmpty,
    /// Refused without a question to S3. The sentence names the flag that would allow the operation, if there is one.
    NotPermitted(&'static str),
    /// No key can have this name; the sentence says why.
    InvalidName(String),
    /// The name is longer than 255 bytes, or the key than 1024.
    NameTooLong,
    /// The object is in an archive tier and must be restored before it can be read.
    Archived,
    /// The inode means a version that is gone: look the name up again.
    Stale,
    /// S3 did not answer the question.
    Remote(Arc<s3::Error>),
}

/// An error of this room: its kind and the name that it concerns.
#[derive(Clone, Debug)]
pub struct Error {
    kind: ErrorKind,
    name: String,
}

impl Error {
    /// An error about a name: a key where one is known, else the last component.
    pub(super) fn new(kind: ErrorKind, name: impl Into<String>) -> Self {
        Self { kind, name: name.into() }
    }

    /// The kind of the error.
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\": ", self.name.escape_debug())?;
        match &self.kind {
            ErrorKind::NotFound => f.write_str("no such file or directory in the bucket"),
            ErrorKind::NotADirectory => f.write_str("is a file, not a directory"),
            ErrorKind::IsADirectory => f.write_str("is a directory"),
            ErrorKind::Exists => f.write_str("exists already"),
            ErrorKind::NotEmpty => f.write_str("directory is not empty"),
            ErrorKind::NotPermitted(why) => f.write_str(why),
            ErrorKind::InvalidName(why) => write!(f, "can't be a name: {why}"),
            ErrorKind::NameTooLong => f.write_str("a name has at most 255 bytes, a key 1024"),
            ErrorKind::Archived => f.write_str("is in an archive tier; restore the object before reading it"),
            ErrorKind::Stale => f.write_str("was changed or removed meanwhile; look it up again"),
            ErrorKind::Remote(error) => write!(f, "S3 did not answer: {error}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.kind {
            ErrorKind::Remote(error) => Some(&**error),
            _ => None,
        }
    }
}
