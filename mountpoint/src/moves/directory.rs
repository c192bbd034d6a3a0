//! Renames a directory: all objects whose keys begin with its own. The objects are copied, many at once; one listing proves the copies;
//! then the old objects are deleted. A failure before the first delete removes the copies. After it the rename can only continue, if need
//! be in the next mount.

use foldhash::HashMap;
use futures_util::future::{FutureExt as _, try_join};
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};

use super::mark::Mark;
use super::note::{Line, Note};
use super::{Copied, Error, Mover, Result, Source};
use crate::object::{ETag, ObjectId, ObjectKey, ObjectMeta, Second};
use crate::s3::{CopyObject, ErrorKind, ListObjects, ListedObject, Replaces};
use crate::sync::Arc;
use crate::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Most keys of one page of a listing: S3's limit.
const PAGE: u16 = 1000;
/// Number of copies that are noted together. Doubling it halves the writes, and makes the next mount compare twice as many copies after a
/// kill.
const NOTED_AT_ONCE: usize = 64;

/// A directory whose objects exist under both names, with proven copies.
#[derive(Debug)]
pub struct CopiedDirectory {
    /// The copies.
    pub copies: Vec<Copied>,
    /// The copy of the directory's mark.
    mark: Option<Mark>,
    note: Option<Arc<Note>>,
}

/// An object of a directory that is renamed.
#[derive(Clone, Debug)]
pub(super) struct Item {
    /// The object's number in the note.
    pub(super) number: usize,
    pub(super) source: ObjectId,
    pub(super) meta: ObjectMeta,
    pub(super) class: Option<String>,
    pub(super) to: ObjectKey,
    pub(super) replaces: Replaces,
}

impl Mover {
    /// Copies all objects below `from` to below `to`, and proves the copies. Both names end in `/`. The sources stay until
    /// [`Mover::delete_directory`].
    ///
    /// # Errors
    /// `TooMany`, `NotEmpty` (below the new name is an object other than its marker), `NameTooLong`, `Note`, or an archived object: nothing
    /// was copied. With any other error the copies are deleted, as far as the store allows.
    pub async fn copy_directory(&self, from: &ObjectKey, to: &ObjectKey) -> Result<CopiedDirectory> {
        let both = try_join(self.below(from, self.config.names_max), self.marker_alone(to));
        let (listed, marker) = both.await?;
        let items = items(listed, from, to, marker)?;
        if items.is_empty() {
            let mark = self.copy_mark(from, to).await?;
            return Ok(CopiedDirectory { copies: Vec::new(), mark, note: None });
        }
        let objects = items.iter().map(|item| (behind(&item.source.key, from), item.source.etag.clone()));
        let note = self.begin_note(from.as_str(), to.as_str(), objects.collect()).await?;
        let (copies, failed) = self.copy_all(items, note.as_ref()).await;
        let proven = match failed {
            None => match self.proven_below(to, copies.clone()).await {
                Ok(copies) => self.copy_mark(from, to).await.map(|mark| (copies, mark)),
                Err(error) => Err(error),
            },
            Some(error) => Err(error),
        };
        match proven {
            Ok((copies, mark)) => Ok(CopiedDirectory { copies, mark, note }),
            Err(error) => {
                self.take_all_back(&copies).await;
                self.remove_note(note).await;
                Err(error)
            }
        }
    }

