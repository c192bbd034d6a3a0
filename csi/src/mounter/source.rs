//! A source: the bucket's first mount on the host, made here and served in a Mountpoint Pod. Enters: a directory, options, a comm
//! directory. Leaves: a mount that an engine serves, or nothing.
//!
//! Never here: the workloads of the mount; a bind mount. After the hand-over this process keeps no copy of the device: it would keep the
//! readers of a dead engine waiting.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::Instant;

use super::comm_files::{CommFiles, one_line};
use super::mount_id::MountId;
use super::peer::{self, Processes};
use super::stages;
use super::sys::{self, Busy, Health, Probes};
use super::targets::mounted;
use crate::contract::comm::Comm;
use crate::contract::message::{self, Answer, MountMessage};
use crate::contract::restart::Restarting;
use crate::error::{Error, ErrorKind, Result};

/// Pause between two connections to a mounter that does not listen yet. Its container runs already, so one of the first succeeds.
const DIAL_EVERY: Duration = Duration::from_millis(10);
/// Longest wait for a mounter to write `mount.err` after its engine ended; later its text is not in our error.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// The pod that gets a device.
#[derive(Clone, Copy, Debug)]
pub struct Peer<'a> {
    /// The UID of the Mountpoint Pod.
    pub uid: &'a str,
    /// The table for the check of its process.
    pub processes: &'a Processes,
    /// The directory of the node that its engine gets for files under change.
    pub stage: Option<&'a Path>,
}

/// A mount that is unmounted when this value is dropped, unless it is kept.
#[derive(Debug)]
pub struct SourceMount {
    path: PathBuf,
    made_directory: bool,
    keep: bool,
}

impl SourceMount {
    /// Mounts a bucket at this directory, which is created if it is missing. The call first connects to the mounter, then mounts the device
    /// detached and hands it over; the mount appears at the directory when the engine serves it. On a kernel without detached mounts it is
    /// mounted at the directory before the hand-over.
    ///
    /// # Errors
    /// `FailedPrecondition` with the engine's error, or if another process listens in the mounter's place; `DeadlineExceeded` or
    /// `Unavailable` if no mounter takes or serves the device; `Internal`: no FUSE on this node, or no right to mount. Nothing is left
    /// then.
    pub async fn make(
        path: &Path,
        read_only: bool,
        comm: &Comm,
        pod: &Peer<'_>,
        message: MountMessage,
        deadline: Instant,
    ) -> Result<Self> {
        let files = CommFiles::open(comm).map_err(|error| {
            let at = comm.directory().display();
            Error::new(ErrorKind::Unavailable, format!("opening the comm directory {at}: {error}"))
        })?;
        let stream = dial(&files, Comm::SOCKET, deadline).await?;
        pod.processes.check(&stream, pod.uid, Comm::SOCKET)?;
        files.forget_error().map_err(|error| {
            Error::internal(format!("removing an old mount.err in {}: {error}", files.path().display()))
        })?;
        let stage = pod.stage.map(|stage| stage_for(stage, &stream)).transpose()?;
        let device = sys::open_device().map_err(|error| failed("opening /dev/fuse", path, &error))?;
        let mount = Unserved::mount(path, &device, read_only)?;
        let exchange = move || exchange(&stream, &message, device, stage, deadline);
        let answer = tokio::task::spawn_blocking(exchange).await.map_err(Error::internal)??;
        match answer {
            Some(Answer::Ready) => mount.show(path),
            Some(Answer::Failed { error }) => Err(refused(&one_line(&error))),
            None => {
                served_without_an_answer(&mount.root(), path, &files, deadline).await?;
                mount.show(path)
            }
        }
    }

    /// Keeps the mount.
    pub fn keep(mut self) {
        self.keep = true;
    }
}

/// A mount that no engine serves yet.
#[derive(Debug)]
enum Unserved {
    /// A mount that is not attached to a directory.
    Detached(OwnedFd),
    /// A mount at its directory already, on a kernel without detached mounts.
    Placed(SourceMount),
}

