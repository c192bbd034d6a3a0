//! How long our program takes to help, to say its version, to mount in the background and to tell its status; and its memory while nobody
//! uses it.
//!
//! Enters: the program, and how often. Leaves: a table. Each mount is of an empty bucket on loopback, as users start it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use rustix::mount::UnmountFlags;
use s3server::Server;

use crate::mount::UNSET;

const BUCKET: &str = "start";
/// An engine is idle this long after it has mounted.
const IDLE_AFTER: Duration = Duration::from_secs(1);
/// A daemon has this long to end once it is unmounted.
const END_WITHIN: Duration = Duration::from_secs(10);

/// Sorted figures of one kind.
#[derive(Debug)]
struct Row {
    what: &'static str,
    unit: &'static str,
    mark: f64,
    figures: Vec<f64>,
}

impl Row {
    fn new(what: &'static str, unit: &'static str, mark: f64) -> Self {
        Self { what, unit, mark, figures: Vec::new() }
    }

    fn markdown(&self) -> String {
        let mut sorted = self.figures.clone();
        sorted.sort_by(f64::total_cmp);
        let (least, middle, most) = (sorted[0], sorted[sorted.len() / 2], sorted[sorted.len() - 1]);
        let Self { what, unit, mark, .. } = self;
        format!("| {what} | {middle:.1} {unit} | {least:.1} to {most:.1} | {mark} {unit} |")
    }
}

/// Measures, and prints a table of medians.
///
/// # Errors
/// The program does not start, or does not mount.
pub(crate) fn measure(program: &Path, rounds: usize) -> anyhow::Result<String> {
    ensure!(rounds > 0, "--rounds is at least 1");
    let work = tempfile::Builder::new().prefix("s3-start-").tempdir()?;
    let mut config = s3server::Config::new(work.path().join("store")).bucket(BUCKET).strict();
    config.access_key = "bench".to_owned();
    config.secret_key = "bench-secret".to_owned();
    let server = Server::start(config).context("start the store")?;
    let mut rows = [
        Row::new("`--help`", "ms", 10.0),
        Row::new("`--version`", "ms", 10.0),
        Row::new("mount in the background, on loopback", "ms", 80.0),
        Row::new("RSS of an idle mount", "MiB", 20.0),
        Row::new("`mount-s3-ctl status`", "ms", 20.0),
    ];
    for _ in 0..rounds {
        rows[0].figures.push(timed(Command::new(program).arg("--help"))?);
        rows[1].figures.push(timed(Command::new(program).arg("--version"))?);
        let [took, rss, status] = mount(program, &server.endpoint(), work.path())?;
        rows[2].figures.push(took);
        rows[3].figures.push(rss);
        rows[4].figures.push(status);
    }
    let lines: Vec<_> = rows.iter().map(Row::markdown).collect();
    Ok(format!("| what | median | range | mark |\n|---|---|---|---|\n{}\n", lines.join("\n")))
}

/// Milliseconds until it ends well.
fn timed(command: &mut Command) -> anyhow::Result<f64> {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let begun = Instant::now();
    let ended = command.status().with_context(|| format!("run {command:?}"))?;
    let took = begun.elapsed();
    ensure!(ended.success(), "{command:?} ended with {ended}");
    Ok(took.as_secs_f64() * 1e3)
}

/// Milliseconds until the command returned, the daemon's RSS in MiB, milliseconds until `mount-s3-ctl`, beside the program, told its status.
fn mount(program: &Path, endpoint: &str, work: &Path) -> anyhow::Result<[f64; 3]> {
    let dir = work.join("mnt");
    fs::create_dir_all(&dir)?;
    let mut command = Command::new(program);
    command.arg(BUCKET).arg(&dir).args([
        "--endpoint-url",
        endpoint,
        "--force-path-style",
        "--region",
        "us-east-1",
    ]);
    UNSET.iter().for_each(|name| _ = command.env_remove(name));
    command
        .env("HOME", work)
        .env("AWS_CONFIG_FILE", "/dev/null")
        .env("AWS_SHARED_CREDENTIALS_FILE", "/dev/null");
    command.env("XDG_STATE_HOME", work.join("state")).env("AWS_EC2_METADATA_DISABLED", "true");
    command
        .env("XDG_RUNTIME_DIR", work)
        .env("AWS_ACCESS_KEY_ID", "bench")
        .env("AWS_SECRET_ACCESS_KEY", "bench-secret");
    let took = timed(&mut command)?;
    std::thread::sleep(IDLE_AFTER);
    let daemon = daemon_of(&dir);
    let rss = daemon.as_deref().and_then(rss_mib);
    let mut ctl = Command::new(program.with_file_name("mount-s3-ctl"));
    let status = timed(ctl.arg("status").arg(&dir).env("XDG_RUNTIME_DIR", work))?;
    rustix::mount::unmount(&dir, UnmountFlags::empty()).context("unmount")?;
    let begun = Instant::now();
    while daemon.as_deref().is_some_and(Path::exists) {
        ensure!(begun.elapsed() < END_WITHIN, "the daemon did not end after its mount was gone");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok([took, rss.context("the daemon of the mount is not there")?, status])
}

/// The process with this directory on its command line, in `/proc`.
fn daemon_of(dir: &Path) -> Option<PathBuf> {
    let wanted = dir.as_os_str().as_encoded_bytes();
    let mut processes = fs::read_dir("/proc").ok()?.filter_map(Result::ok).map(|entry| entry.path());
    processes.find(|process| {
        let line = fs::read(process.join("cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|word| word == wanted)
    })
}

fn rss_mib(process: &Path) -> Option<f64> {
    let status = fs::read_to_string(process.join("status")).ok()?;
    let kib: f64 = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .ok()?;
    Some(kib / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_its_median_its_range_and_its_mark() {
        let row = Row { figures: vec![3.0, 1.0, 20.04], ..Row::new("x", "ms", 10.0) };
        assert_eq!(row.markdown(), "| x | 3.0 ms | 1.0 to 20.0 | 10 ms |");
    }
}
