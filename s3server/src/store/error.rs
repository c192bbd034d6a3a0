//! The errors of the folder.

use std::io;

/// The result of the store's calls.
pub(crate) type Result<T> = std::result::Result<T, Error>;

/// The errors of the store. `api/error.rs` maps them to S3's error codes.
#[derive(Debug)]
pub(crate) enum Error {
    NoSuchBucket,
    BucketExists,
    BucketNotEmpty,
    NoSuchKey,
    NoSuchUpload,
    /// The condition of If-Match or If-None-Match does not hold.
    Precondition,
    /// The condition held when the request came, but the object was replaced or deleted since.
    Conflict,
    /// A part in a Complete is missing, or its ETag or checksum differs.
    InvalidPart(u16),
    InvalidPartOrder,
    /// A part other than the last has less than 5 MiB.
    EntityTooSmall {
        part: u16,
        size: u64,
    },
    /// The bytes do not have the checksum that the client named.
    BadDigest(String),
    InvalidRequest(String),
    Io {
        what: &'static str,
        source: io::Error,
    },
}

impl Error {
    /// Wraps an error of the disk with the attempted operation.
    pub(crate) fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, source }
    }
}

/// Counts a missing file as removed.
pub(super) fn absent_is_fine(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(()),
        other => other,
    }
}
