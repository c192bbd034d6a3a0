//! Continues renames whose processes were killed, with the help of their notes. Each object is renamed only if it still has the version
//! with which the rename began; later changes of other clients stay.

use foldhash::HashMap;
use futures_util::stream::{self, StreamExt as _};

use super::directory::Item;
use super::note::{Left, Note, Progress};
use super::{Copied, Error, Mover, Result, Source};
use crate::object::{ETag, ObjectId, ObjectKey, Second};
use crate::s3::{Error as S3Error, ErrorKind, ListedObject, Replaces};
use crate::sync::Arc;

impl Mover {
    /// Continues all renames of killed processes. If one fails, the next mount tries it again.
    pub async fn go_on(&self) {
        let Some(notes) = self.notes.clone() else { return };
        let found = tokio::task::spawn_blocking(move || notes.left_behind()).await;
        let left = match found {
            Ok(Ok(left)) => left,
            Ok(Err(error)) => return tracing::debug!(%error, "the notes of renames can't be read"),
            Err(_) => return,
        };
        for Left { note, from, to, progress } in left {
            let note = Arc::new(note);
            match self.go_on_with(&from, &to, &progress, &note).await {
                Ok(moved) => {
                    tracing::info!(
                        "the rename of {from:?} to {to:?}, whose mount-s3 was killed, is complete: {moved} objects had the old name still"
                    );
                    self.remove_note(Some(note)).await;
                }
                Err(error) => tracing::warn!(
                    "the rename of {from:?} to {to:?}, whose mount-s3 was killed, is not complete: {error}; the next mount tries again"
                ),
            }
        }
    }

    /// Continues one rename. Returns the number of deleted sources.
    async fn go_on_with(&self, from: &str, to: &str, progress: &Progress, note: &Arc<Note>) -> Result<usize> {
        for upload in &progress.uploads {
            self.client.abort_multipart_upload(upload).await?;
        }
        let sources = self.there(from).await?;
        let copies = self.there(to).await?;
        let left = progress.objects.iter().enumerate().filter_map(|(number, (name, etag))| {
            let source = sources.get(&format!("{from}{name}"))?;
            // A version without an ETag can't be identified.
            let is_named = !etag.as_str().trim_matches('"').is_empty();
            if !is_named || !source.meta.etag.matches(etag.as_str()) {
                return None;
            }
            let to = format!("{to}{name}");
            let there = copies.get(&to);
            let item = Item {
                number,
                source: ObjectId::of(source.key.clone(), &source.meta),
                meta: source.meta.clone(),
                class: source.storage_class.clone(),
                to: ObjectKey::new(to),
                replaces: Replaces::Nothing,
            };
            Some((item, there.map(|there| there.meta.etag.clone())))
        });
        let left: Vec<_> = left.collect();
        let (mut moved, mut failed) = (0, None);
        let work = left.into_iter().map(|(item, there)| async move {
            match self.copy_of(&item, there, progress, note).await? {
                Some(copied) => Ok(self.delete_source(&copied).await? == Source::Deleted),
                None => Ok(false),
            }
        });
        let mut work = stream::iter(work).buffer_unordered(self.config.at_once.max(1));
        while let Some(outcome) = work.next().await {
            match outcome {
                Ok(was_moved) => moved += usize::from(was_moved),
                // The new name belongs to another client's object: both stay.
                Err(Error::Taken) => {}
                Err(error) => failed = Some(error),
            }
        }
        if let Some(failed) = failed {
            return Err(failed);
        }
        let (from, to) = (ObjectKey::new(from), ObjectKey::new(to));
        let mark = self.copy_mark(&from, &to).await?;
        self.delete_mark(mark, progress.objects.len()).await?;
        Ok(moved)
    }

    /// The present objects with this name or below it, by their keys.
    async fn there(&self, name: &str) -> Result<HashMap<String, ListedObject>> {
        let key = ObjectKey::new(name);
        if !name.ends_with('/') {
            let found = match self.client.describe_object(&key).await {
                Ok(found) => found,
                Err(error) if *error.kind() == ErrorKind::NotFound => return Ok(HashMap::default()),
                Err(error) => return Err(error.into()),
            };
            let storage_class = found.properties.storage_class;
            let object = ListedObject { key, meta: found.meta, storage_class };
            return Ok([(name.to_owned(), object)].into_iter().collect());
        }
        let listed = self.below(&key, usize::MAX).await?;
        Ok(listed.into_iter().map(|object| (object.key.as_str().to_owned(), object)).collect())
    }

    /// Makes or finds the proven copy of an object. `None` if the source must stay.
    async fn copy_of(
        &self,
        item: &Item,
        there: Option<ETag>,
        progress: &Progress,
        note: &Arc<Note>,
    ) -> Result<Option<Copied>> {
        let is_noted = match &there {
            Some(there) => progress.copied.get(&item.number).is_some_and(|copy| copy.matches(there.as_str())),
            // The object was copied before, and another client has deleted the copy.
            None if progress.deleting => return Ok(None),
            None => match self.copy_item(item, Some(note)).await {
                // A request of the killed process may have arrived after the listing.
                Err(Error::Taken) => false,
                copied => return copied,
            },
        };
        if let Some(there) = there.filter(|_| is_noted) {
            let id = ObjectId::by_etag(item.to.clone(), there);
            let meta = item.meta.clone();
            return Ok(Some(Copied { source: item.source.clone(), id, meta }));
        }
        let source = match self.client.describe_object(&item.source.key).await {
            Ok(source) => source,
            Err(error) if *error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        if !item.source.may_be(source.meta.etag.as_str(), Second::of(source.meta.last_modified)) {
            return Ok(None);
        }
        let unknown = S3Error::new(ErrorKind::Unknown, "CopyObject").key(&item.to).message(
            "an object has the new name, and nothing shows whether it is the copy: compare both, and remove one",
        );
        let keys = [&item.source.key, &item.to];
        self.after_lost_answer(&source, keys, &Replaces::Nothing, unknown).await.map(Some)
    }
}
