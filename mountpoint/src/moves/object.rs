//! Renames one object: HEAD, copy, proof; then the delete of the source.

use super::note::Note;
use super::{Copied, Error, Mover, Result, Source};
use crate::object::{ObjectId, ObjectKey, ObjectMeta, Second};
use crate::s3::{CopyObject, Described, ErrorKind, Replaces, Stored};
use crate::sync::Arc;

/// Most attempts to copy a source that other clients replace between HEAD and copy. Beyond it, the rename fails. Doubling it copes with a
/// busier writer.
const ATTEMPTS_MAX: usize = 3;

/// The proof in the answer to a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Proof {
    /// The copy has the source's ETag or checksum: it is proven.
    Answer,
    /// The answer contains nothing to compare: a HEAD must prove the copy.
    Head,
    /// The copy has another checksum of the same algorithm.
    Wrong,
}

impl Mover {
    /// Copies the present object of the key `from` to `to`, and proves the copy. The source stays until [`Mover::delete_source`].
    ///
    /// # Errors
    /// Any; the source still exists. After `Remote` the copy may exist, too.
    pub async fn copy(&self, from: &ObjectKey, to: &ObjectKey, replaces: &Replaces) -> Result<Copied> {
        self.copy_noted(from, to, replaces, None).await
    }

    /// Copies the object that an upload has just made, as [`Mover::copy`] does.
    ///
    /// # Errors
    /// Those of [`Mover::copy`]. `Changing`: another client has replaced the object.
    pub async fn copy_made(
        &self,
        from: &ObjectKey,
        made: &ObjectMeta,
        to: &ObjectKey,
        replaces: &Replaces,
    ) -> Result<Copied> {
        self.copy_if(from, Some(made), to, replaces, None).await
    }

    /// Copies an object. `note`: the note of the directory to which the object belongs.
    pub(super) async fn copy_noted(
        &self,
        from: &ObjectKey,
        to: &ObjectKey,
        replaces: &Replaces,
        note: Option<&Arc<Note>>,
    ) -> Result<Copied> {
        self.copy_if(from, None, to, replaces, note).await
    }

    /// Copies an object. `made`: the only version to copy.
    async fn copy_if(
        &self,
        from: &ObjectKey,
        made: Option<&ObjectMeta>,
        to: &ObjectKey,
        replaces: &Replaces,
        note: Option<&Arc<Note>>,
    ) -> Result<Copied> {
        for _ in 0..ATTEMPTS_MAX {
            let source = match self.client.describe_object(from).await {
                Ok(source) => source,
                Err(error) if *error.kind() == ErrorKind::NotFound => return Err(Error::Gone),
                Err(error) => return Err(error.into()),
            };
            let id = ObjectId::of(from.clone(), &source.meta);
            if made.is_some_and(|made| !made.etag.is_none() && !made.etag.matches(id.etag.as_str())) {
                return Err(Error::Changing);
            }
            let (stored, own) = if source.meta.size > self.config.copy_max {
                // A copy in parts takes time, so an object that is renamed alone gets a note, too.
                let own = match note {
                    None => {
                        let object = vec![(String::new(), id.etag.clone())];
                        self.begin_note(from.as_str(), to.as_str(), object).await?
                    }
                    Some(_) => None,
                };
                let stored = self.copy_in_parts(&id, &source, to, replaces, note.or(own.as_ref())).await;
                (stored, own)
            } else {
                (self.copy_version(&id, &source, to, replaces).await, None)
            };
            let copied = self.judge(&source, [from, to], replaces, stored).await;
            match (&copied, own) {
                (Ok(Some(copied)), Some(own)) => self.noted.lock().push((copied.id.clone(), own)),
                (_, own) => self.remove_note(own).await,
            }
            if let Some(copied) = copied? {
                return Ok(copied);
            }
        }
        Err(Error::Changing)
    }

    /// Evaluates the answer to a copy, and returns the proven copy. `None`: the source may have changed, and must be described again.
    async fn judge(
        &self,
        source: &Described,
        [from, to]: [&ObjectKey; 2],
        replaces: &Replaces,
        stored: crate::s3::Result<Stored>,
    ) -> Result<Option<Copied>> {
        let stored = match stored {
            Ok(stored) => stored,
            Err(error) => {
                return match error.kind() {
                    ErrorKind::Exists => Err(Error::Taken),
                    // The next HEAD shows the reason.
                    ErrorKind::Changed | ErrorKind::NotFound => Ok(None),
                    ErrorKind::Unknown => {
                        self.after_lost_answer(source, [from, to], replaces, error).await.map(Some)
                    }
                    _ => Err(error.into()),
                };
            }
        };
        let meta = self.proven(source, &stored, to).await?;
        let (source, id) = (ObjectId::of(from.clone(), &source.meta), ObjectId::of(to.clone(), &meta));
        Ok(Some(Copied { source, id, meta }))
    }

    async fn copy_version(
        &self,
        id: &ObjectId,
        source: &Described,
        to: &ObjectKey,
        replaces: &Replaces,
    ) -> crate::s3::Result<Stored> {
        let request = CopyObject {
            source: id.clone(),
            size: source.meta.size,
            checksum: source.checksum.clone(),
            to: to.clone(),
            replaces: replaces.clone(),
            properties: None,
            storage_class: source.properties.storage_class.clone(),
        };
        self.client.copy_object(&request).await
    }

