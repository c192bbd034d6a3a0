//! Checks whether a reconciler works. Enters: its Lease, read while a mount waits for an assignment. Leaves: an error, if no reconciler
//! has renewed the Lease for its whole duration.
//!
//! Never here: the times in the Lease, which are of another machine's clock; a request while no mount waits.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use mountpoint::sync::{Arc, Mutex};
use tokio::time::{Instant, sleep, timeout};

use crate::contract::lease;
use crate::error::{Error, ErrorKind};

/// Shortest pause between two reads of the Lease for a waiting mount.
const EVERY: Duration = Duration::from_secs(1);
/// Time limit of a call; a call that takes longer has failed.
const CALL_LIMIT: Duration = Duration::from_secs(5);

/// The reconciler's Lease, as this node last saw it.
#[derive(Clone)]
pub struct ReconcilerLease {
    leases: Api<Lease>,
    namespace: String,
    seen: Arc<Mutex<Option<Seen>>>,
}

impl std::fmt::Debug for ReconcilerLease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReconcilerLease").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

/// A state of the Lease, and the time at which this node first saw it, by its own clock.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    state: State,
    since: Instant,
}

/// The fields of the Lease that a renewal changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct State {
    holder: Option<String>,
    renewed: Option<String>,
    duration: Option<Duration>,
}

impl State {
    /// The state in a Lease; the default without one: no reconciler ever worked.
    fn of(lease: Option<Lease>) -> Self {
        let Some(spec) = lease.and_then(|it| it.spec) else { return Self::default() };
        let seconds = spec.lease_duration_seconds.and_then(|it| u64::try_from(it).ok());
        Self {
            holder: spec.holder_identity,
            renewed: spec.renew_time.map(|it| it.0.to_string()),
            duration: seconds.map(Duration::from_secs),
        }
    }
}

impl Seen {
    /// The memory after the Lease was read in this state.
    fn after(earlier: Option<Self>, state: State, now: Instant) -> Self {
        match earlier {
            Some(seen) if seen.state == state => seen,
            _ => Self { state, since: now },
        }
    }

    /// Time for which the Lease may still stay unchanged; `None`: no reconciler works.
    fn left(&self, now: Instant) -> Option<Duration> {
        // A leader that steps down writes a duration of a second. Its successors look every few seconds, and may have to start.
        let is_held = self.state.holder.as_deref().is_some_and(|it| !it.is_empty());
        let duration = self.state.duration.filter(|_| is_held).unwrap_or(lease::DURATION);
        duration.checked_sub(now.duration_since(self.since)).filter(|left| !left.is_zero())
    }
}

impl ReconcilerLease {
    /// The reconciler's Lease in this namespace.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self {
            leases: Api::namespaced(client, namespace),
            namespace: namespace.to_owned(),
            seen: Arc::default(),
        }
    }

    /// Waits until no reconciler works. Goes on waiting while the API server does not return the Lease.
    pub async fn gone(&self) -> Error {
        loop {
            let wait = match timeout(CALL_LIMIT, self.leases.get_opt(lease::NAME)).await {
                Ok(Ok(lease)) => {
                    let now = Instant::now();
                    let seen = Seen::after(self.seen.lock().take(), State::of(lease), now);
                    let left = seen.left(now);
                    let holder = seen.state.holder.clone();
                    *self.seen.lock() = Some(seen);
                    let Some(left) = left else { return self.error(holder.as_deref()) };
                    left.max(EVERY)
                }
                Ok(Err(error)) => {
                    tracing::debug!(%error, "asking for the reconciler's Lease");
                    EVERY
                }
                Err(_) => EVERY,
            };
            sleep(wait).await;
        }
    }

    fn error(&self, holder: Option<&str>) -> Error {
        let namespace = &self.namespace;
        let last = holder
            .filter(|it| !it.is_empty())
            .map_or_else(String::new, |it| format!(", and {it} had it last"));
        Error::new(
            ErrorKind::Unavailable,
            format!(
                "no reconciler works, so the workload gets no Mountpoint Pod: no process renews Lease {namespace}/{}{last}. \
                 Mounted volumes keep working. Look at: kubectl -n {namespace} get pods -l app=s3-csi-controller",
                lease::NAME
            ),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(renewed: &str) -> State {
        State {
            holder: Some("a".into()),
            renewed: Some(renewed.into()),
            duration: Some(Duration::from_secs(15)),
        }
    }

    #[test]
    fn a_lease_without_renewal_for_its_duration_is_free_whatever_its_times() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let seen = Seen::after(None, state("1970"), at(0));
        assert_eq!(seen.left(at(0)), Some(Duration::from_secs(15)));
        let seen = Seen::after(Some(seen), state("1970"), at(14));
        assert_eq!(seen.left(at(14)), Some(Duration::from_secs(1)));
        let renewed = Seen::after(Some(seen.clone()), state("2999"), at(14));
        assert_eq!(renewed.left(at(28)), Some(Duration::from_secs(1)));
        let seen = Seen::after(Some(seen), state("1970"), at(15));
        assert_eq!(seen.left(at(15)), None);
        // Much later the first look says so: it is the same renewal.
        assert_eq!(Seen::after(Some(seen), state("1970"), at(900)).left(at(900)), None);
    }

    /// Goal: a rolling update of the reconciler leaves no time without one.
    #[test]
    fn a_leader_that_steps_down_leaves_its_successor_as_much_time_as_a_death() {
        // kube-leader-election writes it so.
        let spec = serde_json::json!({"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": "2025-06-01T10:00:00.000000Z"});
        let free = State::of(serde_json::from_value(serde_json::json!({ "spec": spec })).unwrap());
        assert_eq!((free.holder.as_deref(), free.duration), (Some(""), Some(Duration::from_secs(1))));
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let held = Seen::after(None, state("2025"), at(0));
        let seen = Seen::after(Some(held), free.clone(), at(10));
        assert_eq!(seen.left(at(10)), Some(lease::DURATION));
        assert_eq!(seen.left(at(12)), Some(lease::DURATION - Duration::from_secs(2)));
        assert_eq!(seen.left(at(10) + lease::DURATION), None);
        // The word of a leader that holds it counts.
        let held = State { holder: Some("b".into()), ..free };
        assert_eq!(Seen::after(None, held, at(10)).left(at(11)), None);
    }

    #[test]
    fn a_lease_that_was_never_there_is_waited_for_as_long() {
        let now = Instant::now();
        let seen = Seen::after(None, State::of(None), now);
        assert_eq!(seen.left(now), Some(lease::DURATION));
        assert_eq!(seen.left(now + lease::DURATION), None);
    }
}
