//! The health of the cache: classifies disk errors, decides when to stop, and logs this once.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::clock::Clock;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

/// Failures in a row after which the cache is switched off until the next mount.
const FAILURES_MAX: u32 = 8;

/// Pause of all writes after the disk was full.
const FULL_PAUSE: Duration = Duration::from_secs(30);

/// The kind of a disk operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Doing {
    /// Opening or reading a file that should be there.
    Reading,
    /// Creating or writing a file.
    Writing,
}

/// The consequence of an error for the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Trouble {
    /// This process lacks a resource for a moment, or the file would exceed the allowed length. The existing bytes are fine.
    Passing,
    /// No room on the disk.
    Full,
    /// This file or the disk is faulty. [`FAILURES_MAX`] such errors in a row mean the disk.
    Suspect,
    /// Writing will not work again.
    Final,
}

fn judge(doing: Doing, error: Option<Errno>) -> Trouble {
    match error {
        Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN | Errno::INTR) => Trouble::Passing,
        // The limit is RLIMIT_FSIZE, or the longest file of the file system: the next file may be short enough.
        Some(Errno::FBIG) if doing == Doing::Writing => Trouble::Passing,
        Some(Errno::NOSPC | Errno::DQUOT) => Trouble::Full,
        Some(Errno::ROFS | Errno::ACCESS | Errno::PERM | Errno::NOENT) if doing == Doing::Writing => {
            Trouble::Final
        }
        _ => Trouble::Suspect,
    }
}

/// Whether the error means that a file can't be read back: the disk fails, or the file system found itself damaged.
fn is_unreadable(error: Option<Errno>) -> bool {
    matches!(error, Some(Errno::IO | Errno::UCLEAN | Errno::BADMSG | Errno::NODATA))
}

/// The health of one cache.
#[derive(Debug)]
pub(super) struct Health {
    dir: PathBuf,
    clock: Clock,
    off: AtomicBool,
    unreadable: AtomicBool,
    failures: AtomicU32,
    full_said: AtomicBool,
    no_room_said: AtomicBool,
    index_full_said: AtomicBool,
    full_until: Mutex<Option<Instant>>,
}

impl Health {
    /// The health of a new cache. `dir` is for messages.
    pub(super) fn new(dir: &Path, clock: Clock) -> Self {
        Self {
            dir: dir.to_owned(),
            clock,
            off: AtomicBool::new(false),
            unreadable: AtomicBool::new(false),
            failures: AtomicU32::new(0),
            full_said: AtomicBool::new(false),
            no_room_said: AtomicBool::new(false),
            index_full_said: AtomicBool::new(false),
            full_until: Mutex::new(None),
        }
    }

    /// Whether the cache was switched off. It stays off until the next mount.
    pub(super) fn is_off(&self) -> bool {
        self.off.load(Relaxed)
    }

    /// Whether a file could not be read back in this run. A program whose reads bypass the engine gets such an error; the engine itself
    /// fetches the bytes anew.
    pub(super) fn is_unreadable(&self) -> bool {
        self.unreadable.load(Relaxed)
    }

    /// Whether writes are paused because the disk was full.
    pub(super) fn is_full(&self) -> bool {
        let mut until = self.full_until.lock();
        if until.is_some_and(|until| self.clock.now() >= until) {
            *until = None;
        }
        until.is_some()
    }

    /// Notes a success: the count of failures in a row begins anew.
    pub(super) fn success(&self) {
        if self.failures.load(Relaxed) != 0 {
            self.failures.store(0, Relaxed);
        }
    }

    /// Notes that an operation failed. Returns true if the file is to blame and should be removed.
    pub(super) fn failure(&self, doing: Doing, error: &io::Error) -> bool {
        let errno = Errno::from_io_error(error);
        if doing == Doing::Reading && is_unreadable(errno) && !self.unreadable.swap(true, Relaxed) {
            tracing::warn!(
                "cache {}: reading failed: {error}; the engine fetches these bytes anew, and until the next mount it reads all cached \
                 files, not the kernel by itself; check the disk (logged once)",
                self.dir.display()
            );
        }
        match judge(doing, errno) {
            Trouble::Passing => return false,
            Trouble::Full => {
                *self.full_until.lock() = Some(self.clock.now() + FULL_PAUSE);
                if !self.full_said.swap(true, Relaxed) {
                    tracing::warn!(
                        "cache {}: {error}; the cache keeps no blocks while the disk is full (logged once)",
                        self.dir.display()
                    );
                }
                return false;
            }
            Trouble::Suspect => {
                if self.failures.fetch_add(1, Relaxed) + 1 >= FAILURES_MAX {
                    self.switch_off(doing, error);
                }
            }
            Trouble::Final => self.switch_off(doing, error),
        }
        true
    }

