//! The process in a Mountpoint Pod. Enters: one message with a FUSE device, over the socket in the comm directory. Leaves: an engine
//! that serves the device until the node unmounts it, or the engine's error message. When an engine dies, another one follows on the same
//! device (`restarts`, `kept`): readers wait for a moment and see no error. The node's holder has copies of both descriptors
//! (`offered`), so the next container goes on when this whole container ends, and with another image (`upgrade`).
//!
//! Never here: a capability, a mount, a secret in an argument or a log; a call that the mount must answer. If engines are not restarted,
//! this process keeps no copy of the device: when the engine dies, its readers get an error at once.

mod engine;
mod gone;
mod kept;
mod left;
pub mod many;
mod offered;
mod restarts;
pub mod share;
mod upgrade;

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use k8s_openapi::jiff::Timestamp;
use mountpoint::sync::atomic::{AtomicU32, Ordering};
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use crate::contract::comm::Comm;
use crate::contract::log::LogFormat;
use crate::contract::message::{self, Answer, Mount, MountMessage};
use crate::contract::restart::{RESTART_WITHIN, Restarting, can_outlive};
use crate::error::{Error, Result};
use engine::{Ended, Engine, OwnCache, is_ready};
use kept::Kept;
use restarts::{Deaths, End, Next};

/// Interval of checks for `mount.exit` while no node connects. Doubled, an unneeded pod stays a second longer.
const LOOK_FOR_EXIT: Duration = Duration::from_secs(1);
/// Interval of checks for `mount.exit` and for the mount's end, in the pause before the next engine. Doubled, an unmount waits twice as
/// long.
const LOOK_IN_PAUSE: Duration = Duration::from_millis(50);
/// The file with the kernel's release.
const KERNEL_RELEASE: &str = "/proc/sys/kernel/osrelease";

/// The configuration of the process.
#[derive(Clone, Debug)]
pub struct Config {
    /// The directory that is shared with the node.
    pub comm: Comm,
    /// The directory that contains `mount-s3`.
    pub engine_directory: PathBuf,
    /// Wait for the node's message; after it the container restarts. Doubled, an unneeded pod stays twice as long.
    pub receive_within: Duration,
    /// A directory with certificates that the engine trusts besides the system's: each `*.crt` in it. It may be missing.
    pub ca_directory: PathBuf,
    /// The directory that outlives this container. It may be missing: pods of an earlier release have none.
    pub state_directory: PathBuf,
    /// The directory of the cache. If it is missing, the cache goes to a temporary directory.
    pub local_cache: PathBuf,
    /// `--memory-target` of the engine, in MiB, if the message does not set it.
    pub memory_target: Option<u64>,
    /// `--stage-size` of the engine, in MiB, whatever the message says; `None`: this pod has no stage.
    pub stage_size: Option<u64>,
    /// The form of the engine's log lines, if the message does not set it.
    pub log_format: LogFormat,
    /// The address at which the engine serves its metrics.
    pub metrics: Option<SocketAddr>,
    /// Files in which the kernel counts the processes of this container that it killed for lack of memory; the first that exists is read.
    pub memory_events: Vec<PathBuf>,
    /// Whether another engine follows on the same device after a death: [`kernel_resends`].
    pub restarts: bool,
    /// Time for which a container waits for the new image, and for its end by the kubelet. Doubled, programs wait twice as long if no image
    /// comes.
    pub image_within: Duration,
    /// Variables for the engine, if the message does not set them.
    pub engine_env: Vec<(String, String)>,
    /// The place in an engines pod; `None`: this mounter is alone in its pod.
    pub among: Option<Among>,
}

/// The place of a mounter in an engines pod, beside engines of the same user. Its mount is not offered to the node's holder, and it reaps
/// the helpers of its own engines.
#[derive(Clone, Copy, Debug)]
pub struct Among {
    /// The user of the node. Messages of other users are refused.
    pub node: u32,
    /// The engine's share of the pod's memory, in bytes; `None` for no limit of its own.
    pub share: Option<u64>,
}

