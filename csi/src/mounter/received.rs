//! A stream from an engine on which descriptors may come with the bytes. Enters: a connected socket. Leaves: bytes, and a limited number of
//! descriptors that came with them.
//!
//! A pod may send any descriptor, and even closing it may block: a file of a mount that does not answer, a socket that lingers. The kernel
//! closes descriptors without room in the thread that reads, and unread ones in the thread that closes the stream. So a separate thread
//! reads and closes each stream. Only the next connection to the same engine waits for that thread.
//!
//! Never here: a use of a descriptor.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as Blocking;
use std::pin::Pin;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::task::{Context, Poll, ready};
use std::thread;

use mountpoint::sync::{Arc, Mutex};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, Shutdown, recvmsg};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};

/// Most descriptors that the kernel accepts with one message (`SCM_MAX_FD`).
const ROOM: usize = 253;
/// Most descriptors that are kept of one message: more than any request needs, so too many can be distinguished.
const AT_ONCE: usize = 4;
/// Most descriptors that are kept without a request; a peer that sends more breaks the protocol.
const HELD_MAX: usize = 8;
/// Bytes per read. Our messages have some hundreds.
const CHUNK: usize = 1024;

/// Marks whether the one thread that may handle descriptors of an engine is busy.
#[derive(Debug, Default)]
pub(super) struct Busy(Mutex<Inside>);

#[derive(Debug, Default)]
struct Inside {
    is_busy: bool,
    /// Descriptors that the busy thread closes before it ends.
    left: Vec<OwnedFd>,
}

impl Busy {
    /// Whether a thread is busy.
    pub(super) fn is(&self) -> bool {
        self.0.lock().is_busy
    }

    /// Makes the caller the busy thread, until it calls [`Self::end`], and returns the descriptors. `None` if another thread is busy: that
    /// one closes them.
    pub(super) fn begin(&self, held: Vec<OwnedFd>) -> Option<Vec<OwnedFd>> {
        let mut inside = self.0.lock();
        if inside.is_busy {
            inside.left.extend(held);
            return None;
        }
        inside.is_busy = true;
        Some(held)
    }

    /// Closes descriptors that came meanwhile; then another thread may begin.
    pub(super) fn end(&self) {
        loop {
            let left = {
                let mut inside = self.0.lock();
                inside.is_busy = !inside.left.is_empty();
                std::mem::take(&mut inside.left)
            };
            if left.is_empty() {
                return;
            }
        }
    }
}

/// The stream, for reading and writing.
#[derive(Debug)]
pub(super) struct Receiving {
    /// The writing end. It is dropped before the thread's own copy: closing the last copy may block.
    stream: UnixStream,
    files: Files,
    /// Received bytes that the caller has not taken yet.
    bytes: Vec<u8>,
    came: Option<mpsc::Receiver<Came>>,
    /// Sends further things to close to the thread. The thread closes them when this sender is dropped, which happens last.
    rest: SyncSender<Rest>,
}

type Rest = (Files, Option<mpsc::Receiver<Came>>);

/// The bytes and descriptors of one message.
#[derive(Debug)]
struct Came {
    bytes: Vec<u8>,
    files: Files,
}

/// Received descriptors.
#[derive(Debug, Default)]
pub(super) struct Files {
    /// The kept descriptors.
    pub(super) held: Vec<OwnedFd>,
    /// Whether there were more.
    pub(super) is_cut: bool,
    /// Whether some came while a thread was busy, and are closed already.
    pub(super) came_while_busy: bool,
}

impl Receiving {
    /// Starts to read a stream. With `busy`, descriptors are kept while no thread is busy. The receiver tells when the stream is closed.
    pub(super) fn new(
        stream: Blocking,
        busy: Option<Arc<Busy>>,
    ) -> io::Result<(Self, oneshot::Receiver<()>)> {
        let (tell, came) = mpsc::channel(1);
        let (end, ended) = oneshot::channel();
        let (rest, left) = sync_channel(1);
        let ours = stream.try_clone()?;
        thread::Builder::new().name("reading".into()).spawn(move || {
            read(&stream, busy.as_deref(), &tell);
            drop(tell);
            drop(left.iter().collect::<Vec<Rest>>());
            drop(stream);
            // The receiver may be gone.
            let _ = end.send(());
        })?;
        ours.set_nonblocking(true)?;
        let stream = UnixStream::from_std(ours)?;
        Ok((Self { stream, files: Files::default(), bytes: Vec::new(), came: Some(came), rest }, ended))
    }

    /// The id of the process at the other end, if it is visible from here.
    pub(super) fn peer(&self) -> io::Result<Option<i32>> {
        Ok(self.stream.peer_cred()?.pid())
    }

    /// Takes the descriptors that came since the last request.
    pub(super) fn take(&mut self) -> Files {
        std::mem::take(&mut self.files)
    }
}

impl AsyncRead for Receiving {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { files, bytes, came, .. } = self.get_mut();
        if bytes.is_empty()
            && let Some(came) = came
            && let Some(Came { bytes: more, files: with }) = ready!(came.poll_recv(cx))
        {
            *bytes = more;
            files.held.extend(with.held);
            files.is_cut |= with.is_cut;
            files.came_while_busy |= with.came_while_busy;
            if files.held.len() > HELD_MAX {
                let text = "the engine sends descriptors without a request";
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, text)));
            }
        }
        let count = bytes.len().min(into.remaining());
        into.put_slice(&bytes[..count]);
        bytes.drain(..count);
        Poll::Ready(Ok(()))
    }
}

impl Drop for Receiving {
    fn drop(&mut self) {
        // Shutdown wakes the thread.
        let _ = rustix::net::shutdown(&self.stream, Shutdown::Both);
        if let Some(came) = &mut self.came {
            came.close();
        }
        let rest = (self.take(), self.came.take());
        let _ = self.rest.send(rest);
    }
}

/// Reads until the stream ends, or the receiver is dropped.
fn read(stream: &Blocking, busy: Option<&Busy>, tell: &mpsc::Sender<Came>) {
    loop {
        match receive(stream, busy) {
            Ok(came) if !came.bytes.is_empty() => {
                if tell.blocking_send(came).is_err() {
                    return;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // The stream ends here; a sender of half a line gets an error.
            Ok(_) | Err(_) => return,
        }
    }
}

fn receive(from: &Blocking, busy: Option<&Busy>) -> io::Result<Came> {
    rustix::io::retry_on_intr(|| poll(&mut [PollFd::new(from, PollFlags::IN)], None))?;
    let (mut bytes, mut held) = (vec![0; CHUNK], Vec::new());
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(ROOM))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received =
        rustix::io::retry_on_intr(|| recvmsg(from, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags))?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            held.extend(descriptors);
        }
    }
    bytes.truncate(received.bytes);
    let has_some = !held.is_empty();
    let came_while_busy = has_some && busy.is_some_and(Busy::is);
    if came_while_busy || busy.is_none() {
        held.clear();
    }
    let is_cut = received.flags.contains(ReturnFlags::CTRUNC) || held.len() > AT_ONCE;
    held.truncate(AT_ONCE);
    Ok(Came { bytes, files: Files { held, is_cut, came_while_busy } })
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
