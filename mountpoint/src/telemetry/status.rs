//! The state of a mount, as `mount-s3-ctl status --json` prints it. The names of the fields are an interface for scripts.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::Telemetry;
use crate::metrics::{Histogram, Metrics};

/// The origin of a mount: bucket, mount point and process, without secrets. Any user who can read the metrics can read it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Bucket, access point or its ARN.
    pub bucket: String,
    /// The prefix; empty without one.
    pub prefix: String,
    /// The directory, absolute; or `/dev/fd/N` for a device that was handed over.
    pub mount_point: String,
    /// The other words of the command line; URLs without user and password.
    pub flags: Vec<String>,
    /// Directory of the disk cache.
    pub cache: Option<String>,
    /// PID of the process that serves the mount.
    pub pid: u32,
    /// User id of the mounting user.
    pub uid: u32,
    /// The version of `mount-s3`.
    pub version: String,
}

/// The state of one mount.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Bucket, mount point and process.
    #[serde(flatten)]
    pub origin: Origin,
    /// Seconds since the mount began.
    pub uptime_s: u64,
    /// The throughput of the last seconds.
    pub throughput: Throughput,
    /// Numbers of requests since the mount began.
    pub requests: Requests,
    /// Hit rates since the mount began.
    pub hits: Hits,
    /// Memory in use, and its limit.
    pub memory: Memory,
    /// The disk cache, if there is one.
    pub disk_cache: Option<Cache>,
    /// The stage, with `--mode full`. Older engines do not report it.
    #[serde(default)]
    pub stage: Option<Stage>,
    /// Open files.
    pub open_files: OpenFiles,
    /// Files being written.
    pub uploads: Vec<Upload>,
    /// Latencies of the kernel's requests and of the store's, since the mount began.
    pub latencies: Vec<Latency>,
    /// The last errors and warnings, the newest last.
    pub errors: Vec<ErrorLine>,
}

/// Bytes and requests per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Throughput {
    /// Time over which the rates are averaged, in milliseconds; 0 if they are not known yet.
    pub over_ms: u64,
    /// Bytes that programs read.
    pub read_bytes_per_s: u64,
    /// Bytes that programs wrote.
    pub written_bytes_per_s: u64,
    /// Bytes that came from the store.
    pub received_bytes_per_s: u64,
    /// Bytes that went to the store.
    pub sent_bytes_per_s: u64,
    /// Requests of the kernel.
    pub fuse_requests_per_s: u64,
    /// Requests to the store.
    pub s3_requests_per_s: u64,
}

/// Numbers of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requests {
    /// Requests of the kernel.
    pub fuse: u64,
    /// Requests of the kernel that were answered with an error.
    pub fuse_errors: u64,
    /// Requests to the store.
    pub s3: u64,
    /// Requests to the store that were sent again.
    pub s3_retries: u64,
    /// Requests to the store whose error was final.
    pub s3_errors: u64,
}

/// Hit rates from 0 to 1; `null` without lookups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Hits {
    /// READs that were answered without waiting for the network.
    pub reads: Option<f64>,
    /// Blocks found in the disk cache.
    pub disk_cache: Option<f64>,
}

/// Bytes of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Resident memory of the process.
    pub rss_bytes: u64,
    /// Limit on memory for data (`--memory-target`).
    pub target_bytes: u64,
    /// Bytes reserved for READs that wait.
    pub demand_bytes: u64,
    /// Bytes of read-ahead.
    pub ahead_bytes: u64,
    /// Bytes reserved for files being written.
    pub write_bytes: u64,
}

/// The disk cache.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cache {
    /// The directory of the cache.
    pub directory: String,
    /// Bytes in use on disk.
    pub used_bytes: u64,
    /// Blocks that came from the store because the cache lacked them.
    pub misses: u64,
    /// Blocks written to the cache.
    pub puts: u64,
    /// Blocks that wait to be written, or are being written. Older engines do not report it.
    #[serde(default)]
    pub puts_waiting: u64,
    /// Blocks that were not written because the queue was full or the disk failed.
    pub puts_dropped: u64,
    /// Blocks evicted to make room.
    pub evictions: u64,
    /// Blocks whose checksum was wrong.
    pub corrupt: u64,
}

/// The local disk in front of the bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stage {
    /// The directory of the stage.
    pub directory: String,
    /// Bytes of the files in it.
    pub used_bytes: u64,
    /// Most bytes of these files (`--stage-size`).
    pub limit_bytes: u64,
    /// Files of which the bucket lacks a change.
    pub pending_files: u64,
    /// Bytes of these files.
    pub pending_bytes: u64,
    /// Files that could not be stored: they are in `kept/`.
    pub kept_files: u64,
    /// Bytes that they take on the disk.
    pub kept_bytes: u64,
}

