//! The workloads: each prepares, measures one stretch of work on a mount, and checks the results.

pub(crate) mod fio;
mod fio_check;
mod fio_table;
pub(crate) mod mapped;
mod mixed;
mod names;
mod read;
mod rename;
mod table;
mod write;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::floor::Floor;
use crate::kernel_threads::{self, KernelThreads};
use crate::meter::own_cpu_s;
use crate::mount::Mount;
use crate::server::control::Control;
use crate::server::counters::Counts;
use crate::server::store::Shape;
use crate::waits::{Waits, Watch};
pub(crate) use fio_table::FIO;
pub(crate) use table::WORKLOADS;

/// Longest wait for a peer to store files after close; after it the peer has failed.
const STORED_LIMIT: Duration = Duration::from_secs(20);

/// The unit of a workload's figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Unit {
    /// GiB/s, and costs per GiB.
    GiB,
    /// Items per second, and costs per item.
    PerSecond,
    /// Milliseconds per item, and costs per item.
    Each,
    /// Seconds in all, and costs in all.
    Whole,
}

/// One workload.
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    /// A description of one line, for the table.
    pub(crate) about: &'static str,
    pub(crate) bucket: Bucket,
    /// Latency of each request, in milliseconds.
    pub(crate) latency_ms: u64,
    /// Rate of each connection in MB/s; 0 for no limit.
    pub(crate) rate_mb: u64,
    /// Whether the mount uses TLS 1.3.
    pub(crate) tls: bool,
    /// Whether the mount has a disk cache.
    pub(crate) cache: bool,
    /// The mount's memory for data, in MiB; `None` for the default.
    pub(crate) memory_mib: Option<u32>,
    /// Whether files may be removed on the mount.
    pub(crate) deletes: bool,
    /// Whether files may be renamed and appended to on the mount.
    pub(crate) renames: bool,
    /// The job file, if fio does the work.
    pub(crate) fio: Option<&'static str>,
    /// The TTL of names and attributes on the mount, in seconds; `None` for the default.
    pub(crate) ttl_s: Option<u32>,
    pub(crate) unit: Unit,
    /// The floors of this workload.
    pub(crate) floors: &'static [Floor],
    pub(crate) run: fn(&Job<'_>) -> anyhow::Result<Sample>,
}

/// The buckets that the bench fills before the first round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bucket {
    /// Five big objects.
    Big,
    /// Forty objects of 64 GiB.
    Huge,
    /// Four objects of 5 MiB.
    Medium,
    /// Four objects of one byte.
    Byte,
    /// Files of 100 KiB in one directory.
    Small,
    /// Many names in one directory, numbered.
    Names,
    /// Random names in one directory, as many as in [`Bucket::Names`].
    NamesHex,
    /// Names in folders of a hundred, as many as in [`Bucket::Names`], by year, month and day.
    NamesDates,
    /// Names eight folders down, as many as in [`Bucket::Names`].
    NamesDeep,
    /// Ten times as many names as in [`Bucket::Names`]: a million at full scale.
    Million,
    /// Ten files per folder, ten folders per folder.
    Tree,
    /// The tree of [`Bucket::Tree`] with twenty times as many files.
    TreeBig,
    /// Files of one byte in one directory.
    Folder,
    /// Twice as many files of one byte as in [`Bucket::Folder`]: 25 per folder, twenty folders per folder.
    Folders,
    /// Twice as many files of one byte as in [`Bucket::Folder`]: 25 per folder, all below one directory.
    Renamed,
    /// One object of 10 GiB.
    Long,
    /// No object: for workloads that write.
    Write,
}

impl Bucket {
    /// All buckets.
    pub(crate) const ALL: [Self; 17] = [
        Self::Big,
        Self::Huge,
        Self::Medium,
        Self::Byte,
        Self::Small,
        Self::Names,
        Self::NamesHex,
        Self::NamesDates,
        Self::NamesDeep,
        Self::Million,
        Self::Tree,
        Self::TreeBig,
        Self::Folder,
        Self::Folders,
        Self::Renamed,
        Self::Long,
        Self::Write,
    ];
    const HUGE_OBJECT: u64 = 64 << 30;
    const MEDIUM_OBJECT: u64 = 5 << 20;
    const SMALL_OBJECT: u64 = 100 << 10;
    /// Size of the object of [`Bucket::Long`] in bytes: a MiB less than 20 parts of 512 MiB, so the last part has room for appended bytes.
    const LONG_OBJECT: u64 = (10 << 30) - (1 << 20);

    /// The bucket's name at this scale.
    pub(crate) fn name(self, scale: &Scale) -> String {
        format!("bench-{}-{}", scale.name, format!("{self:?}").to_lowercase())
    }

