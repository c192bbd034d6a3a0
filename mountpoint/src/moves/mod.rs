//! Objects that get another key.
//!
//! Enters: an object's key, another key, and what may be replaced there. Leaves: the metadata of the object under its new key, proven to
//! be the source's bytes; then, when the caller says so, the source is deleted, if it is still the version that was copied. S3 has no rename:
//! this is a copy that the store makes by itself, and a delete. No byte passes here, and at every moment at least one of the two keys has
//! the object. This room knows no inode, no handle and no errno.

mod object;
mod parts;

#[cfg(test)]
mod tests;

use std::fmt;

use crate::object::{ObjectId, ObjectKey, ObjectMeta};
pub use crate::s3::Replaces;
use crate::s3::{self, ObjectClient};
use crate::sync::Arc;

/// How objects are moved.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Bytes of the largest object that one request copies; S3's limit is 5 GiB. Larger ones are copied in parts.
    pub copy_max: u64,
    /// Bytes of such a part. Doubling it halves the requests, and lets the store copy less at once.
    pub part: u64,
    /// Parts of one object that the store copies at once. Doubling it helps a store that likes many requests at once.
    pub parts_at_once: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self { copy_max: 5 << 30, part: 512 << 20, parts_at_once: 16 }
    }
}

/// Moves objects. One per mount.
#[derive(Clone, Debug)]
pub struct Mover {
    client: Arc<dyn ObjectClient>,
    config: Config,
}

/// A copy that is proven; its source is there still.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copied {
    /// The version that was copied.
    pub source: ObjectId,
    /// The copy.
    pub id: ObjectId,
    /// The metadata of the copy.
    pub meta: ObjectMeta,
}

/// The fate of the source of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The source is gone.
    Deleted,
    /// Another client has stored another version there since, and that stays.
    Replaced,
}

/// Why an object was not moved. Its source is where it was.
#[derive(Clone, Debug)]
pub enum Error {
    /// There is no source.
    Gone,
    /// The source is replaced again and again.
    Changing,
    /// The object under the new key may not be replaced.
    Taken,
    /// The copy is not the source's bytes, by what the store says of it.
    Different(String),
    /// The store's.
    Remote(Arc<s3::Error>),
}

/// The answer of this room.
pub type Result<T> = std::result::Result<T, Error>;

impl Mover {
    /// A mover in the client's bucket.
    pub fn new(client: Arc<dyn ObjectClient>, config: Config) -> Self {
        Self { client, config }
    }
}

impl Error {
    /// The error as one of the store, for rooms that tell no others.
    pub fn into_remote(self, key: &ObjectKey) -> Arc<s3::Error> {
        match self {
            Self::Remote(error) => error,
            other => {
                let error = s3::Error::new(s3::ErrorKind::Exists, "CopyObject").key(key);
                Arc::new(error.message(other.to_string()))
            }
        }
    }
}

impl From<s3::Error> for Error {
    fn from(error: s3::Error) -> Self {
        Self::Remote(Arc::new(error))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("the object is gone"),
            Self::Changing => f.write_str("another client replaces the object again and again"),
            Self::Taken => f.write_str("another client has stored or removed an object under the new name"),
            Self::Different(why) => {
                write!(
                    f,
                    "the store's copy is not the object ({why}): look at the store; both names are there"
                )
            }
            Self::Remote(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {}