impl Among {
    fn is_of_node(self, stream: &UnixStream) -> bool {
        let user = user_of(stream);
        let is_of_node = user.as_ref().is_ok_and(|user| *user == self.node);
        if !is_of_node {
            tracing::warn!("a message of another user than the node's driver is not taken: {user:?}");
        }
        is_of_node
    }
}

/// The user of the peer process, read as tokio does: in a pod the driver has no process number, and rustix fails without one.
fn user_of(stream: &UnixStream) -> io::Result<u32> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let _entered = runtime.enter();
    stream.set_nonblocking(true)?;
    let user = tokio::net::UnixStream::from_std(stream.try_clone()?)?.peer_cred()?.uid();
    stream.set_nonblocking(false)?;
    Ok(user)
}

/// The reason for which a container ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The node has unmounted.
    Unmounted,
    /// The mount was left to the next container, by way of the node's holder.
    HandedOver,
}

/// Whether an engine runs, and whether SIGTERM came. SIGTERM ends the process at once while no engine runs. Otherwise the process
/// outlives SIGTERM, because workloads that drain still read.
#[derive(Debug, Default)]
pub struct Serving(AtomicU32);

const ENGINE_RUNS: u32 = 1;
const TOLD_TO_END: u32 = 2;

impl Serving {
    /// Notes SIGTERM. `true` if an engine runs, so the process stays.
    pub fn told_to_end(&self) -> bool {
        self.0.fetch_or(TOLD_TO_END, Ordering::AcqRel) & ENGINE_RUNS != 0
    }

    fn is_told_to_end(&self) -> bool {
        self.0.load(Ordering::Acquire) & TOLD_TO_END != 0
    }

    fn begin(&self) {
        self.0.fetch_or(ENGINE_RUNS, Ordering::AcqRel);
    }

    /// Notes the engine's end. `true` if the process must end now.
    fn end(&self) -> bool {
        self.0.fetch_and(!ENGINE_RUNS, Ordering::AcqRel) & TOLD_TO_END != 0
    }
}