    /// The prefix, shape, number and size of the bucket's objects.
    pub(crate) fn objects(self, scale: &Scale) -> (&'static str, Shape, u64, u64) {
        match self {
            Self::Big => ("", Shape::Counter, 5, scale.big_bytes),
            Self::Huge => ("", Shape::Counter, 40, Self::HUGE_OBJECT),
            Self::Medium => ("", Shape::Counter, 4, Self::MEDIUM_OBJECT),
            Self::Byte => ("", Shape::Counter, 4, 1),
            Self::Small => ("dir/", Shape::Counter, scale.files, Self::SMALL_OBJECT),
            Self::Names => ("dir/", Shape::Counter, scale.names, 1),
            Self::NamesHex => ("dir/", Shape::Hex, scale.names, 1),
            Self::NamesDates => ("dir/", Shape::Dates, scale.names, 1),
            Self::NamesDeep => ("dir/", Shape::Deep, scale.names, 1),
            Self::Million => ("dir/", Shape::Counter, 10 * scale.names, 1),
            Self::Tree => ("", Shape::Tree, scale.tree, 1),
            Self::TreeBig => ("", Shape::Tree, 20 * scale.tree, 1),
            Self::Folder => ("dir/", Shape::Counter, scale.folder, 1),
            Self::Folders => ("", Shape::Folders, 2 * scale.folder, 1),
            Self::Renamed => ("dir/", Shape::Folders, 2 * scale.folder, 1),
            Self::Long => ("", Shape::Counter, 1, Self::LONG_OBJECT),
            Self::Write => ("", Shape::Counter, 0, 0),
        }
    }
}

/// The sizes of the workloads.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Scale {
    /// Part of the buckets' names.
    pub(crate) name: String,
    /// Size of a big object, and of the written data, in bytes; a power of two.
    pub(crate) big_bytes: u64,
    pub(crate) files: u64,
    pub(crate) names: u64,
    pub(crate) tree: u64,
    /// Number of files of the directory that `du`, `find` and `ls` visit.
    pub(crate) folder: u64,
    /// Number of small files to create.
    pub(crate) created: u64,
    /// The duration of random reads.
    pub(crate) random_for: Duration,
    /// The duration of each of fio's jobs.
    pub(crate) fio_for: Duration,
    /// Whether every byte is checked, not a sample.
    pub(crate) check_all: bool,
}

impl Scale {
    /// The smallest sizes that show whether a peer can do a workload; every byte is checked.
    pub(crate) fn smoke() -> Self {
        Self {
            name: "smoke".to_owned(),
            big_bytes: 32 << 20,
            files: 20,
            names: 1500,
            tree: 120,
            folder: 60,
            created: 3,
            random_for: Duration::from_millis(500),
            fio_for: Duration::from_millis(500),
            check_all: true,
        }
    }
}

/// One run of one workload on one mount.
pub(crate) struct Job<'a> {
    pub(crate) mount: &'a Mount,
    pub(crate) control: &'a Control,
    pub(crate) server_cpu_s: &'a (dyn Fn() -> f64 + Sync),
    pub(crate) scale: &'a Scale,
    pub(crate) workload: &'a Workload,
    /// The bucket of the mount.
    pub(crate) bucket: &'a str,
    /// The folder of the disk cache, if the workload has one.
    pub(crate) cache: &'a Path,
    /// The directory for the counts of waits, if they are counted.
    pub(crate) waits: Option<&'a Path>,
    /// A number that differs in every run, for new names.
    pub(crate) serial: u64,
}

/// The work of a measurement.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Work {
    /// Bytes that the client read or wrote.
    pub(crate) bytes: u64,
    /// Number of files, reads or names.
    pub(crate) items: u64,
    /// Number of names that listings returned, including folders, if the work was only listings.
    pub(crate) names: u64,
    /// Seconds until a listing returned its first name.
    pub(crate) first_s: Option<f64>,
    /// Seconds by the clock of another process, if that process did the work.
    pub(crate) seconds: Option<f64>,
    /// CPU seconds of another process, if that process did the work; otherwise 0.
    pub(crate) child_cpu_s: f64,
}

