//! Numbers: a counter that only grows, and a gauge that is set.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A number that only grows.
#[derive(Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    /// Adds one.
    pub fn inc(&self) {
        self.add(1);
    }

    /// Takes over a total from elsewhere. A total below the last one changes nothing.
    pub fn reach(&self, total: u64) {
        self.0.fetch_max(total, Relaxed);
    }

    /// The sum so far.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

impl fmt::Debug for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.get(), f)
    }
}

/// A number that is measured on request (an exporter sets it before it reads it), or one that goes up and down.
#[derive(Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// Takes the value of this moment.
    pub fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    /// Counts one more, until [`Self::less`].
    pub fn more(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    /// Takes one off the gauge, after [`Self::more`].
    pub fn less(&self) {
        self.0.fetch_sub(1, Relaxed);
    }

    /// Counts one more, until the guard is dropped.
    pub fn raised(&self) -> Moved<'_> {
        self.0.fetch_add(1, Relaxed);
        Moved { gauge: self, back: u64::MAX }
    }

    /// Counts one less, until the guard is dropped.
    pub fn lowered(&self) -> Moved<'_> {
        self.0.fetch_sub(1, Relaxed);
        Moved { gauge: self, back: 1 }
    }

    /// The last value.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A gauge that goes back by one.
#[derive(Debug)]
pub struct Moved<'a> {
    gauge: &'a Gauge,
    /// The addend, modulo 2^64, that takes the gauge back.
    back: u64,
}

impl Drop for Moved<'_> {
    fn drop(&mut self) {
        self.gauge.0.fetch_add(self.back, Relaxed);
    }
}

impl fmt::Debug for Gauge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.get(), f)
    }
}
