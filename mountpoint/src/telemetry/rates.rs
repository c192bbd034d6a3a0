//! Current throughput: one sample of the counters per second while they change, and none while they rest, so an idle mount never wakes.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::Throughput;
use crate::clock::Clock;
use crate::doorbell::Next;
use crate::metrics::Metrics;
use crate::sync::Mutex;

/// Interval between samples while the counters change. Doubling it halves the wake-ups, and shows a change of throughput later.
const EVERY: Duration = Duration::from_secs(1);
/// Number of kept samples: throughput is averaged from the oldest one until now.
const KEPT: usize = 4;

/// The recent samples.
#[derive(Debug, Default)]
pub(super) struct Rates(Mutex<Samples>);

#[derive(Debug, Default)]
struct Samples {
    taken: VecDeque<(Instant, Sample)>,
    /// Whether nothing changed before the last sample. Then no sample follows until something does.
    rest: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Sample {
    read: u64,
    written: u64,
    received: u64,
    sent: u64,
    fuse_requests: u64,
    s3_requests: u64,
}

impl Sample {
    fn take(metrics: &Metrics) -> Self {
        Self {
            read: metrics.fuse_io.of("read").get().sum,
            written: metrics.fuse_io.of("write").get().sum,
            received: metrics.s3_bytes_received.get(),
            sent: metrics.s3_bytes_sent.get(),
            fuse_requests: metrics.fuse_requests(),
            s3_requests: metrics.s3_requests.get(),
        }
    }
}

impl Rates {
    /// Takes samples forever, while there is work.
    pub(super) async fn keep(&self, metrics: &Metrics, clock: &Clock) {
        metrics.work.keep_house(clock, |_| self.sample(metrics, clock.now())).await;
    }

    /// Takes a sample. Samples from before a second without changes, or from before a rest, are dropped.
    fn sample(&self, metrics: &Metrics, at: Instant) -> Next {
        let sample = Sample::take(metrics);
        let mut samples = self.0.lock();
        let rested = std::mem::take(&mut samples.rest);
        let has_moved = samples.taken.front().is_some_and(|(_, last)| *last != sample);
        samples.taken.truncate(if has_moved && !rested { KEPT - 1 } else { 0 });
        samples.taken.push_front((at, sample));
        samples.rest = !has_moved && !rested;
        if samples.rest { Next::Rest } else { Next::Look(EVERY) }
    }

    /// The average throughput since the oldest sample.
    pub(super) fn now(&self, metrics: &Metrics, at: Instant) -> Throughput {
        let now = Sample::take(metrics);
        let (since, then) = {
            let samples = self.0.lock();
            match samples.taken.back() {
                // The next sample is due at any moment: until then, the old one would average over the rest.
                Some((_, last)) if samples.rest && *last != now => return Throughput::default(),
                Some(oldest) => *oldest,
                None => return Throughput::default(),
            }
        };
        let seconds = at.saturating_duration_since(since).as_secs_f64();
        // A shorter time would give random figures.
        if seconds < 0.1 {
            return Throughput::default();
        }
        let per_second = |now: u64, then: u64| (now.saturating_sub(then) as f64 / seconds).round() as u64;
        Throughput {
            over_ms: (seconds * 1e3) as u64,
            read_bytes_per_s: per_second(now.read, then.read),
            written_bytes_per_s: per_second(now.written, then.written),
            received_bytes_per_s: per_second(now.received, then.received),
            sent_bytes_per_s: per_second(now.sent, then.sent),
            fuse_requests_per_s: per_second(now.fuse_requests, then.fuse_requests),
            s3_requests_per_s: per_second(now.s3_requests, then.s3_requests),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throughput_is_the_mean_of_the_last_seconds() {
        let (metrics, rates, clock) = (Metrics::default(), Rates::default(), Clock::manual());
        assert_eq!(rates.now(&metrics, clock.now()), Throughput::default());
        for second in 0..10 {
            rates.sample(&metrics, clock.now());
            metrics.s3_bytes_received.add(if second < 5 { 1_000_000 } else { 100 });
            clock.advance(EVERY);
        }
        let now = rates.now(&metrics, clock.now());
        assert_eq!((now.received_bytes_per_s, now.over_ms), (100, 4000));
        assert_eq!(now.sent_bytes_per_s, 0);
    }

    #[test]
    fn work_after_an_idle_time_is_not_spread_over_that_time() {
        let (metrics, rates, clock) = (Metrics::default(), Rates::default(), Clock::manual());
        assert_eq!(rates.sample(&metrics, clock.now()), Next::Rest);
        clock.advance(3600 * EVERY);
        let now = rates.now(&metrics, clock.now());
        assert_eq!(now, Throughput { over_ms: 3_600_000, ..Throughput::default() }, "nothing moved");
        metrics.s3_bytes_received.add(7);
        assert_eq!(rates.now(&metrics, clock.now()), Throughput::default(), "not known yet");
        assert_eq!(rates.sample(&metrics, clock.now()), Next::Look(EVERY));
        clock.advance(EVERY);
        metrics.s3_bytes_received.add(1000);
        let now = rates.now(&metrics, clock.now());
        assert_eq!((now.received_bytes_per_s, now.over_ms), (1000, 1000));
    }

    #[tokio::test]
    async fn an_idle_mount_takes_no_samples_and_the_next_request_begins_them_anew() {
        let (metrics, rates, clock) = (Metrics::default(), Rates::default(), Clock::manual());
        let mut keeping = std::pin::pin!(rates.keep(&metrics, &clock));
        let (mut taken, mut last) = (0, None);
        let mut turn = async || {
            clock.advance(EVERY);
            for _ in 0..10 {
                tokio::select! {
                    biased;
                    () = &mut keeping => {}
                    () = tokio::task::yield_now() => {}
                }
            }
            let at = rates.0.lock().taken.front().map(|(at, _)| *at);
            taken += usize::from(std::mem::replace(&mut last, at) != at);
            taken
        };
        let begun = turn().await;
        for _ in 0..3600 {
            rates.now(&metrics, clock.now());
            turn().await;
        }
        let idle = turn().await;
        assert_eq!((begun, idle), (1, 1), "in an hour");
        for second in 1..=5 {
            metrics.s3_requests.of("GetObject").inc();
            metrics.work.ring();
            assert_eq!(turn().await, idle + second);
        }
        assert_eq!(rates.now(&metrics, clock.now()).s3_requests_per_s, 1);
        turn().await;
        let ended = turn().await;
        for _ in 0..3600 {
            turn().await;
        }
        assert_eq!(turn().await, ended, "in the next hour");
    }
}