/// Serves mounts until the node needs none. After a mount that the engine refuses, and after a mount that ends with its engine, it waits
/// here for the next device: the kubelet would delay a container that restarts each time, for up to five minutes.
///
/// # Errors
/// Results after which the container must restart: no message, no engine, or SIGTERM while the engine ran.
pub fn run(config: &Config, serving: &Serving) -> Result<Outcome> {
    let cache = OwnCache::default();
    upgrade::wait_for_image(&config.comm, config.image_within)?;
    loop {
        if exit_announced(&config.comm) {
            return Ok(Outcome::Unmounted);
        }
        let received = listen(&config.comm).and_then(|listener| receive(&listener, config));
        let _ = std::fs::remove_file(config.comm.socket());
        let (stream, message, mount) = match received {
            Ok(received) => received,
            Err(_) if exit_announced(&config.comm) => return Ok(Outcome::Unmounted),
            Err(error) => {
                return Err(Error::internal(format!(
                    "waiting for a mount at {}: {error}",
                    config.comm.socket().display()
                )));
            }
        };
        serving.begin();
        let ended = match serve(config, &cache, serving, stream, (&message, mount)) {
            Ok(ended) if ended.handed_over => return Ok(Outcome::HandedOver),
            Ok(ended) if ended.status.success() && exit_announced(&config.comm) => {
                return Ok(Outcome::Unmounted);
            }
            Ok(ended) => ended,
            Err(error) => {
                note_error(&config.comm, &error.to_string());
                return Err(error);
            }
        };
        let why = ended.why();
        if ended.served {
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

/// Whether this machine's kernel repeats requests that a dead engine has not answered. Without that, no engine can take over another's
/// mount.
#[must_use]
pub fn kernel_resends() -> bool {
    std::fs::read_to_string(KERNEL_RELEASE).is_ok_and(|release| restarts::resends(&release))
}

/// Serves one mount, by one engine after the other if engines are restarted. Returns when the last one has ended; then this process has no
/// descriptor of the device.
fn serve(
    config: &Config,
    cache: &OwnCache,
    serving: &Serving,
    stream: UnixStream,
    (message, mount): (&MountMessage, Mount<OwnedFd>),
) -> Result<Ended> {
    let (mut mount, mut message) = (mount, std::borrow::Cow::Borrowed(message));
    let stage = mount.stage.take();
    if let Some(stage) = &stage {
        let path = engine::inherited(stage).map_err(Error::internal)?;
        message.to_mut().args = engine::with_stage_at(&message.args, &path);
    }
    let message = &*message;
    let (mut kept, device) = match (message.adopt, keep(config, message, mount)) {
        (Some(death), (Some(kept), _)) => {
            return adopt(config, cache, serving, stream, (message, kept, death));
        }
        (Some(_), (None, _)) => {
            let error = "this pod can't go on with a mount that has no engine";
            // Without an answer the mount stays with the holder, for the old image.
            if !upgrade::is_asked(&config.comm) {
                answer(&stream, &Answer::Failed { error: error.to_owned() });
            }
            return Err(Error::internal(error));
        }
        (None, kept) => kept,
    };
    let started = match (&kept, &device) {
        (Some(kept), _) => Engine::start(config, cache, message, kept.device(), Some(kept)),
        (None, Some(device)) => Engine::start(config, cache, message, device.as_fd(), None),
        (None, None) => Err(Error::internal("there is no device")),
    };
    drop((device, stage));
    let mut engine = started.inspect_err(|error| {
        answer(&stream, &Answer::Failed { error: error.to_string() });
    })?;
    // Without a message the engine has ended, and its standard error has the reason.
    let word = engine.word(kept.as_mut(), None).unwrap_or_default();
    if is_ready(word.as_deref()) {
        tracing::info!("the engine serves");
        if let (Some(kept), None) = (&mut kept, config.among) {
            kept.offer(&config.comm, message);
        }
        answer(&stream, &Answer::Ready);
    }
    let ended = engine.end(word, false)?;
    if !ended.served {
        // The error is written before the answer: a node that has the answer may connect again, and then removes the files of the earlier
        // attempt.
        note_error(&config.comm, &ended.why());
        answer(&stream, &Answer::Failed { error: ended.why() });
        return Ok(ended);
    }
    drop(stream);
    match kept {
        Some(kept) => {
            let no_state_left = NoStateLeft(&config.comm);
            go_on(config, cache, serving, (message, kept, false), (ended, None), no_state_left)
        }
        None => Ok(ended),
    }
}

/// Goes on with the mount of a container that ended; the holder has brought it.
fn adopt(
    config: &Config,
    cache: &OwnCache,
    serving: &Serving,
    stream: UnixStream,
    (message, mut kept, death): (&MountMessage, Kept, Timestamp),
) -> Result<Ended> {
    tracing::info!("another container of this pod ended, and its mount goes on here");
    // The holder must keep the mount if this container ends now.
    kept.offer(&config.comm, message);
    let age = Duration::try_from(Timestamp::now().duration_since(death)).unwrap_or_default();
    let now = Instant::now();
    let died = now.checked_sub(age.min(RESTART_WITHIN)).unwrap_or(now);
    let no_state_left = NoStateLeft(&config.comm);
    // The request is read before the engine starts: the node withdraws it once this container has run for a while.
    let is_upgrade = upgrade::is_asked(&config.comm);
    let mut serves = false;
    let ended = Engine::start(config, cache, message, kept.device(), Some(&kept)).and_then(|mut engine| {
        let until = if is_upgrade { upgrade::serves_until(now, died) } else { died + RESTART_WITHIN };
        let word = engine.word(Some(&mut kept), Some(until)).unwrap_or_default();
        serves = is_ready(word.as_deref());
        if serves {
            forget_state(&config.comm);
            tracing::info!("the engine serves again");
            answer(&stream, &Answer::Ready);
        }
        engine.end(word, true)
    });
    if is_upgrade && !serves {
        // The old image may go on with the mount. The holder still has its copies: this container ends without `hold::END`.
        kept.leave();
        std::mem::forget(no_state_left);
        let why = ended.map_or_else(|error| error.to_string(), |ended| ended.why());
        return Err(stays_held(&why));
    }
    let ended = ended.inspect_err(|error| {
        if !serves {
            answer(&stream, &Answer::Failed { error: error.to_string() });
        }
    })?;
    if !serves && !end_of(&ended, &kept, &config.comm).is_death() {
        answer(&stream, &Answer::Failed { error: ended.why() });
    }
    drop(stream);
    let since = (!serves).then_some((died, death));
    go_on(config, cache, serving, (message, kept, is_upgrade), (ended, since), no_state_left)
}

fn stays_held(why: &str) -> Error {
    Error::internal(format!("the mount stays with the node's holder: {why}"))
}

/// The device with everything that another engine needs; or the device alone, if no other engine is to follow.
fn keep(config: &Config, message: &MountMessage, mount: Mount<OwnedFd>) -> (Option<Kept>, Option<OwnedFd>) {
    if !config.restarts || !can_outlive(&message.args) {
        return (None, Some(mount.device));
    }
    match Kept::new(&config.comm, mount) {
        Ok(kept) => (Some(kept), None),
        Err((device, error)) => {
            tracing::warn!(
                "an engine that dies will not be started again, since its socket can't be made: {error}"
            );
            (None, Some(device))
        }
    }
}

/// Starts engine after engine on a device whose engine has ended, until one ends other than by death, or too many have died.
/// `is_upgrade`: the container before had another image, which can go on with the mount. A mount that is left to that image keeps its state file:
/// the holder writes its own a moment later, and until then the node must not treat the mount as hung.
fn go_on(
    config: &Config,
    cache: &OwnCache,
    serving: &Serving,
    (message, mut kept, is_upgrade): (&MountMessage, Kept, bool),
    (mut ended, mut since): (Ended, Option<(Instant, Timestamp)>),
    no_state_left: NoStateLeft<'_>,
) -> Result<Ended> {
    let mut deaths = Deaths::default();
    loop {
        if !end_of(&ended, &kept, &config.comm).is_death() {
            return Ok(ended);
        }
        // No container follows one that got SIGTERM.
        let may_leave = ended.left && kept.is_held() && !serving.is_told_to_end();
        if may_leave && upgrade::is_asked(&config.comm) && upgrade::leave(&config.comm) {
            kept.leave();
            ended.handed_over = true;
            return Ok(ended);
        }
        let now = Instant::now();
        let (died, death) = *since.get_or_insert_with(|| (now, Timestamp::now()));
        let Next::Start(pause) = deaths.after(now) else {
            // The reconciler restores the image of before when this container ends, as long as the node asks for the upgrade.
            let goes_back = is_upgrade && kept.is_held() && !serving.is_told_to_end();
            if goes_back && upgrade::is_asked(&config.comm) {
                let error = stays_held(&ended.why());
                note_error(&config.comm, &error.to_string());
                note_state(&config.comm, Restarting { since: death });
                std::mem::forget(no_state_left);
                kept.leave();
                return Err(error);
            }
            tracing::error!("the engine dies again and again, and the mount is given up");
            return Ok(ended);
        };
        let why = ended.why();
        // The error is written before the state, after which the node reads the error.
        note_error(&config.comm, &why);
        note_state(&config.comm, Restarting { since: death });
        tracing::error!("the engine has died, and another one goes on with the mount after {pause:?}: {why}");
        let until = died + RESTART_WITHIN;
        if now >= until || !waits(pause, &kept, &config.comm) {
            return Ok(ended);
        }
        reap(config);
        let mut engine = Engine::start(config, cache, message, kept.device(), Some(&kept))?;
        let word = engine.word(Some(&mut kept), Some(until)).unwrap_or_default();
        if is_ready(word.as_deref()) {
            since = None;
            forget_state(&config.comm);
            tracing::info!("the engine serves again");
        }
        ended = engine.end(word, true)?;
    }
}

/// Reaps ended processes that this container's first process inherited, such as the helper of a dead engine. No engine
/// runs meanwhile. A helper that ends later stays a zombie until the next death.
fn reap(config: &Config) {
    if std::process::id() != 1 && config.among.is_none() {
        return;
    }
    while let Ok(Some(_)) = rustix::process::wait(rustix::process::WaitOptions::NOHANG) {}
}

fn end_of(ended: &Ended, kept: &Kept, comm: &Comm) -> End {
    End {
        code: ended.status.code(),
        served: ended.served,
        has_journal: kept.has_journal(),
        announced: exit_announced(comm),
        connected: kept.is_connected(),
    }
}

/// Waits for `pause`; `false` if the mount ended before.
fn waits(pause: Duration, kept: &Kept, comm: &Comm) -> bool {
    let until = Instant::now() + pause;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        if exit_announced(comm) || !kept.is_connected() {
            return false;
        }
        thread::sleep(left.min(LOOK_IN_PAUSE));
    }
}

/// Removes the state file when it is dropped.
struct NoStateLeft<'a>(&'a Comm);

impl Drop for NoStateLeft<'_> {
    fn drop(&mut self) {
        forget_state(self.0);
    }
}

