//! Throughput now: the counters of the last seconds, one sample a second.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::Throughput;
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::sync::Mutex;

/// How often the counters are read. Doubling it halves what an idle mount costs (one wake-up), and throughput is known later.
const EVERY: Duration = Duration::from_secs(1);
/// Samples that are kept: throughput is the mean of the seconds between the first and now.
const KEPT: usize = 4;

/// The last samples.
#[derive(Debug, Default)]
pub(super) struct Rates(Mutex<VecDeque<Sample>>);

#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Instant,
    read: u64,
    written: u64,
    received: u64,
    sent: u64,
    fuse_requests: u64,
    s3_requests: u64,
}

impl Sample {
    fn take(metrics: &Metrics, at: Instant) -> Self {
        Self {
            at,
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
    /// Takes a sample each second, for ever.
    pub(super) async fn keep(&self, metrics: &Metrics, clock: &Clock) {
        loop {
            self.sample(metrics, clock.now());
            clock.sleep(EVERY).await;
        }
    }

    fn sample(&self, metrics: &Metrics, at: Instant) {
        let sample = Sample::take(metrics, at);
        let mut samples = self.0.lock();
        samples.truncate(KEPT - 1);
        samples.push_front(sample);
    }

    /// What moved since the oldest sample, per second.
    pub(super) fn now(&self, metrics: &Metrics, at: Instant) -> Throughput {
        let now = Sample::take(metrics, at);
        let Some(then) = self.0.lock().back().copied() else { return Throughput::default() };
        let seconds = at.saturating_duration_since(then.at).as_secs_f64();
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
}