    /// Deletes the sources of a directory's copies, each only if it still is the copied version. Returns the sources that another client
    /// has replaced, which stay.
    ///
    /// # Errors
    /// `Remote`: the store does not delete; nothing was deleted, and the copies are removed. `Partial`: some sources are deleted.
    pub async fn delete_directory(&self, copied: CopiedDirectory) -> Result<Vec<ObjectKey>> {
        let CopiedDirectory { copies, mark, note } = copied;
        let Some((first, others)) = copies.split_first() else {
            return self.delete_mark(mark, 0).await.map(|()| Vec::new());
        };
        if let Some(note) = &note
            && let Err(error) = add(note, vec![Line::Deleting], true).await
        {
            tracing::warn!(%error, "--state-dir: the note of a rename can't be written to; the rename goes on");
        }
        let mut stay = Vec::new();
        // The first delete is sent alone: a store that refuses deletes shows that before any object is gone.
        match self.delete_source(first).await {
            Ok(Source::Deleted) => {}
            Ok(Source::Replaced) => stay.push(first.source.key.clone()),
            Err(error)
                if !matches!(error, Error::Undecided(_))
                    && self.client.head_object(&first.source.key).await.is_ok() =>
            {
                self.take_all_back(&copies).await;
                self.take_mark_back(mark).await;
                self.remove_note(note).await;
                return Err(error);
            }
            Err(error) => {
                let of = copies.len();
                return Err(Error::Partial { left: of, of, error: error.to_string() });
            }
        }
        let (mut left, mut last) = (0, None);
        let deletes = others.iter().cloned().map(|copied| async move {
            let outcome = self.delete_source(&copied).await;
            (copied, outcome)
        });
        let mut deletes = stream::iter(deletes).buffer_unordered(self.config.at_once.max(1));
        while let Some((copied, outcome)) = deletes.next().await {
            match outcome {
                Ok(Source::Deleted) => {}
                Ok(Source::Replaced) => stay.push(copied.source.key.clone()),
                Err(error) => (left, last) = (left + 1, Some(error)),
            }
        }
        drop(deletes);
        match last {
            None => {
                self.delete_mark(mark, copies.len()).await?;
                self.remove_note(note).await;
                Ok(stay)
            }
            Some(error) => Err(Error::Partial { left, of: copies.len(), error: error.to_string() }),
        }
    }

    /// All objects below a directory, in the order of the listing. `TooMany` if there are more than `max`.
    pub(super) async fn below(&self, directory: &ObjectKey, max: usize) -> Result<Vec<ListedObject>> {
        let mut request = all_below(directory);
        let mut objects = Vec::new();
        loop {
            let page = self.client.list_objects(&request).await?;
            objects.extend(
                page.objects.into_iter().filter(|object| object.key.as_str().starts_with(directory.as_str())),
            );
            if objects.len() > max {
                return Err(Error::TooMany(max));
            }
            match page.next_token {
                Some(token) => request.continuation_token = Some(token),
                None => return Ok(objects),
            }
        }
    }

    /// The objects below a directory with keys after `after`, up to the page that reaches the key `to`. `None`: the store ignores the start
    /// of a listing, or sends keys out of order, so the pages can't be requested separately.
    async fn between(
        &self,
        directory: &ObjectKey,
        after: Option<ObjectKey>,
        to: ObjectKey,
    ) -> Result<Option<Vec<ListedObject>>> {
        let mut last = after.map(|after| after.as_str().to_owned()).unwrap_or_default();
        let start_after = Some(last.clone()).filter(|after| !after.is_empty());
        let mut request = ListObjects { start_after, ..all_below(directory) };
        let mut objects = Vec::new();
        loop {
            let page = self.client.list_objects(&request).await?;
            for object in page.objects {
                if object.key.as_str() <= last.as_str() {
                    return Ok(None);
                }
                object.key.as_str().clone_into(&mut last);
                objects.push(object);
            }
            match page.next_token {
                Some(token) if last.as_str() < to.as_str() => request.continuation_token = Some(token),
                _ => return Ok(Some(objects)),
            }
        }
    }

    /// The version of a directory's marker; `None` without one. `NotEmpty` if any other object is below the directory.
    async fn marker_alone(&self, directory: &ObjectKey) -> Result<Option<ETag>> {
        let request =
            ListObjects { prefix: directory.as_str().to_owned(), max_keys: 2, ..ListObjects::default() };
        let page = self.client.list_objects(&request).await?;
        match page.objects.as_slice() {
            [] => Ok(None),
            [marker] if marker.key == *directory => Ok(Some(marker.meta.etag.clone())),
            _ => Err(Error::NotEmpty),
        }
    }

