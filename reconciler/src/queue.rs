//! The queue of groups and their due times. It holds each group at most once, and only one worker handles a group at a time. The retries
//! of a failed group back off. An event shortens a long backoff, because it may be about the cause; it never shortens a pause that the API
//! server asked for.
//!
//! Never here: a clock. The caller passes the time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::facts::Group;

/// Backoff after the first failure; it doubles with each further one. The usual failure is a cache that lags behind.
const RETRY_FIRST: Duration = Duration::from_millis(50);
/// Longest backoff.
const RETRY_LAST: Duration = Duration::from_secs(60);
/// Longest backoff of a group with events. Doubled, half as many attempts fail while pods of the group change, and news of a mended cause
/// wait twice as long.
const RETRY_AT_EVENT: Duration = Duration::from_secs(1);

/// The times at which groups are due. It has at most one entry for each group.
#[derive(Debug, Default)]
pub struct Queue {
    due: BTreeMap<Group, Instant>,
    busy: BTreeSet<Group>,
    failures: BTreeMap<Group, Failures>,
}

/// The failures of a group in a row.
#[derive(Debug)]
struct Failures {
    count: u32,
    /// The earliest time of the next attempt, also after an event.
    not_before: Instant,
}

impl Queue {
    /// Makes the group due at this time, or earlier if it already is due earlier. After a failure it is due when its pause is over.
    pub fn add(&mut self, group: Group, at: Instant) {
        let at = self.failures.get(&group).map_or(at, |failures| failures.not_before.max(at));
        let due = self.due.entry(group).or_insert(at);
        *due = (*due).min(at);
    }

    /// Takes the group that is due first and has no worker. The worker must call [`Queue::done`] or [`Queue::failed`].
    pub fn take(&mut self, now: Instant) -> Option<Group> {
        let free = self.due.iter().filter(|(group, at)| **at <= now && !self.busy.contains(*group));
        let group = free.min_by_key(|(_, at)| **at)?.0.clone();
        self.due.remove(&group);
        self.busy.insert(group.clone());
        Some(group)
    }

