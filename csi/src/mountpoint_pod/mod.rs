//! The process in a Mountpoint Pod. Enters: one message with a FUSE device, over the socket in the comm directory. Leaves: an engine
//! that serves the device until the node unmounts it, or the engine's error message.
//!
//! Never here: a capability, a mount, a secret in an argument or a log. Once the engine runs, this process keeps no copy of the device:
//! when the engine dies, its readers get an error at once.

use std::cell::OnceCell;
use std::ffi::OsString;
use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, BufRead as _, BufReader, PipeReader, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use mountpoint::sync::atomic::{AtomicU32, Ordering};
use rustix::io::FdFlags;
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use crate::contract::comm::Comm;
use crate::contract::log::LogFormat;
use crate::contract::message::{self, Answer, MountMessage};
use crate::error::{Error, Result};

/// How many bytes of the end of the engine's standard error are kept for `mount.err` and for the answer.
const TAIL_BYTES: usize = 8 << 10;
/// The engine's word that it serves.
const READY: &str = "ready";
/// The longest line that is taken as the engine's word.
const WORD_BYTES: u64 = 64 << 10;

/// How often to look for `mount.exit` while no node connects. Doubled, an unneeded pod stays a second longer.
const LOOK_FOR_EXIT: Duration = Duration::from_secs(1);

/// The configuration of the process.
#[derive(Clone, Debug)]
pub struct Config {
    /// The directory that is shared with the node.
    pub comm: Comm,
    /// The directory of `mount-s3`.
    pub engine_directory: PathBuf,
    /// A node has this long to send the message; then the pod restarts. Doubled, an unneeded pod stays twice as long.
    pub receive_within: Duration,
    /// Certificates that the engine is to trust besides the system's: each `*.crt` in this directory, if it is there.
    pub ca_directory: PathBuf,
    /// The directory that outlives this container, if it is there: pods of an earlier release have none.
    pub state_directory: PathBuf,
    /// The directory of a cache, if it is there; else the cache goes to a temporary directory.
    pub local_cache: PathBuf,
    /// `--memory-target` of the engine, in MiB, where the message does not say it.
    pub memory_target: Option<u64>,
    /// The form of the engine's log lines, where the message does not say it.
    pub log_format: LogFormat,
    /// The address at which the engine serves its metrics.
    pub metrics: Option<SocketAddr>,
    /// Files in which the kernel counts processes of this container that it killed for want of memory; the first that exists counts.
    pub memory_events: Vec<PathBuf>,
    /// Variables for the engine where the message does not set them.
    pub engine_env: Vec<(String, String)>,
}

/// Whether an engine runs, and whether the process was asked to end: until an engine runs it ends at once, and from then on it outlives
/// SIGTERM, because workloads that drain still read.
#[derive(Debug, Default)]
pub struct Serving(AtomicU32);

const ENGINE_RUNS: u32 = 1;
const TOLD_TO_END: u32 = 2;

impl Serving {
    /// Takes note of SIGTERM; `true` if an engine runs and the process stays for it.
    pub fn told_to_end(&self) -> bool {
        self.0.fetch_or(TOLD_TO_END, Ordering::AcqRel) & ENGINE_RUNS != 0
    }

    fn begin(&self) {
        self.0.fetch_or(ENGINE_RUNS, Ordering::AcqRel);
    }

    /// The engine has ended; `true` if the process is to end now.
    fn end(&self) -> bool {
        self.0.fetch_and(!ENGINE_RUNS, Ordering::AcqRel) & TOLD_TO_END != 0
    }
}

