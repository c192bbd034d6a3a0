//! The capacity of the link to the store, learned from the requests themselves. Pure: figures in, a window's limit out.
//!
//! A window larger than the bandwidth-delay product gains nothing: it touches new memory, which falls out of the processor's caches
//! before it is read. A rule that grows the window whenever a reader waits can't tell a slow network from busy processors (measured on
//! loopback: it grew to 256 MiB for nothing, 1.7 instead of 0.6 CPU-s/GiB). The limit therefore comes from the time that a part takes on
//! one connection that has the processor to itself.

use std::time::{Duration, Instant};

/// The first estimate: a connection of 100 MB/s, 10 ms away, as a store in the same region has it.
const RATE_AT_START: f64 = 1e8;
const LATENCY_AT_START: f64 = 0.010;
/// The share of the best rate that is forgotten with each request: the best of the last few dozen requests counts, since a body that had to
/// share the processors tells nothing about its connection.
const FORGET: f64 = 0.02;
/// Bodies shorter than this end before their rate can be measured.
const TELLING: u64 = 3 << 20;

/// The period of one figure of the throughput, which counts the bytes of all connections.
const COUNT_FOR: Duration = Duration::from_secs(1);
/// The longest time that the link may need for the bytes of read-ahead, however slow the link is.
const AHEAD_AT_MOST: Duration = Duration::from_secs(4);

/// The running estimate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    /// Bytes per second of one connection at its best.
    rate: f64,
    /// The shortest time from a request to its first block, without the transfer of the block itself, in seconds.
    latency: f64,
    told: bool,
    /// Bytes per second of all connections together lately, after the first measurement.
    throughput: Option<f64>,
    counting: Option<(Instant, u64)>,
}

impl Default for Link {
    fn default() -> Self {
        Self { rate: RATE_AT_START, latency: LATENCY_AT_START, told: false, throughput: None, counting: None }
    }
}

impl Link {
    /// Learns from a request: its first block of `first` bytes came after `first_after`; the `rest` of its body took `rest_took`.
    pub(super) fn learn(&mut self, first: u64, first_after: Duration, rest: u64, rest_took: Duration) {
        if rest < TELLING || rest_took.is_zero() {
            return;
        }
        let rate = rest as f64 / rest_took.as_secs_f64();
        let latency = (first_after.as_secs_f64() - first as f64 / rate).max(0.0);
        if self.told {
            self.rate = rate.max(self.rate * (1.0 - FORGET));
            self.latency = latency.min(self.latency * (1.0 + FORGET) + 1e-5);
        } else {
            (self.rate, self.latency, self.told) = (rate, latency, true);
        }
    }

    /// Counts a block of `bytes` that came at `now`, on any connection.
    pub(super) fn count(&mut self, now: Instant, bytes: u64) {
        let Some((since, sum)) = &mut self.counting else {
            self.counting = Some((now, 0));
            return;
        };
        *sum += bytes;
        let elapsed = now.saturating_duration_since(*since);
        if elapsed >= COUNT_FOR {
            let throughput = *sum as f64 / elapsed.as_secs_f64();
            // A pause of the readers tells nothing about the link: fall slowly, rise at once.
            self.throughput = Some(self.throughput.map_or(throughput, |t| throughput.max(t * 0.8)));
            self.counting = Some((now, 0));
        }
    }

    /// The bytes that must be under way for `target` bytes per second, by requests of `part` bytes.
    pub(super) fn window(&self, target: u64, part: u64) -> u64 {
        let one_request = self.latency + part as f64 / self.rate;
        let wanted = target as f64 * one_request;
        // More connections do not widen the link: the requested bytes must come before a reader gives up.
        wanted.min(self.throughput.map_or(f64::MAX, |t| t * AHEAD_AT_MOST.as_secs_f64())) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const TARGET: u64 = 1_250_000_000;

    fn after(latency_ms: f64, rate: f64) -> Link {
        let mut link = Link::default();
        for _ in 0..10 {
            let seconds = |bytes: u64| Duration::from_secs_f64(bytes as f64 / rate);
            let first = Duration::from_secs_f64(latency_ms / 1e3) + seconds(MIB);
            link.learn(MIB, first, 7 * MIB, seconds(7 * MIB));
        }
        link
    }

    #[test]
    fn slow_connections_far_away_ask_for_many_and_fast_ones_for_few() {
        let far = after(20.0, 90e6).window(TARGET, 8 * MIB);
        assert!((130 * MIB..150 * MIB).contains(&far), "{} MiB", far / MIB);
        let near = after(0.5, 1.2e9).window(TARGET, 8 * MIB);
        assert!(near < 12 * MIB, "{} MiB", near / MIB);
    }

    #[test]
    fn bodies_that_shared_the_processor_do_not_widen_the_window() {
        let mut link = after(0.5, 1e9);
        let before = link.window(TARGET, 8 * MIB);
        for _ in 0..8 {
            link.learn(MIB, Duration::from_millis(30), 7 * MIB, Duration::from_millis(100));
        }
        assert!(link.window(TARGET, 8 * MIB) < before * 3 / 2);
    }

    #[test]
    fn a_link_that_became_slow_is_believed_in_the_end() {
        let mut link = after(0.5, 1e9);
        for _ in 0..200 {
            link.learn(MIB, Duration::from_millis(32), 7 * MIB, Duration::from_millis(82));
        }
        assert!(link.window(TARGET, 8 * MIB) > 100 * MIB);
    }

    #[test]
    fn a_link_that_is_slow_as_a_whole_is_not_asked_for_minutes_of_bytes() {
        let mut link = after(50.0, 40e3);
        let start = Instant::now();
        for second in 0..5 {
            link.count(start + Duration::from_secs(second), 1_250_000);
        }
        assert!(link.window(TARGET, 8 * MIB) <= 4 * 1_250_000);
    }

    #[test]
    fn short_bodies_teach_nothing() {
        let mut link = Link::default();
        link.learn(128 << 10, Duration::from_secs(1), MIB, Duration::from_secs(1));
        assert_eq!(link.window(TARGET, 8 * MIB), Link::default().window(TARGET, 8 * MIB));
    }
}
