//! Decides whether and when another engine follows a dead one on the same device. Enters: the facts of a death, the deaths before. Leaves:
//! a pause, or the end of the mount.
//!
//! Never here: a process, a file, a wait.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The pauses before the engines of a row; the last one repeats. The first death costs its readers no pause.
const PAUSES: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_millis(100),
    Duration::from_millis(500),
    Duration::from_secs(2),
    Duration::from_secs(5),
];
/// Number of deaths within [`DEATHS_WITHIN`] that end the mount. Doubled, programs wait longer for an engine that can't live; halved, a
/// mount is lost that one more engine would have kept.
const DEATHS_MAX: usize = 5;
/// The time in which deaths are counted. An engine that lives longer begins a new row.
const DEATHS_WITHIN: Duration = Duration::from_secs(60);
/// Exit status of an engine that can't use its journal: the next engine could not, either.
const JOURNAL_REFUSED: i32 = 3;
/// The first release of Linux that repeats requests (FUSE_NOTIFY_RESEND).
const RESENDS_SINCE: (u32, u32) = (6, 9);

/// The facts of an engine's end.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    /// The exit status; `None` for a signal.
    pub(super) code: Option<i32>,
    /// Whether this engine or an earlier one served the mount.
    pub(super) served: bool,
    /// Whether the engine gave its journal to the mounter.
    pub(super) has_journal: bool,
    /// Whether the node announced the unmount.
    pub(super) announced: bool,
    /// Whether the kernel still has its end of the device.
    pub(super) connected: bool,
}

impl End {
    /// Whether the engine died, so another one can take the mount over.
    pub(super) fn is_death(self) -> bool {
        let Self { code, served, has_journal, announced, connected } = self;
        served && has_journal && connected && !announced && !matches!(code, Some(0 | JOURNAL_REFUSED))
    }
}

/// The step after an engine's death.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Start another engine after this pause.
    Start(Duration),
    /// Give the mount up.
    GiveUp,
}

/// The deaths of one mount's engines.
#[derive(Debug, Default)]
pub(super) struct Deaths {
    recent: VecDeque<Instant>,
    in_a_row: usize,
}

impl Deaths {
    /// Counts a death, and returns the next step.
    pub(super) fn after(&mut self, now: Instant) -> Next {
        let is_recent = |then: &Instant| now.duration_since(*then) < DEATHS_WITHIN;
        if !self.recent.back().is_some_and(is_recent) {
            self.in_a_row = 0;
        }
        self.recent.retain(is_recent);
        self.recent.push_back(now);
        self.in_a_row += 1;
        if self.recent.len() >= DEATHS_MAX {
            return Next::GiveUp;
        }
        Next::Start(PAUSES[self.in_a_row.min(PAUSES.len()) - 1])
    }
}

/// Whether a kernel of this release (`/proc/sys/kernel/osrelease`) repeats requests that a dead engine has not answered.
pub(super) fn resends(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= RESENDS_SINCE,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_deaths_in_a_minute_are_answered_and_the_fifth_ends_the_mount() {
        let (start, mut deaths) = (Instant::now(), Deaths::default());
        let steps: Vec<_> = (0..5).map(|second| deaths.after(start + Duration::from_secs(second))).collect();
        let pauses = [0, 100, 500, 2000].map(|ms| Next::Start(Duration::from_millis(ms)));
        assert_eq!(steps[..4], pauses);
        assert_eq!(steps[4], Next::GiveUp);
    }

    #[test]
    fn slow_deaths_reach_the_longest_pause_and_never_the_end() {
        let (start, mut deaths) = (Instant::now(), Deaths::default());
        let steps: Vec<_> = (0..20).map(|it| deaths.after(start + Duration::from_secs(20 * it))).collect();
        assert!(steps[4..].iter().all(|step| *step == Next::Start(PAUSES[4])), "{steps:?}");
    }

    #[test]
    fn an_engine_that_lived_for_a_minute_begins_a_new_row() {
        let (start, mut deaths) = (Instant::now(), Deaths::default());
        for minute in 0..10 {
            let at = start + minute * DEATHS_WITHIN;
            assert_eq!(deaths.after(at), Next::Start(Duration::ZERO));
        }
    }

    #[test]
    fn only_a_death_on_a_device_that_lives_is_answered() {
        let killed = End { code: None, served: true, has_journal: true, announced: false, connected: true };
        assert!(killed.is_death() && End { code: Some(1), ..killed }.is_death());
        for end in [
            End { code: Some(0), ..killed },
            End { code: Some(JOURNAL_REFUSED), ..killed },
            End { served: false, ..killed },
            End { has_journal: false, ..killed },
            End { announced: true, ..killed },
            End { connected: false, ..killed },
        ] {
            assert!(!end.is_death(), "{end:?}");
        }
    }

    #[test]
    fn kernels_that_send_requests_again_are_known_by_their_release() {
        for release in ["6.9.0", "6.18.44-fc-v657", "7.0-rc1", "6.12.0+deb13-amd64\n"] {
            assert!(resends(release), "{release}");
        }
        for release in ["6.8.0-45-generic", "5.14.0-503.el9.x86_64", "6", "", "linux", "-6.9"] {
            assert!(!resends(release), "{release}");
        }
    }
}
