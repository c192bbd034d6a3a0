//! Uploads: an open file becomes one object.
//!
//! Enters: written bytes in order, or a little beyond the end, borrowed for the length of a call. Leaves: one PutObject, or a multipart
//! upload with parallel parts, and then the metadata of the new object; or an error that every later call returns. Nothing is visible
//! before [`Upload::finish`]. A writer is slowed down only by a held reply: no thread of a caller waits for the network or for memory. This
//! room knows no inode, no handle and no errno.

mod ahead;
mod append;
mod early;
mod error;
mod filling;
mod finish;
mod hold;
mod journal;
mod memory;
mod multipart;
mod part;
mod patch;
mod plan;
mod reclaim;
mod size;
mod spill;
mod stage;
#[expect(clippy::module_inception, reason = "the room is named for its one noun")]
mod upload;

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot, watch};
use tracing::{debug, info, warn};

pub use ahead::Ahead;
pub use append::Behind;
pub use error::Error;
pub use hold::Hold;
pub use journal::Config as JournalConfig;
pub use patch::Patch;
pub use reclaim::Reclaim;
pub use stage::{Closer, Decision, Event, Stage};
pub use upload::{Upload, WriteDone};

use crate::buffer::{Block, Pool};
use crate::checksum::{Checksum, ChecksumAlgorithm};
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::object::{ObjectId, ObjectKey, ObjectMeta};
use crate::s3::{ErrorKind, NewObject, ObjectClient, PartLimits, Properties, Replaces, UploadId};
use crate::supervise::Supervisor;
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use crate::sync::{Arc, Mutex, Weak};
use journal::{Entry, Journal, Left};
use memory::{Counted, Memory};
use part::SealedBody;
use spill::Choice;

/// Pause of the spiller after the disk refused a part.
const SPILL_AGAIN: Duration = Duration::from_secs(5);
/// Refused aborts in a row after which the other uploads are left to the next mount: a policy may refuse all of them.
const REFUSED_MAX: u32 = 100;
/// Longest wait for the journal entry of an upload: the state directory may be on a dead network. Beyond it the upload goes on without an
/// entry. Doubling it allows slower disks, and delays a file that much longer if the disk is dead.
const NOTE_WITHIN: Duration = Duration::from_secs(5);

/// Most released files that are stored at once, not counting those for which a close() or fsync() waits. Others wait in a queue: with more
/// at once, they would only wait for a connection, and time out there. Doubling it stores many empty files sooner on a distant store.
const UNAWAITED_MAX: usize = 64;

/// Settings of uploads.
#[derive(Clone, Debug)]
pub struct Config {
    /// Size of the first 1000 parts in bytes (`--write-part-size`); later ones grow so that 5 TiB fit. Limited to what the memory budget
    /// can always serve. Doubling it halves the requests and doubles the memory of a writer.
    pub part_size: u64,
    /// Whether the user named the part size. Then it is used also on a store that wants equal parts.
    pub part_size_named: bool,
    /// Most parts of one file in flight. At the limit the writer waits, or fills more parts on disk if too many writes are held. Doubling
    /// it helps one writer on a long line, and takes memory from the others.
    pub parts_in_flight_max: usize,
    /// Checksum that is sent with the bytes, so the store refuses damaged ones. With `None` only the engine itself compares the bytes.
    pub checksum: Option<ChecksumAlgorithm>,
    /// Directory for spilled parts, used while other writers wait for memory. `None`: the parts stay in memory, and the writers wait.
    pub spill_dir: Option<PathBuf>,
    /// Frees space of another user of that directory's disk when the disk is full; `None`: there is no other user.
    pub reclaim: Option<Reclaim>,
    /// Most parts on disk at once, each an open file (`ulimit -n`). At the limit parts stay in memory, and their writers wait. Doubling it
    /// takes file descriptors from connections and the cache.
    pub spill_files_max: u64,
    /// Longest wait of a write for memory while no part is in flight; beyond it the write fails. Doubling it bridges longer shortages, and
    /// delays the error.
    pub wait_max: Duration,
    /// The journal, with which the next mount finds the multipart uploads of a killed process; `None`: no journal.
    pub journal: Option<JournalConfig>,
    /// Returns the MIME type for a new object; `None` leaves it to the store.
    pub content_type: fn(&ObjectKey) -> Option<String>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            part_size: 8 << 20,
            part_size_named: false,
            parts_in_flight_max: 16,
            checksum: Some(ChecksumAlgorithm::Crc32c),
            spill_dir: None,
            reclaim: None,
            spill_files_max: 512,
            wait_max: Duration::from_secs(60),
            journal: None,
            content_type: |_| None,
        }
    }
}

