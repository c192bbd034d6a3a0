//! The mode of an open file: the engine reads it, or the kernel itself reads it from the disk cache (passthrough).
//!
//! The kernel demands one mode for all open files of an inode, and answers EIO to an open in another mode. So this module counts each
//! handle from its open to its release. While a file has a passthrough handle, every new open of it uses passthrough. An open that could
//! change the file (O_RDWR: its mapping would map the cache's file) gets a separate inode.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::broker::{FileName, Registrar};
use crate::clock::Clock;
use crate::inode::InodeNo;
use crate::object::ObjectKey;
use crate::prefetch::Whole;
use crate::stage::Loan;
use crate::sync::atomic::{AtomicBool, Ordering::Relaxed};
use crate::sync::{Arc, Mutex};

/// Smallest file that the kernel reads itself, in bytes. For smaller files registering costs more than it saves, and lock files are small.
pub(super) const PASSTHROUGH_MIN: u64 = 1 << 20;

/// Time for which the engine itself reads an object after a handle of it needed another inode. The kernel looks the name up anew only once:
/// neither that open nor others meanwhile may be refused again.
const APART: Duration = Duration::from_secs(60);

/// Longest wait of an open for the driver; then the engine reads the file. Doubling it doubles the longest open while a driver hangs.
const DRIVER_WITHIN: Duration = Duration::from_millis(200);

const NOT_REGISTERED: &str = "cache: the kernel may not read cached files by itself";
const NOT_WRITTEN: &str = "stage: the kernel may not write staged files by itself";
const ENGINE_READS: &str = "the engine reads them, which takes more CPU";

/// Most objects that the engine reads itself for that reason. Beyond it the oldest is dropped.
const APART_MAX: usize = 64;

/// A transport's functions that register files with the kernel.
pub struct Backings(Way);

enum Way {
    /// This process, or its helper, registers a file within the call.
    Here { register: Box<Register>, forget: Box<dyn Fn(u32) + Send + Sync> },
    /// The driver of the node registers a file, which takes time.
    Driver(Arc<Registrar>),
}

type Register = dyn Fn(BorrowedFd<'_>) -> io::Result<u32> + Send + Sync;

impl Backings {
    /// Registration within the call. `register` returns a file's number, `forget` unregisters it.
    pub fn new(
        register: impl Fn(BorrowedFd<'_>) -> io::Result<u32> + Send + Sync + 'static,
        forget: impl Fn(u32) + Send + Sync + 'static,
    ) -> Self {
        Self(Way::Here { register: Box::new(register), forget: Box::new(forget) })
    }

    /// Registration by the node's driver.
    pub fn of_driver(registrar: Arc<Registrar>) -> Self {
        Self(Way::Driver(registrar))
    }
}

impl fmt::Debug for Backings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Backings")
    }
}

/// The use that a program may make of a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// Reading.
    Read,
    /// Reading past all caches, or writing.
    Engine,
    /// Reading, with a right to write that a mapping could use.
    ReadWrite,
}

/// The mode of a new handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entered {
    /// The engine reads.
    Engine,
    /// The kernel reads the file of this number.
    Passthrough(u32),
    /// The inode's mode excludes this handle, which needs another inode. The handle was not counted.
    Apart,
}

/// The modes of all open inodes.
#[derive(Debug, Default)]
pub(super) struct IoModes {
    backings: Arc<OnceLock<Backings>>,
    /// Whether the kernel gets staged files. Then it gets no file of the cache, which it would continue to read while programs write.
    is_of_stage: AtomicBool,
    /// Whether the kernel refused a file: it will refuse all others.
    refused: AtomicBool,
    open: Mutex<HashMap<InodeNo, Open>>,
    /// Objects for which a handle needed another inode, and the time until which the engine reads them itself.
    apart: Mutex<Vec<(ObjectKey, Instant)>>,
}

#[derive(Debug)]
struct Open {
    handles: u32,
    /// The file that the kernel reads, in passthrough mode.
    backing: Option<Backing>,
}

