//! `--mode full`: files that programs read and write at once, at any place, by way of the stage.
//!
//! A file is in the stage from its first open for writing until its last handle is closed and the bucket has it. Meanwhile its inode is
//! local, all its handles read and write the staged file, and changes of other clients under its name show only once the file is stored.
//!
//! | file | operations |
//! |---|---|
//! | `files.rs` | the files in the stage, by inode and by number |
//! | `io.rs` | open, read, write, flush, fsync, fallocate, release |
//! | `names.rs` | unlink, rename |
//! | `directories.rs` | directories whose markers are stored behind their mkdir; rmdir; fsync of a directory |
//! | `opening.rs` | the wait of an open for an unlink or a rename of its file, and of those for opens |
//! | `sending.rs` | files that are sent behind their last close, with `--commit fsync` and `disk` |
//! | `seeking.rs` | lseek to data or a hole |
//! | `syncing.rs` | files that are stored now because `mount-s3-ctl sync` asks for it |
//! | `left.rs` | files that an earlier mount left |
//! | `attributes.rs` | setattr, and the attributes that programs set |
//! | `ending.rs` | the end of the mount |

mod attributes;
mod directories;
mod ending;
mod files;
mod io;
mod left;
mod names;
mod opening;
mod seeking;
mod sending;
mod syncing;

use std::path::PathBuf;
use std::time::Duration;

use rustix::io::Errno;

use super::pause::Pauses;
use super::{Error, FileSystem, Opened, Result};
use crate::inode::{InodeNo, KnownSize, OpenRead};
use crate::stage::{self, Area, Base, KeptFiles, Staged, Turn};
use crate::sync::{Arc, Mutex};
use attributes::Shown;
use directories::Directories;
use files::{Files, InStage};
pub(super) use names::{HeldFile, Unstored};
use opening::{Opening, Openings};
use sending::Sending;
pub use syncing::Unsynced;

/// Attempts of an operation on a file that other programs open, remove and rename meanwhile. Only a file that changes without end exhausts
/// them; the error is `STALE` then.
const ATTEMPTS_MAX: usize = 16;

/// Most files in the stage, whatever their size, with the directories that owe a marker: each takes memory, by estimate 2 KB. Beyond it,
/// programs that make files wait for others to be sent. Doubling it takes twice the memory while the store is away.
const FILES_MAX: usize = 100_000;

/// The files in the stage.
#[derive(Debug)]
pub(super) struct Full {
    area: Area,
    files: Mutex<Files>,
    directories: Mutex<Directories>,
    /// Most files in the stage ([`FILES_MAX`]).
    pub(super) files_max: usize,
    shown: Shown,
    sending: Sending,
    openings: Openings,
    pauses: Pauses,
}

/// The use of the stage.
#[derive(Clone, Debug)]
pub struct InUse {
    /// Bytes of all files in the stage.
    pub bytes: u64,
    /// Files of which the bucket lacks a change, and directories of which it lacks the marker.
    pub pending: u64,
    /// Bytes of the pending files, without those that are being changed at the moment.
    pub pending_bytes: u64,
    /// The files that could not be stored.
    pub kept: KeptFiles,
    /// The directory of the stage.
    pub dir: PathBuf,
    /// Most bytes of all files in the stage.
    pub bytes_max: u64,
    /// How long the oldest change has waited.
    pub oldest: Option<Duration>,
}

impl Full {
    pub(super) fn new(area: Area, pauses: Pauses) -> Self {
        let (directories, shown, sending, openings) = Default::default();
        let files_max = FILES_MAX;
        Self { area, files: Mutex::default(), directories, files_max, shown, sending, openings, pauses }
    }

    /// Whether files are sent behind their last close.
    fn is_deferred(&self) -> bool {
        self.area.commit().is_deferred()
    }

