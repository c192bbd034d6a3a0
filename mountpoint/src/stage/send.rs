//! Sends a staged file as one upload, under the condition that the bucket still has the opened version. The stage first fetches the bytes
//! that only that version has. For a long file, or with a full stage, it does not: the store copies long runs of bytes by itself
//! ([`crate::upload::Patch`]), and the send fetches the others on the way.
//!
//! An upload has the bytes of one moment: the stage reads the file while programs may write, and discards the attempt if one did. After
//! two such attempts it copies the file: a write saves for the copy what it is about to replace. Where the local file system clones files
//! (btrfs, xfs), the copy is a clone: it takes no room, and writes wait until what is in memory of the file is on the disk.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::PathBuf;

use sha2::{Digest as _, Sha256};

use super::disk::{IN_PLACE_MAX, PIECE, read_at_most, read_cached};
use super::going::Going;
use super::image::{Fate, Image};
use super::live::remember;
use super::log::{Digest, Record};
use super::reading::fetch_from;
use super::{Error, Staged, Turn};
use crate::buffer::BLOCK;
use crate::object::{ObjectId, ObjectKey, ObjectMeta};
use crate::prefetch::Reader;
use crate::s3::{ErrorKind, Replaces};
use crate::sync::Arc;
use crate::upload::{self, Patch, Upload};

/// Attempts to send a file in place, before the stage copies it. Doubling it spares copies where programs write now and then, and wastes
/// more sends where they write all the time.
const ATTEMPTS_MAX: u32 = 2;

/// Most attempts to store a file over a version that turned out to be an earlier state of the file. Beyond it, another client must be
/// storing the same bytes again and again: then the stage keeps the file.
const ADOPTED_MAX: u32 = 8;

/// Most bytes of an object that the stage fetches before a send. Doubling it keeps longer files complete where another client's version
/// wins, and takes that much more of the disk. For a file that lacks more, the fetched bytes go straight into the upload and not to the
/// disk.
const FETCHED_MAX: u64 = 64 << 20;

/// The upload of one generation.
enum Request {
    /// The upload sends all bytes.
    Whole(Arc<Upload>),
    /// The store copies most of the bytes.
    Patch(Patch),
    /// The upload has most of the bytes, from before the send.
    Ahead(Arc<Going>),
}

impl Request {
    async fn finish(&self, runtime: &tokio::runtime::Handle, size: u64) -> Result<ObjectMeta, upload::Error> {
        match self {
            Self::Whole(upload) => upload.finish().await,
            Self::Patch(patch) => patch.finish().await,
            Self::Ahead(going) => going.finish(runtime, size).await,
        }
    }

    /// Ends an attempt. An early upload stays: the next attempt sends what changed.
    async fn abort(&self) {
        match self {
            Self::Whole(upload) => upload.abort().await,
            Self::Patch(patch) => patch.abort().await,
            Self::Ahead(_) => {}
        }
    }
}

/// The way to the bytes of one moment.
#[derive(Clone, Copy, Debug)]
enum How {
    /// The file itself: a change meanwhile makes the attempt worthless.
    InPlace,
    /// A copy of one moment.
    Copy,
    /// A copy that is worthless if the file changed meanwhile: the kernel lets programs write it.
    Still,
}

/// One generation of a file, ready to be sent.
pub(super) struct Draft {
    pub(super) generation: u64,
    pub(super) size: u64,
    pub(super) key: ObjectKey,
    pub(super) replaces: Replaces,
    /// The bytes of this generation that the local file has; the others are zero, or in the object.
    image: Image,
    reader: Option<Arc<Reader>>,
    /// Size of the object that the generation replaces.
    object: u64,
}

impl Staged {
    /// Waits for the right to send the file or to change its name.
    pub async fn turn(&self) -> Turn {
        self.turns.next().await
    }

    /// Waits for the right to change the file's name, where a send in progress is better given up ([`Staged::is_sent_in_vain`]): the bucket
    /// would get a version that is then removed, or moved.
    pub async fn turn_instead_of_a_send(&self) -> Turn {
        self.turns.instead().await
    }

    /// Whether a send of the file is better given up.
    pub fn is_sent_in_vain(&self) -> bool {
        self.turns.is_one_instead()
    }

    /// Fetches the bytes that only the object has, before the object goes away.
    ///
    /// # Errors
    /// `Read`, `Full`, `Disk`.
    pub async fn make_whole(self: &Arc<Self>, _turn: &Turn) -> Result<(), Error> {
        if !self.state.lock().is_noted {
            self.shared.folder.append(&[Record::Gone { file: self.number }])?;
        }
        self.hydrate().await
    }

