//! Chooses the address for the next connection among the addresses of a name. Pure: DNS answers and the results of connections come in as
//! values.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Time for which an address stays in use after DNS has dropped it. A large store names a few of its many addresses in each answer.
const REMEMBERED: Duration = Duration::from_secs(300);
/// Pause of an address after a failure. Each further failure in a row doubles it, up to [`REST_MAX`].
const REST: Duration = Duration::from_secs(5);
const REST_MAX: Duration = Duration::from_secs(60);
/// Most addresses kept for one name. Beyond it, the addresses that DNS named longest ago are dropped.
const ADDRESSES_MAX: usize = 64;
/// Pause after a DNS query without an answer, while an address is healthy: each query may take seconds.
const UNANSWERED_REST: Duration = Duration::from_secs(30);

/// The addresses of one name.
#[derive(Debug, Default)]
pub(crate) struct Addresses {
    list: Vec<Address>,
    resolved: Option<Instant>,
    /// Time of the last DNS query, if it had no answer.
    unanswered: Option<Instant>,
    turn: usize,
}

#[derive(Debug)]
struct Address {
    at: SocketAddr,
    named: Instant,
    open: usize,
    failures: u32,
    failed: Option<Instant>,
}

impl Address {
    fn rests(&self, now: Instant) -> bool {
        let rest = REST.saturating_mul(1 << self.failures.saturating_sub(1).min(8)).min(REST_MAX);
        self.failed.is_some_and(|at| now.saturating_duration_since(at) < rest)
    }
}

impl Addresses {
    /// Whether DNS should be asked: it was never asked, or not for `every`, or no address is healthy.
    pub(crate) fn wants_resolving(&self, now: Instant, every: Duration) -> bool {
        let for_long =
            |at: Option<Instant>, long| at.is_none_or(|at| now.saturating_duration_since(at) >= long);
        let is_due = for_long(self.resolved, every) && for_long(self.unanswered, UNANSWERED_REST);
        is_due || self.list.iter().all(|a| a.rests(now))
    }

    /// Notes that a DNS query had no answer.
    pub(crate) fn unanswered(&mut self, now: Instant) {
        self.unanswered = Some(now);
    }

    /// Adds the addresses of a DNS answer. Addresses that DNS no longer names are dropped after [`REMEMBERED`], or at once if they failed,
    /// but not while connections to them are open.
    pub(crate) fn resolved(&mut self, named: &[SocketAddr], now: Instant) {
        (self.resolved, self.unanswered) = (Some(now), None);
        for &at in named.iter().take(ADDRESSES_MAX) {
            match self.list.iter_mut().find(|a| a.at == at) {
                Some(known) => known.named = now,
                None => self.list.push(Address { at, named: now, open: 0, failures: 0, failed: None }),
            }
        }
        self.list.retain(|a| {
            a.open > 0
                || (now.saturating_duration_since(a.named) < REMEMBERED && a.failed.is_none())
                || a.named == now
        });
        self.list.sort_by_key(|a| std::cmp::Reverse(a.named));
        self.list.truncate(ADDRESSES_MAX);
    }

    /// Chooses the address for the next connection: a healthy one with the fewest connections, equal ones in turn; if none is healthy, the
    /// one that failed longest ago. Counts the connection; [`Addresses::closed`] takes it back.
    pub(crate) fn choose(&mut self, now: Instant) -> Option<SocketAddr> {
        let n = self.list.len();
        self.turn = self.turn.wrapping_add(1);
        let turn = self.turn;
        let (_, chosen) = self.list.iter_mut().enumerate().min_by_key(|(i, a)| {
            let rested = if a.rests(now) { a.failed } else { None };
            (rested, a.open, (i + n - turn % n) % n)
        })?;
        chosen.open += 1;
        Some(chosen.at)
    }

    /// Notes that a connection to this address was made.
    pub(crate) fn worked(&mut self, at: SocketAddr) {
        if let Some(a) = self.list.iter_mut().find(|a| a.at == at) {
            (a.failures, a.failed) = (0, None);
        }
    }

