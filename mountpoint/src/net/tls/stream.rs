//! The stream of a TLS connection after its handshake: moves bytes between a wire and the buffers of its session.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::net::tls::session::{Agreed, CONTENT_MAX, Failure, OVERHEAD, Progress, Session};

/// Most bytes encrypted at once: four full records, and a short one before them.
const SEND: usize = 4 * (CONTENT_MAX + OVERHEAD) + (2 << 10);

/// Bytes by which the first of several records is shorter. rustls copies content into memory that begins at a page boundary. A copy from
/// the same offset of another page takes several times as long, because the processor mistakes its loads for loads of the bytes just
/// stored; measured: 0.50 CPU-s/GiB for encryption instead of 0.25. Blocks begin at page boundaries and full records are whole pages long,
/// so without this every copy would be slow.
pub(super) const SKEW: usize = 64;

/// A TLS stream over `wire`.
pub(in crate::net) struct TlsStream<S> {
    wire: S,
    session: Session,
    agreed: Agreed,
    /// Whether the client sent close_notify.
    is_closed: bool,
    /// The reason why no more bytes can be read.
    failure: Option<Failure>,
}

/// Prints no content, since it belongs to files.
impl<S> std::fmt::Debug for TlsStream<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsStream")
            .field("session", &self.session)
            .field("failure", &self.failure)
            .finish_non_exhaustive()
    }
}

impl<S> TlsStream<S> {
    /// A stream over `wire`, after the handshake of `session` with this agreement.
    pub(super) fn new(wire: S, session: Session, agreed: Agreed) -> Self {
        Self { wire, session, agreed, is_closed: false, failure: None }
    }

    /// The result of the handshake.
    pub(in crate::net) fn agreed(&self) -> &Agreed {
        &self.agreed
    }

    /// Whether all received bytes were read, even parts of records, and the keys last for another request. Unread bytes can't be the answer
    /// to that request. TLS 1.2 can't change keys: its connection is closed between two requests, before the keys are used up.
    pub(in crate::net) fn is_at_rest(&self) -> bool {
        let Session { received, kept, has_peer_closed, .. } = &self.session;
        let has_ended = self.failure.is_some() || *has_peer_closed;
        !has_ended && received.is_empty() && kept.is_empty() && !self.session.is_worn()
    }

    #[cfg(feature = "testing")]
    pub(super) fn wire(&mut self) -> &mut S {
        &mut self.wire
    }

    /// Bytes of memory that the stream holds.
    #[cfg(feature = "testing")]
    pub(super) fn memory(&self) -> usize {
        self.session.memory()
    }

    /// Ends the stream: it returns this failure from now on.
    fn fail(&mut self, failure: Failure) -> io::Error {
        if let Failure::Flood = failure {
            // rustls found no fault itself, so close_notify is the last message. If it can't be queued, the connection ends without it.
            let _ = self.session.close();
        }
        io::Error::from(&*self.failure.insert(failure))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream<S> {
    /// Sends the encrypted bytes.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { wire, session, .. } = self;
        while !session.to_send.bytes().is_empty() {
            match ready!(Pin::new(&mut *wire).poll_write(cx, session.to_send.bytes()))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                n => session.to_send.sent(n),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Decrypts records into `buf`, until `buf` is full or no complete record is left; receives bytes while `buf` has no new content.
    fn poll_fill(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        self.session.kept.give(buf);
        loop {
            let is_done = buf.filled().len() > before;
            if buf.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
            match &self.failure {
                Some(failure) if !is_done => return Poll::Ready(Err(failure.into())),
                None if !self.session.has_peer_closed => {}
                _ => return Poll::Ready(Ok(())),
            }
            match self.session.open(buf) {
                Ok(_) if self.session.is_flooded() => drop(self.fail(Failure::Flood)),
                Ok(Progress::Content) => {}
                Ok(_) if buf.filled().len() > before => return Poll::Ready(Ok(())),
                Ok(_) if self.session.has_peer_closed => {}
                Ok(_) => ready!(self.poll_receive(cx))?,
                Err(error) => drop(self.fail(Failure::Rustls(error))),
            }
        }
    }

    /// Receives more bytes of a record.
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.session.to_send.bytes().is_empty()
            && let Err(error) = self.session.answer()
        {
            return Poll::Ready(Err(self.fail(Failure::Rustls(error))));
        }
        let mut spare = ReadBuf::new(self.session.received.spare());
        if spare.capacity() == 0 {
            return Poll::Ready(Err(self.fail(Failure::TooLong)));
        }
        ready!(Pin::new(&mut self.wire).poll_read(cx, &mut spare))?;
        match spare.filled().len() {
            0 => Poll::Ready(Err(self.fail(Failure::BareEnd))),
            n => {
                self.session.received.fill(n);
                Poll::Ready(Ok(()))
            }
        }
    }
}

/// Splits `content` into the contents of records.
fn records(content: &[u8]) -> impl Iterator<Item = &[u8]> {
    let first = if content.len() > CONTENT_MAX { CONTENT_MAX - SKEW } else { content.len() };
    let (first, rest) = content.split_at(first);
    std::iter::once(first).filter(|first| !first.is_empty()).chain(rest.chunks(CONTENT_MAX))
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for TlsStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = self.poll_fill(cx, buf);
        // Sends answers to key updates, and alerts. The next write sends what is left, and reports an error.
        let _ = self.poll_send(cx);
        read
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for TlsStream<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[io::IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &self.failure {
            Some(failure) => return Poll::Ready(Err(failure.into())),
            None if self.is_closed => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            None => {}
        }
        ready!(self.poll_send(cx))?;
        let mut sealed = 0;
        for piece in bufs.iter().flat_map(|buf| records(buf)) {
            if self.session.to_send.end() + piece.len() + OVERHEAD > SEND {
                break;
            }
            match self.session.seal(piece) {
                Ok(Ok(())) => sealed += piece.len(),
                Ok(Err(_)) if sealed > 0 => break,
                Ok(Err(error)) => return Poll::Ready(Err(error)),
                Err(error) => return Poll::Ready(Err(self.fail(Failure::Rustls(error)))),
            }
        }
        match self.poll_send(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            // Bytes that the kernel did not take are sent by the next write or flush.
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Ready(Ok(sealed)),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send(cx))?;
        Pin::new(&mut self.wire).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !std::mem::replace(&mut self.is_closed, true)
            && self.failure.is_none()
            && let Err(error) = self.session.close()
        {
            return Poll::Ready(Err(self.fail(Failure::Rustls(error))));
        }
        ready!(self.poll_send(cx))?;
        Pin::new(&mut self.wire).poll_shutdown(cx)
    }
}
