//! A policy that hides all keys but those below a prefix, as an administrator of a shared bucket would write it.
//!
//! It allows the operations on objects below the prefix, and listings with that prefix as a condition. S3 then answers 403 to
//! everything else, also to a HEAD or GET of a missing key below the prefix: to say 404 it would have to be allowed to list the
//! bucket without a condition.

use s3s::{S3Error, S3ErrorCode, S3Result};

/// The prefix of the keys that a signing client may see; all keys by default.
#[derive(Clone, Debug, Default)]
pub(crate) struct Policy(Option<String>);

/// Listings, whose prefix is checked where it is parsed, by [`Policy::allows`].
const LISTS: [&str; 4] = ["ListObjectsV2", "ListObjects", "ListObjectVersions", "ListMultipartUploads"];

impl Policy {
    pub(crate) fn new(prefix: Option<String>) -> Self {
        Self(prefix)
    }

    /// Whether an operation may go on; `key` is that of its path.
    pub(super) fn allows_operation(&self, operation: &str, key: Option<&str>) -> S3Result<()> {
        match key {
            Some(key) => self.allows(key),
            None if self.0.is_none() || LISTS.contains(&operation) || operation == "DeleteObjects" => Ok(()),
            None => Err(denied()),
        }
    }

    /// Whether a key may be used, or a prefix listed.
    pub(super) fn allows(&self, name: &str) -> S3Result<()> {
        let hidden = self.0.as_ref().is_some_and(|prefix| !name.starts_with(prefix));
        if hidden { Err(denied()) } else { Ok(()) }
    }

    /// The answer to a read that failed: a 403 does not say whether the key exists.
    pub(super) fn of_read(&self, error: S3Error) -> S3Error {
        if self.0.is_some() && *error.code() == S3ErrorCode::NoSuchKey { denied() } else { error }
    }
}

fn denied() -> S3Error {
    S3Error::with_message(S3ErrorCode::AccessDenied, "Access Denied")
}