impl Unserved {
    fn mount(path: &Path, device: &OwnedFd, read_only: bool) -> Result<Self> {
        match sys::mount_fuse_detached(device.as_fd(), read_only) {
            Ok(mount) => Ok(Self::Detached(mount)),
            Err(error) => {
                tracing::debug!(
                    "mounting {} at its path, because a detached mount failed: {error}",
                    path.display()
                );
                Self::place(path, device, read_only)
            }
        }
    }

    fn place(path: &Path, device: &OwnedFd, read_only: bool) -> Result<Self> {
        let mount = || sys::mount_fuse(device.as_fd(), path, read_only);
        at_directory(path, "mounting a FUSE device", mount).map(Self::Placed)
    }

    /// A path to the root of the mount.
    fn root(&self) -> PathBuf {
        match self {
            Self::Detached(mount) => PathBuf::from(format!("/proc/self/fd/{}", mount.as_raw_fd())),
            Self::Placed(mount) => mount.path.clone(),
        }
    }

    fn show(self, path: &Path) -> Result<SourceMount> {
        match self {
            Self::Detached(mount) => {
                at_directory(path, "moving the mount into place", || sys::attach(mount.as_fd(), path))
            }
            Self::Placed(mount) => Ok(mount),
        }
    }
}

/// Creates the directory if it is missing, and calls `make`. Removes the directory again if that fails.
fn at_directory(path: &Path, what: &str, make: impl FnOnce() -> io::Result<()>) -> Result<SourceMount> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(|error| failed("making the directory", path, &error))?;
    }
    let made_directory = match std::fs::create_dir(path) {
        Ok(()) => true,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
        Err(error) => return Err(failed("making the directory", path, &error)),
    };
    make().map_err(|error| {
        if made_directory {
            let _ = std::fs::remove_dir(path);
        }
        failed(what, path, &error)
    })?;
    Ok(SourceMount { path: path.to_owned(), made_directory, keep: false })
}

fn failed(what: &str, path: &Path, error: &io::Error) -> Error {
    Error::internal(format!("{what} for {}: {error}; look at the node's kernel log", path.display()))
}

/// Waits for a mounter that sends no answer: one of release 2.2, or a dead one. A stat waits in the kernel until the engine serves
/// the device, or the last process with the device has ended.
async fn served_without_an_answer(
    root: &Path,
    path: &Path,
    files: &CommFiles,
    deadline: Instant,
) -> Result<()> {
    // This needs a separate set of probes: another mount may get the same path later.
    match Probes::default().check(root, left(deadline)).await {
        Health::Alive => Ok(()),
        Health::Dead(why) => Err(match last_words(files).await {
            Some(words) => refused(&words),
            None => Error::new(
                ErrorKind::Unavailable,
                format!("the engine ended before it served {}: {why}", path.display()),
            ),
        }),
        Health::Hung => Err(Error::new(
            ErrorKind::DeadlineExceeded,
            format!("the engine does not serve {} yet", path.display()),
        )),
    }
}

impl Drop for SourceMount {
    fn drop(&mut self) {
        if self.keep {
            return;
        }
        if let Err(error) = sys::unmount(&self.path, Busy::Detach) {
            tracing::error!("unmounting {} after a failure: {error}", self.path.display());
        } else if self.made_directory
            && let Err(error) = std::fs::remove_dir(&self.path)
        {
            tracing::warn!("removing {} after a failure: {error}", self.path.display());
        }
    }
}

/// The mount at a source; `None` if there is none or its engine is dead.
///
/// # Errors
/// `Unavailable` if it hangs.
pub async fn served(path: &Path, comm: &Comm, probes: &Probes) -> Result<Option<MountId>> {
    let Some(mount) = mounted(path)? else { return Ok(None) };
    match probes.check(path, sys::PROBE_LIMIT).await {
        Health::Alive => Ok(Some(mount)),
        Health::Dead(_) => Ok(None),
        Health::Hung => Err(hangs(path, restarting(comm))),
    }
}