    /// The metadata of the copy, if the answer or a HEAD proves it.
    async fn proven(&self, source: &Described, stored: &Stored, to: &ObjectKey) -> Result<ObjectMeta> {
        let proof = proof(source, stored);
        if proof == Proof::Wrong {
            return Err(Error::Different(format!("its checksum is {:?}", stored.checksum)));
        }
        if let (Proof::Answer, Some(last_modified)) = (proof, stored.modified) {
            return Ok(ObjectMeta { etag: stored.etag.clone(), last_modified, ..source.meta.clone() });
        }
        let there = match self.client.describe_object(to).await {
            Ok(there) => there,
            Err(error) if *error.kind() == ErrorKind::NotFound => {
                return Err(Error::Different("the store says that there is none".into()));
            }
            Err(error) => return Err(error.into()),
        };
        if !there.meta.etag.matches(stored.etag.as_str()) {
            // Another client has replaced the copy already. The copy can't be proven any more, so the source must stay.
            return Err(Error::Taken);
        }
        if there.meta.size != source.meta.size {
            let (is, was) = (there.meta.size, source.meta.size);
            return Err(Error::Different(format!("it has {is} bytes instead of {was}")));
        }
        Ok(there.meta)
    }

    /// Deletes the source of a copy, if it still is the copied version.
    ///
    /// # Errors
    /// An error of the store: both keys may have the object then. `Undecided`: the store may still carry the delete out.
    pub async fn delete_source(&self, copied: &Copied) -> Result<Source> {
        let deleted = self.client.delete_version(&copied.source).await;
        self.ended(copied).await;
        match deleted {
            Ok(()) => Ok(Source::Deleted),
            Err(error) if *error.kind() == ErrorKind::Changed => Ok(Source::Replaced),
            // The delete may have succeeded, and only its answer was lost.
            Err(error) => match self.client.head_object(&copied.source.key).await {
                Err(gone) if *gone.kind() == ErrorKind::NotFound => Ok(Source::Deleted),
                // The object that this answer shows may be gone a moment later.
                _ if error.may_have_run() => Err(Error::Undecided(Arc::new(error))),
                _ => Err(error.into()),
            },
        }
    }

    /// Removes the note of an object that was renamed alone.
    async fn ended(&self, copied: &Copied) {
        let note = {
            let mut noted = self.noted.lock();
            let at = noted.iter().position(|(id, _)| *id == copied.id);
            at.map(|at| noted.swap_remove(at).1)
        };
        self.remove_note(note).await;
    }

    /// Deletes a copy whose source can't be deleted, as far as the store allows.
    pub async fn take_back(&self, copied: &Copied) {
        // The source is checked first: if it no longer exists, the copy is the only object left.
        let has_source = match self.client.head_object(&copied.source.key).await {
            Ok(meta) => copied.source.may_be(meta.etag.as_str(), Second::of(meta.last_modified)),
            Err(_) => false,
        };
        if has_source && let Err(error) = self.client.delete_version(&copied.id).await {
            tracing::debug!(key = %copied.id.key, %error, "the copy stays beside its source");
        }
    }
}

/// Compares the answer with the source. Pure. Equal ETags prove equal bytes, but different ones prove nothing.
pub(super) fn proof(source: &Described, stored: &Stored) -> Proof {
    if !stored.etag.is_none() && source.meta.etag.matches(stored.etag.as_str()) {
        return Proof::Answer;
    }
    let of_all_bytes = |sum: &&String| !sum.contains('-');
    match (source.checksum.as_ref().filter(of_all_bytes), stored.checksum.as_ref().filter(of_all_bytes)) {
        (Some(theirs), Some(ours)) if theirs == ours => Proof::Answer,
        // Checksums of equal length have the same algorithm.
        (Some(theirs), Some(ours)) if theirs.len() == ours.len() => Proof::Wrong,
        _ => Proof::Head,
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::object::ETag;
    use crate::s3::Properties;

    #[test]
    fn an_answer_proves_a_copy_by_etag_or_by_checksum() {
        let source = |checksum: Option<&str>| Described {
            meta: ObjectMeta {
                size: 1,
                etag: ETag::new("\"a\""),
                last_modified: SystemTime::UNIX_EPOCH,
                readable: true,
            },
            properties: Properties::default(),
            version: None,
            tags: 0,
            checksum: checksum.map(str::to_owned),
        };
        let stored = |etag: &str, checksum: Option<&str>| Stored {
            etag: ETag::new(etag),
            checksum: checksum.map(str::to_owned),
            modified: None,
        };
        for (theirs, ours, expected) in [
            (source(None), stored("a", None), Proof::Answer),
            (source(None), stored("\"b\"", None), Proof::Head),
            (source(Some("abc=")), stored("\"b\"", Some("abc=")), Proof::Answer),
            (source(Some("abc=")), stored("\"b\"", Some("xyz=")), Proof::Wrong),
            (source(Some("abc=-2")), stored("\"b\"", Some("abc=")), Proof::Head),
            (source(Some("abc=")), stored("\"b\"", Some("64 bits or more")), Proof::Head),
            (source(Some("abc=")), stored("\"b\"", None), Proof::Head),
        ] {
            assert_eq!(proof(&theirs, &ours), expected, "{theirs:?} {ours:?}");
        }
    }
}
