//! One object: HEAD, copy, proof; then the delete of its source.

use super::note::Note;
use super::{Copied, Error, Mover, Result, Source};
use crate::object::{ObjectId, ObjectKey, ObjectMeta, Second};
use crate::s3::{CopyObject, Described, ErrorKind, Replaces, Stored};
use crate::sync::Arc;

/// The most looks at a source that another client replaces between HEAD and copy. Doubling it follows a busier writer.
const ATTEMPTS_MAX: usize = 3;

/// The kind of proof in the answer to a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Proof {
    /// The copy has the source's ETag or checksum.
    Answer,
    /// The answer has nothing to compare: a HEAD has to prove the copy.
    Head,
    /// The copy has another checksum of the same kind.
    Wrong,
}

impl Mover {
    /// Copies the object that is now under `from` to `to`, and proves the copy. The source stays: see [`Mover::delete_source`].
    ///
    /// # Errors
    /// Any; the source is still there. After `Remote` the copy may be there, too.
    pub async fn copy(&self, from: &ObjectKey, to: &ObjectKey, replaces: &Replaces) -> Result<Copied> {
        self.copy_noted(from, to, replaces, None).await
    }

    /// Copies an object of a directory, with that directory's note.
    pub(super) async fn copy_noted(
        &self,
        from: &ObjectKey,
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
            let (stored, own) = if source.meta.size > self.config.copy_max {
                // A copy by many requests takes time: an object that is renamed alone gets a note for that.
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

    /// Judges the answer to a copy: the proven copy; `None` if the source has to be looked at again.
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
                    // The next HEAD says which.
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

    /// The metadata of the copy, if it is proven.
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
            // Another client has replaced the copy already. The present object can't be judged, and the source is the only one left.
            return Err(Error::Taken);
        }
        if there.meta.size != source.meta.size {
            let (is, was) = (there.meta.size, source.meta.size);
            return Err(Error::Different(format!("it has {is} bytes instead of {was}")));
        }
        Ok(there.meta)
    }

    /// Deletes the source of a copy, if it is still the copied version.
    ///
    /// # Errors The store's: both keys may have the object then.
    pub async fn delete_source(&self, copied: &Copied) -> Result<Source> {
        let deleted = self.client.delete_version(&copied.source).await;
        self.ended(copied).await;
        match deleted {
            Ok(()) => Ok(Source::Deleted),
            Err(error) if *error.kind() == ErrorKind::Changed => Ok(Source::Replaced),
            // The answer to the delete may be lost alone.
            Err(error) => match self.client.head_object(&copied.source.key).await {
                Err(gone) if *gone.kind() == ErrorKind::NotFound => Ok(Source::Deleted),
                _ => Err(error.into()),
            },
        }
    }

    /// Removes the note of an object that was copied alone.
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
        // The source is looked at first: if it is gone after all, the copy is the only object left.
        let has_source = match self.client.head_object(&copied.source.key).await {
            Ok(meta) => copied.source.may_be(meta.etag.as_str(), Second::of(meta.last_modified)),
            Err(_) => false,
        };
        if has_source && let Err(error) = self.client.delete_version(&copied.id).await {
            tracing::debug!(key = %copied.id.key, %error, "the copy stays beside its source");
        }
    }
}

/// Compares the answer with the source. Pure. ETags of equal bytes may differ; equal ones are of equal bytes.
pub(super) fn proof(source: &Described, stored: &Stored) -> Proof {
    if !stored.etag.is_none() && source.meta.etag.matches(stored.etag.as_str()) {
        return Proof::Answer;
    }
    let of_all_bytes = |sum: &&String| !sum.contains('-');
    match (source.checksum.as_ref().filter(of_all_bytes), stored.checksum.as_ref().filter(of_all_bytes)) {
        (Some(theirs), Some(ours)) if theirs == ours => Proof::Answer,
        // Checksums of one length are of one algorithm.
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
