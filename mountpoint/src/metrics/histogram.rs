//! Counts how many values fell between which limits. The limits are fixed, so that recording is two additions.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Upper limits of latencies, in microseconds: from a page in memory to an outage.
const MICROS: [u64; BOUNDS] = [
    10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 2_500_000, 5_000_000, 10_000_000, 60_000_000,
];
/// Upper limits of sizes, in bytes: from an empty answer to the largest request of the kernel.
const BYTES: [u64; BOUNDS] = [
    0,
    64,
    512,
    4 << 10,
    8 << 10,
    16 << 10,
    32 << 10,
    64 << 10,
    96 << 10,
    128 << 10,
    192 << 10,
    256 << 10,
    384 << 10,
    512 << 10,
    768 << 10,
    1 << 20,
    2 << 20,
    4 << 20,
    8 << 20,
    16 << 20,
];
/// Number of bounds of a histogram. Doubling it halves the error of a quantile, and doubles the bytes of a scrape.
const BOUNDS: usize = 20;

/// A histogram with fixed limits.
pub struct Histogram {
    bounds: &'static [u64; BOUNDS],
    /// Number of values up to the bound of the same index and above the earlier bound; the last: above all bounds.
    counts: [AtomicU64; BOUNDS + 1],
    sum: AtomicU64,
}

impl Histogram {
    /// A histogram of times.
    pub fn of_micros() -> Self {
        Self::new(&MICROS)
    }

    /// A histogram of sizes.
    pub fn of_bytes() -> Self {
        Self::new(&BYTES)
    }

    fn new(bounds: &'static [u64; BOUNDS]) -> Self {
        Self { bounds, counts: std::array::from_fn(|_| AtomicU64::new(0)), sum: AtomicU64::new(0) }
    }

    /// Counts one value.
    pub fn record(&self, value: u64) {
        let place = self.bounds.partition_point(|bound| *bound < value);
        self.counts[place].fetch_add(1, Relaxed);
        self.sum.fetch_add(value, Relaxed);
    }

    /// Counts one time, in whole microseconds.
    pub fn took(&self, time: Duration) {
        // `as_micros` divides numbers of 128 bits: more instructions than all the rest.
        self.record(time.as_secs().saturating_mul(1_000_000).saturating_add(time.subsec_micros().into()));
    }

    /// The counts so far. Values that are recorded meanwhile may be in the counts and not yet in the sum.
    pub fn get(&self) -> Distribution {
        let counts = self.counts.iter().map(|count| count.load(Relaxed)).collect();
        Distribution { bounds: self.bounds, counts, sum: self.sum.load(Relaxed) }
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.get(), f)
    }
}

/// The state of a histogram at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Distribution {
    /// Upper limits, each included.
    pub bounds: &'static [u64],
    /// Values between two limits; one more than there are limits.
    pub counts: Vec<u64>,
    /// The sum of all values.
    pub sum: u64,
}

impl Distribution {
    /// Number of values.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The counts since `before`, an earlier state of the same histogram.
    pub fn since(&self, before: &Self) -> Self {
        let counts =
            self.counts.iter().zip(&before.counts).map(|(now, then)| now.saturating_sub(*then)).collect();
        Self { bounds: self.bounds, counts, sum: self.sum.saturating_sub(before.sum) }
    }

    /// The bound that this share of the values (0 to 1) does not exceed; the largest bound for values beyond it. `None` if empty.
    pub fn quantile(&self, share: f64) -> Option<u64> {
        let count = self.count();
        let wanted = ((count as f64 * share).ceil() as u64).clamp(1, count.max(1));
        let mut seen = 0;
        let place = self.counts.iter().position(|n| {
            seen += n;
            seen >= wanted
        })?;
        self.bounds.get(place).or_else(|| self.bounds.last()).copied()
    }
}
