//! Sends a staged file: what is missing is fetched, and all of it goes out as one upload under the condition that the bucket still has the version
//! that was opened.
//!
//! The image that is sent is of one moment: it is read while programs may write, and thrown away if one did. After two such attempts it is
//! copied while writes wait.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use sha2::{Digest as _, Sha256};
use tokio::sync::OwnedMutexGuard;

use super::image::Fate;
use super::live::remember;
use super::log::{Digest, Record};
use super::{Error, Staged};
use crate::object::{ObjectKey, ObjectMeta};
use crate::s3::{ErrorKind, Replaces};
use crate::sync::Arc;
use crate::upload::{self, Upload};

/// Attempts to send a file as it lies there, before it is copied. Doubling it spares copies where programs write now and then, and sends more
/// for nothing where they write all the time.
const ATTEMPTS_MAX: u32 = 2;

/// Attempts at most to store a file over what turned out to be an earlier state of it. More take a client that stores the same bytes again and
/// again: what was written here is kept then.
const ADOPTED_MAX: u32 = 8;

/// Bytes that are read from the disk and given to the upload at once. Doubling it halves the calls, and doubles the memory that a send takes beside
/// the budget.
const PIECE: u64 = 128 << 10;

/// The right to send a file or to change its name: one holder at a time.
#[derive(Debug)]
pub struct Turn(#[expect(dead_code, reason = "held")] OwnedMutexGuard<()>);

/// One generation of a file, about to be sent.
struct Draft {
    generation: u64,
    size: u64,
    key: ObjectKey,
    replaces: Replaces,
}

impl Staged {
    /// Waits for the turn.
    pub async fn turn(&self) -> Turn {
        Turn(Arc::clone(&self.turn).lock_owned().await)
    }

    /// Fetches what only the object has, before that goes away.
    ///
    /// # Errors
    /// `Read`, `Full`, `Disk`.
    pub async fn make_whole(self: &Arc<Self>, _turn: &Turn) -> Result<(), Error> {
        if !self.state.lock().is_noted {
            self.shared.folder.append(&[Record::Gone { file: self.number }])?;
        }
        self.hydrate().await
    }

    /// Stores the file if the bucket lacks a change of it. What the bucket has then; `None` if nothing was to be done.
    ///
    /// # Errors
    /// `Conflict`: the bucket has another version, and what was written here is kept. Others leave the file as it is.
    pub async fn store(self: &Arc<Self>, turn: &Turn) -> Result<Option<ObjectMeta>, Error> {
        self.store_while(turn, &|| true).await
    }

    /// The same, given up where `is_wanted` says so before the request that makes the object: `None` then, with a change that the bucket lacks.
    ///
    /// # Errors
    /// Those of `store`.
    pub async fn store_while(
        self: &Arc<Self>,
        _turn: &Turn,
        is_wanted: &(dyn Fn() -> bool + Sync),
    ) -> Result<Option<ObjectMeta>, Error> {
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
            if !self.is_dirty() {
                return Ok(None);
            }
            match self.send(attempt >= ATTEMPTS_MAX, is_wanted).await {
                Ok(Some(meta)) => return Ok(Some(meta)),
                Ok(None) if !is_wanted() => return Ok(None),
                Ok(None) => {}
                Err(error) if is_conflict(&error) => {
                    let before = self.state.lock().replaces.clone();
                    if let Some(meta) = self.resolve().await? {
                        return Ok(Some(meta));
                    }
                    // The version there is an earlier one of this file.
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

    /// Sends the file once. `None`: it changed meanwhile, or is not wanted.
    async fn send(
        self: &Arc<Self>,
        by_copy: bool,
        is_wanted: &(dyn Fn() -> bool + Sync),
    ) -> Result<Option<ObjectMeta>, Error> {
        self.hydrate().await?;
        let (draft, source) = if by_copy { self.copy().await? } else { (self.draft()?, None) };
        let upload = self.shared.uploader.replace(draft.key.clone(), draft.replaces.clone());
        let image = match self.pour(&upload, source, draft.size).await {
            Ok(image) => image,
            Err(error) => {
                upload.abort().await;
                return Err(error);
            }
        };
        // A sync failed meanwhile: what was read may not be what was written.
        let error = self.error();
        let has_changed = || !by_copy && self.state.lock().image.generation() != draft.generation;
        if error.is_some() || has_changed() || !is_wanted() {
            upload.abort().await;
            return error.map_or(Ok(None), Err);
        }
        if let Err(error) = self.note_sending(image.as_ref()).await {
            upload.abort().await;
            return Err(error);
        }
        let meta = match upload.finish().await {
            Ok(meta) => meta,
            Err(error) => {
                if !leaves_doubt(&error) {
                    self.note_refused(image.as_ref())?;
                }
                return Err(error.into());
            }
        };
        self.is_stored(draft.generation, &meta);
        Ok(Some(meta))
    }

    /// Notes that a send begins. Some bytes may be gone again by a size that was set meanwhile, never missing.
    fn draft(&self) -> Result<Draft, Error> {
        let mut state = self.state.lock();
        if !state.is_noted {
            self.note(&mut state)?;
        }
        self.shared.folder.append(&[Record::Sealed { file: self.number }])?;
        Ok(Draft {
            generation: state.image.generation(),
            size: state.image.size(),
            key: state.key.clone(),
            replaces: state.replaces.clone(),
        })
    }

    /// Copies the file to one without a name. Writes of it wait meanwhile: the copy is of one moment. It takes no room of `--stage-size`.
    async fn copy(self: &Arc<Self>) -> Result<(Draft, Option<Arc<File>>), Error> {
        let this = Arc::clone(self);
        let copied = self.shared.runtime.spawn_blocking(move || {
            let file = this.file_for_now()?;
            let (number, copy) = this.shared.folder.create()?;
            let path = this.shared.folder.path(number);
            let unlinked = std::fs::remove_file(path);
            // Drafted under the lock that writes take: `draft` takes it by itself, so its generation is compared.
            loop {
                let draft = this.draft()?;
                let state = this.state.lock();
                if state.image.generation() != draft.generation {
                    continue;
                }
                copy.set_len(draft.size)?;
                for run in state.image.present().iter() {
                    copy_range(&file, &copy, run)?;
                }
                unlinked?;
                return Ok((draft, Some(Arc::new(copy))));
            }
        });
        copied.await.map_err(io::Error::other)?
    }

    /// Gives all bytes to the upload, a piece at a time. What they were, if a later mount may ask.
    async fn pour(
        self: &Arc<Self>,
        upload: &Arc<Upload>,
        source: Option<Arc<File>>,
        size: u64,
    ) -> Result<Option<Digest>, Error> {
        let source = match source {
            Some(source) => source,
            None => self.file_for_now()?,
        };
        let mut hash = self.shared.folder.commit().is_deferred().then(Sha256::new);
        let mut at = 0;
        while at < size {
            let length = (size - at).min(PIECE) as usize;
            let file = Arc::clone(&source);
            let read = self.shared.runtime.spawn_blocking(move || {
                let mut bytes = vec![0; length];
                // Shorter since a size was set: the draft is thrown away then.
                super::staged::read_at_most(&file, &mut bytes, at)?;
                if let Some(hash) = &mut hash {
                    hash.update(&bytes);
                }
                io::Result::Ok((bytes, hash))
            });
            let (bytes, hashed) = read.await.map_err(io::Error::other)??;
            hash = hashed;
            let (give, given) = tokio::sync::oneshot::channel();
            upload.write(at, &bytes, Box::new(move |result| drop(give.send(result))));
            given.await.unwrap_or(Err(upload::Error::Aborted))?;
            at += length as u64;
        }
        Ok(hash.map(|hash| digest(size, hash)))
    }

    /// An object of these bytes is about to be stored. If a mount after a loss of power could send the file again, that one is to know.
    async fn note_sending(self: &Arc<Self>, image: Option<&Digest>) -> Result<(), Error> {
        let Some(image) = image.cloned() else { return Ok(()) };
        let was_synced = {
            let mut state = self.state.lock();
            self.shared.folder.append(&[Record::Sending { file: self.number, image: image.clone() }])?;
            remember(&mut state.sent, image);
            state.was_synced
        };
        if was_synced {
            let this = Arc::clone(self);
            let synced = self.shared.runtime.spawn_blocking(move || this.shared.folder.sync_log());
            synced.await.map_err(io::Error::other)??;
        }
        Ok(())
    }

    /// The store has nothing of it.
    fn note_refused(&self, image: Option<&Digest>) -> Result<(), Error> {
        let Some(image) = image else { return Ok(()) };
        let mut state = self.state.lock();
        state.sent.retain(|sent| sent != image);
        // An earlier one may be there still.
        if state.sent.is_empty() && state.is_noted {
            self.shared.folder.append(&[Record::Refused { file: self.number }])?;
        }
        Ok(())
    }

    /// The bucket has the file as it was at `generation`. Should the log not take that, the record of the request's image tells a later mount.
    pub(super) fn is_stored(&self, generation: u64, meta: &ObjectMeta) {
        let mut state = self.state.lock();
        state.image.stored(generation);
        state.replaces = Replaces::Version(meta.etag.clone());
        (state.reader, state.object) = (None, meta.size);
        state.sent.clear();
        let file = self.number;
        let record = if state.image.is_dirty() {
            let (etag, size) = (meta.etag.as_str().to_owned(), meta.size);
            // A sync before it vouches for an older state than the bucket has.
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

    /// Moves the bytes to `kept/`. The path there.
    ///
    /// # Errors
    /// The disk: the bytes stay in `files/`, and the next mount names them.
    pub async fn keep(self: &Arc<Self>, why: &str) -> Result<PathBuf, Error> {
        let (this, why) = (Arc::clone(self), why.to_owned());
        let kept = self.shared.runtime.spawn_blocking(move || this.keep_now(&why));
        kept.await.map_err(io::Error::other)?
    }

    /// The same, on a thread that may wait for the disk.
    ///
    /// # Errors
    /// `Disk`: the file can't be moved to `kept/`, or that can't be noted.
    pub fn keep_now(&self, why: &str) -> Result<PathBuf, Error> {
        let mut state = self.state.lock();
        // It is not found under its path any more.
        let _ = self.file();
        let is_partial = state.image.needs_base();
        let key = state.key.clone();
        let kept = self.shared.folder.keep(self.number, Some(key.as_str()), why.to_owned(), is_partial)?;
        state.image.kept();
        state.error = Some(Error::Kept { key, kept: kept.clone() });
        Ok(kept)
    }

    /// Whether the name is gone.
    pub fn is_unlinked(&self) -> bool {
        self.state.lock().image.fate() == Fate::Unlinked
    }
}

/// Whether the store may have, or get, an object of a request that failed.
fn leaves_doubt(error: &upload::Error) -> bool {
    match error {
        upload::Error::Corrupt | upload::Error::Panicked => true,
        upload::Error::Remote(error) => error.may_have_stored(),
        _ => false,
    }
}

/// Whether the bucket has another version than the one that was opened.
fn is_conflict(error: &Error) -> bool {
    match error {
        Error::Send(upload::Error::Remote(error)) => {
            matches!(error.kind(), ErrorKind::Changed | ErrorKind::Exists)
        }
        Error::Read(error) => matches!(error.kind(), ErrorKind::Changed | ErrorKind::NotFound),
        _ => false,
    }
}

pub(super) fn digest(size: u64, hash: Sha256) -> Digest {
    let sha256 = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Digest { size, sha256 }
}

fn copy_range(from: &File, to: &File, run: std::ops::Range<u64>) -> io::Result<()> {
    let mut bytes = vec![0; PIECE.min(run.end - run.start) as usize];
    let mut at = run.start;
    while at < run.end {
        let length = bytes.len().min((run.end - at) as usize);
        from.read_exact_at(&mut bytes[..length], at)?;
        to.write_all_at(&bytes[..length], at)?;
        at += length as u64;
    }
    Ok(())
}