    /// Stores the file if the bucket lacks a change of it. Returns the bucket's version afterwards; `None` if there was nothing to do.
    ///
    /// # Errors
    /// `Conflict`: the bucket has another version, and the stage keeps this file. Other errors leave the file as it is.
    pub async fn store(self: &Arc<Self>, turn: &Turn) -> Result<Option<ObjectMeta>, Error> {
        self.store_while(turn, &|| true).await
    }

    /// Stores the file like [`Staged::store`], but gives up if `is_wanted` returns false before the request that makes the object: then
    /// the result is `None`, and the bucket lacks a change.
    ///
    /// # Errors
    /// Those of `store`.
    pub async fn store_while(
        self: &Arc<Self>,
        _turn: &Turn,
        is_wanted: &(dyn Fn() -> bool + Sync),
    ) -> Result<Option<ObjectMeta>, Error> {
        // Looks at a file that nobody can write prove more.
        self.is_settled();
        if let Some(meta) = self.resolve().await? {
            return Ok(Some(meta));
        }
        for attempt in 0.. {
            if let Some(error) = self.error() {
                if matches!(error, Error::Disk(_)) && !self.is_kept() {
                    let (this, failure) = (Arc::clone(self), error.clone());
                    let kept = self.shared.runtime.spawn_blocking(move || this.keep_failed(&failure));
                    kept.await.map_err(io::Error::other)?;
                }
                return Err(error);
            }
            let is_settled = self.is_settled();
            if !self.look().image.is_dirty() {
                return Ok(None);
            }
            let how = match attempt >= ATTEMPTS_MAX {
                _ if !is_settled => How::Still,
                true => How::Copy,
                false => How::InPlace,
            };
            match self.send(how, is_wanted).await {
                Ok(Some(meta)) => return Ok(Some(meta)),
                Ok(None) if !is_wanted() => return Ok(None),
                Ok(None) => {}
                Err(error) if is_conflict(&error) => {
                    let before = self.state.lock().replaces.clone();
                    if let Some(meta) = self.resolve().await? {
                        return Ok(Some(meta));
                    }
                    // The bucket has an earlier version of this file.
                    if self.state.lock().replaces != before && attempt < ADOPTED_MAX {
                        continue;
                    }
                    let (key, is_partial) = (self.key(), self.state.lock().image.needs_base());
                    let kept = self.keep("another client changed it in the bucket").await?;
                    let error = Error::Conflict { key, kept };
                    let part = if is_partial { "; only the bytes that were written are in it" } else { "" };
                    tracing::error!("{error}{part}");
                    self.state.lock().error = Some(error.clone());
                    return Err(error);
                }
                Err(error) => return Err(error),
            }
        }
        unreachable!("a copy is sent whatever programs write")
    }

