//! Errors of a call, by kind: the kind tells the caller the next step. Also maps kinds to gRPC codes.

use std::fmt;

/// The error of a call: its kind, and a sentence with the attempt, its object, and the next thing to check. It never contains a secret.
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
    /// The request is invalid: the author of the volume must correct it.
    InvalidArgument,
    /// The volume, path or bucket of the request does not exist here.
    NotFound,
    /// Another volume already has this name.
    AlreadyExists,
    /// The store does not know these credentials.
    Unauthenticated,
    /// The store knows these credentials, and refuses them this operation.
    PermissionDenied,
    /// A limit of the account or the node is reached.
    ResourceExhausted,
    /// Something else must change first; then the same call may succeed.
    FailedPrecondition,
    /// Another call for the same volume is in progress: retry later.
    Aborted,
    /// A required part does not answer now: retry.
    Unavailable,
    /// The call took too long: retry.
    DeadlineExceeded,
    /// The driver failed.
    Internal,
}

impl Error {
    /// An error with this kind and sentence.
    pub fn new(kind: ErrorKind, message: impl fmt::Display) -> Self {
        Self { kind, message: message.to_string() }
    }

    /// An error about an invalid request.
    pub fn invalid(message: impl fmt::Display) -> Self {
        Self::new(ErrorKind::InvalidArgument, message)
    }

    /// An error of the driver itself.
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