    /// Logs once that no block fits into the room that the cache has; `free_min_percent` is set if that room is a share of the disk.
    pub(super) fn no_room(&self, free_min_percent: Option<u8>) {
        if self.no_room_said.swap(true, Relaxed) {
            return;
        }
        let dir = self.dir.display();
        match free_min_percent {
            Some(percent) => tracing::warn!(
                "cache {dir}: keeps nothing: at most {percent} % of its disk is free, and the cache leaves that much free unless \
                 --max-cache-size sets a limit; free disk space or set a limit (logged once)"
            ),
            None => tracing::warn!(
                "cache {dir}: keeps nothing: not one block fits; raise --max-cache-size (logged once)"
            ),
        }
    }

    /// Logs once that the index has reached its limit of memory.
    pub(super) fn index_is_full(&self, most: u64) {
        if !self.index_full_said.swap(true, Relaxed) {
            tracing::info!(
                "cache {}: its index takes {} MiB of memory, all that it may; what was used the longest ago leaves, though the disk has \
                 room; raise --memory-target to keep more (logged once)",
                self.dir.display(),
                most >> 20
            );
        }
    }

    fn switch_off(&self, doing: Doing, error: &io::Error) {
        if !self.off.swap(true, Relaxed) {
            let what = if doing == Doing::Reading { "reading" } else { "writing" };
            tracing::warn!(
                "cache {}: {what} failed: {error}; the cache is off until the next mount, reads go to S3; \
                 check the directory and its disk",
                self.dir.display()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(errno: Errno) -> io::Error {
        errno.into()
    }

    #[test]
    fn a_full_disk_pauses_writing_and_nothing_else() {
        let clock = Clock::manual();
        let health = Health::new(Path::new("d"), clock.clone());
        assert!(!health.failure(Doing::Writing, &error(Errno::NOSPC)));
        assert!(health.is_full() && !health.is_off());
        clock.advance(FULL_PAUSE);
        assert!(!health.is_full());
    }

    #[test]
    fn failures_in_a_row_switch_off_and_single_ones_do_not() {
        let health = Health::new(Path::new("d"), Clock::manual());
        for _ in 0..10 * FAILURES_MAX {
            assert!(health.failure(Doing::Reading, &error(Errno::IO)));
            health.success();
        }
        assert!(!health.is_off());
        for _ in 0..FAILURES_MAX {
            assert!(!health.is_off());
            health.failure(Doing::Reading, &error(Errno::IO));
        }
        assert!(health.is_off());
    }

    #[test]
    fn a_directory_that_is_gone_or_read_only_switches_off_at_the_first_write() {
        for errno in [Errno::ROFS, Errno::ACCESS, Errno::NOENT] {
            let health = Health::new(Path::new("d"), Clock::manual());
            health.failure(Doing::Reading, &error(errno));
            assert!(!health.is_off());
            health.failure(Doing::Writing, &error(errno));
            assert!(health.is_off());
        }
    }

    #[test]
    fn running_out_of_descriptors_blames_nobody() {
        let health = Health::new(Path::new("d"), Clock::manual());
        for _ in 0..10 * FAILURES_MAX {
            assert!(!health.failure(Doing::Writing, &error(Errno::MFILE)));
        }
        assert!(!health.is_off() && !health.is_full());
    }
    #[test]
    fn a_file_that_is_too_long_for_the_disk_blames_nobody() {
        let health = Health::new(Path::new("d"), Clock::manual());
        for _ in 0..10 * FAILURES_MAX {
            assert!(!health.failure(Doing::Writing, &error(Errno::FBIG)));
        }
        assert!(!health.is_off() && !health.is_full());
    }
}
