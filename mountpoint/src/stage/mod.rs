//! A local disk in front of the bucket (`--mode full`): holds files that programs change at any place, until the bucket has them.
//!
//! Enters: bytes at any offset, sizes, a key. Leaves: those bytes at once, for every reader of this mount; one whole object, sent under a
//! condition; or a file in `kept/` and its name. The room makes objects of whole files only, and never replaces a version that this mount did
//! not see. It knows neither inodes nor handles nor errno.

mod ahead;
mod copying;
mod directories;
mod disk;
mod error;
mod folder;
mod going;
mod image;
mod kept;
mod lease;
mod lending;
mod lent;
mod live;
mod log;
mod parts;
mod pieces;
mod queue;
mod reading;
mod recover;
mod resolve;
mod rest;
mod runs;
mod seek;
mod send;
mod staged;
mod sync;
mod trial;
mod turn;

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

pub use error::Error;
pub use kept::{Kept, KeptFiles, kept_in};
pub use lending::Loan;
pub use queue::Queue;
pub use rest::Rest;
pub use seek::Seek;
pub use staged::Staged;
pub use turn::Turn;

use crate::buffer::Pool;
use crate::clock::Clock;
use crate::first::First;
use crate::object::{ObjectId, ObjectKey};
use crate::prefetch::Prefetcher;
use crate::sync::{Arc, Mutex};
use crate::upload::Uploader;
use folder::Folder;
use recover::Pending;

/// Most syncs at once of files after their last close. Doubling it lets a fast disk take more of them together, and keeps more threads
/// waiting.
const SYNCS_MAX: usize = 8;

/// Longest wait of a synced file for the sync of the log, while longer files of the same pass are synced. Doubling it spares syncs of the
/// log, and a loss of power takes the files of twice the time.
const LOG_EVERY: Duration = Duration::from_secs(1);

/// The place that close and fsync wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Commit {
    /// Both wait for the bucket.
    #[default]
    Close,
    /// close waits for nothing, fsync for the bucket.
    Fsync,
    /// close waits for nothing, fsync for the local disk.
    Disk,
}

impl Commit {
    /// Whether files are sent after their last close, not during it.
    pub fn is_deferred(self) -> bool {
        self != Self::Close
    }
}

/// The settings of a stage.
#[derive(Clone, Debug)]
pub struct Config {
    /// The directory (`--stage`), which belongs to this mount alone.
    pub dir: PathBuf,
    /// Most bytes of all files in the stage (`--stage-size`). Doubling it takes twice the disk.
    pub size_max: u64,
    /// The bucket, for the names of kept files.
    pub bucket: String,
    /// The mounted part of the bucket.
    pub prefix: String,
    /// The URL of the store.
    pub endpoint: String,
    /// The place that close and fsync wait for.
    pub commit: Commit,
    /// Whether the kernel may get files to write (`--stage-passthrough auto`).
    pub lends: bool,
    /// Whether the process may ask for no lease of a file, since it is confined.
    pub is_confined: bool,
}

/// The staged files of one mount. Clones are the same stage.
#[derive(Clone, Debug)]
pub struct Area(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    folder: Folder,
    uploader: Uploader,
    prefetcher: Prefetcher,
    pool: Pool,
    runtime: tokio::runtime::Handle,
    /// Locked by the task whose thread syncs the log.
    syncing: tokio::sync::Mutex<()>,
    /// Files of an earlier mount, until [`Area::take_left`] hands them out.
    pending: Mutex<Vec<Pending>>,
}

impl Shared {
    /// Makes all earlier records of the log durable. Sends at once wait for one thread, and one sync serves all that began before it.
    async fn sync_log(self: &Arc<Self>) -> std::io::Result<()> {
        let records = self.folder.records();
        let _one_at_a_time = self.syncing.lock().await;
        if self.folder.is_durable(records) {
            return Ok(());
        }
        let shared = Arc::clone(self);
        let synced = self.runtime.spawn_blocking(move || shared.folder.sync_log());
        synced.await.map_err(std::io::Error::other)?
    }

    /// Counts the kept files again, on another thread, if the last count is too old.
    fn count_kept(self: &Arc<Self>) {
        if self.folder.is_to_count_kept() {
            let shared = Arc::clone(self);
            drop(self.runtime.spawn_blocking(move || shared.folder.count_kept()));
        }
    }
}