    /// The time at which [`Queue::take`] next returns a group; `None` if no group without a worker is queued.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        self.due.iter().filter(|(group, _)| !self.busy.contains(*group)).map(|(_, at)| *at).min()
    }

    /// Notes that a worker finished a group. With `again` the group is due again after that time, otherwise at its next event.
    pub fn done(&mut self, group: Group, again: Option<Duration>, now: Instant) {
        self.busy.remove(&group);
        self.failures.remove(&group);
        if let Some(again) = again {
            self.add(group, now + again);
        }
    }

    /// Notes that a worker failed with a group. Returns the wait until the retry: the backoff, or `rest` if that is longer; 60 s at most. An
    /// event shortens it, also one that came during the work.
    pub fn failed(&mut self, group: Group, rest: Duration, now: Instant) -> Duration {
        self.busy.remove(&group);
        let before = self.failures.get(&group).map_or(0, |failures| failures.count);
        let backoff = RETRY_FIRST.saturating_mul(1 << before.min(16));
        let wait = backoff.max(rest).min(RETRY_LAST);
        let not_before = now + wait.min(RETRY_AT_EVENT.max(rest));
        self.failures.insert(group.clone(), Failures { count: before + 1, not_before });
        // An event during the work counts like one after it: it may be about the cause. It can't keep the worker in a loop, since
        // `not_before` grows up to `RETRY_AT_EVENT`.
        let event = self.due.get(&group).map(|at| (*at).max(not_before));
        let retry = now + wait;
        self.due.insert(group, event.map_or(retry, |event| event.min(retry)));
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(name: &str) -> Group {
        Group { node: "n".into(), volume: name.into() }
    }

    #[test]
    fn a_group_is_worked_on_by_one_at_a_time_and_again_after_new_events() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.add(group("a"), now);
        queue.add(group("a"), now);
        assert_eq!(queue.take(now), Some(group("a")));
        assert_eq!(queue.take(now), None);
        queue.add(group("a"), now);
        assert_eq!((queue.take(now), queue.next()), (None, None));
        queue.done(group("a"), None, now);
        assert_eq!(queue.take(now), Some(group("a")));
    }

    #[test]
    fn who_was_due_first_comes_first_and_nobody_before_his_time() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        let later = now + Duration::from_secs(1);
        queue.add(group("a"), later);
        queue.add(group("b"), now);
        assert_eq!(queue.take(now), Some(group("b")));
        assert_eq!((queue.take(now), queue.next()), (None, Some(later)));
        assert_eq!(queue.take(later), Some(group("a")));
    }

    #[test]
    fn who_fails_waits_longer_each_time_and_no_longer_than_a_minute() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        let waits: Vec<_> = (0..20).map(|_| queue.failed(group("a"), Duration::ZERO, now)).collect();
        assert_eq!(waits[..3], [50, 100, 200].map(Duration::from_millis));
        assert_eq!(waits[19], RETRY_LAST);
        queue.done(group("a"), None, now);
        assert_eq!(queue.failed(group("a"), Duration::ZERO, now), RETRY_FIRST);
    }

    /// Lets a group fail until its waits have their longest.
    fn fail_often(queue: &mut Queue, now: Instant) {
        for _ in 0..20 {
            queue.failed(group("a"), Duration::ZERO, now);
            assert_eq!(queue.take(now + RETRY_LAST), Some(group("a")));
        }
        queue.failed(group("a"), Duration::ZERO, now);
    }

    /// Goal: the only news of a mended cause is not lost because it came while a worker still failed.
    #[test]
    fn an_event_during_an_attempt_that_fails_shortens_a_long_wait() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        fail_often(&mut queue, now);
        let later = now + RETRY_LAST;
        assert_eq!(queue.take(later), Some(group("a")));
        queue.add(group("a"), later);
        assert_eq!(queue.failed(group("a"), Duration::ZERO, later), RETRY_LAST);
        assert_eq!(queue.next(), Some(later + RETRY_AT_EVENT));
        // The API server asked for a pause.
        assert_eq!(queue.take(later + RETRY_AT_EVENT), Some(group("a")));
        queue.add(group("a"), later);
        queue.failed(group("a"), Duration::from_secs(7), later);
        assert_eq!(queue.next(), Some(later + Duration::from_secs(7)));
    }

    #[test]
    fn an_event_after_a_failure_shortens_a_long_wait_and_skips_none() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        let ms = Duration::from_millis;
        assert_eq!(queue.failed(group("a"), Duration::ZERO, now), RETRY_FIRST);
        queue.add(group("a"), now);
        assert_eq!((queue.take(now + ms(49)), queue.take(now + ms(50))), (None, Some(group("a"))));
        // The last wait is of a minute.
        fail_often(&mut queue, now);
        assert_eq!(queue.next(), Some(now + RETRY_LAST));
        queue.add(group("a"), now + ms(10));
        assert_eq!(queue.next(), Some(now + RETRY_AT_EVENT));
        assert_eq!(queue.take(now + RETRY_AT_EVENT), Some(group("a")));
        // The API server asked for a pause.
        queue.failed(group("a"), ms(7_000), now);
        queue.add(group("a"), now);
        assert_eq!(queue.next(), Some(now + ms(7_000)));
        assert_eq!(queue.take(now + ms(7_000)), Some(group("a")));
        queue.done(group("a"), None, now);
        queue.add(group("a"), now);
        assert_eq!(queue.take(now), Some(group("a")), "a success ends the series");
    }

    #[test]
    fn who_is_told_to_rest_waits_as_long_but_no_longer_than_a_minute() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        let seconds = Duration::from_secs;
        assert_eq!(queue.failed(group("a"), seconds(5), now), seconds(5));
        assert_eq!((queue.take(now + seconds(4)), queue.take(now + seconds(5))), (None, Some(group("a"))));
        assert_eq!(queue.failed(group("a"), seconds(3_600), now), RETRY_LAST);
    }
}
