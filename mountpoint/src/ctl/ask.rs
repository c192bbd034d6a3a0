//! Requests the state of one mount, with a time limit.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use mountpoint::clock::Clock;
use mountpoint::telemetry::{Entry, Origin, Status};
use serde::Serialize;
use tokio::net::UnixStream;

use super::find::Found;

/// Longest wait for a mount's state while a person waits. A healthy mount answers in a millisecond.
pub(super) const SOON: Duration = Duration::from_secs(1);

/// Most bytes of an answer, because any user could send one to root. A longer answer counts as a hang. A mount with ten thousand files
/// being written needs a few MiB.
const ANSWER_MAX: usize = 64 << 20;

/// The hidden subcommand that runs [`look`].
pub(super) const LOOK: &str = "look";
/// The exit code of [`look`] if no process serves the mount any more.
const LEFT_BEHIND: u8 = 3;

/// The state of one mount, as far as it could be found out.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub(super) enum Seen {
    /// The mount answered.
    Serving(Box<Status>),
    /// The mount's process exists and does not answer.
    Hangs(Box<Origin>),
    /// The mount's process has ended.
    Gone {
        mount_point: PathBuf,
        /// Whether the directory is still mounted. Then every access to it fails.
        still_mounted: bool,
    },
    /// The mount belongs to another user.
    NotYours { mount_point: PathBuf, uid: u32 },
    /// The mount has no socket: its engine is another program or an older release, or found no folder for a socket.
    Silent {
        mount_point: PathBuf,
        /// Whether the mount's process answers the kernel's requests.
        answers: bool,
    },
}

/// Requests the state of a mount, and waits at most `within`.
pub(super) async fn ask(found: &Found, within: Duration) -> Seen {
    let mount_point = found.mount_point();
    let me = rustix::process::geteuid().as_raw();
    let owner = found.mounted.as_ref().map(|m| m.uid).or_else(|| found.entry.as_ref().map(|e| e.origin.uid));
    let not_yours = |uid| Seen::NotYours { mount_point: mount_point.clone(), uid };
    let Some(entry) = &found.entry else {
        return match owner {
            Some(uid) if me != 0 && uid != me => not_yours(uid),
            _ => match look_at(&mount_point, within).await {
                Some(code) if code == i32::from(LEFT_BEHIND) => {
                    Seen::Gone { mount_point, still_mounted: true }
                }
                answer => Seen::Silent { mount_point, answers: answer.is_some() },
            },
        };
    };
    match Clock::machine().timeout(within, get_status(entry)).await {
        None => Seen::Hangs(Box::new(entry.origin.clone())),
        // The origin comes from the mount's file, which was compared with the kernel's table.
        Some(Ok(status)) => Seen::Serving(Box::new(Status { origin: entry.origin.clone(), ..status })),
        Some(Err(error)) => match error.kind() {
            io::ErrorKind::PermissionDenied => not_yours(owner.unwrap_or_default()),
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => {
                entry.remove();
                Seen::Gone { mount_point, still_mounted: found.mounted.is_some() }
            }
            // The queue of connections is full, or the process hung while it answered.
            _ => Seen::Hangs(Box::new(entry.origin.clone())),
        },
    }
}

async fn get_status(entry: &Entry) -> io::Result<Status> {
    let (_, body) = send(entry, Request::get("/status")).await?;
    serde_json::from_slice(&body).map_err(io::Error::other)
}

/// Sends a request to the mount's socket. Returns the status and body of the answer.
pub(super) async fn send(entry: &Entry, request: http::request::Builder) -> io::Result<(StatusCode, Bytes)> {
    let socket = entry.socket()?;
    let stream = UnixStream::connect(socket.path()).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    let request = request.header(header::HOST, "mount-s3").body(Empty::<Bytes>::new());
    let request = request.map_err(io::Error::other)?;
    let ask = async move {
        let response = sender.send_request(request).await.map_err(io::Error::other)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_MAX).collect().await;
        Ok((status, body.map_err(io::Error::other)?.to_bytes()))
    };
    tokio::pin!(ask);
    tokio::select! {
        answer = &mut ask => answer,
        // The connection may end at the moment when the answer comes.
        _ = connection => ask.await,
    }
}

/// The exit code of [`look`]; `None` if the mount does not answer in time.
///
/// Calls [`look`] in another process: a thread that waits for an answer of a hanging mount can't be ended, not even by SIGKILL.
async fn look_at(point: &Path, within: Duration) -> Option<i32> {
    let mut command = Command::new(std::env::current_exe().ok()?);
    command.arg(LOOK).arg(point).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().ok()?;
    let clock = Clock::machine();
    let ended = async {
        loop {
            if let Ok(Some(status)) = child.try_wait() {
                return status.code();
            }
            clock.sleep(Duration::from_millis(2)).await;
        }
    };
    let code = clock.timeout(within, ended).await;
    if code.is_none() {
        // The child ends now, or when the mount does.
        let _ = child.kill();
    }
    code.flatten()
}

/// Calls statfs(2) on `point`. The kernel caches attributes of files, but for statfs(2) it always asks the mount's process.
pub(super) fn look(point: &Path) -> ExitCode {
    match rustix::fs::statfs(point) {
        Err(rustix::io::Errno::NOTCONN) => ExitCode::from(LEFT_BEHIND),
        _ => ExitCode::SUCCESS,
    }
}
