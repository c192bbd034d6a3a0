//! One mount: starts it, waits until it serves, measures it, ends it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, Signal, kill_process};

use crate::meter::Group;

/// Longest wait until a mount serves; after it the start fails.
const START_LIMIT: Duration = Duration::from_secs(20);
/// Longest wait for a daemon to end after the unmount; then the bench kills it.
const STOP_LIMIT: Duration = Duration::from_secs(30);
/// Interval between checks.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Bytes of the end of a daemon's output that go into a report.
const LAST_WORDS: usize = 400;

/// A mount and its daemon. Dropping it unmounts and ends the daemon.
#[derive(Debug)]
pub(crate) struct Mount {
    dir: PathBuf,
    log: PathBuf,
    child: Child,
    group: Group,
    /// The device number `MAJOR:MINOR` of the mount.
    device: String,
}

/// Variables that are removed from a daemon's environment: they would send it to another server, or give it its own settings.
pub(crate) const UNSET: [&str; 13] = [
    "AWS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "AWS_PROFILE",
    "AWS_ENDPOINT_URL",
    "AWS_SESSION_TOKEN",
    "SSL_CERT_FILE",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "RUST_LOG",
];

/// Variables that name certificates to trust: of the SDKs and mount-s3, of s3fs, of Go and OpenSSL.
const TRUSTED: [&str; 3] = ["AWS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"];

impl Mount {
    /// Runs `shell`, a daemon in the foreground that mounts on `work`/mnt, and waits until it serves. `ca_file` is a certificate to trust;
    /// the daemon gets it in each variable that a measured file system reads.
    ///
    /// # Errors
    /// The daemon ended, or did not mount in time; the error has the end of its output.
    pub(crate) fn start(
        shell: &str,
        work: &Path,
        name: &str,
        ca_file: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let (dir, log) = (work.join("mnt"), work.join("daemon.log"));
        fs::create_dir_all(&dir)?;
        let group = Group::new(name);
        let mut command = group.command(shell);
        for name in UNSET {
            command.env_remove(name);
        }
        if let Some(ca_file) = ca_file {
            command.envs(TRUSTED.map(|name| (name, ca_file)));
        }
        command
            .env("HOME", work)
            .env("AWS_ACCESS_KEY_ID", "bench")
            .env("AWS_SECRET_ACCESS_KEY", "bench-secret")
            .env("AWS_REGION", "us-east-1")
            .env("AWS_EC2_METADATA_DISABLED", "true")
            .env("AWS_CONFIG_FILE", "/dev/null")
            .env("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
            .stdin(Stdio::null())
            .stdout(File::create(&log)?)
            .stderr(File::options().append(true).open(&log)?);
        let child = command.spawn().with_context(|| format!("start {shell}"))?;
        let mut mount = Self { dir, log, child, group, device: String::new() };
        let begun = Instant::now();
        loop {
            if let Some(device) = mounted(&mount.dir) {
                mount.device = device;
                return Ok(mount);
            }
            if let Some(status) = mount.child.try_wait()? {
                bail!("ended before it mounted ({status}): {}", mount.last_words());
            }
            if begun.elapsed() > START_LIMIT {
                bail!("not mounted after {} s: {}", START_LIMIT.as_secs(), mount.last_words());
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The device number `MAJOR:MINOR` of the mounted file system.
    pub(crate) fn device(&self) -> &str {
        &self.device
    }

    /// Whether the daemon answers statfs(2). The kernel may answer a `stat` of the directory without the daemon, but not this call.
    pub(crate) fn is_serving(&self) -> bool {
        mounted(&self.dir).as_deref() == Some(self.device()) && rustix::fs::statvfs(&self.dir).is_ok()
    }

    pub(crate) fn cpu_s(&self) -> f64 {
        self.group.cpu_s(self.child.id())
    }

    pub(crate) fn peak_rss(&self) -> u64 {
        self.group.peak_rss(self.child.id())
    }

    pub(crate) fn rss(&self) -> u64 {
        self.group.rss(self.child.id())
    }

    /// The process ids of the daemon and its helpers.
    pub(crate) fn processes(&self) -> Vec<u32> {
        self.group.processes(self.child.id())
    }

    /// Read-ahead of the mount in KiB; `None` if the kernel does not tell it.
    pub(crate) fn read_ahead_kb(&self) -> Option<u64> {
        fs::read_to_string(self.read_ahead_file()).ok()?.trim().parse().ok()
    }

    /// # Errors
    /// Only root may.
    pub(crate) fn set_read_ahead(&self, kib: u64) -> anyhow::Result<()> {
        let file = self.read_ahead_file();
        fs::write(&file, kib.to_string())
            .with_context(|| format!("raise the read-ahead in {file} (only root may)"))
    }

    fn read_ahead_file(&self) -> String {
        format!("/sys/class/bdi/{}/read_ahead_kb", self.device)
    }

    /// The daemon's process id, for the watchdog. The kernel does not reuse it before the mount is dropped.
    pub(crate) fn pid(&self) -> Option<Pid> {
        Pid::from_raw(i32::try_from(self.child.id()).ok()?)
    }

    /// The end of the daemon's output, on one line.
    pub(crate) fn last_words(&self) -> String {
        let bytes = fs::read(&self.log).unwrap_or_default();
        let tail = &bytes[bytes.len().saturating_sub(LAST_WORDS)..];
        let text = String::from_utf8_lossy(tail);
        let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        if lines.is_empty() { "it said nothing".to_owned() } else { lines.join(" / ") }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if mounted(&self.dir).is_some() && rustix::mount::unmount(&self.dir, UnmountFlags::empty()).is_err() {
            // The bench is not root, or a process uses the mount. `fusermount3` may unmount for other users, and `-z` detaches a mount in
            // use.
            let _ = std::process::Command::new("fusermount3")
                .arg("-uz")
                .arg(&self.dir)
                .stderr(Stdio::null())
                .status();
            let _ = rustix::mount::unmount(&self.dir, UnmountFlags::DETACH);
        }
        let begun = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if begun.elapsed() > STOP_LIMIT {
                let _ = self.child.kill();
                let _ = self.child.wait();
            }
            std::thread::sleep(LOOK_EVERY);
        }
        if mounted(&self.dir).is_some() {
            let _ = rustix::mount::unmount(&self.dir, UnmountFlags::DETACH);
        }
    }
}

/// Kills the daemon of a workload that takes too long. A read from a dead daemon fails, but a read from a stuck daemon
/// never ends.
#[derive(Debug)]
pub(crate) struct Watchdog {
    disarm: std::sync::mpsc::Sender<()>,
    thread: std::thread::JoinHandle<bool>,
}

impl Watchdog {
    pub(crate) fn arm(pid: Option<Pid>, limit: Duration) -> Self {
        let (disarm, disarmed) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let barks = disarmed.recv_timeout(limit) == Err(std::sync::mpsc::RecvTimeoutError::Timeout);
            if barks && let Some(pid) = pid {
                let _ = kill_process(pid, Signal::KILL);
            }
            barks
        });
        Self { disarm, thread }
    }

    /// Stops the watchdog. Returns whether it killed the daemon.
    pub(crate) fn disarm(self) -> bool {
        let _ = self.disarm.send(());
        self.thread.join().unwrap_or(false)
    }
}

/// The device number `MAJOR:MINOR` of the file system mounted on `dir`; `None` if there is no mount.
fn mounted(dir: &Path) -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let dir = dir.to_str()?;
    let line = mounts.lines().find(|line| line.split(' ').nth(4) == Some(dir))?;
    line.split(' ').nth(2).map(str::to_owned)
}
