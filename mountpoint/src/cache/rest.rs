//! Decides when the cache rests because its disk does not answer in time, and when it works again; logs both.
//!
//! Enters: operations that became late, that ended late, or that ended in time; the duration of a trial of the disk. Leaves: whether the
//! cache may use its disk, and whether a trial is due.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

/// Time after which an unanswered read, open or write is late, and counts as a miss. Doubling it waits longer for a busy disk, and for a
/// hanging one.
pub(super) const LATE: Duration = Duration::from_secs(2);

/// Most late operations that the disk may have at once; at the limit the cache rests. Doubling it doubles the memory, up to 1 MiB for each,
/// that a hanging disk may hold.
pub(super) const LATE_MAX: usize = 64;

/// Late operations in a row, without one on time between, after which the cache rests. A program that reads one block after the other would
/// otherwise wait for [`LATE_MAX`] of them.
const LATE_IN_A_ROW: u32 = 8;

/// Pause between trials of the disk while the cache rests. Doubling it halves the trials, and doubles the time until the cache works again.
pub(super) const TRIAL_EVERY: Duration = Duration::from_secs(5);

/// The decision whether the cache rests.
#[derive(Debug)]
pub(super) struct Rest {
    dir: PathBuf,
    is_resting: AtomicBool,
    in_a_row: AtomicU32,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Number of late operations that have not ended.
    stuck: usize,
    /// While the cache rests: the time of the last trial of the disk. `None` while a trial is under way.
    untried_since: Option<Instant>,
}

impl Rest {
    /// A working cache. `dir` is for messages.
    pub(super) fn new(dir: &Path) -> Self {
        let (is_resting, in_a_row) = (AtomicBool::new(false), AtomicU32::new(0));
        Self { dir: dir.to_owned(), is_resting, in_a_row, state: Mutex::default() }
    }

    /// The directory, for messages.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Whether the cache rests: no operation may use the disk.
    pub(super) fn is_resting(&self) -> bool {
        self.is_resting.load(Relaxed)
    }

    /// Notes that an operation ended in time: the count of late ones in a row begins anew.
    pub(super) fn on_time(&self) {
        if self.in_a_row.load(Relaxed) != 0 {
            self.in_a_row.store(0, Relaxed);
        }
    }

    /// Notes that the disk has not ended an operation within [`LATE`]. At a limit the cache rests from now on.
    pub(super) fn late(&self, now: Instant) {
        let mut state = self.state.lock();
        state.stuck += 1;
        let in_a_row = self.in_a_row.fetch_add(1, Relaxed) + 1;
        let rests = state.stuck >= LATE_MAX || in_a_row >= LATE_IN_A_ROW;
        if rests && !self.is_resting.swap(true, Relaxed) {
            state.untried_since = Some(now);
            tracing::warn!(
                "cache {}: its disk has not answered {} operations within {} s: the cache rests, and reads go to S3, until the disk answers \
                 again; check the disk",
                self.dir.display(),
                state.stuck,
                LATE.as_secs()
            );
        }
    }

    /// Notes that a late operation has ended.
    pub(super) fn landed(&self) {
        self.state.lock().stuck -= 1;
    }

    /// Whether a trial of the disk is due. If so, the caller makes it, and calls [`Rest::tried`].
    pub(super) fn is_trial_due(&self, now: Instant) -> bool {
        if !self.is_resting() {
            return false;
        }
        let mut state = self.state.lock();
        let is_due =
            state.untried_since.is_some_and(|since| now.saturating_duration_since(since) >= TRIAL_EVERY);
        if is_due {
            state.untried_since = None;
        }
        is_due
    }

    /// Takes the duration of a trial, or `None` if the trial could not run. After a short one the cache works again. An error counts as an
    /// answer; `health.rs` judges errors.
    pub(super) fn tried(&self, took: Option<Duration>, now: Instant) {
        let mut state = self.state.lock();
        if took.is_some_and(|took| took < LATE) && state.stuck < LATE_MAX {
            self.in_a_row.store(0, Relaxed);
            if self.is_resting.swap(false, Relaxed) {
                tracing::info!("cache {}: its disk answers again: the cache is back", self.dir.display());
            }
        } else {
            state.untried_since = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::log_of;

    const SECOND: Duration = Duration::from_secs(1);

    fn rest() -> Rest {
        Rest::new(Path::new("the-dir"))
    }

    #[test]
    fn single_late_operations_do_not_rest_and_many_in_a_row_do() {
        let (rest, now) = (rest(), Instant::now());
        for _ in 0..3 {
            (1..LATE_IN_A_ROW).for_each(|_| rest.late(now));
            rest.on_time();
        }
        assert!(!rest.is_resting());
        (0..LATE_IN_A_ROW).for_each(|_| rest.late(now));
        assert!(rest.is_resting());
    }

    #[test]
    fn so_many_at_once_rest_though_others_are_on_time() {
        let (rest, now) = (rest(), Instant::now());
        for n in 0..LATE_MAX {
            assert!(!rest.is_resting(), "{n}");
            rest.late(now);
            rest.on_time();
        }
        assert!(rest.is_resting());
    }

    #[test]
    fn the_cache_is_back_after_a_trial_in_time_and_says_so_once_each() {
        let (rest, now) = (rest(), Instant::now());
        let log = log_of(|| {
            (0..2 * LATE_IN_A_ROW).for_each(|_| rest.late(now));
            assert!(!rest.is_trial_due(now + TRIAL_EVERY - SECOND));
            assert!(rest.is_trial_due(now + TRIAL_EVERY));
            assert!(!rest.is_trial_due(now + 100 * TRIAL_EVERY), "one at a time");
            rest.tried(Some(LATE), now + 100 * TRIAL_EVERY);
            rest.on_time();
            assert!(rest.is_resting() && !rest.is_trial_due(now + 101 * TRIAL_EVERY - SECOND));
            assert!(rest.is_trial_due(now + 101 * TRIAL_EVERY));
            rest.tried(Some(SECOND), now + 102 * TRIAL_EVERY);
            assert!(!rest.is_resting() && !rest.is_trial_due(now + 200 * TRIAL_EVERY));
        });
        assert_eq!(log.lines().count(), 2, "{log}");
        assert!(log.contains("the cache rests") && log.contains("the cache is back"), "{log}");
        assert!(log.matches("the-dir").count() == 2, "{log}");
    }

    #[test]
    fn a_disk_that_keeps_all_that_it_may_have_is_not_back() {
        let (rest, now) = (rest(), Instant::now());
        (0..LATE_MAX).for_each(|_| rest.late(now));
        assert!(rest.is_trial_due(now + TRIAL_EVERY));
        rest.tried(Some(Duration::ZERO), now + TRIAL_EVERY);
        assert!(rest.is_resting());
        rest.landed();
        assert!(rest.is_trial_due(now + 2 * TRIAL_EVERY));
        rest.tried(Some(Duration::ZERO), now + 2 * TRIAL_EVERY);
        assert!(!rest.is_resting());
    }
}
