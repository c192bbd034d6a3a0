//! Waiting with a limit: an exchange ends when no byte moves for a while, or when its time is up.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::stream::Moved;
use crate::clock::Clock;

/// Looks now and then whether bytes still move. Costs nothing per byte: the timer compares counts when it fires.
pub(super) struct Watch {
    clock: Clock,
    moved: Moved,
    seen: u64,
    since: Instant,
    quiet_max: Duration,
    deadline: Instant,
    timer: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

/// Why the wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Expired {
    /// No byte in either direction for this long.
    Quiet(Duration),
    /// The time for the whole call is up.
    Deadline,
}

impl std::fmt::Display for Expired {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Quiet(for_long) => write!(f, "no byte for {} s", for_long.as_secs_f32()),
            Self::Deadline => f.write_str("the time for the whole operation is up"),
        }
    }
}

impl std::error::Error for Expired {}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("quiet_max", &self.quiet_max).finish_non_exhaustive()
    }
}

impl Watch {
    pub(super) fn new(clock: &Clock, moved: &Moved, quiet_max: Duration, deadline: Instant) -> Self {
        let seen = moved.total();
        let since = clock.now();
        Self { clock: clock.clone(), moved: moved.clone(), seen, since, quiet_max, deadline, timer: None }
    }

    /// From here on, this much quiet is tolerated.
    pub(super) fn quiet_max(&mut self, quiet_max: Duration) {
        if quiet_max != self.quiet_max {
            (self.quiet_max, self.timer, self.since) = (quiet_max, None, self.clock.now());
        }
    }

    /// Ready when the wait is over. Call when there is nothing to do but wait.
    pub(super) fn poll_expired(&mut self, cx: &mut Context<'_>) -> Poll<Expired> {
        loop {
            if let Some(timer) = &mut self.timer
                && timer.as_mut().poll(cx).is_pending()
            {
                return Poll::Pending;
            }
            let now = self.clock.now();
            if now >= self.deadline {
                return Poll::Ready(Expired::Deadline);
            }
            let moved = self.moved.total();
            if moved != self.seen {
                (self.seen, self.since) = (moved, now);
            } else if now.saturating_duration_since(self.since) >= self.quiet_max {
                return Poll::Ready(Expired::Quiet(self.quiet_max));
            }
            let wake = (self.since + self.quiet_max).min(self.deadline);
            self.timer = Some(Box::pin(self.clock.sleep(wake.saturating_duration_since(now))));
        }
    }
}
