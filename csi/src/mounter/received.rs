//! A stream of an engine that may bring descriptors with its bytes. Enters: a connected socket. Leaves: bytes, and the descriptors that came with them,
//! as far as there are few.
//!
//! Never here: a use of a descriptor. A pod may have sent any file: even closing it may wait. So while one thread waits, no more are taken.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use mountpoint::sync::Arc;
use mountpoint::sync::atomic::{AtomicBool, Ordering};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::UnixStream;

/// Descriptors that one message may bring: more than any request needs, so that too many can be told from enough.
const AT_ONCE: usize = 4;
/// Descriptors without a request that are held; a peer that sends more breaks the protocol.
const HELD_MAX: usize = 8;

/// The stream.
#[derive(Debug)]
pub(super) struct Receiving {
    stream: UnixStream,
    files: Files,
    /// A thread is busy with descriptors of this engine. `None`: none are taken.
    is_stuck: Option<Arc<AtomicBool>>,
}

/// The descriptors that came.
#[derive(Debug, Default)]
pub(super) struct Files {
    /// The descriptors.
    pub(super) held: Vec<OwnedFd>,
    /// The kernel dropped more.
    pub(super) is_cut: bool,
}

impl Receiving {
    /// Takes bytes, and no descriptors.
    pub(super) fn new(stream: UnixStream) -> Self {
        Self { stream, files: Files::default(), is_stuck: None }
    }

    /// Takes descriptors, too, from now on, while this is not set.
    pub(super) fn take_files(&mut self, is_stuck: Arc<AtomicBool>) {
        self.is_stuck = Some(is_stuck);
    }

    /// Takes out what came since the last request.
    pub(super) fn take(&mut self) -> Files {
        std::mem::take(&mut self.files)
    }
}

impl AsyncRead for Receiving {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { stream, files, is_stuck } = self.get_mut();
        if is_stuck.as_ref().is_none_or(|is_stuck| is_stuck.load(Ordering::SeqCst)) {
            // The kernel drops descriptors that have no place, and waits for none.
            return Pin::new(stream).poll_read(cx, into);
        }
        if files.held.len() > HELD_MAX {
            let text = "the engine sends descriptors without a request";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, text)));
        }
        loop {
            ready!(stream.poll_read_ready(cx))?;
            let received = stream
                .try_io(Interest::READABLE, || receive(stream.as_fd(), into.initialize_unfilled(), files));
            match received {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                received => {
                    into.advance(received?);
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

impl Drop for Receiving {
    fn drop(&mut self) {
        let (held, Some(is_stuck)) = (self.take().held, self.is_stuck.take()) else { return };
        if held.is_empty() {
            return;
        }
        is_stuck.store(true, Ordering::SeqCst);
        let dropping = std::thread::Builder::new().name("dropping".into());
        // Without a thread, they are closed here.
        let _ = dropping.spawn(move || {
            drop(held);
            is_stuck.store(false, Ordering::SeqCst);
        });
    }
}

fn receive(from: BorrowedFd<'_>, into: &mut [u8], files: &mut Files) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = loop {
        match recvmsg(from, &mut [IoSliceMut::new(into)], &mut control, flags) {
            Err(rustix::io::Errno::INTR) => {}
            received => break received?,
        }
    };
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            files.held.extend(descriptors);
        }
    }
    files.is_cut |= received.flags.contains(ReturnFlags::CTRUNC);
    Ok(received.bytes)
}

impl AsyncWrite for Receiving {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
