//! The hand-over of a mount: the node connects to the mounter's socket, sends one message with the FUSE device, ends its side of the
//! connection, and reads one line back.
//!
//! A mounter of release 2.2 closes without a line; a node of release 2.2 never reads one. Both work: the node can go on without an
//! answer, and the mounter ignores that its answer is not read. Both sides ignore unknown fields.
//!
//! The node's holder sends the same message with device and journal of a mount whose container ended (`hold`).

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::rights::{self, invalid};

/// The longest message, in bytes; a longer one is refused. Ours have a few kilobytes; the limit stops a sender without an end.
pub const MESSAGE_LIMIT: usize = 1 << 20;
/// The longest answer, in bytes; a longer one is refused.
const ANSWER_LIMIT: usize = 64 << 10;

/// The order to serve a mount: the bucket, the engine's arguments and its environment. The device comes beside it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MountMessage {
    /// The bucket.
    pub bucket_name: String,
    /// The engine's flags, `--key` or `--key=value`, sorted.
    pub args: Vec<String>,
    /// The engine's whole environment, `KEY=value`.
    pub env: Vec<String>,
    /// The time since which a mount in use has had no engine. The new engine goes on with it; the journal comes with the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adopt: Option<Timestamp>,
    /// The last descriptor is a directory of the node for files under change (`mode full`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stage: bool,
}

/// The descriptors of a mount, owned or borrowed.
#[derive(Clone, Copy, Debug)]
pub struct Mount<T> {
    /// The FUSE device.
    pub device: T,
    /// The journal of the earlier engines, if the mount had any.
    pub journal: Option<T>,
    /// A directory of the node for files under change.
    pub stage: Option<T>,
}

/// The answer of the mounter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "camelCase")]
pub enum Answer {
    /// The mount is served.
    Ready,
    /// The mount failed, for the engine's reason.
    Failed {
        /// The error, in one line.
        error: String,
    },
}

/// Connects to a mounter's socket. If the path is longer than a socket address (107 bytes), the call reaches the socket by a descriptor of
/// its directory.
///
/// # Errors
/// `NotFound` or `ConnectionRefused` while no process listens there yet; other errors of connect(2).
pub fn connect(socket: &Path) -> io::Result<UnixStream> {
    with_short_path(socket, |path| UnixStream::connect(path))
}

/// Listens where [`connect`] connects.
///
/// # Errors
/// `AddrInUse` if the file exists already; other errors of bind(2).
pub fn listen(socket: &Path) -> io::Result<UnixListener> {
    with_short_path(socket, |path| UnixListener::bind(path))
}

/// Calls `call` with a path that fits into a socket address, which has 108 bytes with the final zero.
fn with_short_path<T>(socket: &Path, call: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    if socket.as_os_str().len() < 108 {
        return call(socket);
    }
    let (Some(directory), Some(name)) = (socket.parent(), socket.file_name()) else {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "a socket's path has a directory and a name",
        ));
    };
    let directory = File::open(directory)?;
    let descriptor = directory.as_raw_fd();
    call(&Path::new("/proc/self/fd").join(descriptor.to_string()).join(name))
}

/// Sends the message and its descriptors, then closes the writing side of the stream, so the mounter sees the end.
///
/// # Errors
/// `TimedOut` after `within`; other errors of the socket.
pub fn send(
    stream: &UnixStream,
    message: &MountMessage,
    mount: Mount<BorrowedFd<'_>>,
    within: Duration,
) -> io::Result<()> {
    let bytes = serde_json::to_vec(message).map_err(io::Error::other)?;
    let descriptors: Vec<_> = std::iter::once(mount.device).chain(mount.journal).chain(mount.stage).collect();
    rights::send(stream, &bytes, &descriptors, within)?;
    stream.shutdown(Shutdown::Write)
}

/// Receives one message and its descriptors, until the sender closes its side of the stream.
///
/// # Errors
/// `TimedOut` after `within`; `InvalidData` if the number of descriptors does not fit, or the message is too long or not this JSON.
pub fn receive(stream: &UnixStream, within: Duration) -> io::Result<(MountMessage, Mount<OwnedFd>)> {
    let (bytes, descriptors) = rights::receive(stream, MESSAGE_LIMIT, None, within)?;
    if descriptors.is_empty() {
        return Err(invalid("the message brings 0 descriptors, and must bring one: the FUSE device"));
    }
    let message: MountMessage = serde_json::from_slice(&bytes)
        // The text may contain secrets. serde's error names only the place and the expected type, which suffices.
        .map_err(|error| invalid(format!("the message is not a mount message: {error}")))?;
    let count = descriptors.len();
    let mut descriptors = descriptors.into_iter();
    let (device, mut take) =
        (descriptors.next(), |is_there: bool| if is_there { descriptors.next() } else { None });
    let (journal, stage) = (take(message.adopt.is_some()), take(message.stage));
    let wanted = 1 + usize::from(message.adopt.is_some()) + usize::from(message.stage);
    match device {
        Some(device) if count == wanted => Ok((message, Mount { device, journal, stage })),
        _ => {
            let names = match (message.adopt.is_some(), message.stage) {
                (false, false) => "one: the FUSE device",
                (true, false) => "two: the FUSE device and the journal",
                (false, true) => "two: the FUSE device and the stage",
                (true, true) => "three: the FUSE device, the journal and the stage",
            };
            Err(invalid(format!("the message brings {count} descriptors, and must bring {names}")))
        }
    }
}

/// Sends the answer to the node. A node of release 2.2 has closed the stream already; that is not an error.
///
/// # Errors
/// Errors of the socket, except those of a node that has closed the stream.
pub fn answer(stream: &UnixStream, answer: &Answer) -> io::Result<()> {
    let mut line = serde_json::to_vec(answer).map_err(io::Error::other)?;
    line.push(b'\n');
    stream.set_write_timeout(Some(Duration::from_secs(10)))?;
    let mut writer = stream;
    match writer.write_all(&line) {
        Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
            Ok(())
        }
        written => written,
    }
}

/// Reads the mounter's answer; `None` if the mounter closed without an answer, as release 2.2 does.
///
/// # Errors
/// `TimedOut` after `within`; `InvalidData` if the bytes are not an answer.
pub fn read_answer(stream: &UnixStream, within: Duration) -> io::Result<Option<Answer>> {
    let until = Instant::now() + within;
    let mut line = Vec::new();
    let mut reader = stream;
    while !line.contains(&b'\n') {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let mut chunk = [0; 1024];
        match reader.read(&mut chunk) {
            Ok(0) => break,
            Ok(got) => line.extend_from_slice(&chunk[..got]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // A mounter that dies before it has read all our bytes resets the connection.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => break,
            Err(error) => return Err(rights::timed(error)),
        }
        if line.len() > ANSWER_LIMIT {
            return Err(invalid(format!("the mounter's answer is longer than {ANSWER_LIMIT} bytes")));
        }
    }
    if line.is_empty() {
        return Ok(None);
    }
    serde_json::from_slice(&line)
        .map(Some)
        .map_err(|error| invalid(format!("the mounter's answer is not valid: {error}")))
}

#[cfg(test)]
mod tests;
