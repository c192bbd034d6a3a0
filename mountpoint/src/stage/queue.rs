//! When each file of the stage is sent. Pure.
//!
//! A file goes a moment after its last close, so that lock files and what is written in many small steps cost no requests; one that is closed and
//! opened again and again, or was synced and stays open, goes all the same after a while. The oldest goes first; one that could not be sent
//! waits longer each time.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

/// How long a file rests behind its last close. Doubling it spares requests for files that programs soon remove, rename or write again, and other
/// hosts see files later.
const REST: Duration = Duration::from_secs(2);
/// How long a change may wait at most while its file is opened again and again, or stays open behind an fsync. Doubling it halves how often such a
/// file is sent.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// The first pause behind a failure; each further one doubles it.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest pause, 64 s, in doublings of the first. Doubling the pause halves the requests to a store that is away, and doubles how long a file
/// waits once it is back.
const DOUBLINGS_MAX: u32 = 6;

/// The files that wait.
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
}

impl Queue {
    /// The last program that wrote to a changed file closed it.
    pub fn closed(&mut self, file: u64, now: Instant) {
        self.wait(file, now, |since| (now + REST).min(since + WAIT_MAX));
    }

    /// A program opened the file for writing. What waited before goes all the same, in a while.
    pub fn opened(&mut self, file: u64, now: Instant) {
        if self.files.contains_key(&file) {
            self.wait(file, now, |since| since + WAIT_MAX);
        }
    }

    /// A program synced a changed file and has it open.
    pub fn synced(&mut self, file: u64, now: Instant) {
        if !self.files.contains_key(&file) {
            self.wait(file, now, |since| since + WAIT_MAX);
        }
    }

    /// The file is to go as soon as can be.
    pub fn hurry(&mut self, file: u64, now: Instant) {
        self.wait(file, now, |_| now);
    }

    /// Room is wanted: all that rest go as soon as can be. False: none waits.
    pub fn hurry_all(&mut self, now: Instant) -> bool {
        let files: Vec<_> = self.files.keys().copied().collect();
        files.iter().for_each(|&file| {
            // A file on its way is not in the order.
            if self.order.contains(&(self.files[&file].due, file)) {
                self.hurry(file, now);
            }
        });
        !files.is_empty()
    }

    fn wait(&mut self, file: u64, now: Instant, due: impl FnOnce(Instant) -> Instant) {
        let before = self.files.get(&file).copied();
        if let Some(before) = before {
            // It failed, and waits for that.
            if before.failures > 0 {
                return;
            }
            self.order.remove(&(before.due, file));
        }
        let since = before.map_or(now, |before| before.since);
        let due = due(since);
        self.files.insert(file, Waiting { since, due, failures: 0 });
        self.order.insert((due, file));
    }

    /// The file that is due longest. It waits no more.
    pub fn take(&mut self, now: Instant) -> Option<u64> {
        let (due, file) = self.order.first().copied().filter(|(due, _)| *due <= now)?;
        self.order.remove(&(due, file));
        Some(file)
    }

    /// The file was sent, or is not to be.
    pub fn done(&mut self, file: u64) {
        if let Some(waiting) = self.files.remove(&file) {
            self.order.remove(&(waiting.due, file));
        }
    }

    /// The file could not be sent.
    pub fn failed(&mut self, file: u64, now: Instant) {
        let before = self.files.get(&file).copied();
        if let Some(before) = before {
            self.order.remove(&(before.due, file));
        }
        let since = before.map_or(now, |before| before.since);
        let failures = before.map_or(0, |before| before.failures);
        let due = now + PAUSE * 2_u32.pow(failures.min(DOUBLINGS_MAX));
        self.files.insert(file, Waiting { since, due, failures: failures + 1 });
        self.order.insert((due, file));
    }

    /// Whether the file is to go at some time, apart from a send that is under way.
    pub fn is_waiting(&self, file: u64) -> bool {
        self.files.get(&file).is_some_and(|waiting| self.order.contains(&(waiting.due, file)))
    }

    /// The file can't go now, and nothing failed.
    pub fn postponed(&mut self, file: u64, now: Instant) {
        let Some(waiting) = self.files.get_mut(&file) else { return };
        self.order.remove(&(waiting.due, file));
        waiting.due = now + REST;
        self.order.insert((waiting.due, file));
    }

    /// When the next one is due.
    pub fn next(&self) -> Option<Instant> {
        self.order.first().map(|(due, _)| *due)
    }

    /// Since when the oldest change waits.
    pub fn oldest(&self) -> Option<Instant> {
        self.files.values().map(|waiting| waiting.since).min()
    }
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
