//! Connections to the engines of this node's Mountpoint Pods, by the socket that each has beside its mounter's. Enters: the UID of a pod and its comm
//! directory. Leaves: what the engine says of itself, or why it says nothing. An engine of an earlier release has no socket.
//!
//! The pod is not trusted: its process is checked as that of a hand-over, a line has a limit, and only numbers are taken from it.
//!
//! Never here: a device, a key; a mount that waits for an engine's answer.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use mountpoint::sync::{Arc, Mutex};
use mountpoint::telemetry::engine_lines::{Answer, Hello, Lines, Request, USAGE, Usage, VERSION};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::comm_files::CommFiles;
use super::peer::Processes;
use crate::contract::comm::Comm;
use crate::error::{Error, ErrorKind, Result};

/// How long an engine may take for its first line when it is dialled ahead. It has begun to serve; one that is late is dialled again when it is
/// asked. Doubling it holds a task for twice as long.
const DIAL_WITHIN: Duration = Duration::from_secs(5);

/// The connections, by the UID of the pod.
#[derive(Debug, Default)]
pub(super) struct Engines(Mutex<HashMap<String, Slot>>);

/// The connection to one engine. `None`: not made yet, or broken.
type Slot = Arc<tokio::sync::Mutex<Option<Line>>>;

/// A connection whose first lines were exchanged.
#[derive(Debug)]
struct Line {
    lines: Lines<UnixStream>,
    /// The number of the last request.
    number: u64,
}

impl Engines {
    /// Dials an engine that serves. Without one that answers there is no connection; [`Self::usage`] tries again.
    pub(super) async fn dial(&self, uid: &str, comm: &Comm, processes: &Processes) {
        let slot = self.slot(uid);
        let mut slot = slot.lock().await;
        match timeout(DIAL_WITHIN, Line::dial(uid, comm, processes)).await {
            Ok(Ok(line)) => *slot = Some(line),
            Ok(Err(error)) => {
                tracing::debug!("no connection to the engine of Mountpoint Pod {uid}: {error}");
            }
            Err(_) => {
                tracing::warn!("the engine of Mountpoint Pod {uid} takes a connection and says nothing")
            }
        }
    }

    /// The usage of an engine's control group. A connection that broke, since another engine serves by now, is made anew.
    ///
    /// # Errors
    /// The engine has no socket, another process has its place, or it gives no such answer.
    pub(super) async fn usage(&self, uid: &str, comm: &Comm, processes: &Processes) -> Result<Usage> {
        let slot = self.slot(uid);
        let mut slot = slot.lock().await;
        // Out of its place: a caller that gives up leaves no connection behind on which an answer is still to come.
        if let Some(mut line) = slot.take()
            && let Ok(usage) = line.usage().await
        {
            *slot = Some(line);
            return Ok(usage);
        }
        let mut line = Line::dial(uid, comm, processes).await?;
        let usage = line.usage().await.map_err(|error| said_nothing(&error))?;
        *slot = Some(line);
        Ok(usage)
    }

    /// Ends the connections to engines of all other pods.
    pub(super) fn keep(&self, needed: impl Fn(&str) -> bool) {
        self.0.lock().retain(|uid, _| needed(uid));
    }

    fn slot(&self, uid: &str) -> Slot {
        Arc::clone(self.0.lock().entry(uid.to_owned()).or_default())
    }
}

impl Line {
    async fn dial(uid: &str, comm: &Comm, processes: &Processes) -> Result<Self> {
        let at = || comm.engine_socket().display().to_string();
        let files = CommFiles::open(comm);
        let stream = files.and_then(|files| files.connect(Comm::ENGINE_SOCKET)).map_err(|error| {
            Error::new(ErrorKind::Unavailable, format!("connecting to {}: {error}", at()))
        })?;
        processes.check(&stream, uid, Comm::ENGINE_SOCKET)?;
        let begun = async {
            stream.set_nonblocking(true)?;
            let mut lines = Lines::new(UnixStream::from_std(stream)?);
            lines.write(&Hello { version: VERSION }).await?;
            let Hello { version } = read(&mut lines).await?;
            if version < VERSION {
                return Err(invalid(format!("the engine's version of the protocol is {version}")));
            }
            Ok(Self { lines, number: 0 })
        };
        begun.await.map_err(|error| said_nothing(&error))
    }

    async fn usage(&mut self) -> io::Result<Usage> {
        self.number += 1;
        let number = self.number;
        self.lines.write(&Request { number, request: USAGE.to_owned() }).await?;
        let answer: Answer = read(&mut self.lines).await?;
        if answer.number != Some(number) {
            return Err(invalid(format!("the answer to request {number} has number {:?}", answer.number)));
        }
        // The engine's own words may have control characters, and are of no use to an administrator.
        answer.usage.ok_or_else(|| invalid("the engine refuses the request"))
    }
}

async fn read<T: serde::de::DeserializeOwned>(lines: &mut Lines<UnixStream>) -> io::Result<T> {
    let line = lines.read().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
    serde_json::from_slice(&line).map_err(|error| invalid(format!("a line can't be read: {error}")))
}

fn said_nothing(error: &io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, format!("asking the engine: {error}"))
}

fn invalid(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.into())
}

#[cfg(test)]
mod tests;