/// Serves mounts until the node needs none. After an attempt that the engine refuses, and after an engine that died, the next device is
/// waited for here: the kubelet would hold back a container that started anew each time, for up to five minutes.
///
/// # Errors
/// Those that call for a new start of the container: no message, no engine, an end that SIGTERM asked for while the engine ran.
pub fn run(config: &Config, serving: &Serving) -> Result<()> {
    let cache = OwnCache::default();
    loop {
        if exit_announced(&config.comm) {
            return Ok(());
        }
        let received = listen(&config.comm).and_then(|listener| receive(&listener, config));
        let _ = std::fs::remove_file(config.comm.socket());
        let (stream, message, device) = match received {
            Ok(received) => received,
            Err(_) if exit_announced(&config.comm) => return Ok(()),
            Err(error) => {
                return Err(Error::internal(format!(
                    "waiting for a mount at {}: {error}",
                    config.comm.socket().display()
                )));
            }
        };
        serving.begin();
        let oom_kills = oom_kills(&config.memory_events);
        let engine = Engine::start(config, &cache, &message, device);
        let ended = engine.inspect_err(|error| {
            answer(&stream, &Answer::Failed { error: error.to_string() });
        });
        let ended = ended.and_then(|engine| engine.serve(&stream, &config.comm));
        let ended = match ended {
            Ok(ended) if ended.status.success() && exit_announced(&config.comm) => return Ok(()),
            Ok(ended) => ended,
            Err(error) => {
                note_error(&config.comm, &error.to_string());
                return Err(error);
            }
        };
        let mut why = ended.why();
        if oom_kills < self::oom_kills(&config.memory_events) {
            why.push_str(OUT_OF_MEMORY);
        }
        if ended.served() {
            note_error(&config.comm, &why);
            tracing::error!("the engine has died, waiting for the node to mount again: {why}");
        } else {
            tracing::warn!("the engine could not mount, waiting for the next attempt: {why}");
        }
        if serving.end() {
            return Err(Error::internal(why));
        }
    }
}

/// Advice about an engine that the kernel killed; its container goes on, and Kubernetes has nothing to show.
const OUT_OF_MEMORY: &str = "; the kernel killed it, because the Mountpoint Pod was out of memory: raise the memory limit of the volume \
                             (mountpointContainerResourcesLimitsMemory) or of the chart (mountpointPod.resources)";

/// How often the kernel has killed a process of this container for want of memory.
fn oom_kills(files: &[PathBuf]) -> Option<u64> {
    let text = files.iter().find_map(|file| std::fs::read_to_string(file).ok())?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

fn exit_announced(comm: &Comm) -> bool {
    comm.exit().symlink_metadata().is_ok()
}

/// Listens in place of whatever an earlier container left.
fn listen(comm: &Comm) -> io::Result<UnixListener> {
    match std::fs::remove_file(comm.socket()) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    message::listen(&comm.socket())
}

/// Waits for a node that brings a whole message. One that breaks off gets an error, if it listens, and may come again. A node that needs
/// no mount any more says so with the file `mount.exit`: that ends the wait.
fn receive(listener: &UnixListener, config: &Config) -> io::Result<(UnixStream, MountMessage, OwnedFd)> {
    let within = config.receive_within;
    let until = Instant::now() + within;
    loop {
        if exit_announced(&config.comm) {
            return Err(io::Error::new(io::ErrorKind::Interrupted, "the node needs no mount any more"));
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("no message came within {within:?}"),
            ));
        }
        let look_again = left.min(LOOK_FOR_EXIT).max(Duration::from_millis(1));
        set_socket_timeout(listener, Timeout::Recv, Some(look_again))?;
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                continue;
            }
            Err(error) => return Err(error),
        };
        match message::receive(&stream, left) {
            Ok((message, device)) => return Ok((stream, message, device)),
            Err(error) => {
                tracing::warn!("the message can't be used: {error}");
                answer(&stream, &Answer::Failed { error: error.to_string() });
            }
        }
    }
}

/// A node that is gone does not stop the engine.
fn answer(stream: &UnixStream, answer: &Answer) {
    if let Err(error) = message::answer(stream, answer) {
        tracing::warn!("answering the node: {error}");
    }
}

/// A running engine.
struct Engine {
    child: Child,
    /// The end of its standard error, once that is closed.
    tail: JoinHandle<Vec<u8>>,
    word: PipeReader,
}

