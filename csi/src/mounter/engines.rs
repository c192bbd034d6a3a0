//! Connections to the engines of this node's Mountpoint Pods, over the socket that each has beside its mounter's. Enters: the UID of a pod
//! and its comm directory. Leaves: the engine's usage, or the reason why there is none, and answers to its requests. An engine of an
//! earlier release has no socket.
//!
//! The pod is not trusted: its process is checked like at a hand-over, a line has a limit, and each name is resolved here
//! (`kernel_reads.rs`).
//!
//! Never here: a credential; a mount that waits for an engine's answer.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mountpoint::sync::{Arc, Mutex};
use mountpoint::telemetry::engine_lines::{
    Answer, Heard, Hello, Lines, Request, USAGE, Usage, VERSION, read,
};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::comm_files::CommFiles;
use super::kernel_reads::{Counts, Desk};
use super::peer::Processes;
use super::received::Receiving;
use crate::contract::cache;
use crate::contract::comm::Comm;
use crate::error::{Error, ErrorKind, Result};

/// Time limit of a connection that is made in advance. The engine serves already; a late one is connected at the next request.
/// Doubled, a task is occupied twice as long.
const DIAL_WITHIN: Duration = Duration::from_secs(5);

/// Time limit for an engine to read an answer or a request; after it the connection ends. Doubled, a connection is kept twice as long.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);

/// The connections, by name.
#[derive(Debug, Default)]
pub(super) struct Engines {
    slots: Mutex<HashMap<String, Slot>>,
    counts: Arc<Counts>,
}

/// The slot of one engine's connection.
type Slot = Arc<tokio::sync::Mutex<Connection>>;

#[derive(Debug, Default)]
struct Connection {
    /// The connection; `None` before it is made, and after it broke.
    line: Option<Line>,
    /// The end of the last reading thread. The next connection waits for it, so a pod can't cause more than one thread.
    ended: Option<oneshot::Receiver<()>>,
}

/// One engine, and the rights that it has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer<'a> {
    /// The name of the connection: the source's name, or for the only engine of a pod the pod's UID.
    pub(super) slot: &'a str,
    /// The UID of the engine's pod.
    pub(super) uid: &'a str,
    /// The cache of the engine, as this process sees it; `None`: the cache volume of its pod.
    pub(super) cache: Option<&'a Path>,
    /// The engine's comm directory.
    pub(super) comm: &'a Comm,
    /// The table for the check of its process.
    pub(super) processes: &'a Processes,
    /// The minor number of the source's device. `None`: the driver neither registers nor closes files for this engine.
    pub(super) source: Option<u32>,
    /// Whether files are registered. Registered files are closed in any case.
    pub(super) opens: bool,
}

/// A connection after the exchange of first lines. A separate task reads it.
#[derive(Debug)]
struct Line(mpsc::Sender<Asks>);

/// The sender to which an engine's usage is sent.
type Asks = oneshot::Sender<io::Result<Usage>>;

impl Engines {
    /// Connects to an engine that serves. If that fails, there is no connection, and [`Self::usage`] tries again.
    pub(super) async fn dial(&self, peer: &Peer<'_>) {
        let slot = self.slot(peer.slot);
        let mut slot = slot.lock().await;
        if slot.line.as_ref().is_some_and(Line::is_open) {
            return;
        }
        let uid = peer.uid;
        match timeout(DIAL_WITHIN, slot.dial(peer, &self.counts)).await {
            Ok(Ok(line)) => slot.line = Some(line),
            Ok(Err(error)) => {
                tracing::debug!("no connection to the engine of Mountpoint Pod {uid}: {error}");
            }
            Err(_) => {
                tracing::warn!("the engine of Mountpoint Pod {uid} takes a connection and says nothing")
            }
        }
    }

    /// The usage of an engine's control group. A broken connection is made again: another engine may serve by now.
    ///
    /// # Errors
    /// The engine has no socket, another process has its place, or its answer is invalid.
    pub(super) async fn usage(&self, peer: &Peer<'_>) -> Result<Usage> {
        let slot = self.slot(peer.slot);
        let mut slot = slot.lock().await;
        if let Some(line) = &slot.line
            && let Ok(usage) = line.usage().await
        {
            return Ok(usage);
        }
        slot.line = None;
        let line = slot.dial(peer, &self.counts).await?;
        let usage = line.usage().await.map_err(|error| said_nothing(&error))?;
        slot.line = Some(line);
        Ok(usage)
    }

    /// Ends all connections but the needed ones, and forgets the registered files of other sources.
    pub(super) fn keep(&self, needed: impl Fn(&str) -> bool, is_source: impl Fn(u32) -> bool) {
        self.slots.lock().retain(|name, _| needed(name));
        self.counts.keep(is_source);
    }

    /// Forgets the registered files of an earlier source, whose device number a new mount has.
    pub(super) fn forget_source(&self, minor: u32) {
        self.counts.forget(minor);
    }

    #[cfg(test)]
    pub(super) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Ends the connection to an engine.
    #[cfg(test)]
    pub(super) async fn hang_up(&self, uid: &str) {
        self.slot(uid).lock().await.line = None;
    }

    fn slot(&self, name: &str) -> Slot {
        Arc::clone(self.slots.lock().entry(name.to_owned()).or_default())
    }
}