    /// Copies the objects until one fails. Returns the copies made until then.
    async fn copy_all(&self, items: Vec<Item>, note: Option<&Arc<Note>>) -> (Vec<Copied>, Option<Error>) {
        let stopped = AtomicBool::new(false);
        let copies = items.into_iter().map(|item| {
            let stopped = &stopped;
            async move {
                match stopped.load(Relaxed) {
                    true => (item.number, Ok(None)),
                    false => (item.number, self.copy_item(&item, note).await),
                }
            }
        });
        let mut copies = stream::iter(copies).buffer_unordered(self.config.at_once.max(1));
        let (mut done, mut failed, mut lines) = (Vec::new(), None, Vec::new());
        while let Some((number, outcome)) = copies.next().await {
            match outcome {
                Ok(Some(copied)) => {
                    lines.push(Line::Copied(number, copied.id.etag.as_str().to_owned()));
                    done.push(copied);
                }
                Ok(None) => {}
                Err(error) => {
                    stopped.store(true, Relaxed);
                    failed.get_or_insert(error);
                }
            }
            if lines.len() >= NOTED_AT_ONCE {
                note_copies(note, std::mem::take(&mut lines)).await;
            }
        }
        note_copies(note, lines).await;
        (done, failed)
    }

    /// Copies one object. `None`: another client has deleted the source.
    pub(super) async fn copy_item(&self, item: &Item, note: Option<&Arc<Note>>) -> Result<Option<Copied>> {
        let whole = || async {
            match self.copy_noted(&item.source.key, &item.to, &item.replaces, note).await {
                Ok(copied) => Ok(Some(copied)),
                Err(Error::Gone) => Ok(None),
                Err(error) => Err(error),
            }
        };
        if item.meta.size > self.config.copy_max {
            return whole().await;
        }
        let request = CopyObject {
            source: item.source.clone(),
            size: item.meta.size,
            checksum: None,
            to: item.to.clone(),
            replaces: item.replaces.clone(),
            properties: None,
            storage_class: item.class.clone(),
        };
        match self.client.copy_object(&request).await {
            Ok(stored) => {
                let modified = stored.modified.and_then(Second::of);
                let id = ObjectId { key: item.to.clone(), etag: stored.etag.clone(), modified };
                let last_modified = stored.modified.unwrap_or(item.meta.last_modified);
                let meta = ObjectMeta { etag: stored.etag, last_modified, ..item.meta.clone() };
                Ok(Some(Copied { source: item.source.clone(), id, meta }))
            }
            Err(error) => match error.kind() {
                ErrorKind::Exists => Err(Error::Taken),
                ErrorKind::Changed | ErrorKind::NotFound => whole().await,
                ErrorKind::Unknown => {
                    let source = self.client.describe_object(&item.source.key).await?;
                    let modified = Second::of(source.meta.last_modified);
                    if !item.source.may_be(source.meta.etag.as_str(), modified) {
                        return Err(error.into());
                    }
                    let keys = [&item.source.key, &item.to];
                    self.after_lost_answer(&source, keys, &item.replaces, error).await.map(Some)
                }
                _ => Err(error.into()),
            },
        }
    }

    /// Proves the copies with a listing of the new name. Requests the pages of the listing side by side, because the copies show where each
    /// page begins and ends.
    async fn proven_below(&self, to: &ObjectKey, mut copies: Vec<Copied>) -> Result<Vec<Copied>> {
        copies.sort_unstable_by(|one, other| one.id.key.as_str().cmp(other.id.key.as_str()));
        let chunks = copies.chunks(PAGE.into()).filter_map(<[Copied]>::last);
        let lasts: Vec<_> = chunks.map(|copied| copied.id.key.clone()).collect();
        let afters = std::iter::once(None).chain(lasts.clone().into_iter().map(Some));
        // Boxed, because the compiler can't prove that the futures of a closure with borrows are `Send`.
        let pages: Vec<_> =
            afters.zip(lasts).map(|(after, last)| self.between(to, after, last).boxed()).collect();
        let pages: Vec<_> = stream::iter(pages).buffered(self.config.at_once.max(1)).try_collect().await?;
        let listed = match pages.into_iter().collect::<Option<Vec<_>>>() {
            Some(pages) => pages.into_iter().flatten().collect(),
            None => self.below(to, usize::MAX).await?,
        };
        let listed: HashMap<_, _> =
            listed.into_iter().map(|object| (object.key.as_str().to_owned(), object.meta)).collect();
        for copied in &mut copies {
            let there = match listed.get(copied.id.key.as_str()) {
                Some(meta) if meta.etag.matches(copied.id.etag.as_str()) => meta.clone(),
                // A listing may be outdated; a HEAD is not.
                _ => match self.client.head_object(&copied.id.key).await {
                    Ok(meta) if meta.etag.matches(copied.id.etag.as_str()) => meta,
                    Ok(_) => return Err(Error::Taken),
                    Err(error) if *error.kind() == ErrorKind::NotFound => return Err(Error::Taken),
                    Err(error) => return Err(error.into()),
                },
            };
            if there.size != copied.meta.size {
                let (is, was) = (there.size, copied.meta.size);
                return Err(Error::Different(format!("it has {is} bytes instead of {was}")));
            }
            copied.meta = ObjectMeta { etag: copied.id.etag.clone(), ..there };
        }
        Ok(copies)
    }