    /// Whether the kernel may close a new file without a FLUSH: with `--commit fsync` and `disk`, close waits for nothing, and RELEASE queues the
    /// file. A FLUSH would only repeat an error of the file, which its next write or fsync reports too. A lent file needs it: the engine looks
    /// then at what the kernel wrote.
    pub(super) fn needs_no_flush(&self, made: &Opened) -> bool {
        self.is_deferred() && made.passthrough.is_none()
    }

    /// Whether a write can be durable on return.
    pub(super) fn syncs_writes(&self) -> bool {
        self.area.commit() == stage::Commit::Disk
    }

    /// Begins an open for reading of a file that may be outside the stage; `None` while its name changes.
    pub(super) fn try_opening(&self, ino: InodeNo) -> Option<Opening> {
        self.openings.try_open(ino, false)
    }

    /// Begins an open for reading of a file that may be outside the stage, once its name does not change.
    pub(super) async fn opening(&self, ino: InodeNo) -> Opening {
        self.openings.open(ino, false).await
    }

    /// The staged file of an inode, if there is one.
    pub(super) fn find(&self, ino: InodeNo) -> Option<Arc<Staged>> {
        self.files.lock().get(ino).map(|file| Arc::clone(&file.staged))
    }

    /// The staged file of an inode, with one more user.
    fn join(&self, ino: InodeNo) -> Option<Arc<Staged>> {
        let mut files = self.files.lock();
        let file = files.get_mut(ino)?;
        file.users += 1;
        Some(Arc::clone(&file.staged))
    }

    fn users(&self, ino: InodeNo) -> usize {
        self.files.lock().get(ino).map_or(0, |file| file.users)
    }

    /// Removes one user, and returns how many are left.
    fn leave(&self, ino: InodeNo) -> usize {
        let mut files = self.files.lock();
        let Some(file) = files.get_mut(ino) else { return 0 };
        file.users = file.users.saturating_sub(1);
        file.users
    }

    fn all(&self) -> Vec<(InodeNo, Arc<Staged>)> {
        self.files.lock().iter().map(|(ino, file)| (ino, Arc::clone(&file.staged))).collect()
    }

    /// The inode of a staged file by its number.
    fn by_number(&self, number: u64) -> Option<(InodeNo, Arc<Staged>)> {
        let files = self.files.lock();
        files.by_number(number).map(|(ino, file)| (ino, Arc::clone(&file.staged)))
    }

    /// Files of which the bucket lacks a change, and their bytes.
    pub(super) fn pending(&self) -> Vec<Arc<Staged>> {
        self.all().into_iter().map(|(_, staged)| staged).filter(|staged| staged.is_dirty()).collect()
    }
}

impl FileSystem {
    /// Enables writes at any place, by way of this stage. Files that an earlier mount left there have their names from now on.
    #[must_use]
    pub fn in_full(self, area: Area) -> Self {
        let full = Full::new(area, self.pauses.clone());
        full.take_over(&self.inodes, self.clock.now());
        Self { full: Some(full), ..self }
    }

    /// Whether files lie in a stage.
    pub fn has_stage(&self) -> bool {
        self.full.is_some()
    }

    /// The use of the stage; `None` without one.
    pub fn stage(&self) -> Option<InUse> {
        let full = self.full.as_ref()?;
        // Without a wait for any of them: the disk may hang, and this is how the user learns it.
        let pending: Vec<_> = full.all().iter().filter_map(|(_, staged)| staged.try_pending()).collect();
        let (dir, bytes_max) = full.area.place();
        Some(InUse {
            kept: full.area.kept(),
            dir: dir.to_owned(),
            bytes_max,
            bytes: full.area.used(),
            pending: (pending.len() + full.directories.lock().len()) as u64,
            pending_bytes: pending.iter().sum(),
            oldest: full.sending.oldest().map(|since| self.clock.now().saturating_duration_since(since)),
        })
    }

    fn full(&self) -> Result<&Full> {
        self.full.as_ref().ok_or_else(|| Error::new(Errno::IO, "a staged file on a mount without a stage"))
    }