impl Connection {
    /// Connects to an engine. If the future is dropped, no connection is left.
    async fn dial(&mut self, peer: &Peer<'_>, counts: &Arc<Counts>) -> Result<Line> {
        self.line = None;
        if let Some(ended) = &mut self.ended {
            let _ = ended.await;
        }
        self.ended = None;
        let Peer { uid, comm, processes, source, opens, .. } = *peer;
        let cache = peer.cache.map_or_else(|| cache_of(comm), Path::to_owned);
        let at = || comm.engine_socket().display().to_string();
        let files = CommFiles::open(comm);
        let stream = files.and_then(|files| files.connect(Comm::ENGINE_SOCKET)).map_err(|error| {
            Error::new(ErrorKind::Unavailable, format!("connecting to {}: {error}", at()))
        })?;
        let busy = source.map(|source| counts.busy(source));
        let (stream, ended) = Receiving::new(stream, busy).map_err(|error| said_nothing(&error))?;
        self.ended = Some(ended);
        processes.check_process(stream.peer(), uid, Comm::ENGINE_SOCKET)?;
        let begun = async {
            let mut lines = Lines::new(stream);
            lines.write(&Hello { version: VERSION, registers: source.is_some(), ids: None }).await?;
            let Hello { version, ids, .. } = hello(&mut lines).await?;
            if version < VERSION {
                return Err(invalid(format!("the engine's version of the protocol is {version}")));
            }
            // An engine of an earlier release reports no number, and requests nothing.
            let desk =
                source.zip(ids).map(|(source, ids)| Desk::new(Arc::clone(counts), cache, source, ids, opens));
            let (asks, asked) = mpsc::channel(1);
            let uid = uid.to_owned();
            tokio::spawn(async move {
                if let Err(error) = converse(lines, asked, desk).await {
                    tracing::debug!(
                        "the connection to the engine of Mountpoint Pod {uid} has ended: {error}"
                    );
                }
            });
            Ok(Line(asks))
        };
        begun.await.map_err(|error| said_nothing(&error))
    }
}

impl Line {
    fn is_open(&self) -> bool {
        !self.0.is_closed()
    }

    async fn usage(&self) -> io::Result<Usage> {
        let (tell, told) = oneshot::channel();
        let gone = || io::Error::from(io::ErrorKind::ConnectionReset);
        self.0.send(tell).await.map_err(|_| gone())?;
        told.await.map_err(|_| gone())?
    }
}

/// The cache volume of a pod, which is beside its comm directory.
fn cache_of(comm: &Comm) -> PathBuf {
    comm.directory().with_file_name(cache::VOLUME)
}

/// Serves the connection until the engine ends it, breaks the protocol, or the driver needs it no more.
async fn converse(
    mut lines: Lines<Receiving>,
    mut asked: mpsc::Receiver<Asks>,
    desk: Option<Desk>,
) -> io::Result<()> {
    let (mut number, mut waits) = (0, None::<Asks>);
    let late = || io::Error::from(io::ErrorKind::TimedOut);
    loop {
        tokio::select! {
            ask = asked.recv() => {
                let Some(ask) = ask else { return Ok(()) };
                // The answer in flight goes to the next caller if the one before has given up.
                if waits.replace(ask).is_some() {
                    continue;
                }
                number += 1;
                let request = Request { number, request: USAGE.to_owned(), ..Request::default() };
                timeout(ANSWERED_WITHIN, lines.write(&request)).await.map_err(|_| late())??;
            }
            line = lines.read() => {
                let Some(line) = line? else { return Ok(()) };
                let answer = match Heard::read(&line) {
                    Ok(Heard::Request(request)) => {
                        match &desk {
                            Some(desk) => {
                                let files = lines.stream().take();
                                desk.answer(request, files).await
                            }
                            None => refused(Some(request.number), "this driver registers no files"),
                        }
                    }
                    Ok(Heard::Answer(answer)) => match waits.take() {
                        Some(ask) => {
                            let usage = usage(answer, number);
                            let is_broken = usage.is_err();
                            let _ = ask.send(usage);
                            if is_broken {
                                return Err(invalid("an answer is none"));
                            }
                            continue;
                        }
                        None => refused(None, "nothing was asked"),
                    },
                    Err(error) => match waits.take() {
                        Some(ask) => {
                            let _ = ask.send(Err(invalid(error.clone())));
                            return Err(invalid(error));
                        }
                        None => refused(None, &error),
                    },
                };
                timeout(ANSWERED_WITHIN, lines.write(&answer)).await.map_err(|_| late())??;
            }
        }
    }
}

fn usage(answer: Answer, number: u64) -> io::Result<Usage> {
    if answer.number != Some(number) {
        return Err(invalid(format!("the answer to request {number} has number {:?}", answer.number)));
    }
    // The engine's error is not shown: it may have control characters, and does not help an administrator.
    answer.usage.ok_or_else(|| invalid("the engine refuses the request"))
}

fn refused(number: Option<u64>, error: &str) -> Answer {
    Answer { number, error: Some(error.to_owned()), ..Answer::default() }
}

async fn hello(lines: &mut Lines<Receiving>) -> io::Result<Hello> {
    let line = lines.read().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
    read(&line).map_err(invalid)
}

fn said_nothing(error: &io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, format!("asking the engine: {error}"))
}

fn invalid(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.into())
}

#[cfg(test)]
mod tests;
