//! Errors of a call, by kind, which tells the caller the next step. Also the one table from kinds to gRPC codes.

use std::fmt;

/// A failed call: its kind, and a sentence with the attempt, its object, and the next thing to check. The error never contains a secret.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// The kind, which tells the caller the next step.
    pub kind: ErrorKind,
    message: String,
}

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// The kind of an error, which tells the caller the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request is wrong and stays wrong: the author of the volume must correct it.
    InvalidArgument,
    /// The volume, path or bucket of the request is not here.
    NotFound,
    /// Another volume has this name already.
    AlreadyExists,
    /// The store does not know these keys.
    Unauthenticated,
    /// The store knows these keys, and they lack the permission.
    PermissionDenied,
    /// A limit of the account is reached.
    ResourceExhausted,
    /// Something else must change first; the same call may then succeed.
    FailedPrecondition,
    /// Another call for the same volume is in progress: repeat the call later.
    Aborted,
    /// A part that is needed does not answer now: come back.
    Unavailable,
    /// The call took too long: come back.
    DeadlineExceeded,
    /// The driver itself failed.
    Internal,
}

impl Error {
    /// An error of this kind with this sentence.
    pub fn new(kind: ErrorKind, message: impl fmt::Display) -> Self {
        Self { kind, message: message.to_string() }
    }

    /// An error about a wrong request.
    pub fn invalid(message: impl fmt::Display) -> Self {
        Self::new(ErrorKind::InvalidArgument, message)
    }

    /// The driver itself failed.
    pub fn internal(message: impl fmt::Display) -> Self {
        Self::new(ErrorKind::Internal, message)
    }
}

impl From<Error> for tonic::Status {
    fn from(error: Error) -> Self {
        let code = match error.kind {
            ErrorKind::InvalidArgument => tonic::Code::InvalidArgument,
            ErrorKind::NotFound => tonic::Code::NotFound,
            ErrorKind::AlreadyExists => tonic::Code::AlreadyExists,
            ErrorKind::Unauthenticated => tonic::Code::Unauthenticated,
            ErrorKind::PermissionDenied => tonic::Code::PermissionDenied,
            ErrorKind::ResourceExhausted => tonic::Code::ResourceExhausted,
            ErrorKind::FailedPrecondition => tonic::Code::FailedPrecondition,
            ErrorKind::Aborted => tonic::Code::Aborted,
            ErrorKind::Unavailable => tonic::Code::Unavailable,
            ErrorKind::DeadlineExceeded => tonic::Code::DeadlineExceeded,
            ErrorKind::Internal => tonic::Code::Internal,
        };
        Self::new(code, error.message)
    }
}