/// A file that an earlier mount left for this mount to store.
#[derive(Debug)]
pub struct Left {
    /// The file.
    pub staged: Arc<Staged>,
    /// Time of the file's last change.
    pub modified: SystemTime,
}

/// The object of which a staged file begins as a copy.
#[derive(Debug)]
pub struct Base {
    /// The version of the object.
    pub id: ObjectId,
    /// The object's size in bytes.
    pub size: u64,
    /// First bytes that came with the open.
    pub first: Option<First>,
}

impl Area {
    /// Opens the directory. Files of an earlier mount wait to be stored ([`Area::take_left`]), or move to `kept/`; the log names each
    /// kept file.
    ///
    /// # Errors
    /// The directory can't be used, another mount has it, or its files belong to another bucket or prefix.
    pub fn open(
        config: Config,
        uploader: Uploader,
        prefetcher: Prefetcher,
        pool: Pool,
        clock: Clock,
        runtime: tokio::runtime::Handle,
    ) -> anyhow::Result<Self> {
        let Config { dir, size_max, bucket, prefix, endpoint, commit, lends, is_confined } = config;
        let boot = procfs::sys::kernel::random::boot_id().unwrap_or_default();
        let mount = log::Mount { bucket, prefix, endpoint, boot, commit, lends: lends && !is_confined };
        let (folder, left, pending) = Folder::open(&dir, mount, size_max, clock)?;
        let folder = if is_confined { folder.without_leases() } else { folder };
        for kept in left {
            let key = kept
                .key
                .as_deref()
                .map_or_else(|| "a file of unknown name".to_owned(), |key| format!("{key:?}"));
            let part = if kept.is_partial { "; only the bytes that were written are in it" } else { "" };
            tracing::error!(
                "{key} was not stored before an earlier mount ended: what was written is in {}{part}",
                kept.file.display()
            );
        }
        let KeptFiles { files, bytes } = folder.kept_files();
        if files > 0 {
            tracing::warn!(
                "kept/ of the stage has {files} files of {bytes} bytes that could not be stored: 'mount-s3-ctl kept {}' lists them",
                dir.display()
            );
        }
        let pending = Mutex::new(pending);
        let syncing = tokio::sync::Mutex::default();
        Ok(Self(Arc::new(Shared { folder, uploader, prefetcher, pool, runtime, syncing, pending })))
    }

    /// The place that close and fsync wait for.
    pub fn commit(&self) -> Commit {
        self.0.folder.commit()
    }

    /// Takes the files that an earlier mount left for this mount to store. A second call returns none.
    pub fn take_left(&self) -> Vec<Left> {
        let pending = std::mem::take(&mut *self.0.pending.lock());
        let left = |pending: Pending| {
            let modified = pending.modified;
            Left { staged: Arc::new(Staged::pending(Arc::clone(&self.0), pending)), modified }
        };
        pending.into_iter().map(left).collect()
    }

    /// Makes these files durable, and deletes files without use.
    ///
    /// # Errors
    /// `Disk`: names or records of the files are not durable. A file whose own sync failed is kept, and the log names it.
    pub async fn sync_all(&self, files: Vec<Arc<Staged>>) -> Result<(), Error> {
        let (mut syncs, clock) = (JoinSet::new(), self.0.folder.clock().clone());
        let (shared, names) = (Arc::clone(&self.0), files.iter().map(|staged| staged.names).max());
        // One sync for the names of all. Files whose name has one already are synced even if it fails.
        let named = self.0.runtime.spawn_blocking(move || shared.folder.sync_names(names.unwrap_or(0)));
        let named = named.await.map_err(std::io::Error::other)?;
        // Each thread takes the next file once it has synced one: a hand-over of each would cost more than the sync of a small file.
        let threads = files.len().min(SYNCS_MAX);
        let files = Arc::new(Mutex::new(files.into_iter()));
        for _ in 0..threads {
            let files = Arc::clone(&files);
            let next = move || files.lock().next();
            let sync = move || {
                while let Some(staged) = next() {
                    if let Err(error) = staged.sync_bytes() {
                        tracing::debug!(%error, "a file of the stage could not be synced behind its last close");
                    }
                }
            };
            syncs.spawn_blocking_on(sync, &self.0.runtime);
        }
        let mut log_due = clock.now() + LOG_EVERY;
        loop {
            let left = log_due.saturating_duration_since(clock.now());
            let ended = clock.timeout(left, syncs.join_next()).await;
            if matches!(ended, Some(None)) {
                break;
            }
            if clock.now() >= log_due {
                // The sync after the last file tries again.
                drop(self.0.sync_log().await);
                log_due = clock.now() + LOG_EVERY;
            }
        }
        let shared = Arc::clone(&self.0);
        let swept = self.0.runtime.spawn_blocking(move || {
            // One sync for the records of all these files.
            shared.folder.sync_log()?;
            shared.folder.sweep()
        });
        swept.await.map_err(std::io::Error::other)??;
        Ok(named?)
    }

