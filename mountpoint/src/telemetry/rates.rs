//! Throughput now: the counters of the last seconds, one sample a second; fewer while nothing moves, so that an idle mount sleeps.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::Throughput;
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::sync::Mutex;

/// How often the counters are read while they move. Doubling it halves the wake-ups, and throughput is known later.
const EVERY: Duration = Duration::from_secs(1);
/// How often at least: the pause doubles up to this while nothing moves and no one asks. Work that begins then shows as the mean since the
/// last sample, until the next one. Doubling it halves the wake-ups of an idle mount.
const EVERY_MOST: Duration = Duration::from_secs(16);
/// Samples that are kept: throughput is the mean of the seconds between the first and now.
const KEPT: usize = 4;

/// The last samples.
#[derive(Debug, Default)]
pub(super) struct Rates {
    samples: Mutex<VecDeque<(Instant, Sample)>>,
    asked: Notify,
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
    /// Takes samples, for ever.
    pub(super) async fn keep(&self, metrics: &Metrics, clock: &Clock) {
        let mut pause = EVERY;
        loop {
            let has_moved = self.sample(metrics, clock.now());
            pause = if has_moved { EVERY } else { (pause * 2).min(EVERY_MOST) };
            tokio::select! {
                () = clock.sleep(pause) => {}
                () = self.asked.notified() => pause = EVERY / 2,
            }
        }
    }

    /// Whether something moved since the last sample. Of a time in which nothing moved, only the end counts.
    fn sample(&self, metrics: &Metrics, at: Instant) -> bool {
        let sample = Sample::take(metrics);
        let mut samples = self.samples.lock();
        let has_moved = samples.front().is_some_and(|(_, last)| *last != sample);
        samples.truncate(if has_moved { KEPT - 1 } else { 0 });
        samples.push_front((at, sample));
        has_moved
    }

    /// What moved since the oldest sample, per second.
    pub(super) fn now(&self, metrics: &Metrics, at: Instant) -> Throughput {
        let now = Sample::take(metrics);
        let Some((since, then)) = self.samples.lock().back().copied() else { return Throughput::default() };
        self.asked.notify_one();
        let seconds = at.saturating_duration_since(since).as_secs_f64();
        // Of a shorter time it would say more about chance.
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
        for _ in 0..5 {
            assert!(!rates.sample(&metrics, clock.now()));
            clock.advance(EVERY_MOST);
        }
        rates.sample(&metrics, clock.now());
        clock.advance(EVERY);
        metrics.s3_bytes_received.add(1000);
        let now = rates.now(&metrics, clock.now());
        assert_eq!((now.received_bytes_per_s, now.over_ms), (1000, 1000));
    }

    #[tokio::test]
    async fn an_idle_mount_takes_few_samples_and_one_that_is_asked_takes_them_at_once() {
        let (metrics, rates, clock) = (Metrics::default(), Rates::default(), Clock::manual());
        let mut keeping = std::pin::pin!(rates.keep(&metrics, &clock));
        let mut taken = 0;
        let mut last = None;
        let mut turn = async |rates: &Rates| {
            for _ in 0..10 {
                tokio::select! {
                    biased;
                    () = &mut keeping => {}
                    () = tokio::task::yield_now() => {}
                }
            }
            let at = rates.samples.lock().front().map(|(at, _)| *at);
            taken += usize::from(std::mem::replace(&mut last, at) != at);
            taken
        };
        let mut samples = turn(&rates).await;
        for _ in 0..160 {
            clock.advance(EVERY);
            samples = turn(&rates).await;
        }
        assert!((10..=15).contains(&samples), "{samples} in 160 s");
        clock.advance(EVERY);
        rates.now(&metrics, clock.now());
        let asked = turn(&rates).await;
        clock.advance(EVERY);
        assert_eq!((asked - samples, turn(&rates).await - asked), (1, 1));
    }
}
