//! The retry loop of a request: attempt, classify the failure, wait, and try again, while the patience of the call lasts.

use std::time::Duration;

use http::{HeaderName, HeaderValue, Method, StatusCode};

use crate::net::flow::lanes::Lane;
use crate::net::flow::share::Floor;
use crate::object::ObjectKey;
use crate::s3::answer::{CLOCK_REFUSED, is_about_credentials};
use crate::s3::failure::Failure;
use crate::s3::retry::{Call, Miss, Patience, Slot, is_transient};
use crate::s3::wire::{Clocks, Draft, Wire};
use crate::s3::{Error, ErrorKind, Result};

/// The attempts of one call.
#[derive(Debug)]
pub(crate) struct Attempts<'a> {
    wire: &'a Wire,
    pub(crate) operation: &'static str,
    pub(crate) key: Option<&'a ObjectKey>,
    /// Number of the attempt in flight, from 1.
    pub(crate) attempt: u32,
    lane: Lane,
    /// Length of the body that is sent or received, in bytes.
    bytes: u64,
    patience: Patience,
    /// Whether failures of this call count for the log's lines about outages.
    is_watched: bool,
    /// Whether the call has failed since the store's last answer.
    fails: bool,
    refreshed: bool,
    corrected: bool,
    /// Whether the request leaves out the header that asks for the object's checksum, which the store may not know.
    leaves_checksums: bool,
    /// Whether an earlier attempt may have been executed.
    pub(crate) ambiguous: bool,
    slot: Option<Slot<'a>>,
    takes_slots: bool,
    _call: Call<'a>,
}

impl<'a> Attempts<'a> {
    /// Begins with the first attempt. `bytes` is the body's length: it decides the lane, and extends the time limit of each exchange by its
    /// time at the minimal rate. An exchange on a line shared with others may run longer.
    pub(crate) fn new(
        wire: &'a Wire,
        operation: &'static str,
        key: Option<&'a ObjectKey>,
        bytes: u64,
    ) -> Self {
        Self {
            wire,
            operation,
            key,
            attempt: 1,
            lane: Lane::of(bytes),
            bytes,
            patience: Patience::new(wire.config.timeouts.operation, wire.config.attempts_max),
            is_watched: true,
            fails: false,
            refreshed: false,
            corrected: false,
            leaves_checksums: false,
            ambiguous: false,
            slot: None,
            takes_slots: true,
            _call: wire.slots.call(),
        }
    }

    /// Limits the patience of the call below the configured one. Outages are not logged, because the caller reports the failure.
    pub(crate) fn at_most(mut self, attempts: u32, within: Duration) -> Self {
        self.patience.at_most(attempts, within);
        self.is_watched = false;
        self
    }

    /// Puts the call into this lane, whatever the length of its body.
    pub(crate) fn in_lane(self, lane: Lane) -> Self {
        Self { lane, ..self }
    }

    /// Exempts the call from the limit on concurrent retries: such calls are rarely repeated, and wait long for the store.
    pub(crate) fn without_slots(self) -> Self {
        Self { takes_slots: false, ..self }
    }

