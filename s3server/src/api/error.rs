//! Maps errors of the folder to errors of S3.

use s3s::{S3Error, S3ErrorCode, StdError};

use crate::store::Error;

pub(super) fn to_s3(error: Error) -> S3Error {
    use S3ErrorCode as Code;
    match error {
        Error::NoSuchBucket => S3Error::with_message(Code::NoSuchBucket, "The bucket does not exist."),
        Error::BucketExists => {
            S3Error::with_message(Code::BucketAlreadyOwnedByYou, "The bucket exists already and is yours.")
        }
        Error::BucketNotEmpty => S3Error::with_message(Code::BucketNotEmpty, "The bucket is not empty."),
        Error::NoSuchKey => S3Error::with_message(Code::NoSuchKey, "The key does not exist."),
        Error::NoSuchUpload => {
            S3Error::with_message(Code::NoSuchUpload, "The upload does not exist, was aborted or completed.")
        }
        Error::Precondition => {
            S3Error::with_message(Code::PreconditionFailed, "A condition of the request does not hold.")
        }
        Error::Conflict => named(
            http::StatusCode::CONFLICT,
            "ConditionalRequestConflict",
            "The object was changed by another request meanwhile. Send the request again.",
        ),
        Error::InvalidPart(number) => S3Error::with_message(
            Code::InvalidPart,
            format!("Part {number} was not uploaded, or its ETag or checksum is another one."),
        ),
        Error::InvalidPartOrder => {
            S3Error::with_message(Code::InvalidPartOrder, "The parts are not in ascending order.")
        }
        Error::EntityTooSmall { part, size } => S3Error::with_message(
            Code::EntityTooSmall,
            format!("Part {part} has {size} bytes; every part but the last needs 5 MiB."),
        ),
        Error::BadDigest(message) => S3Error::with_message(Code::BadDigest, message),
        Error::InvalidRequest(message) => invalid(message),
        Error::Io { what, source } => {
            tracing::error!(error = %source, "could not {what}");
            let mut error = S3Error::with_message(Code::InternalError, format!("Could not {what}: {source}"));
            error.set_source(Box::new(source));
            error
        }
    }
}

pub(super) fn internal(error: impl Into<StdError>) -> S3Error {
    let error = error.into();
    tracing::error!(%error, "internal error");
    S3Error::with_source(S3ErrorCode::InternalError, error)
}

pub(super) fn invalid(message: impl Into<std::borrow::Cow<'static, str>>) -> S3Error {
    S3Error::with_message(S3ErrorCode::InvalidRequest, message)
}

/// The error (501) of a request that this server does not implement.
pub(super) fn unknown(what: impl std::fmt::Display) -> S3Error {
    let message = format!("This server does not implement {what}.");
    S3Error::with_message(S3ErrorCode::NotImplemented, message)
}

/// An error with this S3 code, which s3s may not know.
pub(super) fn named(
    status: http::StatusCode,
    code: &str,
    message: impl Into<std::borrow::Cow<'static, str>>,
) -> S3Error {
    let code = S3ErrorCode::from_bytes(code.as_bytes()).unwrap_or(S3ErrorCode::InternalError);
    let mut error = S3Error::with_message(code, message);
    error.set_status_code(status);
    error
}
