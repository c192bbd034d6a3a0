//! Every metric of the engine: its name, its unit and its meaning. Rooms add; exporters and tests read.
//!
//! Adding is one or two relaxed atomics: no lock and no allocation for a byte that is read or written. The names, units and dimensions
//! are those of AWS's mount-s3 where it has the metric. This file never reads the clock: rooms pass in what they measured.

mod by_name;
mod counter;
mod histogram;
mod series;

pub use by_name::ByName;
pub use counter::{Counter, Gauge, Moved};
pub use histogram::{Distribution, Histogram};
pub use series::{Kind, Label, Metric, Series, Unit, Value};

use by_name::Dimension;
use series::Collect;

use crate::doorbell::Doorbell;

macro_rules! metrics {
    ($($(#[doc = $doc:literal])+ $name:ident: $type:ty = $init:expr, $unit:ident => $text:literal),+ $(,)?) => {
        /// The metrics of one mount.
        #[derive(Debug)]
        pub struct Metrics {
            $($(#[doc = $doc])+ pub $name: $type,)+
            /// The bell that rings when a request is counted, and when memory is freed behind the requests. Tasks that sample or tidy up
            /// while the mount works rest until then.
            pub work: Doorbell,
        }

        impl Default for Metrics {
            fn default() -> Self {
                Self { $($name: $init,)+ work: Doorbell::default() }
            }
        }

        impl Metrics {
            /// Each metric with its values at this moment.
            pub fn snapshot(&self) -> Vec<Metric> {
                vec![$(Metric {
                    name: $text,
                    help: concat!($($doc),+).trim_start(),
                    unit: Unit::$unit,
                    kind: <$type as Collect>::KIND,
                    series: self.$name.series(),
                }),+]
            }
        }
    };
}

/// Requests of the kernel, the most frequent first.
const FUSE_REQUEST: Dimension = Dimension {
    label: "fuse_request",
    names: &[
        "read",
        "write",
        "lookup",
        "getattr",
        "open",
        "release",
        "close",
        "readdirplus",
        "readdir",
        "opendir",
        "releasedir",
        "create",
        "unlink",
        "mkdir",
        "rmdir",
        "setattr",
        "fsync",
        "mknod",
        "statfs",
        "mmap",
        "rename",
        "link",
        "access",
    ],
};

/// FUSE requests that move bytes.
const FUSE_IO: Dimension = Dimension { label: "fuse_request", names: &["read", "write"] };

/// Requests to the store, by the names that S3 gives them.
const S3_REQUEST: Dimension = Dimension {
    label: "s3_request",
    names: &[
        "GetObject",
        "HeadObject",
        "ListObjectsV2",
        "PutObject",
        "UploadPart",
        "CreateMultipartUpload",
        "CompleteMultipartUpload",
        "AbortMultipartUpload",
        "DeleteObject",
        "ListMultipartUploads",
        "HeadBucket",
    ],
};

/// Status codes that stores send with errors; `none` for a request without an answer.
const HTTP_STATUS: Dimension = Dimension {
    label: "http_status",
    names: &[
        "none", "400", "401", "403", "404", "405", "409", "411", "412", "416", "429", "500", "501", "502",
        "503", "504",
    ],
};

/// Purposes of memory.
const USE: Dimension = Dimension { label: "use", names: &["demand", "write", "ahead"] };

/// The use of open files.
const MODE: Dimension = Dimension { label: "mode", names: &["read", "write"] };

/// Kinds of caches.
const CACHE: Dimension = Dimension { label: "cache", names: &["disk"] };

metrics! {
    /// S3 requests sent, retries included.
    s3_requests: ByName<Counter> = ByName::counters(&S3_REQUEST), Count => "s3.request_count",
    /// S3 requests that were sent again after a failure.
    s3_retries: Counter = Counter::default(), Count => "s3.retry_count",
    /// GETs that were sent a second time because the answer was late or the body stalled.
    s3_hedges: Counter = Counter::default(), Count => "s3.hedge_count",
    /// S3 requests that failed for good (a 404 of a lookup is an answer, not a failure).
    s3_errors: ByName<ByName<Counter>> = ByName::new(&S3_REQUEST, || ByName::counters(&HTTP_STATUS)), Count => "s3.request_errors",
    /// Time from the start of an S3 request to the head of its answer.
    s3_first_byte: ByName<Histogram> = ByName::new(&S3_REQUEST, Histogram::of_micros), Micros => "s3.request_first_byte_latency",
    /// Time from the start of an S3 request to the end of its answer.
    s3_total: ByName<Histogram> = ByName::new(&S3_REQUEST, Histogram::of_micros), Micros => "s3.request_total_latency",
    /// Bytes of GET bodies received.
    s3_bytes_received: Counter = Counter::default(), Bytes => "s3.bytes_received",
    /// Bytes of request bodies sent.
    s3_bytes_sent: Counter = Counter::default(), Bytes => "s3.bytes_sent",
    /// TCP (and TLS) connections opened.
    s3_connections: Counter = Counter::default(), Count => "s3.connections_opened",
    /// FUSE requests answered with an errno.
    fuse_errors: ByName<Counter> = ByName::counters(&FUSE_REQUEST), Count => "fuse.request_errors",
    /// Time from a FUSE request's arrival to its answer.
    fuse_latency: ByName<Histogram> = ByName::new(&FUSE_REQUEST, Histogram::of_micros), Micros => "fuse.request_latency",
    /// Bytes of a READ's answer or of a WRITE.
    fuse_io: ByName<Histogram> = ByName::new(&FUSE_IO, Histogram::of_bytes), Bytes => "fuse.io_size",
    /// READ requests answered from memory or the disk cache.
    fuse_reads_ready: Counter = Counter::default(), Count => "fuse.reads_ready",
    /// READ requests that waited for the network.
    fuse_reads_waited: Counter = Counter::default(), Count => "fuse.reads_waited",
    /// READ requests that the disk cache alone answered.
    fuse_cache_hit: Counter = Counter::default(), Count => "experimental.fuse.cache_hit",
    /// Threads that take FUSE requests.
    fuse_threads: Gauge = Gauge::default(), Count => "experimental.fuse.total_threads",
    /// Threads for FUSE that wait for a request.
    fuse_idle: Gauge = Gauge::default(), Count => "experimental.fuse.idle_threads",
    /// Objects, or answers with a whole one, whose bytes did not have the store's checksum: they were fetched anew, or the read failed.
    read_corrupt: Counter = Counter::default(), Count => "read.corrupt",
    /// Reads of the disk cache, of a block or a part of one, that it answered.
    cache_hits: Counter = Counter::default(), Count => "cache.hits",
    /// Blocks, or parts of one, fetched from the store because the disk cache did not have them.
    cache_misses: Counter = Counter::default(), Count => "cache.misses",
    /// Cached blocks that failed their check and were dropped.
    cache_corrupt: Counter = Counter::default(), Count => "cache.corrupt",
    /// Reads, opens and writes of the disk cache that took too long and counted as a miss.
    cache_late: Counter = Counter::default(), Count => "cache.late",
    /// Blocks, or parts of one, written to the disk cache.
    cache_puts: Counter = Counter::default(), Count => "cache.puts",
    /// Blocks, or parts of one, that wait to be written to the disk cache or are being written.
    cache_puts_waiting: Gauge = Gauge::default(), Count => "cache.puts_waiting",
    /// Blocks, or parts of one, not written to the disk cache because its queue or the disk was full.
    cache_puts_dropped: Counter = Counter::default(), Count => "cache.puts_dropped",
    /// Blocks evicted from the disk cache.
    cache_evictions: Counter = Counter::default(), Count => "cache.evictions",
    /// Bytes that the disk cache takes on disk, as far as it is indexed.
    cache_used: Gauge = Gauge::default(), Bytes => "cache.disk_usage",
    /// Bytes of the files in the stage, with `--mode full`.
    stage_used: Gauge = Gauge::default(), Bytes => "stage.disk_usage",
    /// Files of the stage of which the bucket lacks a change.
    stage_pending: Gauge = Gauge::default(), Count => "stage.pending_files",
    /// Bytes of those files.
    stage_pending_bytes: Gauge = Gauge::default(), Bytes => "stage.pending_bytes",
    /// How long the oldest change waits to be sent, with `--commit fsync` and `disk`.
    stage_oldest: Gauge = Gauge::default(), Seconds => "stage.oldest_pending_age",
    /// Files in `kept/` of the stage, which could not be stored.
    stage_kept: Gauge = Gauge::default(), Count => "stage.kept_files",
    /// Bytes that they take on the disk.
    stage_kept_bytes: Gauge = Gauge::default(), Bytes => "stage.kept_bytes",
    /// Time to read a block or a part of one from the disk cache.
    cache_get: ByName<Histogram> = ByName::new(&CACHE, Histogram::of_micros), Micros => "experimental.cache.get_latency",
    /// Time to write a block or a part of one to the disk cache.
    cache_put: ByName<Histogram> = ByName::new(&CACHE, Histogram::of_micros), Micros => "experimental.cache.put_latency",
    /// Time of a round that makes room in the disk cache.
    cache_evict: ByName<Histogram> = ByName::new(&CACHE, Histogram::of_micros), Micros => "experimental.cache.evict_latency",
    /// Multipart uploads aborted after a failure.
    uploads_aborted: Counter = Counter::default(), Count => "upload.aborted",
    /// Parts written to the spill file because memory was short.
    uploads_spilled: Counter = Counter::default(), Count => "upload.parts_spilled",
    /// Keys of the bucket that can't be shown as a file name (counted once per listing they appear in).
    names_hidden: Counter = Counter::default(), Count => "inode.names_hidden",
    /// Reads of an open file that continue no earlier one, but for its first: nothing is fetched ahead of them.
    prefetch_resets: Counter = Counter::default(), Count => "experimental.prefetch.reset_state",
    /// Prefetched bytes that were dropped unread.
    prefetch_wasted: Counter = Counter::default(), Bytes => "prefetch.bytes_wasted",
    /// Questions for a file's attributes that asked for its first bytes too.
    first_asked: Counter = Counter::default(), Count => "prefetch.first_asked",
    /// Answers with a file's attributes whose first bytes no read used.
    first_wasted: Counter = Counter::default(), Count => "prefetch.first_wasted",
    /// Background tasks and threads that were started again after a panic: a bug, please report it.
    tasks_restarted: Counter = Counter::default(), Count => "tasks.restarted",
    /// Files that are open.
    open_files: ByName<Gauge> = ByName::new(&MODE, Gauge::default), Count => "fs.open_files",
    /// Memory for data that is in use, of `memory.target`.
    memory_used: ByName<Gauge> = ByName::new(&USE, Gauge::default), Bytes => "memory.used",
    /// Memory for data that may be in use (`--memory-target`, less the share of the cache's index).
    memory_target: Gauge = Gauge::default(), Bytes => "memory.target",
    /// Memory that the process holds (RSS).
    process_memory: Gauge = Gauge::default(), Bytes => "process.memory_usage",
    /// Processor time of the process, of its threads and of the kernel for them.
    process_cpu: Counter = Counter::default(), Micros => "process.cpu_time",
    /// When the process started, in seconds since 1970.
    process_start: Gauge = Gauge::default(), Seconds => "process.start_time",
}

impl Metrics {
    /// FUSE requests answered so far.
    pub fn fuse_requests(&self) -> u64 {
        self.fuse_latency.all().map(|(_, histogram)| histogram.get().count()).sum()
    }
}

#[cfg(test)]
mod tests;