/// Whether a source is mounted and answers. Unmounts a dead mount.
///
/// # Errors
/// `Unavailable` if it hangs: others may wait for the mount, so it stays.
pub async fn is_served(path: &Path, comm: &Comm, probes: &Probes) -> Result<bool> {
    if mounted(path)?.is_none() {
        return Ok(false);
    }
    match probes.check(path, sys::PROBE_LIMIT).await {
        Health::Alive => Ok(true),
        Health::Dead(why) => {
            tracing::warn!("the engine of {} has ended ({why}): mounting again", path.display());
            sys::unmount(path, Busy::Detach).map_err(|error| {
                Error::internal(format!("unmounting {}, whose engine is gone: {error}", path.display()))
            })?;
            Ok(false)
        }
        Health::Hung => Err(hangs(path, restarting(comm))),
    }
}

/// The state of the mounter in this directory, if its engine died and the next one does not serve yet.
pub(super) fn restarting(comm: &Comm) -> Option<Restarting> {
    CommFiles::open(comm).ok()?.restarting()
}

/// The error for a mount that does not answer: its engine waits, or is being restarted.
pub(super) fn hangs(path: &Path, restarting: Option<Restarting>) -> Error {
    let limit = sys::PROBE_LIMIT.as_secs();
    let why = match restarting {
        Some(state) => {
            format!("its engine died and is started again ({state}); look at the log of its Mountpoint Pod")
        }
        None => "its engine may be waiting for the store".to_owned(),
    };
    Error::new(ErrorKind::Unavailable, format!("{} did not answer for {limit} s: {why}", path.display()))
}

/// Hands the device to the mounter, on a blocking thread. The device is closed here as soon as the mounter has it.
fn exchange(
    stream: &UnixStream,
    message: &MountMessage,
    device: OwnedFd,
    stage: Option<OwnedFd>,
    deadline: Instant,
) -> Result<Option<Answer>> {
    let stage = stage.as_ref().map(OwnedFd::as_fd);
    let mount = message::Mount { device: device.as_fd(), journal: None, stage };
    message::send(stream, message, mount, left(deadline)).map_err(|error| {
        Error::new(ErrorKind::Unavailable, format!("handing the device to the mounter: {error}"))
    })?;
    drop(device);
    message::read_answer(stream, left(deadline)).map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => Error::new(
            ErrorKind::DeadlineExceeded,
            "the engine has neither begun to serve nor failed in time: is the store reachable from the node?",
        ),
        _ => Error::internal(format!("reading the mounter's answer: {error}")),
    })
}

/// Opens a stage of the node for the user of the mounter, who is that of its engine.
fn stage_for(stage: &Path, mounter: &UnixStream) -> Result<OwnedFd> {
    let opened = peer::owner(mounter).and_then(|(user, group)| stages::open_for(stage, user, group));
    opened.map_err(|error| {
        let at = stage.display();
        Error::internal(format!(
            "making the stage {at} on the node (mountpointPod.stage.hostPath of the chart): {error}"
        ))
    })
}

/// Connects to a socket in the directory when a process listens there.
pub(super) async fn dial(files: &CommFiles, socket: &str, deadline: Instant) -> Result<UnixStream> {
    loop {
        let error = match files.connect(socket) {
            Ok(stream) => return Ok(stream),
            Err(error) => error,
        };
        let at = files.path().join(socket);
        // The socket is missing, a restarted container left it, or its queue is full.
        if !matches!(
            error.kind(),
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused | io::ErrorKind::WouldBlock
        ) {
            let text = format!("connecting to {}: {error}", at.display());
            return Err(Error::new(ErrorKind::Unavailable, text));
        }
        if left(deadline) < DIAL_EVERY {
            let at = at.display();
            return Err(Error::new(
                ErrorKind::DeadlineExceeded,
                format!("the Mountpoint Pod runs, but its mounter does not listen at {at}: {error}"),
            ));
        }
        tokio::time::sleep(DIAL_EVERY).await;
    }
}

async fn last_words(files: &CommFiles) -> Option<String> {
    let until = Instant::now() + LAST_WORDS;
    loop {
        let words = files.error();
        if words.is_some() || Instant::now() >= until {
            return words;
        }
        tokio::time::sleep(DIAL_EVERY).await;
    }
}

/// The error for an engine that ended before it served, with its message.
pub(super) fn refused(words: &str) -> Error {
    Error::new(ErrorKind::FailedPrecondition, format!("the engine could not mount: {words}"))
}

fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

#[cfg(test)]
mod tests;