    /// Notes that a connection to this address failed, or broke off before an answer.
    pub(crate) fn failed(&mut self, at: SocketAddr, now: Instant) {
        if let Some(a) = self.list.iter_mut().find(|a| a.at == at) {
            a.failures = a.failures.saturating_add(1);
            a.failed = Some(now);
        }
    }

    /// Notes that a connection to an address from [`Addresses::choose`] is closed, or was never made.
    pub(crate) fn closed(&mut self, at: SocketAddr) {
        if let Some(a) = self.list.iter_mut().find(|a| a.at == at) {
            a.open = a.open.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(n: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, n], 80))
    }

    #[test]
    fn connections_spread_evenly_over_all_addresses() {
        let now = Instant::now();
        let mut addresses = Addresses::default();
        assert!(addresses.wants_resolving(now, REST));
        addresses.resolved(&[at(1), at(2), at(3)], now);
        let mut counts = [0; 4];
        for _ in 0..30 {
            let SocketAddr::V4(v4) = addresses.choose(now).unwrap() else { unreachable!() };
            counts[v4.ip().octets()[3] as usize] += 1;
        }
        assert_eq!(counts, [0, 10, 10, 10]);
    }

    #[test]
    fn a_failed_address_rests_and_comes_back() {
        let now = Instant::now();
        let mut addresses = Addresses::default();
        addresses.resolved(&[at(1), at(2)], now);
        addresses.failed(at(1), now);
        for _ in 0..5 {
            assert_eq!(addresses.choose(now), Some(at(2)));
        }
        let later = now + REST;
        assert_eq!(addresses.choose(later), Some(at(1)), "rested, and has the fewest connections");
        addresses.failed(at(1), later);
        assert_eq!(addresses.choose(later + REST), Some(at(2)), "the second rest is longer");
    }

    #[test]
    fn without_a_healthy_address_the_oldest_failure_is_tried_and_dns_asked() {
        let now = Instant::now();
        let mut addresses = Addresses::default();
        addresses.resolved(&[at(1), at(2)], now);
        addresses.failed(at(2), now);
        assert!(!addresses.wants_resolving(now, REMEMBERED));
        addresses.failed(at(1), now + Duration::from_secs(1));
        let later = now + Duration::from_secs(2);
        assert!(addresses.wants_resolving(later, REMEMBERED));
        assert_eq!(addresses.choose(later), Some(at(2)));
    }

    #[test]
    fn dns_that_does_not_answer_is_left_alone_while_an_address_is_healthy() {
        let now = Instant::now();
        let mut addresses = Addresses::default();
        addresses.unanswered(now);
        assert!(addresses.wants_resolving(now, REST), "there is nothing else");
        addresses.resolved(&[at(1)], now);
        let due = now + REST;
        assert!(addresses.wants_resolving(due, REST));
        addresses.unanswered(due);
        assert!(!addresses.wants_resolving(due + UNANSWERED_REST / 2, REST));
        assert!(addresses.wants_resolving(due + UNANSWERED_REST, REST));
        addresses.failed(at(1), due);
        assert!(addresses.wants_resolving(due, REST), "nothing healthy is left");
    }

    #[test]
    fn an_address_that_dns_forgets_is_used_for_a_while_unless_it_fails() {
        let now = Instant::now();
        let mut addresses = Addresses::default();
        addresses.resolved(&[at(1), at(2)], now);
        addresses.resolved(&[at(3)], now + Duration::from_secs(60));
        assert_eq!(addresses.list.len(), 3);
        addresses.failed(at(1), now + Duration::from_secs(61));
        addresses.resolved(&[at(3)], now + Duration::from_secs(120));
        assert_eq!(addresses.list.len(), 2);
        addresses.resolved(&[at(3)], now + REMEMBERED);
        assert_eq!(addresses.list.len(), 1);
    }
}
