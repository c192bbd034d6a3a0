//! Errors of staged files.

use std::io;
use std::path::PathBuf;

use crate::object::ObjectKey;
use crate::sync::Arc;
use crate::{prefetch, upload};

/// The failure of an operation on a staged file.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// Programs write the file by the kernel, all the time: no moment was found of which to send it.
    #[error("\"{key}\" is written all the time, so that no state of it can be sent yet")]
    Restless {
        /// The object's key.
        key: ObjectKey,
    },
    /// The files in the stage have reached their limit of bytes.
    #[error(
        "the stage is full: {limit} bytes are in use; files leave it when they are stored: raise --stage-size"
    )]
    Full {
        /// The limit in bytes.
        limit: u64,
    },
    /// Files that could not be stored take as much room as files may.
    #[error(
        "kept/ of the stage has {files} files of {bytes} bytes that could not be stored, and no file may grow until some are taken \
         out: 'mount-s3-ctl kept {}' lists them",
        dir.display()
    )]
    KeptFull {
        /// Number of kept files.
        files: u64,
        /// Bytes that they take.
        bytes: u64,
        /// The directory of the stage.
        dir: PathBuf,
    },
    /// The disk of the stage.
    #[error("a file of the stage: {0}; look at the disk of --stage")]
    Disk(#[source] Arc<io::Error>),
    /// Another client changed or deleted the object since the file was opened. The stage keeps the bytes.
    #[error(
        "\"{key}\" was changed in the bucket since it was opened here: the bucket keeps that, and what was written here is in {}",
        kept.display()
    )]
    Conflict {
        /// The object's key.
        key: ObjectKey,
        /// The file with the bytes.
        kept: PathBuf,
    },
    /// An earlier attempt to store the file failed, and the stage keeps its bytes.
    #[error("\"{key}\" was not stored: what was written is in {}", kept.display())]
    Kept {
        /// The object's key.
        key: ObjectKey,
        /// The file with the bytes.
        kept: PathBuf,
    },
    /// An unchanged byte could not be read from the object.
    #[error("{0}")]
    Read(#[source] prefetch::Error),
    /// The upload of the file failed.
    #[error("{0}")]
    Send(#[source] upload::Error),
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Disk(Arc::new(error))
    }
}

impl From<upload::Error> for Error {
    fn from(error: upload::Error) -> Self {
        Self::Send(error)
    }
}

impl From<prefetch::Error> for Error {
    fn from(error: prefetch::Error) -> Self {
        Self::Read(error)
    }
}
