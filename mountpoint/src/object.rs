//! The types that all rooms share: the key of an object, its version, its metadata.

use std::fmt;
use std::time::{Duration, SystemTime};

use crate::sync::Arc;

/// The name of an object in the bucket: any string S3 accepts, up to 1024 bytes of UTF-8.
///
/// Cheap to clone. Any characters are allowed: `../x`, `a//b`, control characters are all keys.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey(Arc<str>);

impl ObjectKey {
    /// Longest key that S3 stores, in bytes.
    pub const LEN_MAX: usize = 1024;

    /// Wraps a key in S3's spelling.
    pub fn new(key: impl AsRef<str>) -> Self {
        Self(Arc::from(key.as_ref()))
    }

    /// The key in S3's spelling.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The key by which Hadoop and EMR mark the directory of this key, which ends in `/`. `None` for the root of a bucket, and if the mark
    /// is longer than S3 allows.
    pub fn folder_mark(&self) -> Option<Self> {
        let directory = self.as_str().strip_suffix('/').filter(|directory| !directory.is_empty())?;
        let mark = [directory, FOLDER_MARK].concat();
        (mark.len() <= Self::LEN_MAX).then(|| Self::new(mark))
    }
}

/// Ending of the name of an empty object that marks the directory beside it.
pub const FOLDER_MARK: &str = "_$folder$";

impl fmt::Debug for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// Prints the key with control characters escaped: a key can't forge a log line.
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

/// The ETag of an object, byte for byte as the store sent it, quotes included.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ETag(Arc<str>);

impl ETag {
    /// Wraps an ETag from a header or a listing, with its quotes.
    pub fn new(etag: impl AsRef<str>) -> Self {
        Self(Arc::from(etag.as_ref()))
    }

    /// The ETag in the store's spelling.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether two spellings mean one version: listings of some stores leave the quotes out, and proxies mark ETags as weak.
    pub fn matches(&self, other: &str) -> bool {
        core(&self.0) == core(other)
    }

    /// Whether the ETag is empty: some stores send an empty one, or none.
    pub fn is_none(&self) -> bool {
        core(&self.0).is_empty()
    }

    /// Whether both may be one version: the spellings match, or one of them is empty.
    pub fn may_be(&self, other: &str) -> bool {
        self.matches(other) || self.is_none() || core(other).is_empty()
    }

    /// The value of If-Match for this version: quoted. `None` if If-Match can't name it: the ETag is missing, or weak, which If-Match
    /// never matches, or contains characters that a header can't hold.
    pub fn if_match(&self) -> Option<String> {
        let inner = core(&self.0);
        let fits = inner.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"');
        (!inner.is_empty() && !self.0.starts_with("W/") && fits).then(|| format!("\"{inner}\""))
    }
}

/// An ETag without quotes and the mark of a weak one.
fn core(etag: &str) -> &str {
    etag.strip_prefix("W/").unwrap_or(etag).trim_matches('"')
}

impl fmt::Debug for ETag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The second in which a version was stored, by the store's clock. All answers of a store have the same one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Second(i64);

impl Second {
    /// The second of a time. `None` for the first second of 1970, which means that the store gave no time.
    pub fn of(time: SystemTime) -> Option<Self> {
        let seconds = match time.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(after) => i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
            Err(before) => {
                let before = before.duration();
                let begun = u64::from(before.subsec_nanos() > 0);
                -i64::try_from(before.as_secs().saturating_add(begun)).unwrap_or(i64::MAX)
            }
        };
        Self::from_epoch(seconds)
    }

    /// The time `seconds` after 1970; `None` for 0.
    pub fn from_epoch(seconds: i64) -> Option<Self> {
        (seconds != 0).then_some(Self(seconds))
    }

    /// Seconds since 1970.
    pub fn get(self) -> i64 {
        self.0
    }
}

/// Rounds a time down to whole seconds.
pub fn whole_second(time: SystemTime) -> SystemTime {
    let seconds = Second::of(time).map_or(0, Second::get);
    let distance = Duration::from_secs(seconds.unsigned_abs());
    let moved = match seconds < 0 {
        true => SystemTime::UNIX_EPOCH.checked_sub(distance),
        false => SystemTime::UNIX_EPOCH.checked_add(distance),
    };
    moved.unwrap_or(SystemTime::UNIX_EPOCH)
}

/// One version of one object. Reads are pinned to it, and cached blocks are stored under it. The size, the third mark of a version, is kept
/// beside it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ObjectId {
    /// The object's key.
    pub key: ObjectKey,
    /// The ETag of the version.
    pub etag: ETag,
    /// The second in which the version was stored; `None` if the store gave none.
    pub modified: Option<Second>,
}

impl ObjectId {
    /// The version with this metadata.
    pub fn of(key: ObjectKey, meta: &ObjectMeta) -> Self {
        Self { key, etag: meta.etag.clone(), modified: Second::of(meta.last_modified) }
    }

    /// A version of which only the ETag is known.
    pub fn by_etag(key: ObjectKey, etag: ETag) -> Self {
        Self { key, etag, modified: None }
    }

    /// Whether an object with this ETag and second may be this version.
    pub fn may_be(&self, etag: &str, modified: Option<Second>) -> bool {
        let is_then = self.modified.zip(modified).is_none_or(|(ours, theirs)| ours == theirs);
        is_then && self.etag.may_be(etag)
    }
}

/// The metadata of an object, from a HEAD, a listing or an upload of this mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObjectMeta {
    /// Size in bytes.
    pub size: u64,
    /// ETag of the version.
    pub etag: ETag,
    /// The time at which this version was stored, by the store's clock.
    pub last_modified: SystemTime,
    /// Whether a GET can be answered now (false for objects in an archive tier that were not restored).
    pub readable: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_etag_is_asked_for_in_quotes_and_a_weak_or_empty_one_never() {
        let asked = |etag: &str| ETag::new(etag).if_match();
        assert_eq!(asked("\"x\"").as_deref(), Some("\"x\""));
        assert_eq!(asked("x").as_deref(), Some("\"x\""));
        for none in ["", "\"\"", "W/\"x\"", "W/\"\"", "a b", "\"a\nb\"", "\"ä\"", "\"a\"b\""] {
            assert_eq!(asked(none), None, "{none:?}");
        }
    }

    #[test]
    fn a_version_is_its_etag_and_its_second_as_far_as_both_are_said() {
        let at = |seconds| Second::of(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        let id = ObjectId { key: "k".into(), etag: ETag::new("\"x\""), modified: at(7) };
        assert!(id.may_be("\"x\"", at(7)) && id.may_be("W/\"x\"", None) && id.may_be("x", at(0)));
        assert!(id.may_be("", at(7)) && id.may_be("\"\"", None));
        assert!(!id.may_be("\"x\"", at(8)) && !id.may_be("\"y\"", at(7)) && !id.may_be("", at(8)));
    }

    #[test]
    fn a_second_is_whole_before_and_after_1970() {
        for (millis, second) in [(1_999, 1), (2_000, 2), (-1, -1), (-1_000, -1), (-1_001, -2)] {
            let distance = Duration::from_millis(i64::unsigned_abs(millis));
            let time = if millis < 0 {
                SystemTime::UNIX_EPOCH - distance
            } else {
                SystemTime::UNIX_EPOCH + distance
            };
            assert_eq!(Second::of(time).map(Second::get), Some(second), "{millis}");
            assert_eq!(Second::of(whole_second(time)).map(Second::get), Some(second), "{millis}");
        }
        assert_eq!(Second::of(SystemTime::UNIX_EPOCH), None);
    }
}
