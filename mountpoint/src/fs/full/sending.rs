//! Files that are sent after their last close, and markers of new directories (`--commit fsync` and `disk`): when, how many at once, and
//! what a failure means.
//!
//! The mount gives up no waiting file: it sends the file again and again until the file is stored, another client's version wins, or the
//! mount ends; then the next mount continues.

use std::time::{Duration, Instant};

use rustix::io::Errno;
use tokio::sync::{Notify, Semaphore};

use super::Full;
use crate::fs::handle::{HandleNo, Mode};
use crate::fs::{Error, FileSystem, Result};
use crate::inode::InodeNo;
use crate::object::ObjectKey;
use crate::stage::{Queue, Staged};
use crate::sync::atomic::{AtomicBool, Ordering::Relaxed};
use crate::sync::{Arc, Mutex};

/// Files that are sent at once. Doubling it sends many small files sooner, and takes twice the connections from programs that read.
pub(super) const SENDS_MAX: usize = 64;
/// Longest wait of a write to a full stage for room; then ENOSPC. Doubling it lets a program outlast a longer outage of the store, and
/// delays the error of a program that could handle it.
const ROOM_WITHIN: Duration = Duration::from_secs(60);
/// Longest wait of closed files for a sync to the local disk. Doubling it syncs fewer files that soon disappear, and a loss of power
/// loses the files closed in twice the time.
const SYNC_EVERY: Duration = Duration::from_secs(1);

/// Longest time for which the disk keeps files that lost their name before their last close, if nothing else is synced. Doubling it wakes
/// an idle mount half as often, and delays the room.
const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// The files that wait to be sent.
#[derive(Debug)]
pub(super) struct Sending {
    queue: Mutex<Queue>,
    /// Rung when another file becomes the next one that is due, or a send ends.
    bell: Notify,
    /// Rung when a changed file is closed.
    to_sync: Notify,
    /// Rung by each send that ends, and each file that leaves the stage: it may have room.
    room: Notify,
    turns: Arc<Semaphore>,
    /// The last send failed, and the log says so.
    is_failing: AtomicBool,
    /// The mount ends.
    is_over: AtomicBool,
}

impl Default for Sending {
    fn default() -> Self {
        Self {
            queue: Mutex::default(),
            bell: Notify::new(),
            to_sync: Notify::new(),
            room: Notify::new(),
            turns: Arc::new(Semaphore::new(SENDS_MAX)),
            is_failing: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
        }
    }
}

impl Sending {
    /// Queues a file that an earlier mount left.
    pub(super) fn left(&self, ino: InodeNo, now: Instant) {
        self.queue.lock().hurry(ino.0, now);
        self.to_sync.notify_one();
    }

    /// The time since which the oldest change waits.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.queue.lock().oldest()
    }

    /// Wakes programs that wait for room, or for a place, in the stage.
    pub(super) fn room_came(&self) {
        self.room.notify_waiters();
    }

    /// Ends the sending: only sends under way go on.
    pub(super) fn end(&self) {
        self.is_over.store(true, Relaxed);
        self.bell.notify_one();
        self.to_sync.notify_one();
    }

    /// Returns once no send is under way. Call [`Sending::end`] before.
    pub(super) async fn ended(&self) {
        // An error would mean that the turns were closed, which nothing does.
        drop(self.turns.acquire_many(SENDS_MAX as u32).await);
    }
}

impl Full {
    /// Ends the sending.
    #[cfg(test)]
    pub(in crate::fs) fn end_sending(&self) {
        self.sending.end();
    }

    /// Whether no thread holds the lock of all files.
    #[cfg(test)]
    pub(in crate::fs) fn is_free(&self) -> bool {
        self.files.try_lock().is_some()
    }

    /// Takes in that a program opens the file for writing.
    pub(super) fn writer_comes(&self, ino: InodeNo, now: Instant) {
        if let Some(file) = self.files.lock().get_mut(ino) {
            file.writers += 1;
        }
        if self.is_deferred() {
            self.sending.queue.lock().opened(ino.0, now);
        }
    }

