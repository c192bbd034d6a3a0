//! The hand-over of a mount: the node connects to the mounter's socket, sends one message with the FUSE device, ends its side of the
//! connection, and reads one line back.
//!
//! A mounter of release 2.2 closes without a line; a node of release 2.2 never reads one. Both work: the node need not get an
//! answer, and the mounter ignores the loss of its answer. Both sides ignore unknown fields.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};

/// The longest message, in bytes. Ours are a few kilobytes; the limit ends a sender that never stops.
pub const MESSAGE_LIMIT: usize = 1 << 20;
/// The longest answer, in bytes.
const ANSWER_LIMIT: usize = 64 << 10;

/// The order to the engine: the device, its arguments and environment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MountMessage {
    /// The bucket.
    pub bucket_name: String,
    /// The engine's flags, `--key` or `--key=value`, sorted.
    pub args: Vec<String>,
    /// The engine's whole environment, `KEY=value`.
    pub env: Vec<String>,
}

/// The answer of the mounter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "camelCase")]
pub enum Answer {
    /// The mount is served.
    Ready,
    /// The mount failed, with the engine's own words.
    Failed {
        /// The error, in one line.
        error: String,
    },
}

/// Connects to a mounter's socket. If the path is longer than a socket address (107 bytes), the call goes through its directory's
/// descriptor.
///
/// # Errors `NotFound` or `ConnectionRefused` while no process listens there yet; other errors of connect(2).
pub fn connect(socket: &Path) -> io::Result<UnixStream> {
    with_short_path(socket, |path| UnixStream::connect(path))
}

/// Listens where [`connect`] connects.
///
/// # Errors `AddrInUse` if the file exists already; other errors of bind(2).
pub fn listen(socket: &Path) -> io::Result<UnixListener> {
    with_short_path(socket, |path| UnixListener::bind(path))
}

/// The kernel takes 108 bytes of path with the final zero.
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

/// Sends the message and the device, then closes this side's writing half, so that the mounter sees the end.
///
/// # Errors `TimedOut` after `within`; other errors of the socket.
pub fn send(
    stream: &UnixStream,
    message: &MountMessage,
    device: BorrowedFd<'_>,
    within: Duration,
) -> io::Result<()> {
    let bytes = serde_json::to_vec(message).map_err(io::Error::other)?;
    stream.set_write_timeout(Some(within.max(Duration::from_millis(1))))?;
    let descriptors = [device];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::Error::other("no room for one descriptor"));
    }
    // The device goes with the first bytes; the rest follows as a plain stream.
    let sent = loop {
        match sendmsg(stream, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL) {
            Ok(sent) => break sent,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(timed(error.into())),
        }
    };
    let mut writer = stream;
    writer.write_all(&bytes[sent..]).map_err(timed)?;
    stream.shutdown(Shutdown::Write)
}

/// Receives one message and its device, to the sender's end of the stream.
///
/// # Errors
/// `TimedOut` after `within`; `InvalidData` if there is not exactly one descriptor, too long a message, or not this JSON.
pub fn receive(stream: &UnixStream, within: Duration) -> io::Result<(MountMessage, OwnedFd)> {
    let until = Instant::now() + within;
    let mut bytes = Vec::new();
    let mut devices: Vec<OwnedFd> = Vec::new();
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let mut chunk = [0; 4096];
        // Room for more than one: a sender of two gets an error, rather than being cut off.
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = match recvmsg(
            stream,
            &mut [IoSliceMut::new(&mut chunk)],
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC,
        ) {
            Ok(received) => received,
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(timed(error.into())),
        };
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                devices.extend(descriptors);
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) {
            return Err(invalid("the message brings more descriptors than one"));
        }
        if received.bytes == 0 {
            break;
        }
        bytes.extend_from_slice(&chunk[..received.bytes]);
        if bytes.len() > MESSAGE_LIMIT {
            return Err(invalid(format!("the message is longer than {MESSAGE_LIMIT} bytes")));
        }
    }
    let count = devices.len();
    let Ok([device]) = <[OwnedFd; 1]>::try_from(devices) else {
        return Err(invalid(format!(
            "the message brings {count} descriptors, and must bring one: the FUSE device"
        )));
    };
    let message = serde_json::from_slice(&bytes)
        // The text may hold secrets: serde's error names the place and the expectation, and that is enough.
        .map_err(|error| invalid(format!("the message is not a mount message: {error}")))?;
    Ok((message, device))
}

/// Answers the node. A node of release 2.2 has closed already: that is not an error.
///
/// # Errors
/// Errors of the socket, except that the other side does not read.
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
/// # Errors `TimedOut` after `within`; `InvalidData` if the bytes are not an answer.
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
            // A mounter that dies with our bytes unread resets the connection, without an answer.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => break,
            Err(error) => return Err(timed(error)),
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

/// Turns `WouldBlock`, by which a socket reports its time limit, into `TimedOut`.
fn timed(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock { io::ErrorKind::TimedOut.into() } else { error }
}

fn invalid(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.into())
}

#[cfg(test)]
mod tests;