    /// Sends the file once. `None`: the file changed meanwhile, or the send is not wanted.
    async fn send(
        self: &Arc<Self>,
        how: How,
        is_wanted: &(dyn Fn() -> bool + Sync),
    ) -> Result<Option<ObjectMeta>, Error> {
        self.hydrate_if_short().await?;
        let (draft, source) = match how {
            How::InPlace => (self.draft()?, None),
            How::Copy => match self.copy().await? {
                Some((draft, copy)) => (draft, Some(copy)),
                None => return Ok(None),
            },
            How::Still => self.copy_still().await?,
        };
        let source = match source {
            Some(source) => source,
            None => self.file_for_now()?,
        };
        let ahead = self.ahead_of(&draft, matches!(how, How::InPlace));
        let _sender = match &ahead {
            Some(going) => Some(going.turn().await),
            None => None,
        };
        let whole =
            || Request::Whole(self.shared.uploader.replace(draft.key.clone(), draft.replaces.clone()));
        let mut upload = match &ahead {
            Some(going) => Request::Ahead(Arc::clone(going)),
            None => self.patch(&draft).map_or_else(whole, Request::Patch),
        };
        let had_arrived = ahead.as_ref().is_some_and(|going| going.upload.has_arrived());
        let poured = match &mut upload {
            Request::Whole(upload) => self.pour(upload, &source, &draft, is_wanted).await,
            Request::Patch(patch) => self.pour_patch(patch, &source, &draft).await,
            Request::Ahead(going) => self.pour_ahead(going, &draft).await.map(|()| None),
        };
        let image = match poured {
            Ok(image) => image,
            // It has ended, and the next attempt sends all bytes; but not where the store is away, which would take the time of two.
            Err(error) if ahead.is_some() => {
                return if had_arrived && is_away(&error) { Err(error) } else { Ok(None) };
            }
            Err(error) => {
                let is_patch = matches!(upload, Request::Patch(_));
                upload.abort().await;
                // The next attempt sends all bytes.
                let is_refused = is_patch && self.shared.uploader.refuses_copies() && !is_conflict(&error);
                return if is_refused || !is_wanted() { Ok(None) } else { Err(error) };
            }
        };
        // A sync failed meanwhile: the bytes read may differ from the bytes written.
        let error = self.error();
        // The kernel may have got the file meanwhile, and the next attempt looks for a still moment.
        let has_changed = || {
            let state = self.look();
            match how {
                How::InPlace => {
                    let lacks = |going| !state.ahead.has_all(going, draft.size);
                    let is_changed = state.image.generation() != draft.generation;
                    state.lent.is_some() || is_changed || ahead.as_ref().is_some_and(lacks)
                }
                How::Copy => state.lent.is_some(),
                How::Still => false,
            }
        };
        if error.is_some() || has_changed() || !is_wanted() {
            upload.abort().await;
            return error.map_or(Ok(None), Err);
        }
        if let Err(error) = self.note_sending(image.as_ref()).await {
            upload.abort().await;
            return Err(error);
        }
        // A read of bytes of the version that disappears now must wait for the next version.
        let _replacing = self.replacing.lock().await;
        let meta = match upload.finish(&self.shared.runtime, draft.size).await {
            Ok(meta) => meta,
            Err(error) => {
                let is_doubtful = leaves_doubt(&error);
                if !is_doubtful {
                    self.note_refused(image.as_ref())?;
                }
                let error = Error::from(error);
                if let Some(going) = &ahead {
                    self.end_ahead(going);
                    // The store may have dropped an upload that took long: the next attempt sends all bytes.
                    if !is_doubtful && !is_conflict(&error) && !is_away(&error) {
                        return Ok(None);
                    }
                }
                return Err(error);
            }
        };
        let meta = self.named(&draft.key, meta).await;
        self.is_stored(draft.generation, &meta);
        Ok(Some(meta))
    }

    /// The stored object with its own ETag, which an answer may leave empty. What cannot be looked up stays as it was answered: later reads then
    /// fail rather than take another client's version for this one.
    async fn named(&self, key: &ObjectKey, meta: ObjectMeta) -> ObjectMeta {
        if !meta.etag.is_none() {
            return meta;
        }
        match self.shared.uploader.look(key).await {
            Ok(Some(there)) if there.size == meta.size => there,
            _ => meta,
        }
    }

    /// The upload of a long file of which most is in the bucket.
    fn patch(&self, draft: &Draft) -> Option<Patch> {
        let Replaces::Version(etag) = &draft.replaces else { return None };
        let is_short = draft.size <= FETCHED_MAX && !draft.image.needs_base();
        // Without that condition, the store could copy from another version.
        if is_short || etag.if_match().is_none() {
            return None;
        }
        let id = match &draft.reader {
            Some(reader) if reader.id().etag == *etag => reader.id().clone(),
            _ => ObjectId::by_etag(draft.key.clone(), etag.clone()),
        };
        let ranges = (draft.image.unchanged(), draft.image.missing(0..draft.size));
        let to = (draft.key.clone(), draft.replaces.clone());
        self.shared.uploader.patch(to, (id, draft.object), draft.size, ranges)
    }

    /// Fetches the bytes that only the object has, if they are few.
    async fn hydrate_if_short(self: &Arc<Self>) -> Result<(), Error> {
        let lacks = self.state.lock().image.lacks();
        if lacks > FETCHED_MAX || !self.shared.folder.has_room(lacks) {
            return Ok(());
        }
        match self.hydrate().await {
            // Other files took the room first.
            Err(Error::Full { .. }) => Ok(()),
            // The disk has less room than `--stage-size` says.
            Err(Error::Disk(error)) if is_full(&error) => Ok(()),
            hydrated => hydrated,
        }
    }

    /// Notes that a send begins. A smaller size that a program sets meanwhile may remove bytes of the draft, but none is missing.
    pub(super) fn draft(&self) -> Result<Draft, Error> {
        let mut state = self.look();
        if !state.is_noted {
            self.note(&mut state)?;
        }
        // Most files had all their bytes from their first record on, which says so.
        self.seal(&mut state)?;
        Ok(Draft {
            generation: state.image.generation(),
            size: state.image.size(),
            key: state.key.clone(),
            replaces: state.replaces.clone(),
            image: state.image.clone(),
            reader: state.reader.clone(),
            object: state.object,
        })
    }

