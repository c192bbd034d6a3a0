//! Every counter of the engine: its name, its unit and its meaning. Rooms add; exporters and tests read.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident => $text:literal),+ $(,)?) => {
        /// The counters of one mount. Adding is one relaxed atomic.
        #[derive(Debug, Default)]
        pub struct Metrics { $($(#[doc = $doc])+ pub $name: Counter),+ }

        impl Metrics {
            /// Each counter's exported name and value.
            pub fn snapshot(&self) -> Vec<(&'static str, u64)> {
                vec![$(($text, self.$name.get())),+]
            }
        }
    };
}

counters! {
    /// S3 requests sent, retries included.
    s3_requests => "s3.request_count",
    /// S3 requests that were sent again after a failure.
    s3_retries => "s3.retry_count",
    /// S3 requests that failed for good (a 404 of a lookup is an answer, not a failure).
    s3_errors => "s3.request_errors",
    /// Bytes of GET bodies received.
    s3_bytes_received => "s3.bytes_received",
    /// Bytes of request bodies sent.
    s3_bytes_sent => "s3.bytes_sent",
    /// TCP (and TLS) connections opened.
    s3_connections => "s3.connections_opened",
    /// FUSE requests answered with an errno.
    fuse_errors => "fuse.request_errors",
    /// READ requests answered on the thread that took them.
    fuse_reads_ready => "fuse.reads_ready",
    /// READ requests that waited for the network.
    fuse_reads_waited => "fuse.reads_waited",
    /// Reads of the disk cache, of a block or a part of one, that it answered.
    cache_hits => "cache.hits",
    /// Blocks, or parts of one, fetched from the store because the disk cache did not have them.
    cache_misses => "cache.misses",
    /// Cached blocks that failed their check and were dropped.
    cache_corrupt => "cache.corrupt",
    /// Blocks, or parts of one, written to the disk cache.
    cache_puts => "cache.puts",
    /// Blocks, or parts of one, not written to the disk cache because its queue or the disk was full.
    cache_puts_dropped => "cache.puts_dropped",
    /// Blocks evicted from the disk cache.
    cache_evictions => "cache.evictions",
    /// Multipart uploads aborted after a failure.
    uploads_aborted => "upload.aborted",
    /// Parts written to the spill file because memory was short.
    uploads_spilled => "upload.parts_spilled",
    /// Keys of the bucket that can't be shown as a file name (counted once per listing they appear in).
    names_hidden => "inode.names_hidden",
    /// Prefetched bytes that were dropped unread.
    prefetch_wasted => "prefetch.bytes_wasted",
    /// Tasks and threads that keep house, started anew after a panic: a bug, please report it.
    tasks_restarted => "tasks.restarted",
}

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
