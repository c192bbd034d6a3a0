//! Number of connections that bulk transfers may use, learned from the throughput of the link. Pure: figures in, a limit out.
//!
//! A link that is slow as a whole carries no more over sixty connections than over six, but with sixty a small request gets only a
//! sixtieth of it. A store that is slow on each connection carries more over more of them. A single measurement can't tell the two apart,
//! so the code tries a narrower width, and keeps it only if the throughput stays.

use std::time::{Duration, Instant};

/// Interval between looks at the link.
pub(crate) const EVERY: Duration = Duration::from_millis(500);
/// The throughput that a connection should have, in bytes per second. Doubling it leaves half as many bulk connections on a slow link. A
/// link that carries this rate on the largest number of connections is never narrowed.
const FLOOR: f64 = 1e6;
/// The smallest width, however slow the link is.
pub(crate) const LEAST: usize = 4;
/// Number of looks that decide a trial.
const LOOKS: u32 = 4;
/// Smallest share of the earlier throughput with which a trial keeps a narrower width.
const AS_GOOD: f64 = 0.8;
/// Smallest multiple of the earlier throughput with which a trial keeps a wider width.
const BETTER: f64 = 1.25;
/// Pause after a failed trial; doubled after each further failure in a row, up to [`REST_MAX`].
const REST: Duration = Duration::from_secs(30);
const REST_MAX: Duration = Duration::from_secs(600);

/// Factor per look by which the estimated rate of one connection may fall.
const FALL: f64 = 0.9;

/// The limit on bulk connections, and the trial that may change it.
#[derive(Debug)]
pub(crate) struct Width {
    most: usize,
    limit: usize,
    trial: Option<Trial>,
    rest: Duration,
    rests_until: Option<Instant>,
    /// Recent bytes per second of one connection.
    rate: Option<f64>,
    /// Throughput of the last few looks, since the last trial or idle time.
    steady: Average,
}

#[derive(Debug)]
struct Trial {
    narrower: bool,
    back_to: usize,
    before: f64,
    seen: Average,
}

#[derive(Clone, Copy, Debug, Default)]
struct Average {
    sum: f64,
    looks: u32,
}

impl Average {
    fn add(&mut self, throughput: f64) {
        self.sum += throughput;
        self.looks += 1;
    }

    fn enough(self) -> Option<f64> {
        (self.looks >= LOOKS).then(|| self.sum / f64::from(self.looks))
    }
}