    /// Gives all bytes to the upload, piece by piece, as long as the send is wanted. Returns their digest, if a later mount may need it.
    async fn pour(
        &self,
        upload: &Arc<Upload>,
        source: &Arc<File>,
        draft: &Draft,
        is_wanted: &(dyn Fn() -> bool + Sync),
    ) -> Result<Option<Digest>, Error> {
        let mut hash = self.shared.folder.commit().is_deferred().then(Sha256::new);
        let (size, mut at) = (draft.size, 0);
        while at < size {
            if !is_wanted() {
                return Err(upload::Error::Aborted.into());
            }
            let (bytes, hashed) = self.piece(source, draft, at..size, hash).await?;
            hash = hashed;
            let length = bytes.len();
            let (give, given) = tokio::sync::oneshot::channel();
            upload.write(at, &bytes, Box::new(move |result| drop(give.send(result))));
            given.await.unwrap_or(Err(upload::Error::Aborted))?;
            at += length as u64;
        }
        Ok(hash.map(|hash| digest(size, hash)))
    }

    /// Gives the changed bytes to a patch, and makes the store copy the others. Returns the marks of the new object, if a later mount may
    /// need them.
    async fn pour_patch(
        &self,
        patch: &mut Patch,
        source: &Arc<File>,
        draft: &Draft,
    ) -> Result<Option<Digest>, Error> {
        let read =
            move |range| async move { Ok::<_, Error>(self.piece(source, draft, range, None).await?.0) };
        patch.send(read).await?;
        let is_asked = self.shared.folder.commit().is_deferred();
        Ok(is_asked.then(|| Digest { size: draft.size, sha256: String::new(), etag: patch.etag() }))
    }

    /// Reads some bytes from the beginning of a range, from the disk or the object, and adds them to the hash, if there is one.
    async fn piece(
        &self,
        source: &Arc<File>,
        draft: &Draft,
        Range { start: at, end }: Range<u64>,
        mut hash: Option<Sha256>,
    ) -> Result<(Vec<u8>, Option<Sha256>), Error> {
        let missing = draft.image.missing(at..end.min(at + BLOCK as u64)).into_iter().next();
        let fetched = match &missing {
            Some(run) if run.start == at => Some(fetch_from(draft.reader.as_deref(), run.clone()).await?),
            _ => None,
        };
        let here = missing.map_or(end, |run| run.start) - at;
        if fetched.is_none() && here <= IN_PLACE_MAX {
            let mut bytes = vec![0; here as usize];
            if read_cached(source, &mut bytes, at) {
                if let Some(hash) = &mut hash {
                    hash.update(&bytes);
                }
                return Ok((bytes, hash));
            }
        }
        let file = Arc::clone(source);
        let read = self.shared.runtime.spawn_blocking(move || {
            let bytes = match fetched {
                Some(bytes) => bytes,
                None => {
                    let mut bytes = vec![0; here.min(PIECE) as usize];
                    // The file is shorter if a program set its size meanwhile: then the draft is discarded.
                    read_at_most(&file, &mut bytes, at)?;
                    bytes
                }
            };
            if let Some(hash) = &mut hash {
                hash.update(&bytes);
            }
            io::Result::Ok((bytes, hash))
        });
        Ok(read.await.map_err(io::Error::other)??)
    }

    /// Notes in the log that a request is about to store these bytes. If the mount after a loss of power could send the file again, that
    /// mount must know of the request.
    async fn note_sending(self: &Arc<Self>, image: Option<&Digest>) -> Result<(), Error> {
        let Some(image) = image.cloned() else { return Ok(()) };
        let was_synced = {
            let mut state = self.state.lock();
            self.shared.folder.append(&[Record::Sending { file: self.number, image: image.clone() }])?;
            remember(&mut state.sent, image);
            state.was_synced
        };
        if was_synced {
            self.shared.sync_log().await?;
        }
        Ok(())
    }

    /// Notes that the store did not take the request.
    fn note_refused(&self, image: Option<&Digest>) -> Result<(), Error> {
        let Some(image) = image else { return Ok(()) };
        let mut state = self.state.lock();
        state.sent.retain(|sent| sent != image);
        // An earlier image may still be in the bucket.
        if state.sent.is_empty() && state.is_noted {
            self.shared.folder.append(&[Record::Refused { file: self.number }])?;
        }
        Ok(())
    }

