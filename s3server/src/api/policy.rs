//! A policy that hides all keys but those below a prefix, as an administrator of a shared bucket would write it.
//!
//! The policy allows the operations on objects below the prefix, and listings with that prefix as a condition. S3 then answers 403 to
//! everything else, also to a HEAD or GET of a missing key below the prefix: a 404 needs the permission to list the bucket without
//! a condition.

use s3s::{S3Error, S3ErrorCode, S3Result};

/// The prefix of the keys that clients may use; all keys by default.
#[derive(Clone, Debug, Default)]
pub(crate) struct Policy(Option<String>);

/// Listings. Their prefix is checked by [`Policy::allows`] where it is parsed.
const LISTS: [&str; 4] = ["ListObjectsV2", "ListObjects", "ListObjectVersions", "ListMultipartUploads"];

impl Policy {
    pub(crate) fn new(prefix: Option<String>) -> Self {
        Self(prefix)
    }

    /// Checks an operation; `key` is the key in its path.
    pub(super) fn allows_operation(&self, operation: &str, key: Option<&str>) -> S3Result<()> {
        match key {
            Some(key) => self.allows(key),
            None if self.0.is_none() || LISTS.contains(&operation) || operation == "DeleteObjects" => Ok(()),
            None => Err(denied()),
        }
    }

    /// Checks the key of an operation, or the prefix of a listing.
    pub(super) fn allows(&self, name: &str) -> S3Result<()> {
        let hidden = self.0.as_ref().is_some_and(|prefix| !name.starts_with(prefix));
        if hidden { Err(denied()) } else { Ok(()) }
    }

    /// Changes the error of a failed read: a 403 must not show whether the key exists.
    pub(super) fn of_read(&self, error: S3Error) -> S3Error {
        if self.0.is_some() && *error.code() == S3ErrorCode::NoSuchKey { denied() } else { error }
    }
}

fn denied() -> S3Error {
    S3Error::with_message(S3ErrorCode::AccessDenied, "Access Denied")
}