    /// The staged file of an inode; puts the file into the stage if it is not there yet. The caller counts as one more user until it
    /// calls [`FileSystem::leave_stage`].
    ///
    /// # Errors
    /// The errors of an open for reading, and those of the stage's disk.
    pub(super) async fn enter_stage(&self, ino: InodeNo) -> Result<(Arc<Staged>, bool)> {
        let full = self.full()?;
        for _ in 0..ATTEMPTS_MAX {
            if let Some(staged) = full.join(ino) {
                return Ok((staged, true));
            }
            let (base, keeps) = match self.inodes.is_local(ino) {
                true => (None, true),
                false => match self.inodes.open_read(ino, false).await? {
                    OpenRead::Object { id, size, first, keep_cache, known, .. } => {
                        if known == KnownSize::Other {
                            self.resized.tell(&self.inodes, ino);
                        }
                        (Some(Base { id, size, first }), keep_cache)
                    }
                    // A writer came or went just now.
                    OpenRead::Busy { .. } => {
                        tokio::task::yield_now().await;
                        continue;
                    }
                },
            };
            let has_base = base.is_some();
            let entered = self.put_into_stage(full, ino, base).await;
            if has_base {
                self.inodes.close_read(ino);
            }
            if let Some(staged) = entered? {
                return Ok((staged, keeps));
            }
        }
        let key = self.inodes.key_of(ino);
        let why = format!(
            "{:?} is opened and removed by others again and again",
            key.as_ref().map_or("?", |key| key.as_str())
        );
        Err(Error::new(Errno::STALE, why))
    }

    async fn put_into_stage(
        &self,
        full: &Full,
        ino: InodeNo,
        base: Option<Base>,
    ) -> Result<Option<Arc<Staged>>> {
        let Some(key) = self.inodes.key_of(ino) else { return Ok(None) };
        let id = base.as_ref().map(|base| base.id.clone());
        let staged = full.area.create(key, base).await?;
        let mut files = full.files.lock();
        if files.get(ino).is_some() {
            return Ok(None);
        }
        let Some(key) = self.inodes.stage(ino, staged.number(), id.as_ref())? else { return Ok(None) };
        // A rename since it was looked at.
        if key != staged.key() {
            match &id {
                Some(id) => {
                    let moved = crate::object::ObjectId { key, ..id.clone() };
                    staged.moved(moved, staged.size(), &id.etag)?;
                }
                None => staged.renamed(key, crate::s3::Replaces::Nothing)?,
            }
        }
        files.insert(ino, InStage { users: 1, ..InStage::new(Arc::clone(&staged)) });
        drop(files);
        // The record makes the next mount store the file even if nothing is written to it and the engine is killed. Without the lock of all
        // files: the log may have to be made anew.
        if id.is_none()
            && full.is_deferred()
            && let Err(error) = full.area.on_disk(|| staged.note_new())
        {
            let mut files = full.files.lock();
            // A program that opened the file meanwhile goes on, and its first change makes the record, or fails.
            let is_last = files.get_mut(ino).is_some_and(|file| {
                file.users = file.users.saturating_sub(1);
                file.users == 0
            });
            if is_last {
                files.remove(ino);
                self.inodes.abandon_write(ino);
            }
            return Err(error.into());
        }
        Ok(Some(staged))
    }

    /// Stores a staged file if the bucket lacks a change of it, and updates the tree of names.
    async fn store_staged(&self, ino: InodeNo, staged: &Arc<Staged>, turn: &Turn) -> Result<()> {
        self.store_staged_while(ino, staged, turn, &|| true).await
    }

