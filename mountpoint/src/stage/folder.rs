//! The directory of the stage: one file for each staged file (`files/N`), the log, and files that could not be stored (`kept/`).
//!
//! One engine at a time holds the directory, by a lock that ends with the process. The present mount stores the files of an earlier
//! mount, or moves them to `kept/` and names them: no written byte is deleted before the bucket has it.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

use super::disk::Disk;
use super::kept::{Kept, KeptFiles, Tally, keep, private, sync_one};
use super::live::{Files, wrote};
use super::log::{self, Dirty, Record};
use super::recover::{Left, Pending, recover};
use super::runs::Runs;
use super::{Commit, Error, trial};
use crate::clock::Clock;
use crate::owner::Locked;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use crate::sync::{Arc, Mutex};

/// Bytes of the log beyond which it is rewritten, if most of it concerns files that are gone. Doubling it halves the rewrites, and
/// doubles the bytes that a start reads.
const LOG_MAX: u64 = 1 << 20;

/// Zeros that the log has ahead of its records: on a full disk files can still be sent, and then leave the disk; and a sync of records
/// that replace zeros writes their bytes alone, without the file's length and blocks. Doubling it takes that much more of the disk, and
/// lets twice as many sends go through while others fill the disk.
const LOG_AHEAD: u64 = 256 << 10;

static ZEROS: [u8; LOG_AHEAD as usize] = [0; LOG_AHEAD as usize];

/// The open directory of a stage.
#[derive(Debug)]
pub(super) struct Folder {
    dir: PathBuf,
    disk: Disk,
    mount: log::Mount,
    clock: Clock,
    limit: u64,
    used: AtomicU64,
    log: Mutex<Log>,
    /// Number of durable records.
    durable: AtomicU64,
    /// Locked by the thread that syncs the log.
    syncing: Mutex<()>,
    /// Files without use that an earlier state of the log still names: they are deleted after the log becomes durable.
    leaving: Mutex<Vec<u64>>,
    kept: Tally,
    names: Names,
    /// Whether files of the directory can be cloned ([`Disk::clone_file`]).
    clones: bool,
    /// Whether the kernel tells if somebody writes a file of the directory.
    tells_writers: bool,
    _lock: Locked,
}

#[derive(Debug)]
struct Log {
    disk: Disk,
    file: Arc<File>,
    len: u64,
    /// Number of the next frame.
    number: u64,
    /// Number of records since the start, in this log and earlier ones.
    written: u64,
    /// Number of the next staged file.
    next: u64,
    /// The state of the files that the log names.
    files: Files,
    /// Whether a sync of the log failed: then its content must be rewritten.
    is_broken: bool,
    /// Bytes beyond which the log is rewritten, if most of it concerns files that are gone.
    anew_at: u64,
    /// Bytes of the log's file: behind its records all are zero.
    reserved: u64,
}

/// The directory `files`.
#[derive(Debug)]
struct Names {
    dir: File,
    disk: Disk,
    /// Number of names made so far, and of those that the disk has.
    made: AtomicU64,
    durable: AtomicU64,
    /// Whether a sync of the directory failed. The kernel reports that once, and the disk may lack earlier names.
    has_failed: AtomicBool,
    /// Locked by the thread that syncs the directory: of two at once, the kernel would tell one alone of a failure.
    syncing: Mutex<()>,
}

impl Names {
    /// Makes the names in the directory durable. After one failure, each later call fails, too.
    fn sync(&self) -> io::Result<()> {
        let _one_at_a_time = self.syncing.lock();
        self.sync_alone()
    }

    /// Makes the names durable, for the thread that holds `syncing`.
    fn sync_alone(&self) -> io::Result<()> {
        if self.has_failed.load(Relaxed) {
            let why = "an earlier sync of files/ in the stage failed: look at its disk, and mount again";
            return Err(io::Error::other(why));
        }
        let made = self.made.load(Relaxed);
        self.disk.sync_all(&self.dir).inspect_err(|_| self.has_failed.store(true, Relaxed))?;
        self.durable.fetch_max(made, Relaxed);
        Ok(())
    }

