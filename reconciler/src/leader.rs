//! Leadership: a Lease lets one reconciler at a time apply effects. Enters: a client. Leaves: [`Leadership`], which is checked before
//! each effect and expires by itself when the Lease can't be renewed.
//!
//! The Lease prevents two reconcilers from working against each other for long. `plan.rs` makes sure that two of them do no harm
//! meanwhile.

use std::time::Duration;

use csi::contract::lease;
use kube::Client;
use kube_leader_election::{LeaseLock, LeaseLockParams, LeaseLockResult};
use tokio::sync::watch;
use tokio::time::Instant;

/// The Lease.
pub const LEASE: &str = lease::NAME;
const TTL: Duration = lease::DURATION;
/// The holder relies on the Lease for this time after a renewal began: less than `TTL`, because clocks differ.
const HOLDS_FOR: Duration = Duration::from_secs(10);
/// Time between renewals, and between the attempts of waiting reconcilers.
const EVERY: Duration = Duration::from_secs(3);
/// The time after which a new holder confirms the Lease: two reconcilers that find the Lease free at once may both get a success, and only
/// one still has it then.
const CONFIRM_AFTER: Duration = Duration::from_secs(1);
/// A call that takes longer has failed.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Whether this process may apply effects.
#[derive(Clone, Debug)]
pub struct Leadership(watch::Receiver<Option<Instant>>);

impl Leadership {
    /// Whether this process holds the Lease now.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.0.borrow().is_some_and(|until| Instant::now() < until)
    }

    /// Waits until leadership is renewed, gained or given up.
    pub async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Leadership for good, for tests and for tools that run alone.
    #[must_use]
    pub fn forever() -> Self {
        let far = Instant::now() + Duration::from_secs(10 * 365 * 24 * 3600);
        Self(watch::channel(Some(far)).1)
    }
}

/// Takes part in the election.
pub struct Elector {
    lock: LeaseLock,
    until: watch::Sender<Option<Instant>>,
    /// The number of transitions in the last answer, if this process holds the Lease by that answer.
    confirmed: Option<i32>,
}

impl Elector {
    /// An elector. `holder` must differ in each process: callers pass the pod's name.
    #[must_use]
    pub fn new(client: Client, namespace: &str, holder: &str) -> Self {
        let params =
            LeaseLockParams { lease_name: LEASE.to_owned(), holder_id: holder.to_owned(), lease_ttl: TTL };
        Self {
            lock: LeaseLock::new(client, namespace, params),
            until: watch::channel(None).0,
            confirmed: None,
        }
    }

    /// The outcome of the election.
    #[must_use]
    pub fn leadership(&self) -> Leadership {
        Leadership(self.until.subscribe())
    }

    /// Takes part in the election, until it is dropped.
    pub async fn run(&mut self) {
        loop {
            let wait = self.step().await;
            tokio::time::sleep(wait).await;
        }
    }

    /// Makes one attempt; returns the wait before the next.
    async fn step(&mut self) -> Duration {
        let began = Instant::now();
        match tokio::time::timeout(CALL_TIMEOUT, self.lock.try_acquire_or_renew()).await {
            Ok(Ok(LeaseLockResult::Acquired(lease))) => {
                let changes = lease.spec.and_then(|spec| spec.lease_transitions).unwrap_or_default();
                if self.confirmed.replace(changes) != Some(changes) {
                    return CONFIRM_AFTER;
                }
                if self.until.send_replace(Some(began + HOLDS_FOR)).is_none() {
                    tracing::info!(lease = LEASE, "this process leads");
                }
            }
            Ok(Ok(LeaseLockResult::NotAcquired(_))) => {
                self.confirmed = None;
                if self.until.send_replace(None).is_some() {
                    tracing::warn!(lease = LEASE, "another process took the Lease; this one waits");
                }
            }
            // A held Lease expires by itself.
            Ok(Err(error)) => {
                tracing::warn!(lease = LEASE, %error, "the Lease was not renewed; it is tried again, and another reconciler leads once it has run out: look at the API server")
            }
            Err(_) => {
                tracing::warn!(
                    lease = LEASE,
                    "the Lease was not renewed: no answer in {CALL_TIMEOUT:?}; it is tried again: look at the API server"
                )
            }
        }
        EVERY
    }

    /// Gives leadership up: no effect begins after this call.
    pub fn stop(&self) {
        self.until.send_replace(None);
    }

    /// Releases the Lease for waiting reconcilers. Call this when no effect is in progress.
    pub async fn step_down(&mut self) {
        self.stop();
        if self.confirmed.take().is_none() {
            return;
        }
        match tokio::time::timeout(CALL_TIMEOUT, self.lock.step_down()).await {
            Ok(Ok(())) => tracing::info!(lease = LEASE, "released the Lease"),
            Ok(Err(error)) => {
                tracing::warn!(lease = LEASE, %error, "the Lease was not given away; it runs out")
            }
            Err(_) => tracing::warn!(lease = LEASE, "the Lease was not given away; it runs out"),
        }
    }
}