    /// Makes the names of staged files durable, as programs gave them.
    ///
    /// # Errors
    /// `Disk`.
    pub async fn sync_names(&self) -> Result<(), Error> {
        let shared = Arc::clone(&self.0);
        let synced = self.0.runtime.spawn_blocking(move || {
            shared.folder.sync_names(shared.folder.names_made())?;
            shared.folder.sync_log()
        });
        Ok(synced.await.map_err(std::io::Error::other)??)
    }

    /// Makes a staged file for `key`: a new one, or a copy of `base` at first.
    ///
    /// # Errors
    /// The errors of the disk.
    pub async fn create(&self, key: ObjectKey, base: Option<Base>) -> Result<Arc<Staged>, Error> {
        let shared = Arc::clone(&self.0);
        // Making one empty file is about as much work as handing it to another thread.
        if base.is_none() {
            return Ok(Arc::new(self.on_disk(|| Staged::create(shared, key, None))?));
        }
        let made = self.0.runtime.spawn_blocking(move || Staged::create(shared, key, base));
        Ok(Arc::new(made.await.map_err(std::io::Error::other)??))
    }

    /// Does a little work on the disk. A worker of the runtime hands its other tasks on first: the disk may hang.
    pub fn on_disk<T>(&self, work: impl FnOnce() -> T) -> T {
        match self.0.runtime.runtime_flavor() {
            tokio::runtime::RuntimeFlavor::MultiThread => tokio::task::block_in_place(work),
            _ => work(),
        }
    }

    /// Makes the disk answer this number of calls, and hold those behind. Returns the number of calls before the first one that waits.
    #[cfg(test)]
    pub(crate) fn hold_disk_behind(&self, calls: u64) -> u64 {
        let free = self.disk_calls() + calls;
        self.0.folder.disk().hold(free + 1..u64::MAX);
        free
    }

    /// Number of calls of the disk so far, with those that wait.
    #[cfg(test)]
    pub(crate) fn disk_calls(&self) -> u64 {
        self.0.folder.disk().calls()
    }

    /// Makes each call of the disk wait, or all of them go on.
    #[cfg(test)]
    pub(crate) fn hold_disk(&self, waits: bool) {
        self.0.folder.disk().hold(if waits { 0..u64::MAX } else { 0..0 });
    }

    /// Whether files wait for [`Area::sync_all`] to be deleted.
    pub fn is_to_sweep(&self) -> bool {
        self.0.folder.is_to_sweep()
    }

    /// The runtime on which calls wait.
    pub fn runtime(&self) -> &tokio::runtime::Handle {
        &self.0.runtime
    }

    /// Whether the files in the stage have no room for more bytes.
    pub fn is_full(&self, more: u64) -> bool {
        !self.0.folder.has_room(more)
    }

    /// The files in `kept/`, as of a moment ago: a call begins a count, where the last one is too old.
    pub fn kept(&self) -> KeptFiles {
        self.0.count_kept();
        self.0.folder.kept_files()
    }

    /// The directory of the stage, and the most bytes of its files.
    pub fn place(&self) -> (&Path, u64) {
        self.0.folder.place()
    }

    /// Bytes of the files in the stage.
    pub fn used(&self) -> u64 {
        self.0.folder.used()
    }
}

#[cfg(test)]
pub(crate) mod tests;