/// Creates uploads; one per mount.
#[derive(Clone, Debug)]
pub struct Uploader(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    client: Arc<dyn ObjectClient>,
    config: Config,
    clock: Clock,
    metrics: Arc<Metrics>,
    runtime: tokio::runtime::Handle,
    memory: Arc<Memory>,
    journal: Option<Arc<Journal>>,
    open: Mutex<Vec<Weak<Upload>>>,
    /// Permits to store files for which no program waits.
    unawaited: Semaphore,
    /// Permits for uploads that begin before their file is complete.
    ahead: Arc<Semaphore>,
    /// Number of uploads that are being aborted, mostly after their handle is closed.
    aborting: watch::Sender<usize>,
    /// Whether the store has refused to copy a part.
    refuses_copies: AtomicBool,
    copying: Copying,
}

/// The copies of parts that the store makes: those in flight, and their count.
#[derive(Debug, Default)]
struct Copying {
    under_way: AtomicUsize,
    /// Number of copies that the store has completed.
    finished: AtomicU64,
}

impl Copying {
    /// Counts one copy in flight, until the guard is dropped.
    fn begin(&self) -> impl Drop + use<'_> {
        self.under_way.fetch_add(1, Relaxed);
        CopyUnderWay(self)
    }

    /// Counts one copy that the store has completed.
    fn finished(&self) {
        self.finished.fetch_add(1, Relaxed);
    }
}

struct CopyUnderWay<'a>(&'a Copying);

impl Drop for CopyUnderWay<'_> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Relaxed);
    }
}

impl Uploader {
    /// An uploader to the client's bucket. The tasks run on `runtime`; all memory for parts comes from `pool`.
    pub fn new(
        client: Arc<dyn ObjectClient>,
        pool: Pool,
        mut config: Config,
        clock: Clock,
        metrics: Arc<Metrics>,
        runtime: tokio::runtime::Handle,
    ) -> Self {
        config.parts_in_flight_max = config.parts_in_flight_max.max(1);
        let (wait_max, files_max) = (config.wait_max, config.spill_files_max);
        let memory = Arc::new(Memory::new(pool, clock.clone(), wait_max, files_max, config.reclaim.take()));
        if config.part_size > memory.part_max() {
            warn!(
                asked = config.part_size,
                used = memory.part_max(),
                "write part size cut to what the memory target can always serve: raise --memory-target for larger parts"
            );
        }
        let journal = config.journal.take().and_then(open_journal);
        let open = Mutex::default();
        let aborting = watch::Sender::new(0);
        let unawaited = Semaphore::new(UNAWAITED_MAX);
        let ahead = Arc::new(Semaphore::new(ahead::AHEAD_MAX));
        let shared = Arc::new(Shared {
            client,
            config,
            clock,
            metrics,
            runtime,
            memory,
            journal,
            open,
            unawaited,
            ahead,
            aborting,
            refuses_copies: AtomicBool::new(false),
            copying: Copying::default(),
        });
        if shared.config.spill_dir.is_some() {
            let supervisor = Supervisor { metrics: Arc::clone(&shared.metrics), clock: shared.clock.clone() };
            let (uploads, wake) = (Arc::downgrade(&shared), shared.memory.spiller());
            supervisor.task(&shared.runtime, "the spiller", move || {
                spill_when_starved(uploads.clone(), Arc::clone(&wake))
            });
        }
        Self(shared)
    }

    /// Creates an upload to `key`, which has no memory and sends no request yet. With `only_if_absent` it fails at its end (`Exists`) if an
    /// object exists.
    pub fn create(&self, key: ObjectKey, only_if_absent: bool) -> Arc<Upload> {
        self.replace(key, if only_if_absent { Replaces::Nothing } else { Replaces::Anything })
    }

    /// Creates an upload to `key` that replaces only the given version.
    pub fn replace(&self, key: ObjectKey, replaces: Replaces) -> Arc<Upload> {
        let upload = Arc::new(Upload::new(Arc::clone(&self.0), self.0.object(key, replaces), None));
        self.0.open.lock().push(Arc::downgrade(&upload));
        upload
    }

