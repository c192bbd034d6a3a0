//! The types that all rooms share: the key of an object, its version, its metadata.

use std::fmt;
use std::time::SystemTime;

use crate::sync::Arc;

/// The name of an object in the bucket: any string S3 accepts, up to 1024 bytes of UTF-8.
///
/// Cheap to clone. Nothing is assumed of its characters: `../x`, `a//b`, control characters are all keys.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey(Arc<str>);

impl ObjectKey {
    /// Longest key that S3 stores, in bytes.
    pub const LEN_MAX: usize = 1024;

    /// Wraps a key as S3 spells it.
    pub fn new(key: impl AsRef<str>) -> Self {
        Self(Arc::from(key.as_ref()))
    }

    /// The key as S3 spells it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// Printed with control characters escaped, so that a key can't forge a log line.
impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0.escape_debug(), f)
    }
}

impl From<&str> for ObjectKey {
    fn from(key: &str) -> Self {
        Self::new(key)
    }
}

/// The version mark of an object, byte for byte as the store sent it, quotes included.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ETag(Arc<str>);

impl ETag {
    /// Wraps an ETag as it stood in a header or a listing (with its quotes).
    pub fn new(etag: impl AsRef<str>) -> Self {
        Self(Arc::from(etag.as_ref()))
    }

    /// The ETag as the store sent it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether two spellings mean one version: listings of some stores leave the quotes out.
    pub fn matches(&self, other: &str) -> bool {
        self.0.trim_matches('"') == other.trim_matches('"')
    }
}

impl fmt::Debug for ETag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One version of one object: what a read is pinned to and a cached block is filed under.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ObjectId {
    /// The object's key.
    pub key: ObjectKey,
    /// The ETag of the version.
    pub etag: ETag,
}

/// The metadata of an object, from a HEAD, a listing or an upload of this mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObjectMeta {
    /// Bytes.
    pub size: u64,
    /// Version mark.
    pub etag: ETag,
    /// When this version was stored, by the store's clock.
    pub last_modified: SystemTime,
    /// Whether a GET can be answered now (false for objects in an archive tier that were not restored).
    pub readable: bool,
}