/// Numbers of open files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenFiles {
    /// Handles open for reading.
    pub read: u64,
    /// Handles open for writing.
    pub write: u64,
}

/// A file being written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upload {
    /// Key of the object that is made from the file.
    pub key: String,
    /// Number of bytes written so far.
    pub bytes: u64,
    /// `writing`, `storing`, `stored` or `failed`.
    pub state: String,
}

/// The answer to `mount-s3-ctl sync`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Synced {
    /// The files with changes that the bucket lacks.
    pub unsynced: Vec<Unsynced>,
}

/// A file with a change that the bucket lacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unsynced {
    /// Path below the mount point.
    pub path: String,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// The reason why the change was not stored.
    pub why: String,
}

/// Latencies of one kind of request: half of the requests take at most `p50_us`, 99 of 100 at most `p99_us`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latency {
    /// The kind of server: `fuse` (this mount) or `s3` (the store).
    pub of: String,
    /// The kind of the request.
    pub request: String,
    /// Number of requests.
    pub count: u64,
    /// Median, in microseconds.
    pub p50_us: u64,
    /// The 99th percentile, in microseconds.
    pub p99_us: u64,
}

/// An error or a warning of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorLine {
    /// Time in seconds since 1970.
    pub at_s: u64,
    /// `WARN` or `ERROR`.
    pub level: String,
    /// Text of the line.
    pub message: String,
}

/// The current state. The caller has updated the gauges.
pub(super) fn of(told: &Telemetry) -> Status {
    let metrics = &*told.metrics;
    let now = told.clock.now();
    Status {
        origin: told.origin.clone(),
        uptime_s: since(told.clock.wall(), told.started),
        throughput: told.rates.now(metrics, now),
        requests: Requests {
            fuse: metrics.fuse_requests(),
            fuse_errors: metrics.fuse_errors.get(),
            s3: metrics.s3_requests.get(),
            s3_retries: metrics.s3_retries.get(),
            s3_errors: metrics.s3_errors.get(),
        },
        hits: Hits {
            reads: share(metrics.fuse_reads_ready.get(), metrics.fuse_reads_waited.get()),
            disk_cache: share(metrics.cache_hits.get(), metrics.cache_misses.get()),
        },
        memory: Memory {
            rss_bytes: metrics.process_memory.get(),
            target_bytes: metrics.memory_target.get(),
            demand_bytes: metrics.memory_used.of("demand").get(),
            ahead_bytes: metrics.memory_used.of("ahead").get(),
            write_bytes: metrics.memory_used.of("write").get(),
        },
        disk_cache: told.origin.cache.as_ref().map(|directory| Cache {
            directory: directory.clone(),
            used_bytes: metrics.cache_used.get(),
            misses: metrics.cache_misses.get(),
            puts: metrics.cache_puts.get(),
            puts_waiting: metrics.cache_puts_waiting.get(),
            puts_dropped: metrics.cache_puts_dropped.get(),
            evictions: metrics.cache_evictions.get(),
            corrupt: metrics.cache_corrupt.get(),
        }),
        stage: told.mount.stage(),
        open_files: OpenFiles {
            read: metrics.open_files.of("read").get(),
            write: metrics.open_files.of("write").get(),
        },
        uploads: told.mount.uploads(),
        latencies: latencies(metrics),
        errors: told.mount.errors(),
    }
}

fn since(now: SystemTime, then: SystemTime) -> u64 {
    now.duration_since(then).unwrap_or_default().as_secs()
}

fn share(hits: u64, misses: u64) -> Option<f64> {
    let all = hits + misses;
    (all > 0).then(|| hits as f64 / all as f64)
}

fn latencies(metrics: &Metrics) -> Vec<Latency> {
    let kinds = [("fuse", &metrics.fuse_latency), ("s3", &metrics.s3_total)];
    let all = kinds.into_iter().flat_map(|(of, histograms)| {
        histograms.all().map(move |(request, histogram)| latency(of, request, histogram))
    });
    all.flatten().collect()
}

fn latency(of: &str, request: &str, histogram: &Histogram) -> Option<Latency> {
    let seen = histogram.get();
    Some(Latency {
        of: of.to_owned(),
        request: request.to_owned(),
        count: seen.count(),
        p50_us: seen.quantile(0.5)?,
        p99_us: seen.quantile(0.99)?,
    })
}
