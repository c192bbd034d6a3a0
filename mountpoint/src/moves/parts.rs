//! Copies objects too large for one copy request: the store copies them in parts, and the request sets headers, metadata and tags again.

use std::ops::Range;

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};

use super::Mover;
use super::directory::add;
use super::note::{Line, Note};
use crate::object::{ObjectId, ObjectKey};
use crate::s3::{
    CompleteUpload, CopyPart, Described, Error, ErrorKind, NewObject, Properties, Replaces, Result, Stored,
    Tags, UploadId, UploadedPart,
};
use crate::sync::Arc;

impl Mover {
    pub(super) async fn copy_in_parts(
        &self,
        id: &ObjectId,
        source: &Described,
        to: &ObjectKey,
        replaces: &Replaces,
        note: Option<&Arc<Note>>,
    ) -> Result<Stored> {
        // A copy in parts gets no tags by itself. A silent loss of tags could change the object's permissions or expiry.
        let tags = match source.tags {
            0 => Tags::new(),
            _ => self.client.object_tags(&id.key).await?,
        };
        let properties = Properties { tags, ..source.properties.clone() };
        let object = NewObject { properties, replaces: replaces.clone(), ..NewObject::new(to.clone()) };
        let upload = self.client.create_multipart_upload(&object).await?;
        if let Some(note) = note {
            let line = Line::Upload(upload.key.as_str().to_owned(), upload.id.clone());
            if let Err(error) = add(note, vec![line], false).await {
                tracing::debug!(%error, "the upload of a copy can't be noted");
            }
        }
        let stored = self.copy_parts(id, source.meta.size, &upload, replaces).await;
        if let Err(error) = &stored
            && *error.kind() != ErrorKind::Unknown
            && let Err(error) = self.client.abort_multipart_upload(&upload).await
        {
            tracing::debug!(key = %to, upload = upload.id, %error, "the upload of a copy is not aborted");
        }
        // The object under the new key must not be replaced: the error is the one of a copy in one request.
        stored.map_err(|error| match error.kind() {
            ErrorKind::Changed if error.operation() == "CompleteMultipartUpload" => {
                Error::new(ErrorKind::Exists, "CompleteMultipartUpload").key(to).source(error)
            }
            _ => error,
        })
    }

    async fn copy_parts(
        &self,
        id: &ObjectId,
        size: u64,
        upload: &UploadId,
        replaces: &Replaces,
    ) -> Result<Stored> {
        let parts_max = self.client.part_limits().parts_max;
        let copies = ranges(size, self.config.part, parts_max).into_iter().zip(1..).map(
            |(range, part_number)| async move {
                let (upload, source) = (upload.clone(), id.clone());
                self.client.upload_part_copy(&CopyPart { upload, part_number, source, range }).await
            },
        );
        let parts: Vec<UploadedPart> =
            stream::iter(copies).buffered(self.config.parts_at_once.max(1)).try_collect().await?;
        let complete = CompleteUpload { upload: upload.clone(), parts, replaces: replaces.clone() };
        self.client.complete_multipart_upload(&complete).await
    }
}

/// The ranges of an object's parts: of `part` bytes each, or larger if there would be more than `parts_max`.
pub(super) fn ranges(size: u64, part: u64, parts_max: u32) -> Vec<Range<u64>> {
    let part = part.max(size.div_ceil(u64::from(parts_max.max(1)))).max(1);
    (0..size.div_ceil(part)).map(|i| i * part..((i + 1) * part).min(size)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_the_object_and_are_not_too_many() {
        const GIB: u64 = 1 << 30;
        let five = ranges(5 * GIB + 1, GIB / 2, 10_000);
        assert_eq!((five.len(), five.last().cloned()), (11, Some(5 * GIB..5 * GIB + 1)));
        assert_eq!(ranges(600 * GIB, GIB / 2, 1000).len(), 1000, "a store of few parts");
        let most = 48_828 * GIB;
        for size in [1, GIB / 2, 10 * GIB, most] {
            let ranges = ranges(size, GIB / 2, 10_000);
            assert!(ranges.len() <= 10_000 && ranges.iter().all(|r| r.end - r.start <= 5 * GIB));
            assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
            assert_eq!((ranges[0].start, ranges.last().unwrap().end), (0, size));
        }
    }
}
