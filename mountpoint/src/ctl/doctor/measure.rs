//! Measures the latency of small requests, and the read throughput of one connection and of several.

use std::ops::Range;
use std::time::{Duration, Instant};

use mountpoint::buffer::{self, BLOCK, Fill, Pool, Use};
use mountpoint::object::ObjectId;
use mountpoint::s3::{GetObject, ListObjects, ListedObject, ObjectClient as _, S3Client};
use mountpoint::sync::Arc;

use super::report::{Latency, Throughput};
use super::{Examination, said};

/// Number of small requests, one after another ...
const REQUESTS: usize = 100;
/// ... within this time at most.
const REQUESTS_MAX: Duration = Duration::from_secs(5);
/// Smallest object for the measurement of throughput, in bytes.
const OBJECT_MIN: u64 = 1 << 20;
/// Longest time of the reads on each number of connections ...
const READS_MAX: Duration = Duration::from_secs(2);
/// ... and most bytes, per connection. Doubling it doubles the traffic of a measurement.
const BYTES_MAX: u64 = 64 << 20;
/// Memory for all reads in flight, in bytes.
const MEMORY: u64 = 1 << 30;

impl Examination<'_> {
    /// Measures latency, and then throughput if the object is large enough.
    pub(super) async fn measure(&mut self, object: Option<&ListedObject>) {
        if self.begin("latency") {
            self.latency(object).await;
        }
        let large = object.filter(|it| it.meta.size >= OBJECT_MIN);
        let Some(object) = large else {
            self.report.skipped("throughput", "no object of 1 MiB or more among the first 1000 keys");
            return;
        };
        let mut at_once = vec![1];
        at_once.extend((self.config.connections > 1).then_some(self.config.connections));
        for connections in at_once {
            if !self.begin(&format!("throughput of {connections} connections")) {
                return;
            }
            match self.throughput(object, connections).await {
                Ok(seen) => self.report.throughput.push(seen),
                Err(error) => {
                    self.report.fails("throughput", said(&error), "reading large files fast");
                    return;
                }
            }
        }
    }

    async fn latency(&mut self, object: Option<&ListedObject>) {
        let begun = self.around.clock.now();
        let mut took = Vec::with_capacity(REQUESTS);
        let request = if object.is_some() { "HeadObject" } else { "ListObjectsV2" };
        let listing =
            ListObjects { prefix: self.config.s3.prefix.clone(), max_keys: 1, ..ListObjects::default() };
        while took.len() < REQUESTS && self.around.clock.now() - begun < REQUESTS_MAX && !self.is_stopped() {
            let start = self.around.clock.now();
            let asked = match object {
                Some(object) => self.client.head_object(&object.key).await.map(drop),
                None => self.client.list_objects(&listing).await.map(drop),
            };
            if let Err(error) = asked {
                self.report.note("latency", said(&error), "single requests fail under no load");
                break;
            }
            took.push(self.around.clock.now() - start);
        }
        self.report.latency = latency(request, took);
    }

    async fn throughput(
        &self,
        object: &ListedObject,
        connections: usize,
    ) -> mountpoint::s3::Result<Throughput> {
        let client = &self.client;
        let pool = Pool::new(&buffer::Config { target: MEMORY, network: 0 });
        let size = object.meta.size;
        let reads: Vec<Range<u64>> = parts(size, self.config.part.min(READ_MAX)).collect();
        let bytes_max = BYTES_MAX * connections as u64;
        let clock = self.around.clock;
        let begun = clock.now();
        let ends = begun + READS_MAX;
        let turns = std::sync::atomic::AtomicUsize::new(0);
        let reader = || async {
            let mut came = 0;
            loop {
                let turn = turns.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                let range = reads[turn % reads.len()].clone();
                let so_far: u64 = turn as u64 * (reads[0].end - reads[0].start);
                if (came > 0 && is_over(clock.now(), ends)) || so_far >= bytes_max || self.is_stopped() {
                    return Ok::<u64, mountpoint::s3::Error>(came);
                }
                came += read(client, &pool, object, range).await?;
            }
        };
        let all = futures_util::future::try_join_all((0..connections).map(|_| reader())).await?;
        let (bytes, took) = (all.iter().sum::<u64>(), clock.now() - begun);
        Ok(Throughput {
            connections,
            bytes,
            took_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            bytes_per_s: (bytes as f64 / took.as_secs_f64().max(1e-6)) as u64,
        })
    }
}

/// Most bytes of one read, because the memory for all reads in flight is limited.
const READ_MAX: u64 = 8 << 20;

fn is_over(now: Instant, ends: Instant) -> bool {
    now >= ends
}

/// The ranges of an object, in order, each of at most `part` bytes.
fn parts(size: u64, part: u64) -> impl Iterator<Item = Range<u64>> {
    let part = part.max(1);
    (0..size).step_by(usize::try_from(part).unwrap_or(usize::MAX)).map(move |at| at..(at + part).min(size))
}

/// Reads a range into memory that is freed at once. Returns the number of bytes.
async fn read(
    client: &Arc<S3Client>,
    pool: &Pool,
    object: &ListedObject,
    range: Range<u64>,
) -> mountpoint::s3::Result<u64> {
    let mut memory = pool.reserve(Use::Demand, range.end - range.start).await;
    let blocks: Vec<_> = range
        .clone()
        .step_by(BLOCK)
        .filter_map(|at| memory.block((range.end - at).min(BLOCK as u64) as usize))
        .collect();
    let id = ObjectId::of(object.key.clone(), &object.meta);
    let bytes = range.end - range.start;
    let request = GetObject { id, range, object_size: object.meta.size };
    let mut fill = Fill::new(blocks, |_| ());
    client.get_object(&request, &mut fill).await?;
    Ok(bytes)
}

/// The median and the 99th percentile of these times; `None` without any.
fn latency(request: &'static str, mut took: Vec<Duration>) -> Option<Latency> {
    took.sort_unstable();
    let at = |share: f64| {
        let rank = (took.len() as f64 * share).ceil() as usize;
        took.get(rank.saturating_sub(1)).map(|it| u64::try_from(it.as_micros()).unwrap_or(u64::MAX))
    };
    Some(Latency { request, count: took.len(), p50_us: at(0.5)?, p99_us: at(0.99)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_cover_the_object_once() {
        assert_eq!(parts(10, 4).collect::<Vec<_>>(), [0..4, 4..8, 8..10]);
        assert_eq!(parts(4, 4).collect::<Vec<_>>(), vec![0..4]);
    }

    #[test]
    fn half_of_the_requests_took_at_most_the_median_and_99_of_100_the_other() {
        let of = |n: u64| (1..=n).rev().map(Duration::from_micros).collect::<Vec<_>>();
        let seen = latency("HeadObject", of(100)).unwrap();
        assert_eq!((seen.count, seen.p50_us, seen.p99_us), (100, 50, 99));
        let seen = latency("HeadObject", of(1)).unwrap();
        assert_eq!((seen.p50_us, seen.p99_us), (1, 1));
        assert_eq!(latency("HeadObject", Vec::new()), None);
    }
}
