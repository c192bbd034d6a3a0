//! Detects outages of the store from the results of all calls, so that the log has one line when an outage begins and one when it ends.
//! Pure.

use std::time::{Duration, Instant};

/// Time of failures without a success after which they are an outage. Doubling it keeps shorter outages out of the log.
const BEGINS_AFTER: Duration = Duration::from_secs(2);

/// The availability of the store, judged from the results of all calls.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    /// Time of the last answer that was not a failure of the store.
    answered: Option<Instant>,
    failing: Option<Failing>,
}

#[derive(Debug)]
struct Failing {
    since: Instant,
    calls: u64,
    told: bool,
}

/// An outage that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Over {
    pub(crate) lasted: Duration,
    /// Number of calls that failed at least once meanwhile.
    pub(crate) calls: u64,
}

impl Outage {
    /// Notes a failed attempt that a retry may cure. Its call has had no answer since `lost`. `first`: the call's first failure. Returns
    /// the time since the outage began, if it should be logged now.
    pub(crate) fn failed(&mut self, now: Instant, lost: Instant, first: bool) -> Option<Duration> {
        // Other calls were answered after this one was sent, so its silence proves nothing about the store.
        let since = if self.answered.is_some_and(|answered| answered > lost) { now } else { lost.min(now) };
        let failing = self.failing.get_or_insert(Failing { since, calls: 0, told: false });
        failing.since = failing.since.min(since);
        failing.calls += u64::from(first);
        let away = now.saturating_duration_since(failing.since);
        if failing.told || away < BEGINS_AFTER {
            return None;
        }
        failing.told = true;
        Some(away)
    }

    /// Notes an answer of the store. Returns the outage that ended, if one was reported.
    pub(crate) fn answered(&mut self, now: Instant) -> Option<Over> {
        self.answered = Some(now);
        let failing = self.failing.take().filter(|f| f.told)?;
        Some(Over { lasted: now.saturating_duration_since(failing.since), calls: failing.calls })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(start: Instant, ms: u64) -> Instant {
        start + Duration::from_millis(ms)
    }

    #[test]
    fn an_outage_is_told_once_when_it_begins_and_once_when_it_ends() {
        let (start, mut outage) = (Instant::now(), Outage::default());
        assert_eq!(outage.answered(start), None);
        let mut told = Vec::new();
        for ms in (100..10_000).step_by(100) {
            // Twelve calls, each failing again and again.
            let first = ms <= 1200;
            told.extend(outage.failed(at(start, ms), at(start, 100), first));
        }
        assert_eq!(told, [BEGINS_AFTER]);
        let over = outage.answered(at(start, 10_100));
        assert_eq!(over, Some(Over { lasted: Duration::from_secs(10), calls: 12 }));
        assert_eq!(outage.answered(at(start, 10_200)), None);
    }

    #[test]
    fn failures_between_answers_are_no_outage() {
        let (start, mut outage) = (Instant::now(), Outage::default());
        for ms in (0..60_000).step_by(100) {
            let now = at(start, ms);
            // One request in ten is answered 503.
            if ms % 1000 == 0 {
                assert_eq!(outage.failed(now, now, true), None);
            } else {
                assert_eq!(outage.answered(now), None);
            }
        }
    }

    #[test]
    fn silence_counts_from_its_beginning_unless_others_had_answers_meanwhile() {
        let (start, mut outage) = (Instant::now(), Outage::default());
        let silent = Duration::from_secs(20);
        assert_eq!(outage.failed(start + silent, start, true), Some(silent));
        let mut one_connection = Outage::default();
        one_connection.answered(start + silent / 2);
        assert_eq!(
            one_connection.failed(start + silent, start, true),
            None,
            "one connection is not an outage"
        );
    }

    #[test]
    fn each_outage_is_told_of() {
        let (start, mut outage) = (Instant::now(), Outage::default());
        for n in 0..3 {
            let lost = at(start, n * 10_000);
            assert!(outage.failed(lost, lost, true).is_none());
            assert!(outage.failed(lost + BEGINS_AFTER, lost, false).is_some());
            let over = outage.answered(lost + BEGINS_AFTER * 2).unwrap();
            assert_eq!(over, Over { lasted: BEGINS_AFTER * 2, calls: 1 });
        }
    }
}
