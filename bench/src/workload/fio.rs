//! The jobs of fio: the published benchmark of AWS's mount-s3, run by the program `fio` on a mount. Enters: fio's report. Leaves: a sample.
//! fio does not compare the data with the bucket; `fio_check` does, after the measurement.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use serde::Deserialize;

use super::{Job, Sample, Work, fio_check};

/// The advice for a machine without fio.
const INSTALL: &str = "fio is not to be found; install it with: apt-get install -y fio";

/// The version of the installed fio.
///
/// # Errors
/// fio is missing or fails.
pub(crate) fn version() -> anyhow::Result<String> {
    let output = Command::new("fio").arg("--version").output().context(INSTALL)?;
    ensure!(output.status.success(), "fio --version fails: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Runs the workload's job on the mount, and then checks the bytes that it read and wrote.
pub(super) fn run(job: &Job<'_>) -> anyhow::Result<Sample> {
    let text = job.workload.fio.context("this workload has no job for fio")?;
    let folder = tempfile::tempdir()?;
    let (file, report) = (folder.path().join("job.fio"), folder.path().join("report.json"));
    std::fs::write(&file, text)?;
    let sections = fio_check::sections(text).context("read the job for fio")?;
    let (mut done, mut stored) = (Done::default(), (0, 0));
    let mut sample = job.measure(|| {
        let output = Command::new("fio")
            .args(["--output-format=json", "--output"])
            .args([&report, &file])
            .env("DIR", job.root())
            .env("RUNTIME", format!("{}ms", job.scale.fio_for.as_millis()))
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .output()
            .context(INSTALL)?;
        if !output.status.success() {
            bail!("fio failed ({}): {}", output.status, words(&report, &output.stderr));
        }
        let text = std::fs::read_to_string(&report).context("fio wrote no report")?;
        done = parse(&text)?;
        stored = fio_check::stored(job, &sections)?;
        Ok(done.work)
    })?;
    // The measurement is over, so the following reads need no latency.
    job.control.pace(Duration::ZERO, 0)?;
    sample.stored_at_close = fio_check::written(job, &sections, done.written, stored)?;
    fio_check::read_back(job, &sections, done.work.bytes - done.written)?;
    Ok(sample)
}

/// The bytes that fio moved, and how many of them it wrote.
#[derive(Debug, Clone, Copy, Default)]
struct Done {
    work: Work,
    written: u64,
}

/// The error message of fio, from its report or from standard error.
fn words(report: &Path, stderr: &[u8]) -> String {
    let report = std::fs::read_to_string(report).unwrap_or_default();
    let before = report.split_once('{').map_or(report.as_str(), |(before, _)| before);
    format!("{} {}", before.trim(), String::from_utf8_lossy(stderr).trim()).trim().to_owned()
}

#[derive(Debug, Deserialize)]
struct Report {
    jobs: Vec<Group>,
}

/// The summed figures of one group of jobs (`group_reporting`).
#[derive(Debug, Deserialize)]
struct Group {
    jobname: String,
    /// The errno; 0 for success.
    error: i32,
    read: Direction,
    write: Direction,
    /// The sum of the run times of all processes, in milliseconds.
    job_runtime: u64,
    /// User CPU time in per cent of `job_runtime`.
    usr_cpu: f64,
    /// System CPU time in per cent of `job_runtime`.
    sys_cpu: f64,
}

#[derive(Debug, Deserialize)]
struct Direction {
    io_bytes: u64,
    total_ios: u64,
    /// The time from the start of the first process to the end of the last one, in milliseconds.
    runtime: u64,
    lat_ns: Latency,
}

#[derive(Debug, Deserialize)]
struct Latency {
    mean: f64,
}

impl Direction {
    /// The run time by fio's clock, which has milliseconds. For very short runs, the sum of the latencies.
    fn seconds(&self, processes: f64) -> f64 {
        let by_latency = self.lat_ns.mean * self.total_ios as f64 / 1e9 / processes;
        (self.runtime as f64 / 1e3).max(by_latency)
    }
}

/// Parses fio's JSON report; lines before it are warnings.
fn parse(text: &str) -> anyhow::Result<Done> {
    let json = text.find('{').map_or(text, |at| &text[at..]);
    let Report { jobs } = serde_json::from_str(json).context("fio's report is not what we know")?;
    let Done { mut work, mut written } = Done::default();
    let mut seconds = 0_f64;
    for group in &jobs {
        ensure!(group.error == 0, "fio's job {} failed with errno {}", group.jobname, group.error);
        for direction in [&group.read, &group.write].into_iter().filter(|one| one.total_ios > 0) {
            work.bytes += direction.io_bytes;
            work.items += direction.total_ios;
            let processes = (group.job_runtime as f64 / direction.runtime.max(1) as f64).max(1.0);
            seconds = seconds.max(direction.seconds(processes));
        }
        written += group.write.io_bytes;
        work.child_cpu_s += (group.usr_cpu + group.sys_cpu) / 100.0 * group.job_runtime as f64 / 1e3;
    }
    ensure!(work.items > 0, "fio did nothing");
    work.seconds = Some(seconds);
    Ok(Done { work, written })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::FIO;

    /// A report of fio 3.33: one reader and four writers for a second; lists of latencies and of the disk left out.
    const RECORDED: &str = include_str!("fio_sample.json");

    #[test]
    fn a_report_of_fio_becomes_bytes_operations_seconds_and_cpu() {
        let Done { work, written } = parse(RECORDED).unwrap();
        assert_eq!(written, 13_670_023_168);
        assert_eq!(work.bytes, 521_404_416 + 13_670_023_168);
        assert_eq!(work.items, 1989 + 52_147);
        assert_eq!(work.seconds, Some(1.042));
        let cpu_s = 0.153_233_83 * 1.005 + 0.201_834_86 * 4.142;
        assert!((work.child_cpu_s - cpu_s).abs() < 1e-6, "{}", work.child_cpu_s);
        let warned = format!("note: both iodepth >= 1 and synchronous I/O engine are selected\n{RECORDED}");
        assert_eq!(parse(&warned).unwrap().work.bytes, work.bytes);
    }

    #[test]
    fn a_job_that_failed_and_one_that_did_nothing_are_errors() {
        let failed = RECORDED.replacen("\"error\": 0", "\"error\": 5", 1);
        assert!(parse(&failed).unwrap_err().to_string().contains("errno 5"));
        assert!(parse("{\"jobs\": []}").unwrap_err().to_string().contains("did nothing"));
        assert!(parse("fio: no such job").unwrap_err().to_string().contains("not what we know"));
    }

    #[test]
    fn reads_shorter_than_a_millisecond_are_counted_by_their_latency() {
        let direction =
            Direction { io_bytes: 10, total_ios: 10, runtime: 0, lat_ns: Latency { mean: 250_000.0 } };
        assert!((direction.seconds(1.0) - 0.0025).abs() < 1e-9);
    }

    #[test]
    fn each_job_is_named_after_its_file_and_writes_only_below_the_mount() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fio");
        let on_disk = std::fs::read_dir(folder).unwrap().count();
        assert_eq!(on_disk, FIO.len(), "each file of bench/fio is a workload");
        for workload in FIO {
            let text = workload.fio.unwrap();
            let name = workload.name.strip_prefix("fio_").unwrap();
            assert!(text.contains(&format!("RUNTIME=30 fio {name}.fio\n")), "{name}");
            assert!(text.contains("\ndirectory=${DIR}\n"), "{name}");
        }
    }
}
