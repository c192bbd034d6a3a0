//! The errors of writing an object: few kinds, each with its own errno in `fs/error.rs`.

use std::io;

use crate::s3;
use crate::sync::Arc;

/// The error of an upload. Cheap to clone: the handle returns it from every later call.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The write begins before the end of the file, or too far behind it. The upload fails.
    #[error(
        "objects are written from start to end, and pieces out of order within 8 MiB: the next byte is {expected}"
    )]
    OutOfOrder {
        /// Offset at which the next write must begin, in bytes.
        expected: u64,
    },
    /// The file needs more parts or bytes than the store accepts.
    #[error(
        "the store takes no more parts (10,000 on S3), or bytes (5 TiB): raise --write-part-size or --memory-target, or write less"
    )]
    TooLarge,
    /// No memory came free in time, and the bytes can't go to a spill file.
    #[error("no memory for the next part in time: raise --memory-target, or name a --spill-dir")]
    NoMemory,
    /// The spill file can't be written or read.
    #[error("spill file: {0}; look at the disk of the cache directory or --spill-dir")]
    Spill(#[source] Arc<io::Error>),
    /// The store, or the spill file, has other bytes than were written. (If the store refuses damaged bytes, the error is `Remote` with
    /// kind `Corrupt`.)
    #[error("the stored bytes differ from the written ones: do not trust the object")]
    Corrupt,
    /// A request to the store failed.
    #[error("{0}")]
    Remote(#[source] Arc<s3::Error>),
    /// The engine panicked during the upload; the log has the place.
    #[error("the engine failed in itself (a panic, in the log): please report it, and write the file anew")]
    Panicked,
    /// The upload was aborted on request.
    #[error("the upload was given up")]
    Aborted,
    /// The object is complete, or its last request is in flight, and the file accepts no more bytes.
    #[error(
        "the file was stored by fsync, or by a close of the process that opened it, and takes no more bytes: open it anew"
    )]
    Finished,
    /// A program's request for a smaller size was refused, and no later one fitted: the file is not what the program wanted, so it is not
    /// stored.
    #[error(
        "truncate to another size was refused, and the file did not get that size by writing: not stored"
    )]
    Unmeant,
}

impl From<s3::Error> for Error {
    fn from(error: s3::Error) -> Self {
        Self::Remote(Arc::new(error))
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Spill(Arc::new(error))
    }
}
