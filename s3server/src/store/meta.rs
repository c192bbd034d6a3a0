//! The metadata of an object.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::sums::Sum;

/// The identity of a file, for its metadata. A rename keeps all three values; every change of the file changes one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) inode: u64,
    pub(crate) size: u64,
    pub(crate) mtime_ns: i64,
}

impl Identity {
    pub(crate) fn of(stat: &Metadata) -> Self {
        let mtime_ns = stat.mtime().saturating_mul(1_000_000_000).saturating_add(stat.mtime_nsec());
        Self { inode: stat.ino(), size: stat.size(), mtime_ns }
    }

    /// The file's mtime in whole seconds, the resolution of HTTP headers, so listings agree with them.
    pub(crate) fn modified(&self) -> SystemTime {
        let seconds = self.mtime_ns.div_euclid(1_000_000_000);
        u64::try_from(seconds).map_or(UNIX_EPOCH, |s| UNIX_EPOCH + Duration::from_secs(s))
    }

    /// The ETag of a file that was put into the folder by hand, derived from its identity.
    pub(crate) fn derived_etag(&self) -> String {
        let mark = (self.mtime_ns as u64).rotate_left(17) ^ self.size;
        format!("{:016x}{mark:016x}-1", self.inode)
    }
}

/// The metadata of an object from its PUT or Complete.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Meta {
    pub(crate) etag: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sum: Option<Sum>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) headers: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) user: BTreeMap<String, String>,
    /// Tags of the object.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) tags: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) storage_class: Option<String>,
    /// Sizes of the object's parts, if it was a multipart upload.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) parts: Vec<u64>,
    /// The encryption that the object's request named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sse: Option<Sse>,
    /// The id of the multipart upload that created the object: a repeated Complete gets the first one's answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) upload: Option<String>,
}

/// Server-side encryption in the terms of a request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Sse {
    /// `AES256`, `aws:kms`, `aws:kms:dsse`.
    pub(crate) method: String,
    /// The KMS key.
    pub(crate) key: Option<String>,
}

impl Meta {
    /// The metadata of a file that was put into the folder by hand.
    pub(crate) fn derived(identity: &Identity) -> Self {
        Self { etag: identity.derived_etag(), ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_derived_etag_changes_with_each_part_of_the_identity() {
        let base = Identity { inode: 5, size: 10, mtime_ns: 1_000 };
        let others = [
            Identity { inode: 6, ..base },
            Identity { size: 11, ..base },
            Identity { mtime_ns: 1_001, ..base },
        ];
        for other in others {
            assert_ne!(base.derived_etag(), other.derived_etag());
        }
    }

    #[test]
    fn a_record_of_an_older_server_is_read() {
        let meta: Meta = serde_json::from_str(r#"{"etag":"abc"}"#).unwrap();
        assert_eq!(meta, Meta { etag: "abc".into(), ..Meta::default() });
    }
}
