//! Waiting for what happens elsewhere: in another process, in a thread, behind a reply.

use std::time::{Duration, Instant};

/// How long [`until`] waits. Far more than anything takes on a loaded machine: it is there so that a hang says where.
pub const LIMIT: Duration = Duration::from_secs(60);

const PAUSE: Duration = Duration::from_millis(5);

/// Waits until `so` returns true.
///
/// # Panics
/// It did not within [`LIMIT`].
#[track_caller]
pub fn until(what: &str, so: impl FnMut() -> bool) {
    until_within(LIMIT, what, so);
}

/// As [`until`], with a limit of its own.
///
/// # Panics
/// `so` did not return true within `limit`.
#[track_caller]
pub fn until_within(limit: Duration, what: &str, mut so: impl FnMut() -> bool) {
    let end = Instant::now() + limit;
    while !so() {
        assert!(Instant::now() < end, "waited {limit:?} until {what}");
        std::thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_ends_when_it_is_so_and_fails_when_it_never_is() {
        let mut asked = 0;
        until("it was asked three times", || {
            asked += 1;
            asked == 3
        });
        let never = || until_within(Duration::from_millis(1), "never", || false);
        assert!(std::panic::catch_unwind(never).is_err());
    }
}
