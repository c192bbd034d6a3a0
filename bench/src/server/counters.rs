//! Counts of the server's requests, and the pace of its answers.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Price of LIST, PUT, COPY and POST at S3, in GETs (5.00 $ against 0.40 $ per million).
const COST_WRITE: u64 = 12;
/// Price of GET and HEAD, the unit. DELETE is free.
const COST_READ: u64 = 1;

/// Kinds of requests that are counted separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Get,
    Head,
    List,
    Put,
    UploadPart,
    CreateUpload,
    CompleteUpload,
    Delete,
    Other,
}

const KINDS: usize = Kind::Other as usize + 1;

/// Counters of a run, and the pace of answers.
#[derive(Debug, Default)]
pub(crate) struct Meters {
    requests: [AtomicU64; KINDS],
    pub(crate) bytes_sent: AtomicU64,
    pub(crate) bytes_received: AtomicU64,
    pub(crate) keys_sent: AtomicU64,
    pub(crate) connections: AtomicU64,
    pub(crate) errors: AtomicU64,
    pub(crate) latency_us: AtomicU64,
    pub(crate) rate_bytes_per_s: AtomicU64,
    /// One of this many GETs is delayed before its answer begins; 0: none.
    pub(crate) stall_every: AtomicU64,
    pub(crate) stall_us: AtomicU64,
    gets: AtomicU64,
}

/// The counters at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counts {
    pub(crate) get: u64,
    pub(crate) head: u64,
    pub(crate) list: u64,
    pub(crate) put: u64,
    pub(crate) upload_part: u64,
    pub(crate) create_upload: u64,
    pub(crate) complete_upload: u64,
    pub(crate) delete: u64,
    pub(crate) other: u64,
    /// Bytes of sent bodies.
    pub(crate) bytes_sent: u64,
    /// Bytes of received bodies.
    pub(crate) bytes_received: u64,
    /// Keys and common prefixes in listings.
    #[serde(default)]
    pub(crate) keys_sent: u64,
    /// Accepted connections.
    pub(crate) connections: u64,
    /// Answers with a status of 400 or more.
    pub(crate) errors: u64,
}

impl Meters {
    /// The delay of this answer besides the general latency; `None` if it is not delayed.
    pub(crate) fn stall(&self, kind: Kind) -> Option<Duration> {
        let every = self.stall_every.load(Relaxed);
        let is_hit = kind == Kind::Get && every > 0 && self.gets.fetch_add(1, Relaxed) % every == every / 2;
        is_hit.then(|| Duration::from_micros(self.stall_us.load(Relaxed)))
    }

    pub(crate) fn count(&self, kind: Kind) {
        self.requests[kind as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn counts(&self) -> Counts {
        let of = |kind: Kind| self.requests[kind as usize].load(Relaxed);
        Counts {
            get: of(Kind::Get),
            head: of(Kind::Head),
            list: of(Kind::List),
            put: of(Kind::Put),
            upload_part: of(Kind::UploadPart),
            create_upload: of(Kind::CreateUpload),
            complete_upload: of(Kind::CompleteUpload),
            delete: of(Kind::Delete),
            other: of(Kind::Other),
            bytes_sent: self.bytes_sent.load(Relaxed),
            bytes_received: self.bytes_received.load(Relaxed),
            keys_sent: self.keys_sent.load(Relaxed),
            connections: self.connections.load(Relaxed),
            errors: self.errors.load(Relaxed),
        }
    }

    pub(crate) fn reset(&self) {
        for counter in self.requests.iter().chain([
            &self.bytes_sent,
            &self.bytes_received,
            &self.keys_sent,
            &self.connections,
            &self.errors,
        ]) {
            counter.store(0, Relaxed);
        }
    }
}

impl Counts {
    /// Number of all requests.
    pub(crate) fn requests(&self) -> u64 {
        self.reads() + self.writes() + self.delete + self.other
    }

    /// Price of all requests, in GETs.
    pub(crate) fn cost(&self) -> u64 {
        self.reads() * COST_READ + self.writes() * COST_WRITE + self.other * COST_READ
    }

    fn reads(&self) -> u64 {
        self.get + self.head
    }

    fn writes(&self) -> u64 {
        self.list + self.put + self.upload_part + self.create_upload + self.complete_upload
    }
}

/// A token bucket for one connection.
#[derive(Debug)]
pub(crate) struct Pace {
    free_at: Instant,
}

/// Largest lead of a connection over its rate.
const BURST: Duration = Duration::from_millis(2);
/// Bytes sent or received between two checks of the clock if a rate is set; 256 KiB take 3 ms at 90 MB/s.
pub(crate) const PACED_CHUNK: u64 = 256 << 10;

impl Pace {
    pub(crate) fn new() -> Self {
        Self { free_at: Instant::now() }
    }

    /// Counts `bytes` at the time `now`. Returns the wait before the next bytes.
    pub(crate) fn spend(&mut self, bytes: u64, rate_bytes_per_s: u64, now: Instant) -> Duration {
        let takes = Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / rate_bytes_per_s.max(1));
        let earliest = now.checked_sub(BURST).unwrap_or(now);
        self.free_at = self.free_at.max(earliest) + takes;
        self.free_at.saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paced_connection_takes_as_long_as_its_rate_says() {
        let (mut pace, mut now) = (Pace::new(), Instant::now());
        let begun = now;
        for _ in 0..1000 {
            now += pace.spend(PACED_CHUNK, 90_000_000, now);
        }
        let seconds = (now - begun).as_secs_f64();
        let expected = 1000.0 * PACED_CHUNK as f64 / 90e6;
        assert!((seconds - expected).abs() < 0.003, "{seconds} instead of {expected}");
    }

    #[test]
    fn a_pause_earns_no_more_than_the_burst() {
        let mut pace = Pace::new();
        let later = Instant::now() + Duration::from_secs(60);
        let wait = pace.spend(90_000_000, 90_000_000, later);
        assert_eq!(wait, Duration::from_secs(1) - BURST);
    }

    #[test]
    fn listing_and_writing_cost_twelve_times_a_read() {
        let counts = Counts { get: 3, head: 2, list: 1, put: 1, delete: 5, ..Counts::default() };
        assert_eq!((counts.requests(), counts.cost()), (12, 29));
    }
}
