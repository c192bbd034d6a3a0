//! Decides when the stage sends each file. Pure.
//!
//! A file goes a moment after its last close, so that lock files and files written in many small steps cost no requests. A file that
//! programs close and open again and again, or sync and keep open, goes after a longer while. The oldest goes first; after each failure a
//! file waits longer.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

/// How long a file rests after its last close. Doubling it spares requests for files that programs soon remove, rename or write again,
/// and delays them for other hosts.
const REST: Duration = Duration::from_secs(2);
/// Longest wait of a change while programs open its file again and again, or keep it open after an fsync. Doubling it halves the sends of
/// such a file.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// The pause after the first failure. Each further failure doubles it.
const PAUSE: Duration = Duration::from_secs(1);
/// Most doublings of the pause, which is then 64 s. One more doubling halves the requests to a store that is away, and doubles the wait
/// of a file after the store is back.
const DOUBLINGS_MAX: u32 = 6;

/// Most doublings of the wait of a file that is never at rest, which is then 64 s. One more doubling halves the looks for a moment of rest.
const RESTLESS_MAX: u32 = 5;

/// The files that wait to be sent.
#[derive(Debug, Default)]
pub struct Queue {
    files: HashMap<u64, Waiting>,
    order: BTreeSet<(Instant, u64)>,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    since: Instant,
    due: Instant,
    failures: u32,
    /// Attempts that found the file never at rest.
    restless: u32,
}

impl Queue {
    /// Notes that the last program that wrote to a changed file closed it. Returns whether the file is the next one that is due.
    pub fn closed(&mut self, file: u64, now: Instant) -> bool {
        self.wait(file, now, |since| (now + REST).min(since + WAIT_MAX));
        self.is_next(file)
    }

    /// Notes that a program opened the file for writing. Earlier changes go all the same, after a while.
    pub fn opened(&mut self, file: u64, now: Instant) {
        if self.files.contains_key(&file) {
            self.wait(file, now, |since| since + WAIT_MAX);
        }
    }

    /// Notes that a program synced a changed file and keeps it open. Returns whether the file is the next one that is due.
    pub fn synced(&mut self, file: u64, now: Instant) -> bool {
        if !self.files.contains_key(&file) {
            self.wait(file, now, |since| since + WAIT_MAX);
        }
        self.is_next(file)
    }

    fn is_next(&self, file: u64) -> bool {
        self.order.first().is_some_and(|(_, next)| *next == file)
    }

    /// Makes a file due at once.
    pub fn hurry(&mut self, file: u64, now: Instant) {
        self.wait(file, now, |_| now);
    }

    /// Makes all resting files due at once, because the stage needs room. False if none waits.
    pub fn hurry_all(&mut self, now: Instant) -> bool {
        let files: Vec<_> = self.files.keys().copied().collect();
        files.iter().for_each(|&file| {
            // A file that is being sent has no place in the order.
            if self.order.contains(&(self.files[&file].due, file)) {
                self.hurry(file, now);
            }
        });
        !files.is_empty()
    }

    fn wait(&mut self, file: u64, now: Instant, due: impl FnOnce(Instant) -> Instant) {
        let before = self.files.get(&file).copied();
        if let Some(before) = before {
            // The file failed, and waits out its pause. One that is being sent gets a turn behind that.
            if before.failures > 0 {
                if !self.is_waiting(file) {
                    let due = now + pause(before.failures - 1);
                    self.files.insert(file, Waiting { due, ..before });
                    self.order.insert((due, file));
                }
                return;
            }
            self.order.remove(&(before.due, file));
        }
        let since = before.map_or(now, |before| before.since);
        let due = due(since);
        let restless = before.map_or(0, |before| before.restless);
        self.files.insert(file, Waiting { since, due, failures: 0, restless });
        self.order.insert((due, file));
    }

    /// Takes the file that has been due longest out of the queue.
    pub fn take(&mut self, now: Instant) -> Option<u64> {
        let (due, file) = self.order.first().copied().filter(|(due, _)| *due <= now)?;
        self.order.remove(&(due, file));
        Some(file)
    }

    /// Notes that the file was sent, or needs no send.
    pub fn done(&mut self, file: u64) {
        if let Some(waiting) = self.files.remove(&file) {
            self.order.remove(&(waiting.due, file));
        }
    }

    /// Notes that a send failed.
    pub fn failed(&mut self, file: u64, now: Instant) {
        let before = self.files.get(&file).copied();
        if let Some(before) = before {
            self.order.remove(&(before.due, file));
        }
        let since = before.map_or(now, |before| before.since);
        let failures = before.map_or(0, |before| before.failures);
        let due = now + pause(failures);
        self.files.insert(file, Waiting { since, due, failures: failures + 1, restless: 0 });
        self.order.insert((due, file));
    }

    /// Whether the file waits for another send, apart from one in progress.
    pub fn is_waiting(&self, file: u64) -> bool {
        self.files.get(&file).is_some_and(|waiting| self.order.contains(&(waiting.due, file)))
    }

    /// Puts the file back without a failure, because it can't go now.
    pub fn postponed(&mut self, file: u64, now: Instant) {
        self.postpone(file, now + REST);
    }

    /// Puts a file back that programs write all the time: it waits twice as long each time, until it is closed.
    pub fn restless(&mut self, file: u64, now: Instant) {
        let Some(waiting) = self.files.get_mut(&file) else { return };
        let wait = REST * 2_u32.pow(waiting.restless.min(RESTLESS_MAX));
        waiting.restless += 1;
        self.postpone(file, now + wait);
    }

