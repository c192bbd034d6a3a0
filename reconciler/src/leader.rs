//! Leadership: a Lease lets one reconciler at a time apply effects. Enters: a client. Leaves: [`Leadership`], which callers check before
//! each effect. It expires without further calls when the Lease can't be renewed.
//!
//! The Lease keeps the time in which two reconcilers act at once short. The rules of `plan.rs` make sure that they do no harm
//! meanwhile.

use std::time::Duration;

use csi::contract::lease;
use kube::Client;
use kube_leader_election::{LeaseLock, LeaseLockParams, LeaseLockResult};
use tokio::sync::watch;
use tokio::time::Instant;

/// The name of the Lease.
pub const LEASE: &str = lease::NAME;
const TTL: Duration = lease::DURATION;
/// Time from the beginning of a renewal for which the holder acts as leader: less than `TTL`, because clocks differ.
const HOLDS_FOR: Duration = Duration::from_secs(10);
/// Time between renewals, and between the attempts of reconcilers that wait for the Lease.
const EVERY: Duration = Duration::from_secs(3);
/// Time after which a new holder confirms the Lease. Two reconcilers that find the Lease free at once may both get a success; only
/// one of them still has it then.
const CONFIRM_AFTER: Duration = Duration::from_secs(1);
/// Time limit of a call. A call that takes longer has failed.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// The right of this process to apply effects, which expires.
#[derive(Clone, Debug)]
pub struct Leadership(watch::Receiver<Option<Instant>>);

impl Leadership {
    /// Whether this process holds the Lease now.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.0.borrow().is_some_and(|until| Instant::now() < until)
    }

    /// Waits until leadership is renewed, gained or given up. An expiry does not wake the caller.
    pub async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// A leadership until the time that this channel has last told.
    #[must_use]
    pub fn until(told: watch::Receiver<Option<Instant>>) -> Self {
        Self(told)
    }

    /// A leadership that lasts, for tests and for tools that run alone.
    #[must_use]
    pub fn forever() -> Self {
        let far = Instant::now() + Duration::from_secs(10 * 365 * 24 * 3600);
        Self(watch::channel(Some(far)).1)
    }
}

/// One candidate of the election.
pub struct Elector {
    lock: LeaseLock,
    until: watch::Sender<Option<Instant>>,
    /// The number of transitions in the last answer; `None` if that answer said that another process has the Lease.
    confirmed: Option<i32>,
}

impl Elector {
    /// An elector. `holder` must differ for each process: callers pass the pod's name.
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

    /// The leadership that this elector renews.
    #[must_use]
    pub fn leadership(&self) -> Leadership {
        Leadership::until(self.until.subscribe())
    }

    /// Takes part in the election until the future is dropped.
    pub async fn run(&mut self) {
        loop {
            let wait = self.step().await;
            tokio::time::sleep(wait).await;
        }
    }

    /// Tries once to acquire or renew the Lease. Returns the wait before the next try.
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
            // Leadership is not taken away here: it expires at its time.
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

    /// Releases the Lease for waiting reconcilers. Callers make sure that no effect is in progress.
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
