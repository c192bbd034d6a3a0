//! Names: many in one directory or in folders of dates, a tree, and programs that visit each file of a directory.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use super::{Job, Sample, Work};
use crate::pattern::hash;

/// Wait for a daemon to become idle after a listing; also the longest wait for it to forget the names.
const REST: Duration = Duration::from_secs(60);
/// Fewest names whose memory can be distinguished from other memory.
const WORTH: u64 = 10_000;

/// Lists all names below `dir`, without a stat of the files.
pub(super) fn list(job: &Job<'_>) -> anyhow::Result<Sample> {
    listed(job, false)
}

/// Lists all names below `dir`, with a stat of each file.
pub(super) fn list_stat(job: &Job<'_>) -> anyhow::Result<Sample> {
    listed(job, true)
}

/// Lists names, then measures the daemon's memory: idle, and after the kernel has forgotten the names.
pub(super) fn list_and_forget(job: &Job<'_>) -> anyhow::Result<Sample> {
    let mut sample = listed(job, false)?;
    if job.scale.names < WORTH {
        return Ok(sample);
    }
    std::thread::sleep(REST);
    sample.rest_rss_bytes = Some(job.mount.rss());
    let begun = Instant::now();
    let mut least = u64::MAX;
    while begun.elapsed() < REST {
        std::fs::write("/proc/sys/vm/drop_caches", "2")
            .context("make the kernel forget names (only root may)")?;
        std::thread::sleep(Duration::from_secs(1));
        least = least.min(job.mount.rss());
    }
    sample.forgotten_rss_bytes = Some(least);
    Ok(sample)
}

fn listed(job: &Job<'_>, looks: bool) -> anyhow::Result<Sample> {
    let (_, shape, count, _) = job.workload.bucket.objects(job.scale);
    // A name that comes twice could otherwise hide a missing one.
    let expected = (0..count).map(|number| hash(shape.name(number).as_bytes())).fold(0, u64::wrapping_add);
    job.measure(|| {
        let mut seen = Seen { begun: Some(Instant::now()), looks, ..Seen::default() };
        seen.list(&job.path("dir"), "")?;
        ensure!(seen.files == count, "{} names instead of {count}", seen.files);
        ensure!(seen.hashes == expected, "other names than the bucket holds");
        Ok(Work { items: seen.files, names: seen.names, first_s: seen.first_s, ..Work::default() })
    })
}

/// The listed names so far.
#[derive(Debug, Default)]
struct Seen {
    begun: Option<Instant>,
    /// Whether to call stat for each file.
    looks: bool,
    /// Number of files and folders. The next field: seconds until the first one.
    names: u64,
    first_s: Option<f64>,
    files: u64,
    /// Sum of the hashes of the files' names, in any order.
    hashes: u64,
}

impl Seen {
    /// Lists `dir` and the folders in it. `below` is its path relative to the first one.
    fn list(&mut self, dir: &Path, below: &str) -> anyhow::Result<()> {
        for entry in std::fs::read_dir(dir).with_context(|| format!("open {}", dir.display()))? {
            let entry = entry.with_context(|| format!("read {}", dir.display()))?;
            let name = format!("{below}{}", entry.file_name().to_string_lossy());
            self.names += 1;
            if self.first_s.is_none() {
                self.first_s = self.begun.map(|begun| begun.elapsed().as_secs_f64());
            }
            if entry.file_type()?.is_dir() {
                self.list(&entry.path(), &format!("{name}/"))?;
            } else {
                if self.looks {
                    let bytes = entry.metadata().with_context(|| format!("look at {name}"))?.len();
                    ensure!(bytes == 1, "{name} has {bytes} bytes instead of 1");
                }
                self.files += 1;
                self.hashes = self.hashes.wrapping_add(hash(name.as_bytes()));
            }
        }
        Ok(())
    }
}

pub(super) fn walk(job: &Job<'_>) -> anyhow::Result<Sample> {
    job.measure(|| {
        let mut names = 0;
        let items = count_files(job.root(), &mut names)?;
        let (_, _, count, _) = job.workload.bucket.objects(job.scale);
        ensure!(items == count, "{items} files instead of {count}");
        Ok(Work { items, names, ..Work::default() })
    })
}

fn count_files(dir: &Path, names: &mut u64) -> anyhow::Result<u64> {
    let mut files = 0;
    for entry in std::fs::read_dir(dir).with_context(|| format!("open {}", dir.display()))? {
        let entry = entry?;
        *names += 1;
        let about = entry.metadata().with_context(|| format!("look at {}", entry.path().display()))?;
        if about.is_dir() {
            files += count_files(&entry.path(), names)?;
        } else {
            ensure!(about.len() == 1, "{} has {} bytes instead of 1", entry.path().display(), about.len());
            files += 1;
        }
    }
    Ok(files)
}

/// Sums the sizes of all files with `du`.
pub(super) fn du(job: &Job<'_>) -> anyhow::Result<Sample> {
    tool(job, "du", &["-s", "--apparent-size", "--block-size=1"], &[], |text, count| {
        // Directories have a size of 0 here.
        text.split_whitespace().next() == Some(count.to_string().as_str())
    })
}

/// Finds the files of at most one byte with `find`.
pub(super) fn find_size(job: &Job<'_>) -> anyhow::Result<Sample> {
    tool(job, "find", &[], &["-type", "f", "-size", "-2c"], |text, count| {
        text.lines().count() as u64 == count
    })
}

/// Makes a long listing with `ls`.
pub(super) fn ls_l(job: &Job<'_>) -> anyhow::Result<Sample> {
    // The first line is the total.
    tool(job, "ls", &["-l"], &[], |text, count| text.lines().count() as u64 == count + 1)
}

/// Runs a program on the folder, with arguments before and after the folder; `is_right` compares its output with the number of files.
fn tool(
    job: &Job<'_>,
    program: &str,
    before: &[&str],
    behind: &[&str],
    is_right: impl Fn(&str, u64) -> bool,
) -> anyhow::Result<Sample> {
    let (_, _, count, _) = job.workload.bucket.objects(job.scale);
    job.measure(|| {
        let mut command = Command::new(program);
        command.args(before).arg(job.path("dir")).args(behind).env("LC_ALL", "C");
        let cpu_before = children_cpu_s();
        let output = command.output().with_context(|| format!("start {program}"))?;
        let child_cpu_s = children_cpu_s() - cpu_before;
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
        ensure!(is_right(&text, count), "{program} shows something else than {count} files of a byte");
        Ok(Work { items: count, names: count, child_cpu_s, ..Work::default() })
    })
}

/// CPU seconds of this process's children that have ended.
fn children_cpu_s() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    // The fields 16 and 17 are in ticks: hundredths of a second on every Linux.
    fields.skip(13).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}