    async fn take_all_back(&self, copies: &[Copied]) {
        let back = |copied: Copied| async move { self.take_back(&copied).await };
        stream::iter(copies.to_vec()).for_each_concurrent(self.config.at_once.max(1), back).await;
    }

    pub(super) async fn begin_note(
        &self,
        from: &str,
        to: &str,
        objects: Vec<(String, ETag)>,
    ) -> Result<Option<Arc<Note>>> {
        let Some(notes) = self.notes.clone() else { return Ok(None) };
        let (from, to) = (from.to_owned(), to.to_owned());
        let begun = tokio::task::spawn_blocking(move || notes.begin(&from, &to, &objects)).await;
        match begun.unwrap_or_else(|error| Err(std::io::Error::other(error))) {
            Ok(note) => Ok(Some(Arc::new(note))),
            Err(error) => Err(Error::Note(Arc::new(error))),
        }
    }

    pub(super) async fn remove_note(&self, note: Option<Arc<Note>>) {
        if let Some(note) = note {
            let _ = tokio::task::spawn_blocking(move || note.remove()).await;
        }
    }
}

/// Notes copies, without an error. The next mount compares the copies that are not noted after a kill.
async fn note_copies(note: Option<&Arc<Note>>, lines: Vec<Line>) {
    if let Some(note) = note
        && let Err(error) = add(note, lines, false).await
    {
        tracing::debug!(%error, "copies can't be noted");
    }
}

/// Adds lines to a note, on a thread that may wait for the disk.
pub(super) async fn add(note: &Arc<Note>, lines: Vec<Line>, sync: bool) -> std::io::Result<()> {
    let note = Arc::clone(note);
    let added = tokio::task::spawn_blocking(move || note.add(&lines, sync)).await;
    added.unwrap_or_else(|error| Err(std::io::Error::other(error)))
}

/// The first page of a listing of all keys below a directory.
fn all_below(directory: &ObjectKey) -> ListObjects {
    ListObjects { prefix: directory.as_str().to_owned(), max_keys: PAGE, ..ListObjects::default() }
}

/// The part of a key behind the directory's name.
fn behind(key: &ObjectKey, directory: &ObjectKey) -> String {
    key.as_str().strip_prefix(directory.as_str()).unwrap_or_default().to_owned()
}

/// Plans the copy of each object of a directory. Pure. `marker`: the version of the new directory's marker, which is replaced.
fn items(
    listed: Vec<ListedObject>,
    from: &ObjectKey,
    to: &ObjectKey,
    marker: Option<ETag>,
) -> Result<Vec<Item>> {
    let mut items = Vec::with_capacity(listed.len());
    for (number, object) in listed.into_iter().enumerate() {
        let name = behind(&object.key, from);
        let target = format!("{}{name}", to.as_str());
        if target.len() > ObjectKey::LEN_MAX {
            return Err(Error::NameTooLong(target));
        }
        if !object.meta.readable {
            let error = crate::s3::Error::new(ErrorKind::Archived, "CopyObject").key(&object.key);
            return Err(error.message("the object is in an archive tier: restore it first").into());
        }
        let replaces = match &marker {
            Some(marker) if name.is_empty() => Replaces::Version(marker.clone()),
            _ => Replaces::Nothing,
        };
        items.push(Item {
            number,
            source: ObjectId::of(object.key, &object.meta),
            meta: object.meta,
            class: object.storage_class,
            to: ObjectKey::new(target),
            replaces,
        });
    }
    Ok(items)
}
