//! Appending to an object: the store copies the object's bytes into the first parts, and new bytes follow as in any file.
//!
//! An object smaller than [`PART_MIN`], the least part before the last, is fetched instead, and its bytes are written first. No request is
//! sent before new bytes come; without new bytes the object stays unchanged.

use std::ops::Range;

use super::size::PART_MIN;
use super::{Error, Shared};
use crate::object::{ObjectId, ObjectMeta, Second};
use crate::s3::Properties;

/// Most bytes of one copied part. Doubling it halves the requests for a large object, and lets the store copy fewer parts at once.
const COPY: u64 = 512 << 20;

/// The object to which a file appends.
#[derive(Clone, Debug)]
pub struct Behind {
    /// The version of the object: the completed upload replaces no other version.
    pub id: ObjectId,
    /// The metadata of the object.
    pub meta: ObjectMeta,
    /// The properties that the object keeps.
    pub properties: Properties,
    /// Number of parts that the store copies. 0: the object is too small for that, or empty.
    pub(super) copies: u32,
}

impl Behind {
    /// Requests metadata, properties and tags of this version of the object.
    ///
    /// # Errors
    /// `Remote`: `Changed` if the object has another version by now, or an error of the store.
    pub(super) async fn look(shared: &Shared, id: &ObjectId) -> Result<Self, Error> {
        let client = &shared.client;
        let found = client.describe_object(&id.key).await?;
        if !id.may_be(found.meta.etag.as_str(), Second::of(found.meta.last_modified)) {
            let error = crate::s3::Error::new(crate::s3::ErrorKind::Changed, "HeadObject").key(&id.key);
            return Err(error.message("the object to append to is another version by now").into());
        }
        let mut properties = found.properties;
        if found.tags > 0 {
            properties.tags = client.object_tags(&id.key).await?;
        }
        let copies = copies(found.meta.size).len() as u32;
        Ok(Self { id: id.clone(), meta: found.meta, properties, copies })
    }

    /// Whether the caller must first write the object's bytes.
    pub fn is_fetched(&self) -> bool {
        self.copies == 0 && self.meta.size > 0
    }

    /// The copied parts, with their numbers and ranges.
    pub(super) fn parts(&self) -> Vec<(u32, Range<u64>)> {
        (1..).zip(copies(self.meta.size)).collect()
    }
}

/// The ranges of the copied parts: of equal sizes, so each is large enough to precede other parts. Empty for an object smaller than the
/// least part.
fn copies(size: u64) -> Vec<Range<u64>> {
    if size < PART_MIN {
        return Vec::new();
    }
    let count = size.div_ceil(COPY);
    let part = size.div_ceil(count);
    (0..count).map(|i| i * part..((i + 1) * part).min(size)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_cover_the_object_and_none_is_too_small() {
        assert_eq!(copies(PART_MIN - 1), []);
        assert_eq!(copies(10 << 30).len(), 20);
        for size in [PART_MIN, COPY, COPY + 1, (10 << 30) + 7, 5 << 40] {
            let parts = copies(size);
            assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start));
            assert_eq!((parts[0].start, parts.last().unwrap().end), (0, size));
            assert!(parts.iter().all(|part| (PART_MIN..=COPY).contains(&(part.end - part.start))), "{size}");
        }
    }
}