    /// Takes in that a program closed the file after writing.
    pub(super) fn writer_goes(&self, ino: InodeNo, staged: &Staged, now: Instant) {
        let is_last = {
            let mut files = self.files.lock();
            let file = files.get_mut(ino);
            let is_last = file.is_none_or(|file| {
                file.writers = file.writers.saturating_sub(1);
                file.writers == 0
            });
            // Under the lock: the next writer finds it closed.
            if is_last && self.is_deferred() {
                staged.closed();
            }
            is_last
        };
        if is_last && self.is_deferred() {
            self.waits(ino, staged, now);
        }
    }

    /// Queues a changed file that no program writes.
    fn waits(&self, ino: InodeNo, staged: &Staged, now: Instant) {
        if staged.is_dirty() {
            // Behind others that are due earlier the file needs no bell, which would wake a thread for each close.
            if self.sending.queue.lock().closed(ino.0, now) {
                self.sending.bell.notify_one();
            }
            self.sending.to_sync.notify_one();
        }
    }

    /// Queues a directory that owes its marker.
    pub(super) fn directory_waits(&self, ino: InodeNo, now: Instant) {
        if self.sending.queue.lock().closed(ino.0, now) {
            self.sending.bell.notify_one();
        }
        self.sending.to_sync.notify_one();
    }

    /// Takes in that a directory owes no marker any more.
    pub(super) fn directory_settled(&self, ino: InodeNo) {
        self.sending.queue.lock().done(ino.0);
        self.sending.to_sync.notify_one();
        self.sending.room_came();
    }

    /// Takes in that a send succeeded.
    fn sent(&self, ino: InodeNo) {
        self.sending.queue.lock().done(ino.0);
        if self.sending.is_failing.swap(false, Relaxed) {
            tracing::info!("files of the stage are stored again");
        }
    }

    /// Takes in that a send failed.
    fn not_sent(&self, ino: InodeNo, key: &ObjectKey, error: &Error, now: Instant) {
        self.sending.queue.lock().failed(ino.0, now);
        if !self.sending.is_failing.swap(true, Relaxed) {
            tracing::warn!(
                "\"{key}\" waits in the stage: {error}; it is tried again until it is stored, and so are others"
            );
        }
    }

    /// Queues a changed file that no program has open, and closes its descriptor meanwhile.
    pub(super) fn rests(&self, ino: InodeNo, staged: &Staged, now: Instant) {
        if self.writers(ino) == 0 {
            self.waits(ino, staged, now);
        }
        if self.users(ino) == 0 {
            staged.rest();
        }
    }

    /// Notes that a program synced a file that it has open.
    pub(super) fn synced(&self, ino: InodeNo, staged: &Staged, now: Instant) {
        if staged.is_dirty() && self.sending.queue.lock().synced(ino.0, now) {
            self.sending.bell.notify_one();
        }
    }

    pub(super) fn writers(&self, ino: InodeNo) -> usize {
        self.files.lock().get(ino).map_or(0, |file| file.writers)
    }

    fn has_place(&self, ino: InodeNo) -> bool {
        let files = self.files.lock();
        files.len() + self.directories.lock().len() < self.files_max || files.get(ino).is_some()
    }

    fn lacks_room(&self, written: &Result<()>, bytes: u64) -> bool {
        written.as_ref().is_err_and(|error| error.errno() == Errno::NOSPC) && self.area.is_full(bytes)
    }

    /// Changed files that no program writes, and that the local disk does not have yet.
    fn unsynced(&self) -> Vec<Arc<Staged>> {
        let closed: Vec<_> = {
            let files = self.files.lock();
            let closed = files.iter().filter(|(_, file)| file.writers == 0);
            closed.map(|(_, file)| Arc::clone(&file.staged)).collect()
        };
        // Without the lock of all files: the answer may wait for the disk.
        closed.into_iter().filter(|staged| !staged.is_synced()).collect()
    }
}

impl FileSystem {
    /// The stage.
    #[cfg(test)]
    pub(in crate::fs) fn area(&self) -> &crate::stage::Area {
        &self.full.as_ref().unwrap().area
    }

