//! Asks one mount for its state, and gives up on one that does not answer.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, header};
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::Serialize;
use tokio::net::UnixStream;

use super::find::Found;
use crate::clock::Clock;
use crate::telemetry::{Origin, Status};

/// A mount that serves answers within a millisecond; this one has so long.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// What came of asking.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub(super) enum Seen {
    /// It answered.
    Serving(Box<Status>),
    /// Its process is there and does not answer.
    Hangs(Box<Origin>),
    /// Its process has ended.
    Gone {
        mount_point: PathBuf,
        /// The directory is mounted still, and every access fails.
        still_mounted: bool,
    },
    /// Another user's.
    NotYours { mount_point: PathBuf, uid: u32 },
    /// It serves, and has no socket: another engine's, an older release, or one that found no folder for it.
    Silent { mount_point: PathBuf },
}

/// Asks it.
pub(super) async fn ask(found: &Found) -> Seen {
    let mount_point = found.mount_point();
    let me = rustix::process::geteuid().as_raw();
    let owner = found.mounted.as_ref().map(|m| m.uid).or_else(|| found.entry.as_ref().map(|e| e.origin.uid));
    let not_yours = |uid| Seen::NotYours { mount_point: mount_point.clone(), uid };
    let Some(entry) = &found.entry else {
        return match owner {
            Some(uid) if me != 0 && uid != me => not_yours(uid),
            _ if is_left_behind(&mount_point).await => Seen::Gone { mount_point, still_mounted: true },
            _ => Seen::Silent { mount_point },
        };
    };
    match Clock::machine().timeout(ANSWER_WITHIN, get_status(&entry.socket)).await {
        None => Seen::Hangs(Box::new(entry.origin.clone())),
        Some(Ok(status)) => Seen::Serving(Box::new(status)),
        Some(Err(error)) => match error.kind() {
            io::ErrorKind::PermissionDenied => not_yours(owner.unwrap_or_default()),
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => {
                entry.remove();
                Seen::Gone { mount_point, still_mounted: found.mounted.is_some() }
            }
            // Its queue of connections is full, or it hung up in the middle.
            _ => Seen::Hangs(Box::new(entry.origin.clone())),
        },
    }
}

async fn get_status(socket: &Path) -> io::Result<Status> {
    let stream = UnixStream::connect(socket).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    let ask = async move {
        let request = Request::get("/status").header(header::HOST, "mount-s3").body(Empty::<Bytes>::new());
        let response =
            sender.send_request(request.map_err(io::Error::other)?).await.map_err(io::Error::other)?;
        let body = response.into_body().collect().await.map_err(io::Error::other)?.to_bytes();
        serde_json::from_slice(&body).map_err(io::Error::other)
    };
    tokio::pin!(ask);
    tokio::select! {
        answer = &mut ask => answer,
        // The connection may end in the same moment as the answer comes.
        _ = connection => ask.await,
    }
}

/// Whether the kernel says that no process serves it any more. A mount that hangs does not say so in time.
async fn is_left_behind(point: &Path) -> bool {
    let point = point.to_owned();
    // Attributes may be remembered by the kernel; this is always asked.
    let look = tokio::task::spawn_blocking(move || {
        matches!(rustix::fs::statfs(&point), Err(rustix::io::Errno::NOTCONN))
    });
    matches!(Clock::machine().timeout(ANSWER_WITHIN, look).await, Some(Ok(true)))
}