    /// Stores a staged file as [`FileSystem::store_staged`] does, and gives up once `is_wanted` returns false.
    async fn store_staged_while(
        &self,
        ino: InodeNo,
        staged: &Arc<Staged>,
        turn: &Turn,
        is_wanted: &(dyn Fn() -> bool + Sync),
    ) -> Result<()> {
        let stored = staged.store_while(turn, is_wanted).await;
        // An earlier request without an answer may have made a version.
        let known = staged.take_adopted();
        if let Some(meta) = stored.as_ref().ok().and_then(Option::as_ref).or(known.as_ref()) {
            self.inodes.stored_from_stage(ino, meta);
        }
        Ok(stored.map(drop)?)
    }

    /// Gives the name of a file back to the bucket if another client's version won: programs that open it from here on find that version,
    /// also while others have the kept file open.
    fn give_name_back(&self, ino: InodeNo, staged: &Staged) {
        if matches!(staged.error(), Some(stage::Error::Conflict { .. })) {
            self.inodes.lost_to_another(ino);
        }
    }

    /// Removes a user of a staged file. The last user stores the file; if that fails, the bytes go to `kept/`, and the log names them.
    pub(super) async fn leave_stage(&self, ino: InodeNo, staged: &Arc<Staged>) {
        let Ok(full) = self.full() else { return };
        if full.leave(ino) == 0 {
            self.settle_staged(ino, staged).await;
        }
    }

    /// Stores a file without users, or queues it, and takes it out of the stage once no program reads it.
    pub(super) async fn settle_staged(&self, ino: InodeNo, staged: &Arc<Staged>) {
        let Ok(full) = self.full() else { return };
        if full.is_deferred() && staged.is_dirty() {
            return full.rests(ino, staged, self.clock.now());
        }
        let turn = staged.turn().await;
        if full.users(ino) > 0 {
            return;
        }
        if full.is_deferred() && staged.is_dirty() {
            return full.rests(ino, staged, self.clock.now());
        }
        if staged.is_dirty()
            && let Err(error) = self.store_staged(ino, staged, &turn).await
            && !staged.is_kept()
        {
            if full.users(ino) > 0 {
                // A program has the file open again, and gets the error.
                return;
            }
            match staged.keep(&error.to_string()).await {
                Ok(kept) => tracing::error!(
                    "\"{}\" is closed and was not stored: {error}; what was written is in {}",
                    staged.key(),
                    kept.display()
                ),
                Err(disk) => tracing::error!(
                    "\"{}\" is closed and was not stored: {error}; what was written stays in the stage until the next mount: {disk}",
                    staged.key()
                ),
            }
        }
        self.give_name_back(ino, staged);
        self.take_times(ino, staged);
        let (mut files, rest) = loop {
            let files = full.files.lock();
            let is_used =
                files.get(ino).is_none_or(|file| file.users > 0 || !Arc::ptr_eq(&file.staged, staged));
            if is_used || self.inodes.has_readers(ino) {
                return;
            }
            match staged.try_rest() {
                Some(rest) if rest.is_done => break (files, rest),
                Some(_) => return,
                None => {}
            }
            // All other files go on while this one's disk is waited for.
            drop(files);
            full.area.on_disk(|| staged.is_dirty());
        };
        files.remove(ino);
        full.sending.room_came();
        if rest.was_lent {
            // The kernel wrote past its pages.
            self.inodes.doubt_pages(ino);
        }
        if rest.is_without_object {
            // The kernel still has pages of the bytes that were not stored.
            self.inodes.doubt_pages(ino);
            self.inodes.abandon_write(ino);
        } else if let Some(times) = self.inodes.leave_stage(ino) {
            full.shown.times(ino, times);
        }
    }

    /// Takes in the close of a handle that only reads: a file that stays in the stage for that reader may leave now.
    pub(super) async fn reader_left_stage(&self, ino: InodeNo) {
        if let Ok(full) = self.full()
            && full.users(ino) == 0
            && let Some(staged) = full.find(ino)
        {
            self.settle_staged(ino, &staged).await;
        }
    }
}

impl From<stage::Error> for Error {
    fn from(error: stage::Error) -> Self {
        Self::of_stage(error)
    }
}