/// Tells the node by the state file that no engine serves for now.
fn note_state(comm: &Comm, state: Restarting) {
    if let Err(error) = write_whole(comm, &comm.state(), &state.to_string()) {
        tracing::error!("writing {}: {error}", comm.state().display());
    }
}

fn forget_state(comm: &Comm) {
    match std::fs::remove_file(comm.state()) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::error!("removing {}: {error}", comm.state().display());
        }
        _ => {}
    }
}

fn exit_announced(comm: &Comm) -> bool {
    comm.exit().symlink_metadata().is_ok()
}

/// Listens, and removes the files of an earlier container. A holder's state file stays: the node must not treat the mount as hung before
/// the holder has connected, or has given the mount up.
fn listen(comm: &Comm) -> io::Result<UnixListener> {
    let state = std::fs::read_to_string(comm.state()).unwrap_or_default();
    if !Restarting::is_held(&state, Timestamp::now()) {
        forget_state(comm);
    }
    match std::fs::remove_file(comm.socket()) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    message::listen(&comm.socket())
}

/// Waits for a node that sends a whole message. A node that sends only a part gets an error, and may connect again. The file `mount.exit`
/// ends the wait: the node needs no mount any more.
fn receive(
    listener: &UnixListener,
    config: &Config,
) -> io::Result<(UnixStream, MountMessage, Mount<OwnedFd>)> {
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
        if config.among.is_some_and(|among| !among.is_of_node(&stream)) {
            continue;
        }
        match message::receive(&stream, left) {
            Ok((message, mount)) => return Ok((stream, message, mount)),
            Err(error) => {
                tracing::warn!("the message can't be used: {error}");
                answer(&stream, &Answer::Failed { error: error.to_string() });
            }
        }
    }
}

/// Sends the answer. An error is only logged: the engine goes on without the node.
fn answer(stream: &UnixStream, answer: &Answer) {
    if let Err(error) = message::answer(stream, answer) {
        tracing::warn!("answering the node: {error}");
    }
}

/// Writes the error to a file, for the node's Events and for a node of release 2.2, which reads no answer.
fn note_error(comm: &Comm, why: &str) {
    if let Err(error) = write_whole(comm, &comm.error(), why) {
        tracing::error!("writing {}: {error}", comm.error().display());
    }
}

/// Writes a file whole or not at all, with mode 0600.
fn write_whole(comm: &Comm, file: &Path, text: &str) -> io::Result<()> {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let temporary = comm.directory().join(format!(".{name}.new"));
    let _ = std::fs::remove_file(&temporary);
    let mut new = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    writeln!(new, "{text}")?;
    std::fs::rename(&temporary, file)
}

#[cfg(test)]
mod tests;