    /// Notes that the bucket has the file as of `generation`. If the log refuses the record, the record of the request's image informs a
    /// later mount.
    pub(super) fn is_stored(&self, generation: u64, meta: &ObjectMeta) {
        let mut state = self.state.lock();
        state.image.stored(generation, meta.size);
        // Later writes change the object that the bucket has now.
        state.ahead.end();
        if let Some(lent) = &mut state.lent {
            lent.was_sent |= !lent.is_quiet;
        }
        state.replaces = Replaces::Version(meta.etag.clone());
        state.object = meta.size;
        state.reader = state.image.needs_base().then(|| {
            let (key, etag) = (state.key.clone(), meta.etag.clone());
            let id = match etag.is_none() {
                // The time is that of the answer, which may not be the object's.
                false => ObjectId::by_etag(key, etag),
                true => ObjectId::of(key, meta),
            };
            Arc::new(self.shared.prefetcher.open(id, meta.size, None))
        });
        state.sent.clear();
        state.facts += 1;
        let file = self.number;
        // Nobody would tell the next change of a file that the kernel has.
        let record = if state.image.is_dirty() || state.lent.is_some() {
            let (etag, size) = (meta.etag.as_str().to_owned(), meta.size);
            // An earlier sync covers an older state than the bucket's.
            let is_synced = state.synced.is_some_and(|synced| synced > generation);
            Record::Stored { file, etag, size, is_synced }
        } else {
            state.is_noted = false;
            Record::Gone { file }
        };
        if let Err(error) = self.shared.folder.append(&[record]) {
            tracing::debug!(%error, "a file that was stored could not be noted in the log of the stage");
        }
    }

    /// Moves the bytes to `kept/`. Returns the new path.
    ///
    /// # Errors
    /// The disk: the bytes stay in `files/`, and the next mount names them.
    pub async fn keep(self: &Arc<Self>, why: &str) -> Result<PathBuf, Error> {
        let (this, why) = (Arc::clone(self), why.to_owned());
        let kept = self.shared.runtime.spawn_blocking(move || this.keep_now(&why));
        kept.await.map_err(io::Error::other)?
    }

    /// Moves the bytes to `kept/`, on a thread that may wait for the disk.
    ///
    /// # Errors
    /// `Disk`: the file can't be moved to `kept/`, or the log refuses the record.
    pub fn keep_now(&self, why: &str) -> Result<PathBuf, Error> {
        let mut state = self.state.lock();
        // Opened now, because its path leads nowhere after the move.
        let _ = self.file();
        let is_partial = state.image.needs_base();
        let key = state.key.clone();
        let kept = self.shared.folder.keep(self.number, Some(key.as_str()), why.to_owned(), is_partial)?;
        state.image.kept();
        state.ahead.end();
        state.error = Some(Error::Kept { key, kept: kept.clone() });
        Ok(kept)
    }

    /// Whether the file has no name any more.
    pub fn is_unlinked(&self) -> bool {
        self.state.lock().image.fate() == Fate::Unlinked
    }
}

/// Whether a disk has no room for more bytes.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Whether the store may have, or get, an object of a request that failed.
fn leaves_doubt(error: &upload::Error) -> bool {
    match error {
        upload::Error::Corrupt | upload::Error::Panicked => true,
        upload::Error::Remote(error) => error.may_have_stored(),
        _ => false,
    }
}

/// Whether the store gave no answer in the time that a request may take. Another attempt would take as long again.
fn is_away(error: &Error) -> bool {
    use ErrorKind::{Network, ServerError, Throttled, Timeout};
    match error {
        Error::Send(upload::Error::Remote(error)) => {
            matches!(error.kind(), Timeout | Network | ServerError | Throttled)
        }
        _ => false,
    }
}

/// Whether the bucket has another version than the opened one.
fn is_conflict(error: &Error) -> bool {
    match error {
        Error::Send(upload::Error::Remote(error)) => {
            let is_gone = *error.kind() == ErrorKind::NotFound && error.operation() == "GetObject";
            is_gone || matches!(error.kind(), ErrorKind::Changed | ErrorKind::Exists)
        }
        Error::Read(error) => matches!(error.kind(), ErrorKind::Changed | ErrorKind::NotFound),
        _ => false,
    }
}

pub(super) fn digest(size: u64, hash: Sha256) -> Digest {
    let sha256 = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Digest { size, sha256, etag: None }
}