    /// Makes each call of the stage's disk wait, or all of them go on.
    #[cfg(test)]
    pub(crate) fn hold_disk(&self, waits: bool) {
        self.full.iter().for_each(|full| full.area.hold_disk(waits));
    }

    /// The runtime for a change of this file, if the change has to wait for the disk.
    pub(in crate::fs) fn waits_for_disk(&self, staged: &Staged) -> Option<&tokio::runtime::Handle> {
        self.full.as_ref().filter(|_| staged.waits_for_disk()).map(|full| full.area.runtime())
    }

    /// The runtime for a failed write of this length, if the stage is full of files that may leave it.
    pub(in crate::fs) fn room_may_come(
        &self,
        written: &Result<()>,
        bytes: u64,
    ) -> Option<&tokio::runtime::Handle> {
        let full = self.full.as_ref().filter(|full| full.is_deferred())?;
        full.lacks_room(written, bytes).then(|| full.area.runtime())
    }

    /// Repeats a write that found the stage full, after files were stored and left the stage.
    ///
    /// # Errors
    /// `NOSPC`: no file left in time, or no file waits for a send.
    pub(in crate::fs) async fn write_once_there_is_room(
        &self,
        handle: HandleNo,
        (offset, data): (u64, Vec<u8>),
        tid: u32,
    ) -> Result<()> {
        let (full, until) = (self.full()?, self.clock.now() + ROOM_WITHIN);
        loop {
            let mut room = std::pin::pin!(full.sending.room.notified());
            room.as_mut().enable();
            let open = self.files.get(handle)?;
            let Mode::Staged(staged) = &open.mode else { return Ok(()) };
            let write = || self.write_staged(&open, staged, (offset, &data), tid);
            let written = full.area.on_disk(write);
            let now = self.clock.now();
            let is_hopeless = || !full.sending.queue.lock().hurry_all(now) || now >= until;
            if !full.lacks_room(&written, data.len() as u64) || is_hopeless() {
                return written;
            }
            full.sending.bell.notify_one();
            if self.clock.timeout(until - now, room).await.is_none() {
                return written;
            }
        }
    }

    /// Waits until the stage takes one more file, unless it has the file already. Programs that wait at once may all enter at one free
    /// place: then the stage has that many files more for a while.
    ///
    /// # Errors
    /// `NOSPC`: no file left in time, or no file waits for a send.
    pub(in crate::fs) async fn wait_for_place(&self, ino: InodeNo) -> Result<()> {
        let (full, until) = (self.full()?, self.clock.now() + ROOM_WITHIN);
        let mut has_hurried = false;
        loop {
            let mut room = std::pin::pin!(full.sending.room.notified());
            room.as_mut().enable();
            if full.has_place(ino) {
                return Ok(());
            }
            let now = self.clock.now();
            let waits = full.is_deferred() && now < until;
            // Once is enough: whatever is closed later goes soon.
            if waits && !std::mem::replace(&mut has_hurried, true) {
                full.sending.queue.lock().hurry_all(now);
                full.sending.bell.notify_one();
            }
            // A file that is being sent may have left the queue, and not the stage yet.
            let is_sending = full.sending.turns.available_permits() < SENDS_MAX;
            if !waits || !is_sending && full.sending.queue.lock().is_empty() {
                let why = format!(
                    "{} files are in the stage, the most that it takes; they leave it when they are stored",
                    full.files_max
                );
                return Err(Error::new(Errno::NOSPC, why));
            }
            self.clock.timeout(until - now, room).await;
        }
    }

    /// Whether files are sent after their last close: then the caller runs [`FileSystem::keep_sending`] and [`FileSystem::keep_syncing`].
    pub fn sends_later(&self) -> bool {
        self.full.as_ref().is_some_and(Full::is_deferred)
    }