    /// Drafts the request of the current attempt: without extra headers, without a body.
    pub(crate) fn draft(&self, method: Method, target: String) -> Draft<'a> {
        Draft {
            operation: self.operation,
            key: self.key,
            attempt: self.attempt,
            method,
            target,
            headers: Vec::new(),
            body: None,
            hashed: false,
            fresh: false,
            sent: None,
            clocks: self.clocks(),
        }
    }

    /// The header that requests the object's checksum; `None` if the store refuses it.
    pub(crate) fn checksum_mode(&self) -> Option<(HeaderName, HeaderValue)> {
        let is_asked = !self.leaves_checksums && !self.wire.abilities.refuses_checksum_mode();
        is_asked.then(checksum_mode)
    }

    /// The time limits of the attempt that begins now.
    pub(crate) fn clocks(&self) -> Clocks {
        let timeouts = &self.wire.config.timeouts;
        let rate = timeouts.rate_min.max(1);
        let now = self.wire.clock.now();
        Clocks {
            lane: self.lane,
            unheard: self.patience.left(now),
            silence: self.patience.silence(now, timeouts.first_byte),
            stall: timeouts.stall,
            whole: timeouts.operation + Duration::from_secs(self.bytes / rate),
            floor: Some(Floor { rate, after: timeouts.operation }),
        }
    }

    /// Waits until the next attempt is due, or returns the final error.
    pub(crate) async fn again(&mut self, failure: Failure) -> Result<()> {
        self.slot = None;
        self.ambiguous |= failure.ambiguous;
        if self.cure(&failure).await {
            self.wire.metrics.s3_retries.inc();
            return Ok(());
        }
        let miss = Miss {
            kind: failure.error.kind(),
            now: self.wire.clock.now(),
            silent: failure.silent,
            queued: failure.queued,
            retry_after: failure.retry_after,
            hopeless: failure.hopeless,
        };
        let next = self.patience.missed(&miss, self.wire.dice.roll());
        self.watch(&failure.error, miss.now);
        let Some(wait) = next else { return Err(self.give_up(failure.error)) };
        tracing::debug!(
            wait_ms = wait.as_millis(),
            attempt = self.attempt,
            "will try again: {}",
            failure.error
        );
        self.wire.metrics.s3_retries.inc();
        self.wire.clock.sleep(wait).await;
        self.slot = self.take_slot().await;
        if self.patience.left(self.wire.clock.now()).is_zero() {
            // The sleep took longer than planned, on a busy machine: the store's last answer says more than a request without time would.
            return Err(self.give_up(failure.error));
        }
        self.attempt += 1;
        Ok(())
    }

    /// Waits for a slot, the permit to retry. Shortly before the end of the call's patience, the last attempts begin without one.
    async fn take_slot(&self) -> Option<Slot<'a>> {
        if !self.takes_slots {
            return None;
        }
        let before_last = self.patience.before_last(self.wire.clock.now());
        tokio::select! {
            biased;
            slot = self.wire.slots.slot() => slot,
            () = self.wire.clock.sleep(before_last) => None,
        }
    }

    /// Notes progress since the last failure, and restarts the call's patience.
    pub(crate) fn progressed(&mut self) {
        self.patience.progressed();
        self.answered();
    }

    /// Notes that an answer brought no byte for `quiet`. The caller then requests the same bytes once more, which does not count as an
    /// attempt. Returns the final error if the call's time is over.
    pub(crate) fn silent(&mut self, quiet: Duration) -> Result<()> {
        let now = self.wire.clock.now();
        if self.patience.silent(now, quiet) {
            return Ok(());
        }
        let mut error = Error::new(ErrorKind::Timeout, self.operation).message(
            "the store answers, and sends nothing of the body: look at the health of the object in the store",
        );
        if let Some(key) = self.key {
            error = error.key(key);
        }
        self.watch(&error, now);
        Err(self.give_up(error))
    }

    /// Notes that the attempt succeeded.
    pub(crate) fn succeeded(&mut self) {
        if self.leaves_checksums {
            self.wire.abilities.learn_refused_checksum_mode();
        }
        self.answered();
    }

    /// Counts a failure for the log, and logs the beginning of an outage: the error, the endpoint, and what to check.
    fn watch(&mut self, error: &Error, now: std::time::Instant) {
        if !self.is_watched {
            return;
        }
        let is_the_stores = is_transient(error.kind()) && *error.kind() != ErrorKind::Corrupt;
        if !is_the_stores {
            if error.http_status().is_some() {
                self.answered();
            }
            return;
        }
        let (first, lost) = (!self.fails, self.patience.lost().unwrap_or(now));
        self.fails = true;
        let Some(away) = self.wire.outage.lock().failed(now, lost, first) else { return };
        tracing::warn!(
            endpoint = self.wire.endpoint.authority.host_header(),
            away_s = away.as_secs(),
            "the store is away: {error}; each request waits {} s for it (--operation-timeout) before it fails: \
             look at the network between here and the endpoint, and at the store itself",
            self.wire.config.timeouts.operation.as_secs()
        );
    }

    /// Notes that the store answered, and logs the end of an outage.
    fn answered(&mut self) {
        self.fails = false;
        if !self.is_watched {
            return;
        }
        let over = self.wire.outage.lock().answered(self.wire.clock.now());
        if let Some(over) = over {
            tracing::warn!(
                endpoint = self.wire.endpoint.authority.host_header(),
                lasted_s = over.lasted.as_secs(),
                "the store answers again: {} requests had to wait",
                over.calls
            );
        }
    }

    /// Cures failures that the engine caused, each at most once in a call: stale credentials, a wrong clock, a header that the store does
    /// not know. Returns whether to try again at once.
    async fn cure(&mut self, failure: &Failure) -> bool {
        let code = failure.error.code();
        let reads = matches!(self.operation, "HeadObject" | "GetObject");
        if reads && *failure.error.kind() == ErrorKind::Unsupported && self.checksum_mode().is_some() {
            self.leaves_checksums = true;
            return true;
        }
        if code == Some(CLOCK_REFUSED)
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
        if may_be_about_credentials(&failure.error)
            && !self.refreshed
            && let (Some(source), Some(generation)) = (&self.wire.credentials, failure.generation)
        {
            self.refreshed = true;
            return source.replace(generation).await;
        }
        false
    }

    fn give_up(&self, error: Error) -> Error {
        let error = error.attempts(self.attempt);
        if self.ambiguous { error.unsettled() } else { error }
    }
}

/// Whether fresh credentials may help. The answer to a HEAD has no code, and an expired token is answered with 400.
fn may_be_about_credentials(error: &Error) -> bool {
    match (error.kind(), error.code()) {
        (ErrorKind::Denied, code) => code.is_none_or(is_about_credentials),
        (ErrorKind::InvalidRequest | ErrorKind::WrongRegion(_), None) => {
            error.http_status() == Some(StatusCode::BAD_REQUEST.as_u16())
        }
        _ => false,
    }
}

/// The header that requests the store's checksum of the object.
fn checksum_mode() -> (HeaderName, HeaderValue) {
    (HeaderName::from_static("x-amz-checksum-mode"), HeaderValue::from_static("ENABLED"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_without_a_code_may_concern_credentials_one_with_a_code_says() {
        let of = |kind, status, code: Option<&str>| {
            Error::new(kind, "HeadObject").status(status).answer(code.map(str::to_owned), None)
        };
        for error in [
            of(ErrorKind::Denied, 403, None),
            of(ErrorKind::Denied, 400, Some("ExpiredToken")),
            of(ErrorKind::InvalidRequest, 400, None),
            of(ErrorKind::WrongRegion(Some("r".into())), 400, None),
        ] {
            assert!(may_be_about_credentials(&error), "{error}");
        }
        for error in [
            of(ErrorKind::Denied, 403, Some("AccessDenied")),
            of(ErrorKind::InvalidRequest, 400, Some("InvalidArgument")),
            of(ErrorKind::InvalidRequest, 405, None),
            of(ErrorKind::WrongRegion(None), 301, None),
            of(ErrorKind::NotFound, 404, None),
        ] {
            assert!(!may_be_about_credentials(&error), "{error}");
        }
    }
}