impl Engine {
    /// Starts `mount-s3` with the device and the writing end of a pipe, and lets go of both.
    fn start(config: &Config, cache: &OwnCache, message: &MountMessage, device: OwnedFd) -> Result<Self> {
        let program = config.engine_directory.join("mount-s3");
        let failed = |error: io::Error| Error::internal(format!("starting {}: {error}", program.display()));
        let args = with_cache(&message.args, || cache.directory(&config.local_cache)).map_err(failed)?;
        let (word, word_in) = io::pipe().map_err(failed)?;
        tracing::info!(bucket = message.bucket_name, args = ?args, "starting the engine");
        let mut command = Command::new(&program);
        command.arg(&message.bucket_name).arg(inherited(&device).map_err(failed)?).args(&args);
        if !args.iter().any(|arg| arg == "--foreground") {
            command.arg("--foreground");
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
        command.env_clear().envs(config.engine_env.iter().cloned());
        command.envs(message.env.iter().filter_map(|it| it.split_once('=')));
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        let started = command.spawn();
        drop((device, word_in));
        let mut child = started.map_err(failed)?;
        let stderr = child.stderr.take();
        let tail = thread::spawn(move || stderr.map(|it| relay(it, io::stderr())).unwrap_or_default());
        Ok(Self { child, tail, word })
    }

    /// Tells the node what the engine says, and waits for its end.
    fn serve(mut self, stream: &UnixStream, comm: &Comm) -> Result<Ended> {
        let mut line = String::new();
        // Without a line the engine has ended, and its standard error says why.
        let read = BufReader::new(self.word.take(WORD_BYTES)).read_line(&mut line);
        let word = read.ok().map(|_| line.trim().to_owned()).filter(|word| !word.is_empty());
        if word.as_deref() == Some(READY) {
            tracing::info!("the engine serves");
            answer(stream, &Answer::Ready);
        }
        let status =
            self.child.wait().map_err(|error| Error::internal(format!("waiting for the engine: {error}")))?;
        let tail = self.tail.join().unwrap_or_default();
        let ended = Ended { status, word, tail: String::from_utf8_lossy(&tail).trim().to_owned() };
        // Before the answer: a node that has it may come again, and then removes what an earlier attempt left.
        if !ended.served() {
            note_error(comm, &ended.why());
            answer(stream, &Answer::Failed { error: ended.why() });
        }
        Ok(ended)
    }
}

/// How an engine ended.
struct Ended {
    status: ExitStatus,
    word: Option<String>,
    tail: String,
}

impl Ended {
    fn served(&self) -> bool {
        self.word.as_deref() == Some(READY)
    }

    /// The engine's own words, as far as there are any.
    fn why(&self) -> String {
        let failed = self.word.as_deref().filter(|word| *word != READY);
        match (failed, self.tail.as_str()) {
            (Some(word), _) => word.to_owned(),
            (None, "") => format!("the engine ended ({}) before the node unmounted", self.status),
            (None, tail) => format!("the engine ended ({}): {tail}", self.status),
        }
    }
}

/// The path by which a child finds a descriptor that it inherits. This process starts one child at a time.
fn inherited(descriptor: impl AsFd) -> io::Result<String> {
    let descriptor = descriptor.as_fd();
    rustix::io::fcntl_setfd(descriptor, FdFlags::empty())?;
    Ok(format!("/dev/fd/{}", descriptor.as_raw_fd()))
}

/// The certificates of this container, sorted. The directory is one of a pod whose chart or volume names some.
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

/// The node does not know this container's directories, so it sends any path for the cache; ours takes its place.
fn with_cache(args: &[String], directory: impl FnOnce() -> io::Result<PathBuf>) -> io::Result<Vec<OsString>> {
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

/// The temporary directory of caches, once one was needed: the engine that takes the place of a dead one finds its cache there.
#[derive(Debug, Default)]
struct OwnCache(OnceCell<PathBuf>);

impl OwnCache {
    fn directory(&self, local_cache: &Path) -> io::Result<PathBuf> {
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

/// All of it passed on, and the end of it kept.
fn relay(mut stderr: impl Read, mut to: impl Write) -> Vec<u8> {
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

/// Writes the error to a file for a node of release 2.2, which reads no answer.
fn note_error(comm: &Comm, why: &str) {
    if let Err(error) = write_error(comm, why) {
        tracing::error!("writing {}: {error}", comm.error().display());
    }
}

/// Whole or not at all, for the node alone.
fn write_error(comm: &Comm, text: &str) -> io::Result<()> {
    let temporary = comm.directory().join(".mount.err.new");
    let _ = std::fs::remove_file(&temporary);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    writeln!(file, "{text}")?;
    std::fs::rename(&temporary, comm.error())
}

#[cfg(test)]
mod tests;