/// The figures of one run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sample {
    pub(crate) seconds: f64,
    pub(crate) bytes: u64,
    pub(crate) items: u64,
    pub(crate) daemon_cpu_s: f64,
    pub(crate) client_cpu_s: f64,
    pub(crate) server_cpu_s: f64,
    /// CPU seconds of the kernel's own threads, which work for all programs; `None` if they are not visible.
    #[serde(default)]
    pub(crate) kernel_cpu_s: Option<f64>,
    pub(crate) peak_rss_bytes: u64,
    pub(crate) counts: Counts,
    /// Number of names that listings returned. The next field: seconds until the first one.
    #[serde(default)]
    pub(crate) names: u64,
    #[serde(default)]
    pub(crate) first_s: Option<f64>,
    /// The 99th percentile of the latency of reads, in seconds.
    #[serde(default)]
    pub(crate) p99_s: Option<f64>,
    /// The daemon's memory some time after the work. The next field: after the kernel has forgotten all names.
    #[serde(default)]
    pub(crate) rest_rss_bytes: Option<u64>,
    #[serde(default)]
    pub(crate) forgotten_rss_bytes: Option<u64>,
    /// Waits of the daemon's threads, if they were counted.
    #[serde(default)]
    pub(crate) waits: Option<Waits>,
    /// Whether the store had everything when a writer's last close returned.
    pub(crate) stored_at_close: Option<bool>,
}

impl Job<'_> {
    /// The path of a name in the mount.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.mount.dir().join(name)
    }

    /// The mount point.
    pub(crate) fn root(&self) -> &Path {
        self.mount.dir()
    }

    /// Measures `work`.
    ///
    /// # Errors
    /// The error of the work.
    pub(crate) fn measure(&self, work: impl FnOnce() -> anyhow::Result<Work>) -> anyhow::Result<Sample> {
        let watch = self.waits.map(|work| Watch::begin(&self.mount.processes(), work)).transpose()?;
        self.control.reset()?;
        let kernel_before = KernelThreads::now();
        let before = (self.mount.cpu_s(), own_cpu_s(), (self.server_cpu_s)());
        let begun = Instant::now();
        let Work { bytes, items, names, first_s, seconds, child_cpu_s } = work()?;
        let seconds = seconds.unwrap_or_else(|| begun.elapsed().as_secs_f64());
        let after = (self.mount.cpu_s(), own_cpu_s(), (self.server_cpu_s)());
        let kernel_cpu_s = kernel_threads::since(kernel_before.as_ref());
        let waits = watch.map(Watch::end).transpose()?;
        Ok(Sample {
            seconds,
            bytes,
            items,
            daemon_cpu_s: after.0 - before.0,
            client_cpu_s: after.1 - before.1 + child_cpu_s,
            server_cpu_s: after.2 - before.2,
            kernel_cpu_s,
            peak_rss_bytes: self.mount.peak_rss(),
            counts: self.control.counts()?,
            names,
            first_s,
            p99_s: None,
            rest_rss_bytes: None,
            forgotten_rss_bytes: None,
            waits,
            stored_at_close: None,
        })
    }

    /// Measures `work`, which writes, and counts the store's objects below `prefix` right after the last close.
    pub(crate) fn measure_writing(
        &self,
        prefix: &str,
        work: impl FnOnce() -> anyhow::Result<Work>,
    ) -> anyhow::Result<Sample> {
        let mut stored = (0, 0);
        let mut sample = self.measure(|| {
            let work = work()?;
            stored = self.control.count(self.bucket, prefix)?;
            Ok(work)
        })?;
        let wanted = (sample.items, sample.bytes);
        sample.stored_at_close = Some(stored == wanted);
        wait_stored(wanted, stored, STORED_LIMIT, || self.control.count(self.bucket, prefix))?;
        Ok(sample)
    }
}

/// Waits until the store has the `wanted` objects and bytes. `stored` is the count at the last close.
///
/// # Errors
/// The store does not have them in time.
fn wait_stored(
    wanted: (u64, u64),
    mut stored: (u64, u64),
    limit: Duration,
    look: impl Fn() -> anyhow::Result<(u64, u64)>,
) -> anyhow::Result<()> {
    let begun = Instant::now();
    while stored != wanted {
        anyhow::ensure!(
            begun.elapsed() < limit,
            "close returned, but {} s later the store has {} objects and {} bytes instead of {} and {}",
            limit.as_secs(),
            stored.0,
            stored.1,
            wanted.0,
            wanted.1,
        );
        std::thread::sleep(Duration::from_millis(50));
        stored = look()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_never_gets_all_is_an_error_and_a_late_one_is_awaited() {
        let looks = std::cell::Cell::new(0);
        let late = || {
            looks.set(looks.get() + 1);
            Ok((1, looks.get()))
        };
        wait_stored((1, 3), (0, 0), Duration::from_secs(600), late).unwrap();
        assert_eq!(looks.get(), 3);
        let error = wait_stored((1, 3), (0, 0), Duration::ZERO, || Ok((1, 2))).unwrap_err().to_string();
        assert!(error.contains("0 objects and 0 bytes instead of 1 and 3"), "{error}");
    }
}
