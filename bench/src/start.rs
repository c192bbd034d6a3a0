//! Measures the time of the program for its help, its version, a mount in the background and its status; its idle memory,
//! before and after work; and its idle wake-ups.
//!
//! Enters: the program, and the number of runs. Leaves: a table. Each mount is of a bucket on loopback, as users start it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use rustix::mount::UnmountFlags;
use s3server::Server;

use crate::mount::UNSET;

const BUCKET: &str = "start";
/// The pause between the mount and the first measurement of an idle engine.
const IDLE_AFTER: Duration = Duration::from_secs(1);
/// Work before the rest: number of files, each written and read by one thread. The next constant is the size of each in bytes.
const FILES: usize = 8;
const FILE: usize = 64 << 20;
/// The pause between the work and the second measurement: an engine returns its memory before that.
const RESTED_AFTER: Duration = Duration::from_secs(60);
/// The time in which the engine's wake-ups are counted.
const COUNTED: Duration = Duration::from_secs(30);
/// Longest wait for a daemon to end after the unmount; after it the measurement fails.
const END_WITHIN: Duration = Duration::from_secs(10);

/// The sorted figures of one table row.
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

/// Measures. Returns a table of medians.
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
    let mut rested =
        [Row::new("RSS 60 s after work", "MiB", 20.0), Row::new("wakeups a second then", "/s", 0.0)];
    let (rss, wakeups) = rest(program, &server.endpoint(), work.path())?;
    rested[0].figures.push(rss);
    rested[1].figures.push(wakeups);
    let rows = rows.into_iter().chain(rested);
    let lines: Vec<_> = rows.map(|row| row.markdown()).collect();
    Ok(format!("| what | median | range | mark |\n|---|---|---|---|\n{}\n", lines.join("\n")))
}

/// Runs a command that must succeed. Returns its duration in milliseconds.
fn timed(command: &mut Command) -> anyhow::Result<f64> {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let begun = Instant::now();
    let ended = command.status().with_context(|| format!("run {command:?}"))?;
    let took = begun.elapsed();
    ensure!(ended.success(), "{command:?} ended with {ended}");
    Ok(took.as_secs_f64() * 1e3)
}

/// Milliseconds until the command returned, the daemon's RSS in MiB, and milliseconds of `mount-s3-ctl status`, a program in the same
/// directory.
fn mount(program: &Path, endpoint: &str, work: &Path) -> anyhow::Result<[f64; 3]> {
    let (mount, took) = Background::start(program, endpoint, work)?;
    std::thread::sleep(IDLE_AFTER);
    let rss = mount.rss_mib()?;
    let mut ctl = Command::new(program.with_file_name("mount-s3-ctl"));
    let status = timed(ctl.arg("status").arg(&mount.dir).env("XDG_RUNTIME_DIR", work))?;
    mount.end()?;
    Ok([took, rss, status])
}

/// The daemon's RSS in MiB some time after work, and its wake-ups per second from then on.
fn rest(program: &Path, endpoint: &str, work: &Path) -> anyhow::Result<(f64, f64)> {
    let (mount, _) = Background::start(program, endpoint, work)?;
    std::thread::scope(|threads| {
        let of_file = |number| {
            let path = mount.dir.join(format!("rest-{number}"));
            threads.spawn(move || fs::write(&path, vec![number as u8; FILE]).and_then(|()| fs::read(&path)))
        };
        let all: Vec<_> = (0..FILES).map(of_file).collect();
        all.into_iter().try_for_each(|one| match one.join() {
            Ok(Ok(bytes)) if bytes.len() == FILE => Ok(()),
            Ok(outcome) => anyhow::bail!("write and read a file: {:?}", outcome.map(|bytes| bytes.len())),
            Err(_) => anyhow::bail!("a thread that works panicked"),
        })
    })?;
    let listed = fs::read_dir(&mount.dir)?.count();
    ensure!(listed == FILES, "{listed} files of {FILES} are listed");
    std::thread::sleep(RESTED_AFTER);
    let (rss, before) = (mount.rss_mib()?, mount.wakeups()?);
    std::thread::sleep(COUNTED);
    let wakeups = (mount.wakeups()? - before) as f64 / COUNTED.as_secs_f64();
    mount.end()?;
    Ok((rss, wakeups))
}

/// A mount in the background. Dropping it unmounts.
struct Background {
    dir: PathBuf,
    /// The daemon's folder in `/proc`.
    daemon: PathBuf,
}

impl Background {
    /// Starts a mount. Also returns the milliseconds until the command returned.
    fn start(program: &Path, endpoint: &str, work: &Path) -> anyhow::Result<(Self, f64)> {
        let dir = work.join("mnt");
        fs::create_dir_all(&dir)?;
        let took = timed(&mut command(program, endpoint, work, &dir))?;
        let mut mount = Self { dir, daemon: PathBuf::new() };
        mount.daemon = daemon_of(&mount.dir).context("the daemon of the mount is not there")?;
        Ok((mount, took))
    }

    fn rss_mib(&self) -> anyhow::Result<f64> {
        rss_mib(&self.daemon).context("the daemon of the mount is gone")
    }

    /// Number of times that the daemon's threads have gone to sleep so far.
    fn wakeups(&self) -> anyhow::Result<u64> {
        let threads = fs::read_dir(self.daemon.join("task"))?.filter_map(Result::ok);
        let sleeps = threads.filter_map(|thread| {
            let status = fs::read_to_string(thread.path().join("status")).ok()?;
            status
                .lines()
                .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?
                .trim()
                .parse::<u64>()
                .ok()
        });
        Ok(sleeps.sum())
    }

    fn end(self) -> anyhow::Result<()> {
        rustix::mount::unmount(&self.dir, UnmountFlags::empty()).context("unmount")?;
        let begun = Instant::now();
        // An ended process stays in /proc until init reads its exit status, which can take seconds; the link `exe` is gone at once.
        while fs::read_link(self.daemon.join("exe")).is_ok() {
            ensure!(begun.elapsed() < END_WITHIN, "the daemon did not end after its mount was gone");
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // This fails if `end` has unmounted already. After a failed step, files may still be open.
        let _ = rustix::mount::unmount(&self.dir, UnmountFlags::DETACH);
    }
}

fn command(program: &Path, endpoint: &str, work: &Path, dir: &Path) -> Command {
    let mut command = Command::new(program);
    command.arg(BUCKET).arg(dir).args([
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
    command
}

/// The process in `/proc` that has this directory on its command line.
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