    /// Makes the first `made` names durable, if the disk lacks some of them.
    fn sync_made(&self, made: u64) -> io::Result<()> {
        let _one_at_a_time = self.syncing.lock();
        // The thread before this one may have synced for both.
        let has_all = self.durable.load(Relaxed) >= made;
        if has_all && !self.has_failed.load(Relaxed) { Ok(()) } else { self.sync_alone() }
    }
}

impl Folder {
    /// Opens the directory. Files of an earlier mount wait to be stored, or are in `kept/` now. `limit`: most bytes of files in the
    /// stage.
    ///
    /// # Errors
    /// Another process has the directory; the directory can't be used; its files belong to another bucket or prefix.
    pub(super) fn open(
        dir: &Path,
        mut mount: log::Mount,
        limit: u64,
        clock: Clock,
    ) -> anyhow::Result<(Self, Vec<Kept>, Vec<Pending>)> {
        let shown = dir.display();
        for dir in [dir, &dir.join("files"), &dir.join("kept")] {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(dir)
                .with_context(|| format!("making {}", dir.display()))?;
        }
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700)).with_context(|| {
            format!("{shown}: making it private (mode 0700): does it belong to this user?")
        })?;
        let lock = private().write(true).create(true).truncate(false).open(dir.join("lock"));
        let lock = match Locked::new(lock.with_context(|| format!("opening {shown}/lock"))?) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                bail!("{shown} is in use by another mount: give each mount a directory of its own")
            }
            locked => locked.with_context(|| format!("locking {shown}/lock"))?,
        };
        let Left { kept, pending, directories, next } = recover(dir, &mut mount, &clock)
            .with_context(|| format!("{shown}: what an earlier mount left"))?;
        let files = Files::of(pending.iter().map(|pending| pending.live.clone()), directories);
        let names = File::open(dir.join("files")).with_context(|| format!("opening {shown}/files"))?;
        let disk = Disk::default();
        let (made, durable, has_failed, syncing) = Default::default();
        let names = Names { dir: names, disk: disk.clone(), made, durable, has_failed, syncing };
        let log = Log::create(dir, &names, &mount, next, files).with_context(|| format!("{shown}/log"))?;
        let (durable, log) = (AtomicU64::new(log.written), Mutex::new(log));
        let (used, leaving, syncing) = (AtomicU64::new(0), Mutex::default(), Mutex::default());
        let kept_files = Tally::new(dir, limit).with_context(|| format!("reading {shown}/kept"))?;
        let (dir, clones, tells_writers) = (dir.to_owned(), trial::can_clone(dir), trial::tells_writers(dir));
        let folder = Self {
            dir,
            disk,
            mount,
            clock,
            limit,
            used,
            log,
            durable,
            syncing,
            leaving,
            kept: kept_files,
            names,
            clones,
            tells_writers,
            _lock: lock,
        };
        Ok((folder, kept, pending))
    }

    /// Whether files of the directory can be cloned.
    pub(super) fn clones(&self) -> bool {
        self.clones
    }

    /// Whether the kernel may write files of this stage by itself.
    pub(super) fn lends(&self) -> bool {
        self.commit() == Commit::Disk && self.tells_writers
    }

    /// Whether the kernel tells if somebody writes a file of the directory: by a read lease, and by the time of a change.
    pub(super) fn tells_writers(&self) -> bool {
        self.tells_writers
    }

    /// The folder of a process that may ask for no lease.
    pub(super) fn without_leases(self) -> Self {
        Self { tells_writers: false, ..self }
    }

    /// The clock of the stage.
    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The disk of this stage.
    pub(super) fn disk(&self) -> &Disk {
        &self.disk
    }

    /// The promise to programs about `close` and `fsync`.
    pub(super) fn commit(&self) -> Commit {
        self.mount.commit
    }

    /// Creates a new empty file. Returns its number and the file.
    pub(super) fn create(&self) -> io::Result<(u64, File)> {
        let number = {
            let mut log = self.log.lock();
            log.next += 1;
            log.next - 1
        };
        let options = private().read(true).write(true).create_new(true).clone();
        let file = self.disk.open(&options, &self.path(number))?;
        self.names.made.fetch_add(1, Relaxed);
        Ok((number, file))
    }

    /// Opens an existing file.
    pub(super) fn reopen(&self, number: u64) -> io::Result<File> {
        self.disk.open(private().read(true).write(true), &self.path(number))
    }

    /// Opens an existing file for reading alone.
    pub(super) fn reopen_to_read(&self, number: u64) -> io::Result<File> {
        private().read(true).open(self.path(number))
    }

    pub(super) fn path(&self, number: u64) -> PathBuf {
        self.dir.join("files").join(number.to_string())
    }

    /// Takes room for more bytes.
    ///
    /// # Errors
    /// `Full`.
    pub(super) fn take(&self, bytes: u64) -> Result<(), Error> {
        if bytes > 0 && self.used.fetch_add(bytes, Relaxed).saturating_add(bytes) > self.limit {
            self.used.fetch_sub(bytes, Relaxed);
            return Err(Error::Full { limit: self.limit });
        }
        Ok(())
    }

    /// Whether there is room for more bytes.
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        self.used().saturating_add(bytes) <= self.limit
    }

    /// The directory, and the most bytes of files in it.
    pub(super) fn place(&self) -> (&Path, u64) {
        (&self.dir, self.limit)
    }

    /// The files in `kept/`.
    pub(super) fn kept_files(&self) -> KeptFiles {
        self.kept.now()
    }

    /// Fails if `kept/`, which only the user empties, has so much that no file may grow.
    ///
    /// # Errors
    /// `KeptFull`.
    pub(super) fn may_grow(&self) -> Result<(), Error> {
        if !self.kept.is_too_much() {
            return Ok(());
        }
        let KeptFiles { files, bytes } = self.kept.now();
        Err(Error::KeptFull { files, bytes, dir: self.dir.clone() })
    }

    /// Whether the kept files should be counted again ([`Folder::count_kept`]).
    pub(super) fn is_to_count_kept(&self) -> bool {
        self.kept.is_to_count(self.clock.now())
    }

    /// Counts the files in `kept/`, for a thread that may wait for the disk.
    pub(super) fn count_kept(&self) {
        if let Err(error) = self.kept.count(&self.dir) {
            tracing::debug!(%error, "kept/ of the stage could not be counted");
        }
    }

    /// Takes room for existing bytes, whatever the limit.
    pub(super) fn hold(&self, bytes: u64) {
        self.used.fetch_add(bytes, Relaxed);
    }

    /// Gives room back.
    pub(super) fn give(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Relaxed);
    }

    /// Bytes of the files in the stage.
    pub(super) fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// Notes in the log that a file has changes. `runs`: the ranges written so far, if the file shows an object's bytes elsewhere.
    pub(super) fn note_dirty(&self, dirty: Dirty, runs: &Runs) -> io::Result<()> {
        let mut records = vec![];
        if dirty.is_partial && self.commit().is_deferred() {
            records = wrote(dirty.file, runs);
        }
        records.insert(0, Record::Dirty(dirty));
        self.append(&records)
    }

    /// Appends records, so that a mount after this process finds all of them or none.
    pub(super) fn append(&self, records: &[Record]) -> io::Result<()> {
        let mut log = self.log.lock();
        log.append(records)?;
        if log.len > log.anew_at
            && log.number > 4 * log.files.len() as u64 + 1_000
            && let Err(error) = log.write_anew(&self.dir, &self.names, &self.mount)
        {
            // The records are in the present log: a full disk has no room for two logs.
            tracing::debug!(%error, "the log of the stage could not be written anew, and grows on");
            log.anew_at = log.len + LOG_MAX;
        }
        Ok(())
    }

    /// Number of records written so far.
    pub(super) fn records(&self) -> u64 {
        self.log.lock().written
    }

    /// Whether the first `records` records are durable.
    pub(super) fn is_durable(&self, records: u64) -> bool {
        self.durable.load(Relaxed) >= records
    }

    /// Makes all earlier records durable. For a thread that may wait for the disk.
    pub(super) fn sync_log(&self) -> io::Result<()> {
        let wanted = self.records();
        let _one_at_a_time = self.syncing.lock();
        // The thread before this one may have synced for both.
        if self.is_durable(wanted) {
            return Ok(());
        }
        let (file, written) = {
            let mut log = self.log.lock();
            if log.is_broken {
                log.write_anew(&self.dir, &self.names, &self.mount)?;
            }
            (Arc::clone(&log.file), log.written)
        };
        if let Err(error) = self.disk.sync_data(&file) {
            // The kernel forgets unwritten bytes, and would not report the failure twice.
            self.log.lock().is_broken = true;
            return Err(error);
        }
        self.durable.store(written, Relaxed);
        Ok(())
    }

    /// Number of names made in `files/` so far.
    pub(super) fn names_made(&self) -> u64 {
        self.names.made.load(Relaxed)
    }

    /// Makes the first `made` names in `files/` durable: one sync serves all files made before it.
    pub(super) fn sync_names(&self, made: u64) -> io::Result<()> {
        self.names.sync_made(made)
    }

    /// Deletes a file without use. If an earlier state of the log would store the file, the deletion waits until the log is durable:
    /// [`Folder::sweep`].
    pub(super) fn remove(&self, file: u64, was_synced: bool) -> io::Result<()> {
        if was_synced {
            // The record of a send that stored the file says it already.
            let is_noted = self.log.lock().files.is_gone(file);
            let noted = if is_noted { Ok(()) } else { self.append(&[Record::Gone { file }]) };
            // The file goes even if the log takes no record: on a full disk, this deletion makes room.
            self.leaving.lock().push(file);
            return noted;
        }
        self.disk.remove(&self.path(file))?;
        self.is_away(file)
    }

    /// Notes that a directory owes no marker any more. The file that stands for it is deleted once the log says so on the disk.
    pub(super) fn owes_no_more(&self, directory: u64) -> io::Result<()> {
        self.append(&[Record::Gone { file: directory }])?;
        self.leaving.lock().push(directory);
        Ok(())
    }

    /// The directories that owe a marker: number and key of each.
    pub(super) fn owing(&self) -> Vec<(u64, String)> {
        let log = self.log.lock();
        log.files.directories().iter().map(|(number, key)| (*number, key.clone())).collect()
    }

    /// Whether files wait for [`Folder::sweep`].
    pub(super) fn is_to_sweep(&self) -> bool {
        !self.leaving.lock().is_empty()
    }

    /// Makes the log durable if files wait for that, and deletes these files.
    pub(super) fn sweep(&self) -> io::Result<()> {
        let leaving = std::mem::take(&mut *self.leaving.lock());
        if leaving.is_empty() {
            return Ok(());
        }
        if let Err(error) = self.sync_log() {
            self.leaving.lock().extend(leaving);
            return Err(error);
        }
        let mut swept = Ok(());
        for file in leaving {
            match self.disk.remove(&self.path(file)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    self.leaving.lock().push(file);
                    swept = Err(error);
                }
                _ => drop(self.log.lock().files.remove(file)),
            }
        }
        swept
    }

    /// Notes that a file is no longer in `files/`.
    fn is_away(&self, file: u64) -> io::Result<()> {
        let named = self.log.lock().files.remove(file).flatten();
        if named.is_some() {
            self.append(&[Record::Gone { file }])?;
            self.log.lock().files.remove(file);
        }
        Ok(())
    }

    /// Number of records that a loss of power would destroy.
    #[cfg(test)]
    pub(super) fn undurable(&self) -> u64 {
        self.records() - self.durable.load(Relaxed)
    }

    /// Makes copies of files copies by pieces, on each file system.
    #[cfg(test)]
    pub(super) fn never_clones(&mut self) {
        self.clones = false;
    }

    /// Makes the log refuse records from now on, or accept them again.
    #[cfg(test)]
    pub(super) fn refuse_records(&self, refuses: bool) {
        let file = private().read(true).write(!refuses).open(self.dir.join("log")).unwrap();
        self.log.lock().file = Arc::new(file);
    }

    /// Moves a file to `kept/`. Returns the new path.
    pub(super) fn keep(
        &self,
        file: u64,
        key: Option<&str>,
        why: String,
        is_partial: bool,
    ) -> io::Result<PathBuf> {
        let kept =
            keep((&self.dir, &self.disk), &self.clock, file, &self.mount.bucket, key, why, is_partial)?;
        // The file is in `kept/` from here on, even if a later step fails. While a loss of power could undo the move, the log still names
        // the file.
        let forgotten = sync_one((&self.dir, &self.disk), &kept).and_then(|()| self.is_away(file));
        if let Err(error) = forgotten {
            tracing::warn!(
                "{}: the disk of the stage failed a sync: {error}; a loss of power could move the file back to files/",
                kept.file.display()
            );
        }
        if self.kept.add(&kept.file)
            && let Err(error) = self.may_grow()
        {
            tracing::error!("{error}");
        }
        Ok(kept.file)
    }
}

