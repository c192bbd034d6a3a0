//! A stream that passes a file descriptor along with the next bytes that are written. The kernel drops descriptors that a peer sends.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::UnixStream;

/// The stream, and the descriptor for the next bytes.
#[derive(Debug)]
pub(super) struct Handing {
    stream: UnixStream,
    file: Option<OwnedFd>,
}

impl Handing {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self { stream, file: None }
    }

    /// Passes this descriptor along with the next bytes.
    pub(super) fn hand(&mut self, file: OwnedFd) {
        self.file = Some(file);
    }
}

impl AsyncRead for Handing {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, into)
    }
}

impl AsyncWrite for Handing {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let Some(file) = &this.file else { return Pin::new(&mut this.stream).poll_write(cx, bytes) };
        loop {
            ready!(this.stream.poll_write_ready(cx))?;
            match this.stream.try_io(Interest::WRITABLE, || send(this.stream.as_fd(), bytes, file.as_fd())) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                sent => {
                    this.file = None;
                    return Poll::Ready(sent);
                }
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

fn send(to: BorrowedFd<'_>, bytes: &[u8], file: BorrowedFd<'_>) -> io::Result<usize> {
    let files = [file];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&files)) {
        return Err(io::Error::other("no room for one descriptor"));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    Ok(rustix::io::retry_on_intr(|| sendmsg(to, &[IoSlice::new(bytes)], &mut control, flags))?)
}