/// A file of the cache that the kernel may read, for a handle that does not exist yet.
#[derive(Debug)]
pub(super) enum Lent {
    /// The file, to be registered within the open.
    File(Whole),
    /// A file that the driver registered.
    Registered(Backing),
}

/// A file that is registered with the kernel. Dropping the value unregisters the file.
#[derive(Debug)]
pub(super) struct Backing {
    id: u32,
    backings: Arc<OnceLock<Backings>>,
    /// The file; `None` if an earlier engine registered it: then only the kernel keeps it open.
    hold: Option<Box<dyn Any + Send + Sync>>,
}

impl Drop for Backing {
    fn drop(&mut self) {
        match self.backings.get().map(|backings| &backings.0) {
            // The hold is dropped after this.
            Some(Way::Here { forget, .. }) => forget(self.id),
            Some(Way::Driver(registrar)) => registrar.close(self.id, Box::new(self.hold.take())),
            None => {}
        }
    }
}

impl IoModes {
    /// Allows the kernel to read files itself. Call this before the first open.
    pub(super) fn allow_passthrough(&self, backings: Backings) {
        if let Way::Driver(registrar) = &backings.0 {
            let left = self.open.lock().values().filter(|open| open.backing.is_some()).count();
            registrar.inherit(u32::try_from(left).unwrap_or(u32::MAX));
        }
        let _ = self.backings.set(backings);
    }

    /// Allows the kernel to write staged files itself. Call this before the first open.
    pub(super) fn allow_writes(&self, backings: Backings) {
        if matches!(backings.0, Way::Here { .. }) {
            self.is_of_stage.store(true, Relaxed);
            let _ = self.backings.set(backings);
        }
    }

    /// Whether the kernel may write this staged file itself: the engine serves no open handle of it.
    pub(super) fn may_write(&self, ino: InodeNo) -> bool {
        let may = self.is_of_stage.load(Relaxed) && !self.refused.load(Relaxed);
        may && self.open.lock().get(&ino).is_none_or(|open| open.backing.is_some())
    }

    /// Whether the driver registers files: an open then has to wait for it.
    pub(super) fn asks_driver(&self) -> bool {
        matches!(self.backings.get(), Some(Backings(Way::Driver(_))))
    }