impl Width {
    /// Starts with `most` connections, until the link is known.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            limit: most,
            trial: None,
            rest: REST,
            rests_until: None,
            rate: None,
            steady: Average::default(),
        }
    }

    /// Connections that bulk transfers may use.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Bytes per second of one busy connection, once measured.
    pub(crate) fn rate(&self) -> Option<f64> {
        self.rate
    }

    /// Updates the limit after a look: since the last one, `bytes` moved on `busy` bulk connections. `wanted`: more bulk transfers wait.
    pub(crate) fn look(&mut self, now: Instant, took: Duration, bytes: u64, busy: usize, wanted: bool) {
        if busy == 0 || bytes == 0 || took.is_zero() {
            // The link is idle, or the store is down: the figures say nothing about the link.
            self.steady = Average::default();
            return;
        }
        let throughput = bytes as f64 / took.as_secs_f64();
        let rate = throughput / busy as f64;
        // A look at the beginning of an outage sees few bytes, so the estimate falls slowly and rises at once.
        self.rate = Some(self.rate.map_or(rate, |before| rate.max(before * FALL)));
        if let Some(trial) = &mut self.trial {
            // Earlier requests run on when a trial begins, so only looks at which the tried width is in use count.
            let used = busy <= self.limit && (wanted || busy == self.limit);
            if used {
                trial.seen.add(throughput);
            }
            if let Some(after) = trial.seen.enough() {
                self.judge(now, after);
            }
            return;
        }
        self.steady.add(throughput);
        let Some(before) = self.steady.enough() else { return };
        self.steady = Average::default();
        let rate = before / busy as f64;
        let worth = ((before / FLOOR).ceil() as usize).clamp(LEAST.min(self.most), self.most);
        if rate >= FLOOR * BETTER {
            // Each connection is fast: allow as many as useful.
            self.limit = self.limit.max(worth);
            return;
        }
        if self.rests_until.is_some_and(|until| now < until) {
            return;
        }
        let narrower = worth.max(busy / 2);
        let (next, back_to) = if rate >= FLOOR {
            return;
        } else if narrower < busy && narrower < self.limit {
            // If the narrower width carries less, the store is slow on each connection, and needs all of them.
            (narrower, self.most)
        } else if wanted && self.limit < self.most {
            ((self.limit * 2).min(self.most), self.limit)
        } else {
            return;
        };
        self.trial = Some(Trial { narrower: next < self.limit, back_to, before, seen: Average::default() });
        self.limit = next;
    }

    fn judge(&mut self, now: Instant, after: f64) {
        let Some(trial) = self.trial.take() else { return };
        let needed = if trial.narrower { AS_GOOD } else { BETTER };
        if after >= needed * trial.before {
            self.rest = REST;
            return;
        }
        self.limit = trial.back_to;
        self.rests_until = Some(now + self.rest);
        self.rest = (self.rest * 2).min(REST_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A link: its total throughput, and that of one connection.
    #[derive(Clone, Copy)]
    struct Link {
        whole: f64,
        each: f64,
    }

    impl Link {
        fn carries(self, busy: usize) -> f64 {
            self.whole.min(self.each * busy as f64)
        }
    }

    /// Runs bulk transfers of `demand` connections for this many looks; earlier transfers go on for `drain` looks after a limit fell.
    /// Returns the limits, look by look.
    fn run(
        width: &mut Width,
        link: Link,
        demand: usize,
        looks: u32,
        drain: u32,
        start: Instant,
    ) -> Vec<usize> {
        let mut limits = Vec::new();
        let mut busy = demand.min(width.limit());
        let mut since = 0;
        for look in 0..looks {
            let may = demand.min(width.limit());
            if may >= busy || since >= drain {
                (busy, since) = (may, 0);
            } else {
                since += 1;
            }
            let bytes = link.carries(busy) * EVERY.as_secs_f64();
            width.look(start + EVERY * look, EVERY, bytes as u64, busy, demand > busy);
            limits.push(width.limit());
        }
        limits
    }

    const SLOW: Link = Link { whole: 6.25e6, each: f64::INFINITY };

    #[test]
    fn a_link_that_is_slow_as_a_whole_is_left_to_few_connections() {
        for demand in [24, 48, 200] {
            let mut width = Width::new(55);
            let limits = run(&mut width, SLOW, demand, 200, 8, Instant::now());
            assert!(limits[199] <= 8 && limits[199] >= LEAST, "{demand}: {limits:?}");
            assert!(limits[80] <= 16, "{demand}: soon: {limits:?}");
        }
    }

    #[test]
    fn far_and_fast_connections_are_never_narrowed() {
        // 20 ms away, 90 MB/s each: as much as there are.
        for demand in [1, 4, 16, 60] {
            let mut width = Width::new(55);
            let link = Link { whole: 10e9, each: 90e6 };
            let limits = run(&mut width, link, demand, 400, 0, Instant::now());
            assert!(limits.iter().all(|&l| l == 55), "{demand}: {limits:?}");
        }
    }

    #[test]
    fn a_store_that_is_slow_on_each_connection_keeps_nearly_all_of_them() {
        let mut width = Width::new(55);
        let link = Link { whole: 1e9, each: 0.5e6 };
        let limits = run(&mut width, link, 200, 4000, 4, Instant::now());
        let wide = limits.iter().filter(|&&l| l == 55).count();
        assert!(wide * 100 >= limits.len() * 95, "{wide} of {}", limits.len());
    }

    #[test]
    fn a_link_that_became_fast_is_used_at_once() {
        let start = Instant::now();
        let mut width = Width::new(55);
        run(&mut width, SLOW, 100, 200, 4, start);
        assert!(width.limit() <= 8);
        let later = start + EVERY * 200;
        let limits = run(&mut width, Link { whole: 1e9, each: 90e6 }, 100, 8, 0, later);
        assert_eq!(limits.last(), Some(&55), "{limits:?}");
    }

    #[test]
    fn a_store_that_became_slow_on_each_connection_gets_more_of_them_again() {
        let start = Instant::now();
        let mut width = Width::new(55);
        run(&mut width, SLOW, 100, 200, 4, start);
        let later = start + EVERY * 200;
        let limits = run(&mut width, Link { whole: 1e9, each: 0.5e6 }, 100, 1000, 4, later);
        assert!(limits.last() == Some(&55), "{limits:?}");
    }

    #[test]
    fn an_outage_says_nothing_of_the_link() {
        let mut width = Width::new(55);
        let start = Instant::now();
        for look in 0..200 {
            width.look(start + EVERY * look, EVERY, 0, 55, true);
        }
        assert_eq!((width.limit(), width.rate()), (55, None));
    }

    #[test]
    fn the_first_moment_of_an_outage_does_not_make_a_fast_link_slow() {
        let mut width = Width::new(55);
        let start = Instant::now();
        run(&mut width, Link { whole: 100e6, each: 10e6 }, 10, 20, 0, start);
        width.look(start + EVERY * 20, EVERY, 1000, 10, false);
        assert!(width.rate().unwrap() > 8e6, "{:?}", width.rate());
        run(&mut width, SLOW, 10, 100, 0, start + EVERY * 21);
        assert!(width.rate().unwrap() < 0.7e6, "believed in the end: {:?}", width.rate());
    }

    #[test]
    fn the_limit_stays_within_its_bounds_on_any_link() {
        use proptest::prelude::*;
        proptest!(|(
            most in 1usize..200,
            looks in proptest::collection::vec((0u64..1 << 32, 0usize..300, any::<bool>()), 0..300),
        )| {
            let mut width = Width::new(most);
            let start = Instant::now();
            for (i, (bytes, busy, wanted)) in looks.into_iter().enumerate() {
                width.look(start + EVERY * i as u32, EVERY, bytes, busy, wanted);
                prop_assert!(width.limit() <= most && width.limit() >= LEAST.min(most));
            }
        });
    }
}