    /// Sends files as they become due, until the mount ends.
    pub async fn keep_sending(self: Arc<Self>) {
        let Some(full) = &self.full else { return };
        let sending = &full.sending;
        while !sending.is_over.load(Relaxed) {
            let mut next = None;
            // Each send that ends rings the bell.
            while let Ok(turn) = Arc::clone(&sending.turns).try_acquire_owned() {
                let now = self.clock.now();
                let mut queue = sending.queue.lock();
                let Some(ino) = queue.take(now) else {
                    next = queue.next().map(|due| due.saturating_duration_since(now));
                    break;
                };
                let fs = Arc::clone(&self);
                tokio::spawn(async move {
                    fs.send_one(InodeNo(ino)).await;
                    drop(turn);
                    if let Some(full) = &fs.full {
                        full.sending.bell.notify_one();
                        full.sending.room.notify_waiters();
                        if full.area.is_to_sweep() {
                            full.sending.to_sync.notify_one();
                        }
                    }
                });
            }
            let rung = sending.bell.notified();
            match next {
                Some(wait) => drop(self.clock.timeout(wait, rung).await),
                None => rung.await,
            }
        }
    }

    async fn send_one(&self, ino: InodeNo) {
        let Some(full) = &self.full else { return };
        let queue = &full.sending.queue;
        let owing = full.directories.lock().get(ino);
        if let Some(owing) = owing {
            return match self.store_owed(&owing).await {
                Ok(()) => full.sent(ino),
                Err(error) => full.not_sent(ino, owing.key(), &error, self.clock.now()),
            };
        }
        let Some(staged) = full.find(ino) else { return queue.lock().done(ino.0) };
        let sent = {
            let turn = staged.turn().await;
            if full.pauses.has(&staged.key()) {
                return queue.lock().postponed(ino.0, self.clock.now());
            }
            // A program may have opened the file since and be in the middle of writing it: then the file is sent in its new turn.
            let is_at_rest = || full.writers(ino) == 0 || !queue.lock().is_waiting(ino.0);
            let is_wanted = || !staged.is_sent_in_vain() && is_at_rest();
            let sent = match staged.is_dirty() && is_wanted() {
                true => self.store_staged_while(ino, &staged, &turn, &is_wanted).await,
                false => Ok(()),
            };
            if sent.is_ok() && staged.is_dirty() && !is_wanted() {
                let mut queue = queue.lock();
                // The file may have another name then, and waits on.
                if !queue.is_waiting(ino.0) {
                    queue.postponed(ino.0, self.clock.now());
                }
                return;
            }
            sent
        };
        match sent {
            Ok(()) => {
                full.sent(ino);
                match full.writers(ino) {
                    0 => full.waits(ino, &staged, self.clock.now()),
                    _ => full.synced(ino, &staged, self.clock.now()),
                }
            }
            Err(_) if staged.is_kept() => {
                queue.lock().done(ino.0);
                self.give_name_back(ino, &staged);
            }
            // The kernel lets programs write the file, and they do.
            Err(error) if error.errno() == Errno::BUSY => {
                tracing::debug!("{error}: it waits");
                return queue.lock().restless(ino.0, self.clock.now());
            }
            Err(error) => {
                full.not_sent(ino, &staged.key(), &error, self.clock.now());
                if full.users(ino) == 0 {
                    staged.rest();
                }
                return;
            }
        }
        if full.users(ino) == 0 {
            self.settle_staged(ino, &staged).await;
        }
    }

    /// Syncs closed files to the local disk soon after their last close, until the mount ends.
    pub async fn keep_syncing(self: Arc<Self>) {
        let Some(full) = &self.full else { return };
        let mut has_failed = false;
        while !full.sending.is_over.load(Relaxed) {
            let asked = self.clock.timeout(SWEEP_EVERY, full.sending.to_sync.notified()).await;
            if asked.is_none() && !full.area.is_to_sweep() {
                continue;
            }
            self.clock.sleep(SYNC_EVERY).await;
            let synced = full.area.sync_all(full.unsynced()).await;
            if let Err(error) = &synced {
                if !has_failed {
                    tracing::error!(
                        "what was closed is not safe from a loss of power: {error}; it is tried again"
                    );
                }
                full.sending.to_sync.notify_one();
            }
            has_failed = synced.is_err();
        }
    }

    /// Whether fsync of a directory waits for the local disk.
    pub fn syncs_names(&self) -> bool {
        self.sends_later()
    }
}
