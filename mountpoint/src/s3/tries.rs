//! The loop around a request: try, look at the failure, perhaps wait, try again, within one deadline.

use std::time::{Duration, Instant};

use super::answer::is_about_credentials;
use super::retry::{backoff, tries_max};
use super::wire::{Failure, Wire};
use super::{Error, ErrorKind, Result};
use crate::object::ObjectKey;

/// The tries of one call.
#[derive(Debug)]
pub(super) struct Tries<'a> {
    wire: &'a Wire,
    pub(super) operation: &'static str,
    pub(super) key: Option<&'a ObjectKey>,
    /// The try that is under way, from 1.
    pub(super) attempt: u32,
    pub(super) deadline: Instant,
    attempts_max: u32,
    refreshed: bool,
    corrected: bool,
    /// A try before this one may have done what was asked.
    pub(super) ambiguous: bool,
}

impl<'a> Tries<'a> {
    /// The first of them. `bytes` is the body's length: its time at the minimal rate is added to the time of the call.
    pub(super) fn new(
        wire: &'a Wire,
        operation: &'static str,
        key: Option<&'a ObjectKey>,
        bytes: u64,
    ) -> Self {
        let timeouts = &wire.config.timeouts;
        let for_body = Duration::from_secs(bytes / timeouts.rate_min.max(1));
        let deadline = wire.clock.now() + timeouts.operation + for_body;
        Self {
            wire,
            operation,
            key,
            attempt: 1,
            deadline,
            attempts_max: wire.config.attempts_max,
            refreshed: false,
            corrected: false,
            ambiguous: false,
        }
    }

    /// With less patience than configured.
    pub(super) fn at_most(mut self, attempts: u32, within: Duration) -> Self {
        self.attempts_max = self.attempts_max.min(attempts);
        self.deadline = self.deadline.min(self.wire.clock.now() + within);
        self
    }

    /// Waits until the next try, or gives the final error.
    pub(super) async fn again(&mut self, failure: Failure) -> Result<()> {
        self.ambiguous |= failure.ambiguous;
        if self.cure(&failure).await {
            self.wire.metrics.s3_retries.inc();
            return Ok(());
        }
        let wait = backoff(self.attempt, self.wire.dice.roll(), failure.retry_after);
        let now = self.wire.clock.now();
        let worth = self.attempt < tries_max(failure.error.kind(), self.attempts_max)
            && now + wait < self.deadline
            && self.wire.budget.take();
        if !worth {
            return Err(self.give_up(failure.error));
        }
        tracing::debug!(
            wait_ms = wait.as_millis(),
            attempt = self.attempt,
            "will try again: {}",
            failure.error
        );
        self.attempt += 1;
        self.wire.metrics.s3_retries.inc();
        self.wire.clock.sleep(wait).await;
        Ok(())
    }

    /// Progress was made since the last failure: the tries count from the start again. The deadline stays.
    pub(super) fn progressed(&mut self) {
        self.attempt = 1;
    }

    /// It worked.
    pub(super) fn succeeded(&self) {
        self.wire.budget.put(self.attempt > 1);
    }

    /// Failures that are ours to mend, each at most once in a call: stale credentials, a wrong clock.
    async fn cure(&mut self, failure: &Failure) -> bool {
        let code = failure.error.code();
        if code == Some("RequestTimeTooSkewed")
            && !self.corrected
            && let Some(theirs) = failure.date
        {
            self.corrected = true;
            self.wire.skew.learn(self.wire.clock.wall(), theirs);
            tracing::warn!(
                "this machine's clock is off; requests are signed by the store's clock from now on"
            );
            return true;
        }
        // A HEAD's refusal has no code; it may be about credentials or not.
        let doubtful = *failure.error.kind() == ErrorKind::Denied && code.is_none_or(is_about_credentials);
        if doubtful
            && !self.refreshed
            && let (Some(source), Some(generation)) = (&self.wire.credentials, failure.generation)
        {
            self.refreshed = true;
            return source.replace(generation).await;
        }
        false
    }

    fn give_up(&self, error: Error) -> Error {
        let error = if self.ambiguous { error.unsettled() } else { error };
        match error.kind() {
            // Answers, not failures: a lookup asks for what may not be there.
            ErrorKind::NotFound | ErrorKind::Changed | ErrorKind::Exists => {}
            _ => {
                self.wire.metrics.s3_errors.inc();
                tracing::warn!(attempts = self.attempt, "{error}");
            }
        }
        error
    }
}
