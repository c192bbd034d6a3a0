//! CreateBucket, DeleteBucket and HeadBucket.

use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode, header};

use crate::s3::attempts::Attempts;
use crate::s3::failure::Failure;
use crate::s3::wire::{Draft, Wire};
use crate::s3::{Error, ErrorKind, Result, xml};

/// The result of a successful CreateBucket request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Created {
    /// The bucket is new. Some stores answer the same for a bucket that this account already owned.
    New,
    /// The bucket exists and belongs to this account.
    Yours {
        /// Whether an earlier attempt of the same call had no clear answer, and may have created the bucket.
        perhaps_by_us: bool,
    },
    /// Another account has a bucket of this name.
    Others,
}

/// The result of a successful DeleteBucket request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deleted {
    /// The bucket no longer exists.
    Gone,
    /// The bucket is not empty, and was not deleted.
    NotEmpty,
}

/// Creates a bucket, see [`crate::s3::Bucket::create`].
pub(crate) async fn create(wire: &Wire, location: Option<&str>) -> Result<Created> {
    const OPERATION: &str = "CreateBucket";
    let document = location.map(|region| [Bytes::from(xml::location_document(region))]);
    let body: &[Bytes] = document.as_ref().map_or(&[], |it| it);
    let mut attempts = Attempts::new(wire, OPERATION, None, 0);
    loop {
        let mut draft = attempts.draft(Method::PUT, wire.endpoint.bucket_path().to_owned());
        if location.is_some() {
            draft.headers.push((header::CONTENT_TYPE, HeaderValue::from_static("application/xml")));
        }
        let failure = match plain(wire, Draft { body: Some(body), hashed: true, ..draft }).await {
            Ok(()) => {
                attempts.succeeded();
                return Ok(Created::New);
            }
            Err(failure) => failure,
        };
        match failure.error.code() {
            Some("BucketAlreadyOwnedByYou") => {
                attempts.succeeded();
                // The request may also have been sent twice within this attempt, on a connection that broke before its answer.
                return Ok(Created::Yours { perhaps_by_us: attempts.ambiguous || failure.ambiguous });
            }
            Some("BucketAlreadyExists") => {
                attempts.succeeded();
                return Ok(Created::Others);
            }
            _ => attempts.again(failure).await?,
        }
    }
}

/// Deletes a bucket, see [`crate::s3::Bucket::delete`].
pub(crate) async fn delete(wire: &Wire) -> Result<Deleted> {
    const OPERATION: &str = "DeleteBucket";
    let mut attempts = Attempts::new(wire, OPERATION, None, 0);
    loop {
        let ended =
            match plain(wire, attempts.draft(Method::DELETE, wire.endpoint.bucket_path().to_owned())).await {
                Ok(()) => Deleted::Gone,
                Err(failure) => match (failure.error.kind(), failure.error.code()) {
                    (_, Some("BucketNotEmpty")) => Deleted::NotEmpty,
                    (ErrorKind::NoSuchBucket, _) => Deleted::Gone,
                    _ => {
                        attempts.again(failure).await?;
                        continue;
                    }
                },
            };
        attempts.succeeded();
        return Ok(ended);
    }
}

/// Checks a bucket, see [`crate::s3::Bucket::head`].
pub(crate) async fn head(wire: &Wire) -> Result<()> {
    const OPERATION: &str = "HeadBucket";
    let mut attempts = Attempts::new(wire, OPERATION, None, 0);
    loop {
        match plain(wire, attempts.draft(Method::HEAD, wire.endpoint.bucket_path().to_owned())).await {
            Ok(()) => {
                attempts.succeeded();
                return Ok(());
            }
            Err(failure) => attempts.again(failure).await.map_err(|error| no_bucket(error, OPERATION))?,
        }
    }
}

/// Sends a request whose answer has only a status: 200 or 204 is a success.
pub(crate) async fn plain(wire: &Wire, draft: Draft<'_>) -> std::result::Result<(), Failure> {
    let answer = wire.exchange(&draft).await?.collect(xml::BODY_MAX).await?;
    match answer.status {
        StatusCode::OK | StatusCode::NO_CONTENT => Ok(()),
        _ => Err(answer.failed(wire.clock.wall())),
    }
}

/// Turns a 404 without a code, as a HEAD has it, into `NoSuchBucket`.
fn no_bucket(error: Error, operation: &'static str) -> Error {
    match error.kind() {
        ErrorKind::NotFound => {
            Error::new(ErrorKind::NoSuchBucket, operation).status(404).message("there is no such bucket")
        }
        _ => error,
    }
}