impl Log {
    /// Replaces the log by a new, durable one that describes these files.
    fn create(dir: &Path, names: &Names, mount: &log::Mount, next: u64, files: Files) -> io::Result<Self> {
        // Names first: a deleted name must not come back without a record.
        names.sync()?;
        let path = dir.join("log.new");
        let disk = &names.disk;
        let made = Self::write(disk, &path, mount, next, files).and_then(|log| {
            disk.rename(&path, &dir.join("log"))?;
            disk.sync_all(&File::open(dir)?)?;
            Ok(log)
        });
        if made.is_err() {
            // Half a log would only take room on a full disk.
            let _ = disk.remove(&path);
        }
        made
    }

    fn write(disk: &Disk, path: &Path, mount: &log::Mount, next: u64, before: Files) -> io::Result<Self> {
        let file = Arc::new(disk.open(private().write(true).create(true).truncate(true), path)?);
        let mut log = Self {
            disk: disk.clone(),
            file,
            len: 0,
            number: 0,
            written: 0,
            next,
            files: Files::default(),
            is_broken: false,
            anew_at: LOG_MAX,
            reserved: 0,
        };
        log.append(&[Record::Mount(mount.clone())])?;
        let records: Vec<_> = before.records().collect();
        log.append(&records)?;
        disk.sync_data(&log.file)?;
        Ok(log)
    }

