//! Checks whether the object under the new key is a copy whose answer was lost. The engine receives no byte: the store copies both objects
//! into parts of an upload that is never completed, and the parts' checksums are compared.

use futures_util::future::try_join;

use super::object::{Proof, proof};
use super::parts::ranges;
use super::{Copied, Error, Mover, Result};
use crate::checksum::ChecksumAlgorithm;
use crate::object::{ObjectId, ObjectKey};
use crate::s3::{self, CopyPart, Described, ErrorKind, NewObject, Replaces, Stored, UploadId, UploadedPart};

impl Mover {
    /// Returns the copy of a request whose outcome is unknown, if the object under the new key has the source's bytes and properties.
    ///
    /// # Errors
    /// `Taken`: another object is there. `Remote`: the error `unknown`, if there is no object or the comparison has no result; or an error
    /// of the comparison.
    pub(super) async fn after_lost_answer(
        &self,
        source: &Described,
        [from, to]: [&ObjectKey; 2],
        replaces: &Replaces,
        unknown: s3::Error,
    ) -> Result<Copied> {
        let there = match self.client.describe_object(to).await {
            Ok(there) => there,
            Err(error) if *error.kind() == ErrorKind::NotFound => return Err(unknown.into()),
            Err(error) => return Err(error.into()),
        };
        if matches!(replaces, Replaces::Version(old) if old.matches(there.meta.etag.as_str())) {
            return Err(unknown.into());
        }
        if there.meta.size != source.meta.size || !has_properties_of(&there, source) {
            return Err(Error::Taken);
        }
        let (one, other) = (ObjectId::of(from.clone(), &source.meta), ObjectId::of(to.clone(), &there.meta));
        let answer =
            Stored { etag: there.meta.etag.clone(), checksum: there.checksum.clone(), modified: None };
        let is_equal = match proof(source, &answer) {
            Proof::Answer => Some(true),
            Proof::Wrong => Some(false),
            Proof::Head => self.are_equal(&one, &other, source.meta.size).await?,
        };
        match is_equal {
            Some(true) => Ok(Copied { source: one, id: other, meta: there.meta }),
            Some(false) => Err(Error::Taken),
            None => Err(unknown.into()),
        }
    }

    /// Whether two objects of equal size have the same bytes, by the store's checksums; `None` if the store returns none that can be
    /// compared.
    async fn are_equal(&self, one: &ObjectId, other: &ObjectId, size: u64) -> s3::Result<Option<bool>> {
        if size == 0 {
            return Ok(Some(true));
        }
        let checksum = Some(ChecksumAlgorithm::default());
        let object = NewObject { checksum, ..NewObject::new(other.key.clone()) };
        let upload = self.client.create_multipart_upload(&object).await?;
        let compared = self.compare(&upload, one, other, size).await;
        if let Err(error) = self.client.abort_multipart_upload(&upload).await {
            tracing::debug!(key = %other.key, upload = upload.id, %error, "the upload of a comparison is not aborted");
        }
        compared
    }

    async fn compare(
        &self,
        upload: &UploadId,
        one: &ObjectId,
        other: &ObjectId,
        size: u64,
    ) -> s3::Result<Option<bool>> {
        for range in ranges(size, self.config.copy_max, u32::MAX) {
            let part = |part_number, source: &ObjectId| CopyPart {
                upload: upload.clone(),
                part_number,
                source: source.clone(),
                range: range.clone(),
            };
            let (first, second) = (part(1, one), part(2, other));
            let copies =
                try_join(self.client.upload_part_copy(&first), self.client.upload_part_copy(&second));
            let (first, second) = copies.await?;
            match are_of_equal_bytes(&first, &second) {
                Some(true) => {}
                otherwise => return Ok(otherwise),
            }
        }
        Ok(Some(true))
    }
}

/// Whether an object has the properties of `source`, which a copy keeps along with the storage class.
fn has_properties_of(there: &Described, source: &Described) -> bool {
    there.properties == source.properties && there.tags == source.tags
}

/// Whether two parts have equal bytes; `None` if unknown. Pure. Checksums decide. Equal ETags prove equal bytes, but different ones prove
/// nothing.
fn are_of_equal_bytes(one: &UploadedPart, other: &UploadedPart) -> Option<bool> {
    match (one.checksum, other.checksum) {
        (Some(one), Some(other)) if one.algorithm == other.algorithm => Some(one.value == other.value),
        _ => one.etag.matches(other.etag.as_str()).then_some(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::Checksum;
    use crate::object::ETag;

    #[test]
    fn parts_are_compared_by_checksum_and_else_by_etag() {
        let part = |etag: &str, value: Option<u64>| UploadedPart {
            part_number: 1,
            etag: ETag::new(etag),
            size: 3,
            checksum: value.map(|value| Checksum { algorithm: ChecksumAlgorithm::Crc32c, value }),
        };
        for (one, other, expected) in [
            (part("a", Some(1)), part("b", Some(1)), Some(true)),
            (part("a", Some(1)), part("a", Some(2)), Some(false)),
            (part("a", None), part("\"a\"", Some(2)), Some(true)),
            (part("a", None), part("b", None), None),
        ] {
            assert_eq!(are_of_equal_bytes(&one, &other), expected, "{one:?} {other:?}");
        }
    }
}
