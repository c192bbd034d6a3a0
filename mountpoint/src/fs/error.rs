//! What an operation fails with, and the one table from kinds to errno.

use std::fmt;

use rustix::io::Errno;

use crate::s3::ErrorKind as S3;
use crate::{inode, prefetch, s3, upload};

/// An errno and the sentence for the log.
#[derive(Clone, Debug)]
pub struct Error {
    errno: Errno,
    message: String,
}

/// The answer of this room.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// With a sentence that says what was tried on what, and what to look at next.
    pub fn new(errno: Errno, message: impl Into<String>) -> Self {
        Self { errno, message: message.into() }
    }

    /// What the application sees.
    pub fn errno(&self) -> Errno {
        self.errno
    }

    /// Whether this is an everyday answer (a name that is not there), not worth a line in the log.
    pub fn is_everyday(&self) -> bool {
        matches!(self.errno, Errno::NOENT | Errno::NOSYS | Errno::EXIST)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:?})", self.message, self.errno)
    }
}

impl std::error::Error for Error {}

/// A failure of the store. Never ENOENT for anything but "the store said 404": a program that takes a 503 for "gone"
/// may delete or recreate what is there.
fn errno_of_store(error: &s3::Error) -> Errno {
    match error.kind() {
        S3::NotFound => Errno::NOENT,
        S3::Denied | S3::NoCredentials | S3::Archived => Errno::ACCESS,
        S3::Changed => Errno::STALE,
        S3::Exists => Errno::EXIST,
        S3::TooLarge => Errno::FBIG,
        S3::Unsupported => Errno::OPNOTSUPP,
        S3::NoSuchBucket
        | S3::WrongRegion(_)
        | S3::Throttled
        | S3::Timeout
        | S3::Network
        | S3::ServerError
        | S3::Corrupt
        | S3::BadAnswer
        | S3::Unknown
        | S3::InvalidRequest => Errno::IO,
    }
}

impl From<&s3::Error> for Error {
    fn from(error: &s3::Error) -> Self {
        Self::new(errno_of_store(error), error.to_string())
    }
}

impl From<prefetch::Error> for Error {
    fn from(error: prefetch::Error) -> Self {
        // An object that is gone while it is open: its handle is stale, its name may well be there again.
        let errno = match error.kind() {
            S3::NotFound => Errno::STALE,
            _ => errno_of_store(&error),
        };
        Self::new(errno, error.to_string())
    }
}

impl From<inode::Error> for Error {
    fn from(error: inode::Error) -> Self {
        use inode::ErrorKind as Inode;
        let errno = match error.kind() {
            Inode::NotFound => Errno::NOENT,
            Inode::NotADirectory => Errno::NOTDIR,
            Inode::IsADirectory => Errno::ISDIR,
            Inode::Exists => Errno::EXIST,
            Inode::NotEmpty => Errno::NOTEMPTY,
            Inode::NotPermitted(_) => Errno::PERM,
            Inode::InvalidName(_) => Errno::INVAL,
            Inode::NameTooLong => Errno::NAMETOOLONG,
            Inode::Archived => Errno::ACCESS,
            Inode::Stale => Errno::STALE,
            Inode::Remote(error) => match errno_of_store(error) {
                // A 404 that is an answer comes as `NotFound`; one that comes as an error is not "no such file".
                Errno::NOENT => Errno::IO,
                errno => errno,
            },
        };
        Self::new(errno, error.to_string())
    }
}

impl From<upload::Error> for Error {
    fn from(error: upload::Error) -> Self {
        use upload::Error as Upload;
        let errno = match &error {
            Upload::OutOfOrder { .. } => Errno::INVAL,
            Upload::TooLarge => Errno::FBIG,
            Upload::NoMemory => Errno::NOSPC,
            Upload::Finished => Errno::BADF,
            Upload::Spill(_) | Upload::Corrupt | Upload::Aborted => Errno::IO,
            Upload::Remote(error) => match errno_of_store(error) {
                // The bucket or the upload went away below us: that is not "no such file" to a writer.
                Errno::NOENT => Errno::IO,
                errno => errno,
            },
        };
        Self::new(errno, error.to_string())
    }
}
