//! Bytes with descriptors over a stream socket. Enters: bytes and descriptors. Leaves: the same, at the other end.
//!
//! Never here: the meaning of the bytes or descriptors.

use std::io::{self, IoSlice, IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Most descriptors of one call. Messages have two at most; a sender of a few more gets a clear error, and none is cut off.
const DESCRIPTORS_MAX: usize = 8;

/// Sends bytes, and the descriptors with the first of them.
///
/// # Errors
/// `TimedOut` after `within`; other errors of the socket.
pub fn send(
    stream: &UnixStream,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
    within: Duration,
) -> io::Result<()> {
    stream.set_write_timeout(Some(within.max(Duration::from_millis(1))))?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other(format!("no room for {} descriptors", descriptors.len())));
    }
    // The rest of the bytes follows without descriptors.
    let sent = loop {
        match sendmsg(stream, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL) {
            Ok(sent) => break sent,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(timed(error.into())),
        }
    };
    let mut writer = stream;
    writer.write_all(&bytes[sent..]).map_err(timed)
}

/// Receives bytes and descriptors until the byte `last`, or until the sender closes its side of the stream.
///
/// # Errors
/// `TimedOut` after `within`; `InvalidData` for more than `limit` bytes, too many descriptors, or bytes after `last`.
pub fn receive(
    stream: &UnixStream,
    limit: usize,
    last: Option<u8>,
    within: Duration,
) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let until = Instant::now() + within;
    let (mut bytes, mut descriptors) = (Vec::new(), Vec::new());
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let mut chunk = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
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
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) || descriptors.len() > DESCRIPTORS_MAX {
            return Err(invalid("the message brings more descriptors than one or two"));
        }
        bytes.extend_from_slice(&chunk[..received.bytes]);
        if bytes.len() > limit {
            return Err(invalid(format!("the message is longer than {limit} bytes")));
        }
        match last.and_then(|last| bytes.iter().position(|byte| *byte == last)) {
            Some(at) if at + 1 == bytes.len() => return Ok((bytes, descriptors)),
            Some(_) => return Err(invalid("there are bytes behind the message")),
            None if received.bytes > 0 => {}
            None if last.is_some() => return Err(io::ErrorKind::UnexpectedEof.into()),
            None => return Ok((bytes, descriptors)),
        }
    }
}

/// Turns `WouldBlock`, the error of a socket whose time limit has passed, into `TimedOut`.
pub(super) fn timed(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock { io::ErrorKind::TimedOut.into() } else { error }
}

pub(super) fn invalid(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.into())
}