    /// The metadata of the object under a key; `None` if there is no object.
    ///
    /// # Errors
    /// `Remote`: an error of the store.
    pub async fn look(&self, key: &ObjectKey) -> Result<Option<ObjectMeta>, Error> {
        match self.0.client.head_object(key).await {
            Ok(meta) => Ok(Some(meta)),
            Err(error) if *error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Creates an upload that appends to this version of an object. Also returns the object, of which the caller must first write the bytes
    /// of [`Behind::fetched`].
    ///
    /// # Errors
    /// `Remote`: `Changed` if the object has another version by now, `Unsupported` if the store has refused to copy a part, or an error of
    /// the store. `TooLarge`: the object has as many parts as the store takes.
    pub async fn append(&self, id: &ObjectId) -> Result<(Arc<Upload>, Behind), Error> {
        let behind = Behind::look(&self.0, id).await?;
        let object = NewObject {
            properties: behind.properties.clone(),
            replaces: Replaces::Version(id.etag.clone()),
            checksum: self.0.config.checksum,
            ..NewObject::new(id.key.clone())
        };
        let upload = Arc::new(Upload::new(Arc::clone(&self.0), object, Some(behind.clone())));
        self.0.open.lock().push(Arc::downgrade(&upload));
        Ok((upload, behind))
    }

    /// Aborts, in the background, the uploads to this bucket that killed processes left behind.
    pub fn abort_left_behind(&self) {
        let shared = Arc::clone(&self.0);
        let Some(journal) = shared.journal.clone() else { return };
        self.0.runtime.spawn(async move {
            let now = shared.clock.wall();
            let of_search = Arc::clone(&journal);
            let mut search = match shared.runtime.spawn_blocking(move || of_search.search(now)).await {
                Ok(Ok(search)) => search,
                Ok(Err(error)) => return debug!(%error, "the journal of uploads can't be read"),
                Err(_) => return,
            };
            let mut aborted = Aborted::default();
            loop {
                let journal = Arc::clone(&journal);
                let found = shared.runtime.spawn_blocking(move || (journal.left_behind(&mut search), search));
                let Ok((left, rest)) = found.await else { break };
                search = rest;
                if left.is_empty() || !shared.abort_all(left, &mut aborted).await {
                    break;
                }
            }
            aborted.say();
        });
    }

    /// Bytes moved to and from the store so far, as in [`ObjectClient::moved`].
    pub fn moved(&self) -> u64 {
        self.0.client.moved()
    }

    /// Whether the store is copying parts, which moves no bytes between it and the mount.
    pub fn is_copying(&self) -> bool {
        self.0.copying.under_way.load(Relaxed) > 0
    }

    /// Number of parts that the store has copied so far.
    pub fn copied(&self) -> u64 {
        self.0.copying.finished.load(Relaxed)
    }

    /// Stores all files that wait in the queue at once, because the mount ends.
    pub fn ends(&self) {
        self.0.unawaited.close();
    }

    /// Returns when no abort is in flight. An abort goes on in the background after its file was closed.
    pub async fn aborted(&self) {
        // The sender is a field of `self`, so the channel is open.
        _ = self.0.aborting.subscribe().wait_for(|count| *count == 0).await;
    }
}

impl Shared {
    /// The object that a file becomes under this key.
    fn object(&self, key: ObjectKey, replaces: Replaces) -> NewObject {
        let content_type = (self.config.content_type)(&key);
        NewObject {
            properties: Properties { content_type, ..Properties::default() },
            replaces,
            checksum: self.config.checksum,
            ..NewObject::new(key)
        }
    }

    /// The algorithm of checksums. The engine compares checksums even if none are sent.
    fn algorithm(&self) -> ChecksumAlgorithm {
        self.config.checksum.unwrap_or_default()
    }

    /// Writes the journal entry of this upload, if there is a journal. If that fails or takes too long, the first failure is logged, and
    /// the upload goes on without an entry.
    async fn note(&self, upload: &UploadId) -> Option<Entry> {
        let journal = Arc::clone(self.journal.as_ref()?);
        if journal.is_late() {
            return None;
        }
        let (of_task, upload) = (Arc::clone(&journal), upload.clone());
        let (send, mut noted) = oneshot::channel();
        self.runtime.spawn_blocking(move || {
            if let Err(noted) = send.send(of_task.note(&upload)) {
                // An unlocked entry would show other mounts an upload of a dead process.
                noted.into_iter().for_each(Entry::remove);
                of_task.set_late(false);
            }
        });
        let in_time = self.clock.timeout(NOTE_WITHIN, &mut noted).await;
        let noted = match in_time {
            Some(answer) => answer.unwrap_or_else(|_| Err(std::io::Error::other("a panic ended it"))),
            None => {
                // The order matters: an entry that is sent after `close` finds no receiver, and its task notes that the disk has answered.
                journal.set_late(true);
                noted.close();
                let came = noted.try_recv().inspect(|_| journal.set_late(false));
                came.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
            }
        };
        match noted {
            Ok(entry) => Some(entry),
            Err(error) => {
                if journal.fails_first() {
                    warn!(dir = %journal.dir().display(), %error, "uploads can't be noted in --state-dir: those under way when this process is killed stay in the store");
                }
                None
            }
        }
    }

    /// Removes the entry of an ended upload, without waiting for the disk.
    fn forget(&self, entry: Option<Entry>) {
        if let Some(entry) = entry {
            self.runtime.spawn_blocking(move || entry.remove());
        }
    }

    /// Aborts uploads one after the other. Stops if the store is down, or after [`REFUSED_MAX`] refusals in a row. Returns whether to go on
    /// with the next uploads.
    async fn abort_all(&self, left: Vec<Left>, aborted: &mut Aborted) -> bool {
        aborted.all += left.len();
        for Left { upload, entry } in left {
            let Err(error) = self.client.abort_multipart_upload(&upload).await else {
                self.metrics.uploads_aborted.inc();
                debug!(key = %upload.key, upload = upload.id, "an upload that was left behind is aborted");
                self.forget(Some(entry));
                (aborted.done, aborted.refused) = (aborted.done + 1, 0);
                continue;
            };
            aborted.refused += 1;
            let is_refusal = matches!(error.kind(), ErrorKind::Denied | ErrorKind::InvalidRequest);
            aborted.last = Some(error);
            if !is_refusal || aborted.refused == REFUSED_MAX {
                return false;
            }
        }
        true
    }

    /// Size of part `number`, in bytes, on a store with these limits.
    fn part_size(&self, number: u32, limits: PartLimits) -> u64 {
        let base = match self.config.part_size.max(1) {
            named if self.config.part_size_named || !limits.are_equal => named,
            base => size::equal_part(base, self.memory.sure(), limits),
        };
        size::part_size(number, base, limits).min(self.memory.part_max())
    }

    /// The bytes of a sealed part, in memory, and the guard that counts the part as in flight. A spilled part is read back once its memory
    /// is reserved.
    async fn load(
        &self,
        body: SealedBody,
        len: u64,
        checksum: Checksum,
    ) -> Result<(Vec<Block>, Counted), Error> {
        let file = match body {
            SealedBody::Memory(blocks) => return Ok((blocks, self.memory.sending())),
            SealedBody::Spilled(file) => file,
        };
        let reservation = self.memory.wait_to_send(size::charges(len)).await;
        let sending = self.memory.sending();
        let read = self.runtime.spawn_blocking(move || file.read_back(reservation, checksum));
        let blocks = read.await.map_err(|e| Error::from(std::io::Error::other(e)))??;
        Ok((blocks, sending))
    }

    /// Chooses the upload whose part is spilled next.
    fn choose(&self) -> Choice<Arc<Upload>> {
        let now = self.clock.now();
        // The locks are taken one after the other, never nested.
        let open = self.open.lock().clone();
        spill::choose(
            open.iter().filter_map(Weak::upgrade).filter_map(|u| u.idle_since().map(|since| (u, since))).map(
                |(upload, since)| {
                    let idle = now.saturating_duration_since(since);
                    (upload, idle)
                },
            ),
        )
    }
}

/// Opens the journal; `None`, and a log line, if the directory can't be used.
fn open_journal(config: JournalConfig) -> Option<Arc<Journal>> {
    let (dir, asked) = (config.dir.clone(), config.asked);
    let error = match Journal::open(config) {
        Ok(journal) => return Some(Arc::new(journal)),
        Err(error) => error,
    };
    let dir = dir.display();
    let means = "uploads under way when this process is killed stay in the store";
    if asked {
        warn!(
            "--state-dir {dir} can't be used ({error}): {means}; give a directory that this user can write"
        );
    } else {
        info!("{dir} can't be used ({error}): {means}; --state-dir names another directory");
    }
    None
}

/// The spiller: while writers wait and no part is in flight, moves the part that has been idle longest to disk.
async fn spill_when_starved(uploads: Weak<Shared>, wake: Arc<tokio::sync::Notify>) {
    loop {
        let Some(shared) = uploads.upgrade() else { return };
        let pause = if shared.memory.starved() {
            match shared.choose() {
                Choice::Spill(upload) => match upload.spill().await {
                    Ok(()) => continue,
                    Err(error) => {
                        warn!(%error, dir = ?shared.config.spill_dir, "can't spill: writers wait for memory instead");
                        Some(SPILL_AGAIN)
                    }
                },
                Choice::Wait(pause) => Some(pause),
                Choice::Nobody => None,
            }
        } else {
            None
        };
        match pause {
            Some(pause) => shared.clock.sleep(pause).await,
            None => {
                drop(shared);
                wake.notified().await;
            }
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.memory.wake_spiller();
    }
}

/// The counts of aborted uploads of dead processes.
#[derive(Debug, Default)]
struct Aborted {
    all: usize,
    done: usize,
    /// Refusals in a row.
    refused: u32,
    last: Option<crate::s3::Error>,
}

impl Aborted {
    fn say(self) {
        let Self { all, done, last, .. } = self;
        match last {
            None if all == 0 => {}
            None => info!("aborted {all} uploads that a killed mount-s3 left behind"),
            Some(error) => {
                warn!(%error, "aborted {done} of {all} uploads that a killed mount-s3 left behind; the next mount tries the others again");
            }
        }
    }
}
