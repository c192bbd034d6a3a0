//! A source: the bucket's own mount on the host, made here and served in a Mountpoint Pod. Enters: a directory, options, a comm
//! directory. Leaves: a mount that an engine serves, or nothing.
//!
//! Never here: who needs the mount; a bind mount. No copy of the device stays in this process once it is handed over: it would keep
//! a dead engine's readers waiting.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use tokio::time::Instant;

use super::comm_files::{CommFiles, one_line};
use super::mountinfo::Mounts;
use super::sys::{self, Busy, Health, Probes};
use crate::contract::comm::Comm;
use crate::contract::message::{self, Answer, MountMessage};
use crate::error::{Error, ErrorKind, Result};

/// Between two attempts to reach a mounter that does not listen yet. Its container runs already, so the first few succeed.
const DIAL_EVERY: Duration = Duration::from_millis(10);
/// A mounter writes `mount.err` this long after its engine ended, at most; later its words are not in our error.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// A mount that is taken away when it is dropped, unless it is kept.
#[derive(Debug)]
pub struct SourceMount {
    path: PathBuf,
    made_directory: bool,
    keep: bool,
}

impl SourceMount {
    /// Mounts a new device at this directory, which is made if it is missing. Until the device is handed over nobody answers.
    ///
    /// # Errors
    /// `Internal`: no FUSE on this node, or no right to mount; nothing is left then.
    pub fn open(path: &Path, read_only: bool) -> Result<(Self, OwnedFd)> {
        let failed = |what: &str, error: io::Error| {
            Error::internal(format!("{what} for {}: {error}; look at the node's kernel log", path.display()))
        };
        let device = sys::open_device().map_err(|error| failed("opening /dev/fuse", error))?;
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(|error| failed("making the directory", error))?;
        }
        let made_directory = match std::fs::create_dir(path) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            Err(error) => return Err(failed("making the directory", error)),
        };
        match sys::mount_fuse(device.as_fd(), path, read_only) {
            Ok(()) => Ok((Self { path: path.to_owned(), made_directory, keep: false }, device)),
            Err(error) => {
                if made_directory {
                    let _ = std::fs::remove_dir(path);
                }
                Err(failed("mounting a FUSE device", error))
            }
        }
    }

    /// Gives the device and the options to the mounter, and waits until the engine serves or says why not.
    ///
    /// # Errors
    /// `FailedPrecondition` with the engine's words; `DeadlineExceeded`, `Unavailable` if nobody takes or serves it.
    pub async fn hand_over(
        &self,
        comm: &Comm,
        message: MountMessage,
        device: OwnedFd,
        probes: &Probes,
        deadline: Instant,
    ) -> Result<()> {
        let files = CommFiles::open(comm).map_err(|error| {
            let at = comm.directory().display();
            Error::new(ErrorKind::Unavailable, format!("opening the comm directory {at}: {error}"))
        })?;
        files.forget_error().map_err(|error| {
            Error::internal(format!("removing an old mount.err in {}: {error}", files.path().display()))
        })?;
        let socket = comm.socket();
        let exchange = move || exchange(&socket, &message, device, deadline);
        let answer = tokio::task::spawn_blocking(exchange).await.map_err(Error::internal)??;
        match answer {
            Some(Answer::Ready) => Ok(()),
            Some(Answer::Failed { error }) => Err(refused(&one_line(&error))),
            None => self.served_without_an_answer(&files, probes, deadline).await,
        }
    }

    /// A mounter of release 2.2 says nothing, and so does one that died. A stat waits in the kernel until the engine serves the
    /// device, or until the last who had it is gone.
    async fn served_without_an_answer(
        &self,
        files: &CommFiles,
        probes: &Probes,
        deadline: Instant,
    ) -> Result<()> {
        match probes.check(&self.path, left(deadline)).await {
            Health::Alive => Ok(()),
            Health::Dead(why) => Err(match last_words(files).await {
                Some(words) => refused(&words),
                None => Error::new(
                    ErrorKind::Unavailable,
                    format!("the engine ended before it served {}: {why}", self.path.display()),
                ),
            }),
            Health::Hung => Err(Error::new(
                ErrorKind::DeadlineExceeded,
                format!("the engine does not serve {} yet", self.path.display()),
            )),
        }
    }

    /// Leaves the mount where it is.
    pub fn keep(mut self) {
        self.keep = true;
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

/// Whether something is mounted at a source and answers. A dead mount is taken away.
///
/// # Errors
/// `Unavailable` if it hangs: others may wait for it, so it is left.
pub async fn is_served(path: &Path, probes: &Probes) -> Result<bool> {
    let mounts =
        Mounts::read().map_err(|error| Error::internal(format!("reading the table of mounts: {error}")))?;
    if mounts.at(path).is_none() {
        return Ok(false);
    }
    match probes.check(path, sys::PROBE_LIMIT).await {
        Health::Alive => Ok(true),
        Health::Dead(why) => {
            tracing::warn!("the engine of {} is gone ({why}): mounting anew", path.display());
            sys::unmount(path, Busy::Detach).map_err(|error| {
                Error::internal(format!("unmounting {}, whose engine is gone: {error}", path.display()))
            })?;
            Ok(false)
        }
        Health::Hung => Err(hangs(path)),
    }
}

/// The error for a mount that does not answer.
pub(super) fn hangs(path: &Path) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!(
            "{} did not answer for {} s: its engine may be waiting for the store",
            path.display(),
            sys::PROBE_LIMIT.as_secs()
        ),
    )
}

/// On a thread of its own. The device is closed here as soon as the mounter has it.
fn exchange(
    socket: &Path,
    message: &MountMessage,
    device: OwnedFd,
    deadline: Instant,
) -> Result<Option<Answer>> {
    let stream = dial(socket, deadline)?;
    let at = socket.display();
    message::send(&stream, message, device.as_fd(), left(deadline)).map_err(|error| {
        Error::new(ErrorKind::Unavailable, format!("handing the device over at {at}: {error}"))
    })?;
    drop(device);
    message::read_answer(&stream, left(deadline)).map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => Error::new(
            ErrorKind::DeadlineExceeded,
            "the engine has neither begun to serve nor failed in time: is the store reachable from the node?",
        ),
        _ => Error::internal(format!("reading the mounter's answer at {at}: {error}")),
    })
}

fn dial(socket: &Path, deadline: Instant) -> Result<UnixStream> {
    loop {
        let error = match message::connect(socket) {
            Ok(stream) => return Ok(stream),
            Err(error) => error,
        };
        let at = socket.display();
        // Missing, or left by a container that was restarted.
        if !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) {
            return Err(Error::new(ErrorKind::Unavailable, format!("connecting to {at}: {error}")));
        }
        if left(deadline) < DIAL_EVERY {
            return Err(Error::new(
                ErrorKind::DeadlineExceeded,
                format!("the Mountpoint Pod runs, but its mounter does not listen at {at}: {error}"),
            ));
        }
        thread::sleep(DIAL_EVERY);
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

fn refused(words: &str) -> Error {
    Error::new(ErrorKind::FailedPrecondition, format!("the engine could not mount: {words}"))
}

fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

#[cfg(test)]
mod tests;
