//! Appending to an object: the store copies the object's bytes into the first parts, and new bytes follow as in any file.
//!
//! An object smaller than [`PART_MIN`], the least part before the last, is fetched instead, and its bytes are written first. So are, where
//! a store takes parts of one size only, the bytes behind the last whole part. No request is sent before new bytes come; without new bytes
//! the object stays unchanged.

use std::ops::Range;

use super::size::{PART_MAX, PART_MIN};
use super::{Error, Shared};
use crate::object::{ObjectId, ObjectMeta, Second};
use crate::s3::{self, ErrorKind, PartLimits, Properties};
use crate::sync::atomic::Ordering::Relaxed;

/// Most bytes of one copied part, unless there would be too many parts. Doubling it halves the requests for a large object, and lets the
/// store copy fewer parts at once.
const COPY: u64 = 512 << 20;

/// The share of an object's parts that copies take, if the store allows parts so large: a tenth. Doubling it leaves larger parts to the
/// bytes of a long object, and copies in smaller ones.
const SHARE: u32 = 10;

/// The object to which a file appends.
#[derive(Clone, Debug)]
pub struct Behind {
    /// The version of the object: the completed upload replaces no other version.
    pub id: ObjectId,
    /// The metadata of the object.
    pub meta: ObjectMeta,
    /// The properties that the object keeps.
    pub properties: Properties,
    /// The store's limits on parts, which the copies keep to.
    pub(super) limits: PartLimits,
    /// The ranges of the parts that the store copies, from the beginning of the object.
    pub(super) copies: Vec<Range<u64>>,
}

impl Behind {
    /// Requests metadata, properties and tags of this version of the object.
    ///
    /// # Errors
    /// `Remote`: `Changed` if the object has another version by now; `Unsupported` if the store has refused to copy a part; or an error of
    /// the store. `TooLarge`: the object has as many parts as the store takes.
    pub(super) async fn look(shared: &Shared, id: &ObjectId) -> Result<Self, Error> {
        let client = &shared.client;
        let found = client.describe_object(&id.key).await?;
        if !id.may_be(found.meta.etag.as_str(), Second::of(found.meta.last_modified)) {
            let error = s3::Error::new(ErrorKind::Changed, "HeadObject").key(&id.key);
            return Err(error.message("the object to append to is another version by now").into());
        }
        let limits = client.part_limits();
        let copies = copies(found.meta.size, limits, shared.part_size(1, limits)).ok_or(Error::TooLarge)?;
        if !copies.is_empty() && shared.refuses_copies.load(Relaxed) {
            let error = s3::Error::new(ErrorKind::Unsupported, "UploadPartCopy").key(&id.key);
            return Err(error.message("the store does not copy parts, by which it would append").into());
        }
        let mut properties = found.properties;
        if found.tags > 0 {
            properties.tags = client.object_tags(&id.key).await?;
        }
        Ok(Self { id: id.clone(), meta: found.meta, properties, limits, copies })
    }

    /// The range of the object whose bytes the caller must write first.
    pub fn fetched(&self) -> Range<u64> {
        self.copied()..self.meta.size
    }

    /// Number of bytes that the store copies.
    pub(super) fn copied(&self) -> u64 {
        self.copies.last().map_or(0, |last| last.end)
    }

    /// The copied parts, with their numbers and ranges.
    pub(super) fn parts(&self) -> Vec<(u32, Range<u64>)> {
        (1..).zip(self.copies.iter().cloned()).collect()
    }
}

/// Remembers that the store does not copy parts, if the error of a copy shows it: no open then begins to append to an object that needs
/// copies.
pub(super) fn learn(shared: &Shared, error: &Error) {
    let Error::Remote(error) = error else { return };
    let refuses = *error.kind() == ErrorKind::Unsupported && error.operation() == "UploadPartCopy";
    if refuses && !shared.refuses_copies.swap(true, Relaxed) {
        tracing::warn!(
            "the store does not copy parts of objects: nothing is appended to objects of 5 MiB or more"
        );
    }
}

/// The ranges of the copied parts, all of one size: of at most [`PART_MAX`] and, so that each may precede other parts, of at least
/// [`PART_MIN`], or of `equal` bytes on a store that takes parts of one size only. Empty for an object smaller than that. `None`: no part
/// would be left for new bytes.
fn copies(size: u64, limits: PartLimits, equal: u64) -> Option<Vec<Range<u64>>> {
    let (len, count) = if limits.are_equal {
        (equal, size / equal)
    } else if size < PART_MIN {
        return Some(Vec::new());
    } else {
        let few = size.div_ceil(u64::from((limits.parts_max / SHARE).max(1)));
        let count = size.div_ceil(COPY.max(few).min(PART_MAX));
        (size.div_ceil(count), count)
    };
    let range = |i: u64| i * len..((i + 1) * len).min(size);
    (count < u64::from(limits.parts_max)).then(|| (0..count).map(range).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const S3: PartLimits = PartLimits { parts_max: 10_000, are_equal: false };

    #[test]
    fn copies_cover_the_object_and_none_is_too_small() {
        let copies = |size| copies(size, S3, 0).unwrap();
        assert_eq!(copies(PART_MIN - 1), []);
        assert_eq!(copies(10 << 30).len(), 20);
        for size in [PART_MIN, COPY, COPY + 1, (10 << 30) + 7, 5 << 40, 40 << 40] {
            let parts = copies(size);
            assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start));
            assert_eq!((parts[0].start, parts.last().unwrap().end), (0, size));
            let sizes = parts.iter().map(|part| part.end - part.start);
            assert!(sizes.clone().all(|len| (PART_MIN..=PART_MAX).contains(&len)), "{size}");
            assert!(size > 500 << 30 || sizes.max() <= Some(COPY), "{size}");
        }
    }

    #[test]
    fn copies_leave_parts_for_what_is_appended_or_there_are_none() {
        let few = PartLimits { parts_max: 1000, ..S3 };
        let count = |size, limits| copies(size, limits, 0).map(|copies| copies.len());
        assert_eq!(count(400 << 30, few), Some(100), "a tenth of the parts");
        assert_eq!(count(4 << 40, few), Some(820), "parts can't be larger");
        assert_eq!(count(5 << 40, few), None);
        assert_eq!(count(10_000 * PART_MAX, S3), None);
        assert_eq!(count(9_999 * PART_MAX, S3), Some(9_999));
    }

    #[test]
    fn copies_have_the_one_size_that_a_store_takes() {
        const MIB: u64 = 1 << 20;
        let equal = PartLimits { parts_max: 100, are_equal: true };
        let copies = |size| copies(size, equal, 8 * MIB);
        assert_eq!(copies(8 * MIB - 1), Some(Vec::new()));
        assert_eq!(copies(17 * MIB), Some(vec![0..8 * MIB, 8 * MIB..16 * MIB]));
        assert_eq!(copies(99 * 8 * MIB + 5).map(|copies| copies.len()), Some(99));
        assert_eq!(copies(100 * 8 * MIB), None);
    }
}
