//! One engine: its command, its first message, its end. Enters: the message of the node, a device. Leaves: the engine's message, and why it
//! ended.
//!
//! Never here: the consequence of an end.

use std::cell::OnceCell;
use std::ffi::OsString;
use std::fs::DirBuilder;
use std::io::{self, PipeReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::FdFlags;
use rustix::process::Pid;

use super::Config;
use super::gone::Noticing;
use super::kept::Kept;
use super::share;
use crate::contract::log::LogFormat;
use crate::contract::message::MountMessage;
use crate::contract::upgrade::HANDED_OVER;
use crate::error::{Error, Result};

/// Bytes of the end of the engine's standard error that are kept for `mount.err` and for the answer.
pub(super) const TAIL_BYTES: usize = 8 << 10;
/// The engine's message that it serves.
const READY: &str = "ready";
/// The longest message of the engine, in bytes; the rest is ignored.
const WORD_BYTES: usize = 64 << 10;
/// Variable with the exit status of an engine that leaves its mount.
const RESTART_STATUS: &str = "MOUNT_S3_RESTART_STATUS";
/// Variable that asks the engine to confine itself as far as the kernel allows, unless a flag sets that.
const SANDBOX: &str = "MOUNT_S3_SANDBOX";
/// Advice about an engine that the kernel killed. The container goes on, so Kubernetes does not show the kill.
const OUT_OF_MEMORY: &str = "; the kernel killed it, because the Mountpoint Pod was out of memory: raise the memory limit of the volume \
                             (mountpointContainerResourcesLimitsMemory) or of the chart (mountpointPod.resources)";

/// A running engine.
pub(super) struct Engine {
    child: Child,
    /// The end of the engine's standard error, after the engine closed it.
    tail: JoinHandle<Vec<u8>>,
    word: PipeReader,
    memory_events: Vec<PathBuf>,
    oom_kills: Option<u64>,
    share: Option<u64>,
}

impl Engine {
    /// Starts `mount-s3` with the device, the writing end of a pipe, and the variables of `kept`.
    pub(super) fn start(
        config: &Config,
        cache: &OwnCache,
        message: &MountMessage,
        device: BorrowedFd<'_>,
        kept: Option<&Kept>,
    ) -> Result<Self> {
        let program = config.engine_directory.join("mount-s3");
        let failed = |error: io::Error| Error::internal(format!("starting {}: {error}", program.display()));
        let args = with_stage_size(&message.args, config.stage_size);
        let args = match config.among {
            // The node knows the directories of an engines pod: it made them.
            Some(_) => args.iter().map(OsString::from).collect(),
            None => with_cache(&args, || cache.directory(&config.local_cache)).map_err(failed)?,
        };
        let (word, word_in) = io::pipe().map_err(failed)?;
        tracing::info!(bucket = message.bucket_name, args = ?args, "starting the engine");
        let mut command = Command::new(&program);
        command.arg(&message.bucket_name).arg(inherited(device).map_err(failed)?).args(&args);
        if !args.iter().any(|arg| arg == "--foreground") {
            command.arg("--foreground");
        }
        if kept.is_some() {
            command.arg("--supervised");
        }
        for bundle in ca_bundles(&config.ca_directory).map_err(failed)? {
            command.arg("--extra-ca-bundle").arg(bundle);
        }
        if config.state_directory.is_dir() {
            command.arg("--state-dir").arg(&config.state_directory);
        }
        let has = |flag: &str| args.iter().any(|arg| arg.to_string_lossy().starts_with(flag));
        if config.log_format == LogFormat::Json && !has("--log-format") {
            command.args(["--log-format", "json"]);
        }
        if let Some(target) = config.memory_target.filter(|_| !has("--memory-target")) {
            command.arg("--memory-target").arg(target.to_string());
        }
        if let Some(address) = config.metrics {
            command.arg("--metrics-listen").arg(address.to_string());
        }
        command.arg("--ready-file").arg(inherited(&word_in).map_err(failed)?);
        command.arg("--control-socket").arg(config.comm.engine_socket());
        command.env_clear().envs(config.engine_env.iter().cloned());
        command.envs(message.env.iter().filter_map(|it| it.split_once('=')));
        if let Some(kept) = kept {
            command.envs(kept.env().map_err(failed)?);
            command.env(RESTART_STATUS, HANDED_OVER.to_string());
        }
        command.env(SANDBOX, "1");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let oom_kills = oom_kills(&config.memory_events);
        let mut child = command.spawn().map_err(failed)?;
        // The engine logs to standard output.
        if let Some(stdout) = child.stdout.take() {
            let log = Noticing::new(io::stdout(), config.comm.clone());
            thread::spawn(move || relay(stdout, log));
        }
        let stderr = child.stderr.take();
        let tail = thread::spawn(move || stderr.map(|it| relay(it, io::stderr())).unwrap_or_default());
        let share = config.among.and_then(|among| among.share);
        Ok(Self { child, tail, word, memory_events: config.memory_events.clone(), oom_kills, share })
    }

    /// Waits for the engine's first message. `None` if the engine ended without one, or was killed because none came before `until`. `kept`
    /// takes the descriptors that the engine sends meanwhile.
    pub(super) fn word(
        &mut self,
        mut kept: Option<&mut Kept>,
        until: Option<Instant>,
    ) -> io::Result<Option<String>> {
        let mut line = Vec::new();
        while !line.contains(&b'\n') && line.len() < WORD_BYTES {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let limit = left.map(Timespec::try_from).transpose().map_err(io::Error::other)?;
            let mut waits = vec![PollFd::new(&self.word, PollFlags::IN)];
            waits.extend(kept.as_ref().map(|kept| PollFd::from_borrowed_fd(kept.socket(), PollFlags::IN)));
            match poll(&mut waits, limit.as_ref()) {
                Ok(0) => {
                    tracing::error!("the engine has not said that it serves, and is killed");
                    self.child.kill()?;
                    return Ok(None);
                }
                Err(rustix::io::Errno::INTR) => continue,
                Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
            let [has_word, gives] = [0, 1].map(|it| waits.get(it).is_some_and(|it| !it.revents().is_empty()));
            drop(waits);
            if let (true, Some(kept)) = (gives, &mut kept) {
                kept.take();
            }
            if has_word {
                let mut chunk = [0; 1024];
                match self.word.read(&mut chunk) {
                    Ok(0) => break,
                    Ok(got) => line.extend_from_slice(&chunk[..got]),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
        }
        let text = String::from_utf8_lossy(&line);
        let word = text.lines().next().unwrap_or_default().trim();
        if let (Some(share), true) = (self.share, is_ready(Some(word)))
            && let Err(error) = share::limit(Pid::from_child(&self.child), share)
        {
            tracing::warn!("limiting the engine's memory: {error}");
        }
        Ok((!word.is_empty()).then(|| word.to_owned()))
    }

    /// Waits for the engine's end. `served`: an earlier engine served the mount.
    pub(super) fn end(mut self, word: Option<String>, served: bool) -> Result<Ended> {
        let status =
            self.child.wait().map_err(|error| Error::internal(format!("waiting for the engine: {error}")))?;
        let tail = self.tail.join().unwrap_or_default();
        Ok(Ended {
            served: served || is_ready(word.as_deref()),
            status,
            word,
            tail: String::from_utf8_lossy(&tail).trim().to_owned(),
            out_of_memory: self.oom_kills < oom_kills(&self.memory_events),
            left: status.code() == Some(HANDED_OVER.into()),
            handed_over: false,
        })
    }
}

/// Whether a message says that the engine serves.
pub(super) fn is_ready(word: Option<&str>) -> bool {
    word == Some(READY)
}

/// Number of times that the kernel killed a process of this container for lack of memory; `None` if no file tells it.
fn oom_kills(files: &[PathBuf]) -> Option<u64> {
    let text = files.iter().find_map(|file| std::fs::read_to_string(file).ok())?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

/// The end of an engine.
pub(super) struct Ended {
    pub(super) status: ExitStatus,
    /// Whether the mount was served, by this engine or an earlier one.
    pub(super) served: bool,
    /// Whether the engine left the mount to the next one, as the node asked.
    pub(super) left: bool,
    /// Whether the next container gets the mount.
    pub(super) handed_over: bool,
    word: Option<String>,
    tail: String,
    out_of_memory: bool,
}

impl Ended {
    /// The engine's error message, or its exit status and the end of its standard error.
    pub(super) fn why(&self) -> String {
        let failed = self.word.as_deref().filter(|word| *word != READY);
        let mut why = match (failed, self.tail.as_str()) {
            (Some(word), _) => word.to_owned(),
            (None, "") => format!("the engine ended ({}) before the node unmounted", self.status),
            (None, tail) => format!("the engine ended ({}): {tail}", self.status),
        };
        if self.out_of_memory {
            why.push_str(OUT_OF_MEMORY);
        }
        why
    }
}

/// Lets a child inherit a descriptor, and returns the path by which it opens it. This process starts one child at a time.
pub(super) fn inherited(descriptor: impl AsFd) -> io::Result<String> {
    let descriptor = descriptor.as_fd();
    rustix::io::fcntl_setfd(descriptor, FdFlags::empty())?;
    Ok(format!("/dev/fd/{}", descriptor.as_raw_fd()))
}

/// The certificate files of this container, sorted. Only a pod whose chart or volume names certificates has the directory.
fn ca_bundles(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut bundles = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    bundles.retain(|path| path.extension().is_some_and(|it| it == "crt"));
    bundles.sort();
    Ok(bundles)
}

/// Replaces the path of `--cache` by this container's directory: the node does not know it, and sends any path. `directory` is called only
/// if there is a cache.
pub(super) fn with_cache(
    args: &[String],
    directory: impl FnOnce() -> io::Result<PathBuf>,
) -> io::Result<Vec<OsString>> {
    let is_cache = |arg: &String| arg == "--cache" || arg.starts_with("--cache=");
    let Some(at) = args.iter().position(is_cache) else {
        return Ok(args.iter().map(OsString::from).collect());
    };
    let value_is_next = args[at] == "--cache" && args.get(at + 1).is_some_and(|it| !it.starts_with('-'));
    let after = at + 1 + usize::from(value_is_next);
    let mut with: Vec<OsString> = args[..at].iter().map(OsString::from).collect();
    with.extend([OsString::from("--cache"), directory()?.into_os_string()]);
    with.extend(args[after..].iter().map(OsString::from));
    Ok(with)
}

/// The size of the pod's stage in place of the volume's, which may have been edited since the pod was made.
pub(super) fn with_stage_size(args: &[String], size_mib: Option<u64>) -> Vec<String> {
    match size_mib {
        Some(mib) => with(args, "--stage", "--stage-size", &mib.to_string()),
        None => args.to_vec(),
    }
}

/// The directory that came with the message in place of the pod's.
pub(super) fn with_stage_at(args: &[String], path: &str) -> Vec<String> {
    with(args, "--stage", "--stage", path)
}

/// Sets a flag in place of others of that name, if there is one of `beside`.
fn with(args: &[String], beside: &str, flag: &str, value: &str) -> Vec<String> {
    let is = |arg: &String, flag: &str| arg.strip_prefix(flag).is_some_and(|rest| rest.starts_with('='));
    if !args.iter().any(|arg| is(arg, beside)) {
        return args.to_vec();
    }
    let others = args.iter().filter(|arg| !is(arg, flag)).cloned();
    others.chain([format!("{flag}={value}")]).collect()
}

/// The temporary directory of a cache, created at its first use. The engine after a dead one finds its cache there.
#[derive(Debug, Default)]
pub(super) struct OwnCache(OnceCell<PathBuf>);

impl OwnCache {
    pub(super) fn directory(&self, local_cache: &Path) -> io::Result<PathBuf> {
        if local_cache.is_dir() {
            return Ok(local_cache.to_owned());
        }
        if let Some(directory) = self.0.get() {
            return Ok(directory.clone());
        }
        let mut attempt = 0;
        loop {
            let name = format!("mountpoint-s3-cache-{}-{attempt}", std::process::id());
            let directory = std::env::temp_dir().join(name);
            match DirBuilder::new().mode(0o700).create(&directory) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => attempt += 1,
                made => return made.map(|()| self.0.get_or_init(|| directory).clone()),
            }
        }
    }
}

/// Copies standard error to `to`, and returns its last [`TAIL_BYTES`] bytes.
pub(super) fn relay(mut stderr: impl Read, mut to: impl Write) -> Vec<u8> {
    let (mut tail, mut chunk) = (Vec::new(), [0; 4096]);
    loop {
        match stderr.read(&mut chunk) {
            Ok(0) => return tail,
            Ok(got) => {
                let _ = to.write_all(&chunk[..got]);
                tail.extend_from_slice(&chunk[..got]);
                let excess = tail.len().saturating_sub(TAIL_BYTES);
                tail.drain(..excess);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return tail,
        }
    }
}