    fn postpone(&mut self, file: u64, due: Instant) {
        let Some(waiting) = self.files.get_mut(&file) else { return };
        self.order.remove(&(waiting.due, file));
        waiting.due = due;
        self.order.insert((due, file));
    }

    /// Whether no file waits.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// The time at which the next file is due.
    pub fn next(&self) -> Option<Instant> {
        self.order.first().map(|(due, _)| *due)
    }

    /// The time since which the oldest change waits.
    pub fn oldest(&self) -> Option<Instant> {
        self.files.values().map(|waiting| waiting.since).min()
    }
}

/// The pause behind a failure, after this many others.
fn pause(failures: u32) -> Duration {
    PAUSE * 2_u32.pow(failures.min(DOUBLINGS_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn a_file_goes_two_seconds_behind_its_last_close_and_the_oldest_first() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.closed(1, now);
        queue.closed(2, now + seconds(1));
        queue.closed(1, now + seconds(1) + Duration::from_nanos(1));
        assert_eq!((queue.take(now + seconds(2)), queue.next()), (None, Some(now + seconds(3))));
        assert_eq!(queue.oldest(), Some(now));
        assert_eq!([0; 3].map(|_| queue.take(now + seconds(4))), [Some(2), Some(1), None]);
    }

    #[test]
    fn only_a_file_that_is_due_before_all_others_wakes_the_sender() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        assert!(queue.closed(2, now));
        assert!(!queue.closed(3, now) && !queue.synced(1, now));
        assert!(queue.closed(4, now - seconds(1)), "it is due earlier");
        assert_eq!(queue.take(now + REST), Some(4));
        assert!(!queue.closed(4, now + REST), "another one is due first");
        queue.done(2);
        queue.done(3);
        assert!(queue.closed(4, now + seconds(1) + REST));
    }

    #[test]
    fn a_file_that_is_postponed_goes_a_moment_later_and_nothing_is_forgotten() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.closed(1, now);
        let later = now + seconds(100);
        assert_eq!(queue.take(later), Some(1));
        assert!(!queue.is_waiting(1));
        queue.postponed(1, later);
        assert!(queue.is_waiting(1));
        assert_eq!((queue.take(later), queue.next()), (None, Some(later + REST)));
        assert_eq!(queue.oldest(), Some(now));
        queue.done(1);
        queue.postponed(1, later);
        assert_eq!(queue.next(), None, "it was removed meanwhile");
    }

    #[test]
    fn a_file_that_is_never_at_rest_waits_longer_each_time_until_it_is_closed() {
        let (mut queue, mut now) = (Queue::default(), Instant::now());
        queue.synced(1, now);
        now = queue.next().unwrap();
        for wait in [2, 4, 8, 16, 32, 64, 64] {
            assert_eq!(queue.take(now), Some(1));
            queue.restless(1, now);
            assert_eq!(queue.next(), Some(now + seconds(wait)));
            now += seconds(wait);
        }
        assert_eq!(queue.take(now), Some(1));
        queue.restless(1, now);
        queue.closed(1, now);
        assert_eq!(queue.take(now), Some(1));
        queue.done(1);
        queue.restless(1, now);
        assert_eq!(queue.next(), None, "it was removed meanwhile");
    }

    #[test]
    fn a_file_that_is_never_left_alone_goes_within_a_minute() {
        let (mut queue, begin) = (Queue::default(), Instant::now());
        for second in 0..60 {
            let now = begin + seconds(second);
            queue.opened(1, now);
            queue.closed(1, now);
            assert_eq!(queue.take(now), None);
        }
        assert_eq!(queue.take(begin + seconds(60)), Some(1));
        queue.done(1);
        queue.synced(2, begin);
        queue.synced(2, begin + seconds(50));
        assert_eq!(queue.next(), Some(begin + seconds(60)));
        queue.opened(3, begin);
        queue.done(2);
        assert_eq!(queue.next(), None, "an open of a file without changes does not send it");
    }

    #[test]
    fn where_room_is_wanted_all_go_that_did_not_fail_and_are_not_on_their_way() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        assert!(!queue.hurry_all(now));
        for file in 1..4 {
            queue.closed(file, now);
        }
        queue.hurry(3, now);
        assert_eq!(queue.take(now), Some(3));
        queue.failed(2, now);
        assert!(queue.hurry_all(now));
        assert_eq!([0; 2].map(|_| queue.take(now)), [Some(1), None]);
    }

    #[test]
    fn a_file_that_is_opened_during_a_send_after_a_failure_has_another_turn() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.closed(1, now);
        queue.failed(1, now);
        let second = queue.next().unwrap();
        assert_eq!(queue.take(second), Some(1));
        assert!(!queue.is_waiting(1));
        queue.opened(1, second);
        assert!(queue.is_waiting(1), "the send is to give up");
        assert_eq!(queue.next(), Some(second + PAUSE));
        queue.done(1);
        assert_eq!(queue.next(), None);
    }

    #[test]
    fn a_file_that_fails_waits_longer_each_time_whatever_programs_do() {
        let (mut queue, mut now) = (Queue::default(), Instant::now());
        queue.closed(1, now);
        for pause in [1, 2, 4, 8, 16, 32, 64, 64] {
            now = queue.next().unwrap();
            assert_eq!(queue.take(now), Some(1));
            queue.failed(1, now);
            queue.closed(1, now);
            assert_eq!(queue.next(), Some(now + seconds(pause)));
        }
        queue.done(1);
        queue.closed(1, now);
        assert_eq!(queue.next(), Some(now + REST), "it was sent, and is a file like others");
    }
}