    /// Puts zeros on the disk for later records, if there is room; otherwise they take from the room that is left.
    fn reserve(&mut self) {
        let (from, to) = (self.reserved.max(self.len), self.len + LOG_AHEAD);
        if from >= to - LOG_AHEAD / 2 {
            return;
        }
        let keeps_size = rustix::fs::FallocateFlags::KEEP_SIZE;
        let has_room = rustix::fs::fallocate(&self.file, keeps_size, from, to - from).is_ok();
        if has_room && self.disk.write(&self.file, &ZEROS[..(to - from) as usize], from).is_ok() {
            self.reserved = to;
        }
    }

    fn write_anew(&mut self, dir: &Path, names: &Names, mount: &log::Mount) -> io::Result<()> {
        let anew = Self::create(dir, names, mount, self.next, Files::of_records(self.files.records()))?;
        *self = Self { written: self.written + 1, ..anew };
        Ok(())
    }

    fn append(&mut self, records: &[Record]) -> io::Result<()> {
        let frames: Vec<u8> =
            records.iter().zip(self.number..).flat_map(|(record, number)| record.frame(number)).collect();
        if let Err(error) = self.disk.write(&self.file, &frames, self.len) {
            // A partial frame would hide all later ones.
            self.disk.set_len(&self.file, self.len)?;
            self.reserved = self.len;
            return Err(error);
        }
        self.number += records.len() as u64;
        self.written += records.len() as u64;
        self.len += frames.len() as u64;
        self.reserve();
        records.iter().for_each(|record| self.files.add(record));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
