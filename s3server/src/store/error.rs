//! The errors of the folder.

use std::io;

/// The result of calls of this room.
pub(crate) type Result<T> = std::result::Result<T, Error>;

/// The errors of the store. `api/error.rs` turns them into S3's error codes.
#[derive(Debug)]
pub(crate) enum Error {
    NoSuchBucket,
    BucketExists,
    BucketNotEmpty,
    NoSuchKey,
    NoSuchUpload,
    /// The condition of If-Match or If-None-Match does not hold.
    Precondition,
    /// The condition did hold when the request came, but the object was replaced or deleted meanwhile.
    Conflict,
    /// A part in a Complete is missing, or is another one.
    InvalidPart(u16),
    InvalidPartOrder,
    /// A part that is not the last has less than 5 MiB.
    EntityTooSmall {
        part: u16,
        size: u64,
    },
    /// A sum the client named is not that of the bytes.
    BadDigest(String),
    InvalidRequest(String),
    Io {
        what: &'static str,
        source: io::Error,
    },
}

impl Error {
    /// Makes an error of the disk that names the attempted operation.
    pub(crate) fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, source }
    }
}

/// Takes a missing file for a removed one.
pub(super) fn absent_is_fine(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(()),
        other => other,
    }
}