    /// Prepares a file for [`Self::enter`]: the driver, if there is one, registers it within [`DRIVER_WITHIN`]; otherwise `enter` does.
    /// `None`: the engine reads.
    pub(super) async fn lend(&self, whole: Whole, clock: &Clock) -> Option<Lent> {
        let Some(Backings(Way::Driver(registrar))) = self.backings.get() else {
            return Some(Lent::File(whole));
        };
        let stat = rustix::fs::fstat(&whole.file).ok()?;
        let file = FileName { name: whole.name, dev: stat.st_dev, ino: stat.st_ino };
        let asked = clock.timeout(DRIVER_WITHIN, registrar.open(file)).await;
        match asked.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into())) {
            Ok(id) => {
                let backings = Arc::clone(&self.backings);
                Some(Lent::Registered(Backing { id, backings, hold: Some(Box::new(whole.hold)) }))
            }
            // No driver is connected yet, or it is being replaced.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => None,
            Err(error) => {
                if registrar.tells() {
                    tracing::info!("{NOT_REGISTERED} ({error}): {ENGINE_READS}");
                } else {
                    tracing::debug!("{NOT_REGISTERED}: {error}");
                }
                None
            }
        }
    }

    /// Adds a handle of an earlier engine. `id`: the number of the file that the kernel reads. Call this before the first open.
    pub(super) fn restore(&self, ino: InodeNo, id: Option<u32>) {
        let mut open = self.open.lock();
        let open = open.entry(ino).or_insert(Open { handles: 0, backing: None });
        open.handles += 1;
        if let Some(id) = id
            && open.backing.is_none()
        {
            open.backing = Some(Backing { id, backings: Arc::clone(&self.backings), hold: None });
        }
    }

    /// Whether this open could begin passthrough: it is for reading, and the inode has no mode yet. The cache must have the whole object.
    pub(super) fn asks(&self, ino: InodeNo, key: &ObjectKey, wish: Wish, now: Instant) -> bool {
        let lends = self.backings.get().is_some() && !self.is_of_stage.load(Relaxed);
        lends && self.wants(key, wish, now) && !self.open.lock().contains_key(&ino)
    }

    fn wants(&self, key: &ObjectKey, wish: Wish, now: Instant) -> bool {
        wish == Wish::Read && !self.refused.load(Relaxed) && !self.is_apart(key, now)
    }

    /// Adds a new handle. `lent` returns the cache's file with the whole object.
    pub(super) fn enter(
        &self,
        ino: InodeNo,
        key: &ObjectKey,
        wish: Wish,
        now: Instant,
        lent: impl FnOnce() -> Option<Lent>,
    ) -> Entered {
        let Some(backings) = self.backings.get() else { return Entered::Engine };
        if let Some(entered) = self.join(&mut self.open.lock(), ino, key, wish, now) {
            return entered;
        }
        let found = match self.wants(key, wish, now).then(lent).flatten() {
            Some(Lent::File(whole)) => self.register(backings, whole),
            Some(Lent::Registered(backing)) => Some(backing),
            None => None,
        };
        let mut open = self.open.lock();
        // Another open may have been quicker; then `found` is unregistered, after the lock.
        if let Some(entered) = self.join(&mut open, ino, key, wish, now) {
            return entered;
        }
        let entered = found.as_ref().map_or(Entered::Engine, |backing| Entered::Passthrough(backing.id));
        open.insert(ino, Open { handles: 1, backing: found });
        entered
    }

    /// Adds a new handle of a staged file. Returns the number of the file that the kernel reads and writes, if the inode is in that mode
    /// already, or `lend` returns the file.
    pub(super) fn enter_staged(&self, ino: InodeNo, lend: impl FnOnce() -> Option<Loan>) -> Option<u32> {
        let backings = self.backings.get()?;
        let join = |modes: &mut HashMap<InodeNo, Open>| {
            let open = modes.get_mut(&ino)?;
            open.handles += 1;
            Some(open.backing.as_ref().map(|backing| backing.id))
        };
        if let Some(mode) = join(&mut self.open.lock()) {
            return mode;
        }
        let lent = if self.refused.load(Relaxed) { None } else { lend() };
        let backing = lent.and_then(|loan| self.register_loan(backings, loan));
        let mut modes = self.open.lock();
        // Another open may have been quicker; then `backing` is unregistered, after the lock.
        if let Some(mode) = join(&mut modes) {
            return mode;
        }
        let mode = backing.as_ref().map(|backing| backing.id);
        modes.insert(ino, Open { handles: 1, backing });
        mode
    }

    fn register_loan(&self, backings: &Backings, loan: Loan) -> Option<Backing> {
        let Way::Here { register, .. } = &backings.0 else { return None };
        match register(loan.file().as_fd()) {
            Ok(id) => Some(Backing { id, backings: Arc::clone(&self.backings), hold: Some(Box::new(loan)) }),
            Err(error) => {
                if !self.refused.swap(true, Relaxed) {
                    tracing::info!("{NOT_WRITTEN} ({error}): the engine writes them, which is slower");
                }
                None
            }
        }
    }

    fn set_apart(&self, key: &ObjectKey, now: Instant) {
        let mut apart = self.apart.lock();
        apart.retain(|(other, until)| other != key && now < *until);
        if apart.len() == APART_MAX {
            apart.remove(0);
        }
        apart.push((key.clone(), now + APART));
    }

    fn is_apart(&self, key: &ObjectKey, now: Instant) -> bool {
        self.apart.lock().iter().any(|(other, until)| other == key && now < *until)
    }

    fn register(&self, backings: &Backings, whole: Whole) -> Option<Backing> {
        let Way::Here { register, .. } = &backings.0 else { return None };
        match register(whole.file.as_fd()) {
            Ok(id) => {
                Some(Backing { id, backings: Arc::clone(&self.backings), hold: Some(Box::new(whole.hold)) })
            }
            Err(error) => {
                if !self.refused.swap(true, Relaxed) {
                    tracing::info!("{NOT_REGISTERED} ({error}): {ENGINE_READS}");
                }
                None
            }
        }
    }

    /// Removes a released handle. The last one of an inode unregisters its file.
    pub(super) fn leave(&self, ino: InodeNo) {
        if self.backings.get().is_none() {
            return;
        }
        let mut modes = self.open.lock();
        let Some(open) = modes.get_mut(&ino) else { return };
        open.handles -= 1;
        let last = (open.handles == 0).then(|| modes.remove(&ino));
        drop(modes);
        drop(last);
    }

    /// Adds a handle to the mode that an inode has already.
    fn join(
        &self,
        open: &mut HashMap<InodeNo, Open>,
        ino: InodeNo,
        key: &ObjectKey,
        wish: Wish,
        now: Instant,
    ) -> Option<Entered> {
        let open = open.get_mut(&ino)?;
        let entered = match &open.backing {
            None => Entered::Engine,
            Some(_) if wish == Wish::ReadWrite => {
                self.set_apart(key, now);
                return Some(Entered::Apart);
            }
            Some(backing) => Entered::Passthrough(backing.id),
        };
        open.handles += 1;
        Some(entered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INO: InodeNo = InodeNo(7);

    fn enter(modes: &IoModes, wish: Wish, whole: impl FnOnce() -> Option<Lent>) -> Entered {
        modes.enter(INO, &ObjectKey::new("file"), wish, Instant::now(), whole)
    }

    #[test]
    fn without_passthrough_nothing_is_counted() {
        let modes = IoModes::default();
        assert_eq!(enter(&modes, Wish::Read, || unreachable!("nobody asks the cache")), Entered::Engine);
        modes.leave(INO);
        assert!(modes.open.lock().is_empty());
    }

    #[test]
    fn an_inode_read_by_the_engine_stays_so_until_its_last_handle_is_released() {
        let modes = IoModes::default();
        modes.allow_passthrough(Backings::new(|_| Ok(1), |_| ()));
        assert_eq!(enter(&modes, Wish::Read, || None), Entered::Engine);
        for wish in [Wish::Read, Wish::Engine, Wish::ReadWrite] {
            assert_eq!(enter(&modes, wish, || unreachable!("the mode is decided")), Entered::Engine);
        }
        (0..3).for_each(|_| modes.leave(INO));
        assert_eq!(modes.open.lock().len(), 1);
        modes.leave(INO);
        assert!(modes.open.lock().is_empty());
        modes.leave(INO);
    }

    #[test]
    fn who_would_write_or_read_directly_asks_for_no_file() {
        for wish in [Wish::Engine, Wish::ReadWrite] {
            let modes = IoModes::default();
            modes.allow_passthrough(Backings::new(|_| Ok(1), |_| ()));
            assert_eq!(enter(&modes, wish, || unreachable!("{wish:?}")), Entered::Engine);
        }
    }

    #[test]
    fn an_object_set_apart_is_read_by_the_engine_for_a_minute() {
        let (modes, now) = (IoModes::default(), Instant::now());
        let key = |n: usize| ObjectKey::new(n.to_string());
        modes.set_apart(&key(0), now);
        assert!(modes.is_apart(&key(0), now + APART / 2) && !modes.is_apart(&key(1), now));
        assert!(!modes.is_apart(&key(0), now + APART));
        (1..=APART_MAX).for_each(|n| modes.set_apart(&key(n), now));
        assert!(!modes.is_apart(&key(0), now) && modes.is_apart(&key(1), now));
        assert_eq!(modes.apart.lock().len(), APART_MAX);
    }
}
